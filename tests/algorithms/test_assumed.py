"""What a machine is assumed to be when only its topology is known."""

from dataclasses import replace

import pytest

from collbench.algorithms import assumed
from collbench.algorithms.base import registry
from collbench.algorithms.predictions import Forecast
from collbench.contention.traffic import Move
from collbench.results.records import Call, Fabric
from collbench.topology import catalog
from collbench.topology.graph import NodeKind, Topology
from collbench.topology.machine import Machine


def topology(name: str) -> Topology:
    return catalog.load(catalog.find(name))


@pytest.mark.parametrize(("name", "p2p", "arch"), [
    ("two-flat-gen5-switches", "ok", "sm_120"), ("direct-4x4090-no-p2p", "off", "sm_89"),
    ("cube-mesh-8xv100", "ok", "sm_70"), ("two-arc-b70", "ok", "sm_90"),
])  # fmt: skip
def test_cards_are_known_by_their_names(name: str, p2p: str, arch: str) -> None:
    """Those of other vendors count as usual ones: it is their traffic that is asked for."""
    machine = assumed.assumed_machine(topology(name), Fabric.PCIE, 2)
    assert (machine.facts["p2p"], machine.facts["arch"]) == (p2p, arch)
    assert assumed.usual(machine).facts == {**machine.facts, "arch": "sm_90"}


def test_software_of_nvidia_is_foreign_on_other_cards_only() -> None:
    ring, push = registry()["nccl_ring_ll"], registry()["push"]
    assert assumed.why_foreign(ring, topology("two-arc-b70")) == "made for NVIDIA's GPUs, and these are Intel's"
    assert assumed.why_foreign(push, topology("two-arc-b70")) == ""
    assert assumed.why_foreign(ring, topology("nvswitch-8gpu")) == ""


@pytest.mark.parametrize("off", ["ns", "off", "disabled"])
def test_bytes_are_staged_where_the_machine_or_its_file_says_so(off: str) -> None:
    call = Call(4096, 4)
    flat, apart = topology("two-flat-gen5-switches"), topology("direct-4x4090-no-p2p")
    ring = registry()["nccl_ring_ll"]

    def moves(machine: Machine) -> set[Move]:
        return {flow.move for phase in assumed.traffic_of(ring, call, machine).phases for flow in phase.flows}

    healthy = Machine(flat, Fabric.PCIE, 4, facts={"p2p": "ok"})
    assert moves(healthy) == {Move.PUSH}
    assert moves(replace(healthy, facts={"p2p": off})) == {Move.HOST}
    assert moves(Machine(apart, Fabric.PCIE, 4)) == {Move.HOST}


@pytest.mark.parametrize(("name", "ranks", "said"), [
    ("four-switches-16gpu", 16, "CUDA maps at most 8 peers"), ("direct-4x4090-no-p2p", 4, "no peer access"),
    ("xgmi-mesh-8xmi355x", 8, "these GPUs are AMD's"),
])  # fmt: skip
def test_readers_are_told(name: str, ranks: int, said: str) -> None:
    (note,) = assumed.notes(topology(name), Fabric.PCIE, ranks)
    assert said in note


def test_where_nvlink_does_not_join_all_the_order_of_rings_counts() -> None:
    (note,) = assumed.notes(topology("cube-mesh-8xv100"), Fabric.MIXED, 8)
    assert "NCCL orders its own along NVLinks" in note


def test_an_ordinary_machine_needs_no_note() -> None:
    assert assumed.notes(topology("two-flat-gen5-switches"), Fabric.PCIE, 8) == ()
    assert assumed.notes(topology("four-switches-16gpu"), Fabric.PCIE, 9) == ()


PCIE_BOXES = ("two-flat-gen5-switches", "root-leaf-switches", "dual-socket-8xl40s", "dual-socket-direct",
              "aws-g5-8xa10g", "two-switches-8x4090-no-p2p", "direct-4x4090-no-p2p")  # fmt: skip


def with_peer_access(box: Topology, word: str) -> Topology:
    nodes = [
        replace(one, attributes={**one.attributes, "peer_access": word}) if one.kind is NodeKind.GPU else one
        for one in box.nodes
    ]
    return replace(box, nodes=tuple(nodes))


@pytest.mark.parametrize("name", PCIE_BOXES)
@pytest.mark.parametrize("size", [1024, 4096])
def test_staging_is_never_faster_than_peer_access_on_the_same_links(name: str, size: int) -> None:
    """Neither by time nor by floor, for every ring and tree of NCCL."""
    rows = {
        word: {row["algorithm"]: row for row in Forecast(with_peer_access(topology(name), word)).rows([size])}
        for word in ("direct", "none")
    }
    assert len(rows["none"]) >= 6
    for algorithm, staged in rows["none"].items():
        assert staged["total_us"] > 1.02 * rows["direct"][algorithm]["total_us"]
        assert staged["floor_us"] > rows["direct"][algorithm]["floor_us"]


def test_staged_ways_of_one_machine_are_not_faster_than_the_peers_of_another() -> None:
    """Eight A10G whose virtual machine hides switches and root ports, against two switches with peer access."""
    times = [
        {row["algorithm"]: row for row in Forecast(topology(name)).rows([1024])}
        for name in ("two-flat-gen5-switches", "aws-g5-8xa10g")
    ]
    for name in times[1]:
        assert times[1][name]["total_us"] > times[0][name]["total_us"]
        assert times[1][name]["floor_us"] > 0.8 * times[0][name]["floor_us"]
