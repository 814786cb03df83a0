"""Joining hosts: ids keep apart, NICs carry the traffic."""

import pytest

from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collbench.topology.join import NetworkLink, join


def host(nics: int = 1, speed: str = "200000") -> Topology:
    names = [*(("g0", NodeKind.GPU, "") for _ in range(1)), *((f"n{i}", NodeKind.NIC, speed) for i in range(nics))]
    nodes = [Node("s", NodeKind.SOCKET), *(Node(n, kind, {"speed_mbps": v} if v else {}) for n, kind, v in names)]
    links = [Link(a, b, LinkKind.PCIE, 5, 16) for name, _, _ in names for a, b in ((name, "s"), ("s", name))]
    return Topology(tuple(nodes), tuple(links), "box", (), ("a note",))


def test_two_hosts_route_over_their_nics() -> None:
    """A path between GPUs of two hosts leaves by one NIC and enters by the other; equal ids stay apart."""
    both = join({"a": host(), "b": host()})
    assert both.gpus == ("a/g0", "b/g0")
    path = both.route("a/g0", "b/g0")
    assert [link.dst for link in path] == ["a/s", "a/n0", "b/n0", "b/s", "b/g0"]
    assert path[2].kind is LinkKind.NETWORK
    assert path[2].capacity_gbps == pytest.approx(25.0)
    assert "nominal" in path[2].provenance
    assert both.disagreements == ("a: a note", "b: a note")
    assert both.node("b/g0").attributes["host"] == "b"


def test_rails_and_stated_links() -> None:
    """NICs are joined by rail unless the caller says what is joined and how fast."""
    rails = join({"a": host(2), "b": host(2), "c": host(2)})
    network = [link for link in rails.links if link.kind is LinkKind.NETWORK]
    assert len(network) == 12
    assert all(link.src[-2:] == link.dst[-2:] for link in network)
    one = join({"a": host(2), "b": host(2)}, [NetworkLink("a/n0", "b/n1", 48.0, 2.5, "measured")])
    (there,) = [link for link in one.links if link.src == "a/n0" and link.kind is LinkKind.NETWORK]
    assert (there.dst, there.capacity_gbps, there.latency_us, there.provenance) == ("b/n1", 48.0, 2.5, "measured")


def test_unknown_speed_gives_no_capacity() -> None:
    """Where no NIC says its speed, the network's capacity stays unknown."""
    both = join({"a": host(speed=""), "b": host(speed="-1")})
    assert {link.capacity_gbps for link in both.links if link.kind is LinkKind.NETWORK} == {None}


def test_refusals() -> None:
    """A host without a NIC, and a link to what is no NIC, are refused by name."""
    with pytest.raises(TopologyError, match="host 'b' has no NIC"):
        join({"a": host(), "b": host(0)})
    with pytest.raises(TopologyError, match="there is no NIC 'b/g0'"):
        join({"a": host(), "b": host()}, [NetworkLink("a/n0", "b/g0")])
