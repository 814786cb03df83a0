"""What GPUs can do, by what their nodes say."""

import pytest

from collbench.topology import catalog
from collbench.topology.capture import parse_capture
from collbench.topology.gpus import has_peer_access, host_route, vendor
from collbench.topology.graph import Node, NodeKind, Topology, TopologyError

NONE = "\tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n\nLegend:\n\n  X    = Self\n  CNS  = Chipset not supported\n"


def gpus(*attributes: dict[str, str]) -> Topology:
    return Topology(tuple(Node(f"gpu{i}", NodeKind.GPU, row) for i, row in enumerate(attributes)), ())


def test_nothing_said_means_that_they_reach_each_other() -> None:
    assert has_peer_access(gpus({}, {}))
    assert has_peer_access(gpus({"peer_access": "direct"}, {"p2p": "gpu0 U"}))


def test_a_machine_file_says_none() -> None:
    assert not has_peer_access(gpus({"peer_access": "none"}, {"peer_access": "none"}))


def test_a_capture_says_it_of_every_pair() -> None:
    """A machine on which some pairs are OK is no machine without peer access."""
    assert not has_peer_access(parse_capture(NONE).topology)
    assert has_peer_access(parse_capture(NONE.replace("X\tCNS", "X\tOK")).topology)


@pytest.mark.parametrize(("attributes", "expected"), [
    ({"model": "NVIDIA H200"}, "NVIDIA"), ({"model": "Tesla V100-SXM2-32GB"}, "NVIDIA"), ({"vendor": "0x1002"}, "AMD"),
    ({"model": "Intel Arc Pro B70"}, "Intel"), ({"model": "AMD Instinct MI355X"}, "AMD"), ({"model": "Marcus"}, ""),
    ({}, ""),
])  # fmt: skip
def test_whose_they_are(attributes: dict[str, str], expected: str) -> None:
    assert vendor(gpus(attributes, attributes)) == expected


def test_a_mixed_machine_has_no_vendor() -> None:
    assert vendor(gpus({"model": "NVIDIA H200"}, {"model": "AMD Instinct MI300X"})) == ""


def test_neighbours_below_a_switch_go_up_to_the_processor_and_down_again() -> None:
    topology = catalog.load(catalog.find("two-switches-8x4090-no-p2p"))
    ends = ["gpu0", *(link.dst for link in host_route(topology, "gpu0", "gpu1"))]
    assert ends == ["gpu0", "switch0", "root0", "socket0", "root0", "switch0", "gpu1"]
    assert len(topology.route("gpu0", "gpu1")) == 2


def test_without_a_processor_there_is_no_host_memory() -> None:
    with pytest.raises(TopologyError, match="the topology has no processor"):
        host_route(gpus({}, {}), "gpu0", "gpu1")
