"""Classes of wiring: every class of the file makes a topology in which its GPUs reach each other."""

import itertools
import tomllib

import pytest

from collbench.topology import catalog
from collbench.topology.classes import FILE, class_topology

CLASSES = {
    name: row
    for name, row in tomllib.loads((catalog.folder() / f"{FILE}.toml").read_text()).items()
    if isinstance(row, dict)
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_reach_each_other(name: str, ranks: int) -> None:
    topology = class_topology(name, 5, ranks)
    if topology is None:
        pytest.skip(f"{name} has no {ranks} GPUs")
    for a, b in itertools.permutations(topology.gpus[:ranks], 2):
        assert topology.route(a, b)


def test_shapes_are_what_their_names_say() -> None:
    flat = class_topology("1sock-4switch-flat(4gpu/sw)", 5, 16)
    assert flat is not None
    assert [len(group) for group in flat.groups] == [4, 4, 4, 4]
    direct = class_topology("2sock-direct(4gpu/sock)", 4, 8)
    assert direct is not None
    assert direct.groups == ()
    assert len(direct.sockets) == 2
    assert direct.gpus == tuple(f"gpu{i}" for i in range(8))


def test_what_is_not_known_is_none() -> None:
    assert class_topology("unknown-8gpu", 5, 8) is None
    assert class_topology("1switch-4gpu", 3, 8) is None, "a class has so many GPUs"
    assert class_topology("1sock-2switch-flat(4gpu/sw)", 4, 8) is None, "a machine file has one generation"


def test_the_file_is_no_machine() -> None:
    assert FILE not in catalog.names()
