"""Links whose numbers make no sense are refused by name."""

import pytest

from collbench.topology.graph import Topology, TopologyError

NODES = [{"id": "gpu0", "kind": "gpu"}, {"id": "gpu1", "kind": "gpu"}]


@pytest.mark.parametrize("value", ["fast", True, [54], 0, -1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["capacity_gbps", "latency_us"])
def test_a_number_that_is_none_is_refused_with_its_link(name: str, value: object) -> None:
    link = {"src": "gpu0", "dst": "gpu1", "kind": "pcie", name: value}
    with pytest.raises(TopologyError, match=rf"^link gpu0 -> gpu1: {name} is .*, expected a finite number above zero"):
        Topology.from_dict({"nodes": NODES, "links": [link]})


def test_a_number_may_be_unknown() -> None:
    link = {"src": "gpu0", "dst": "gpu1", "kind": "pcie", "capacity_gbps": None}
    assert Topology.from_dict({"nodes": NODES, "links": [link]}).links[0].capacity_gbps is None
