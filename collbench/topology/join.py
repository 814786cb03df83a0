"""Several hosts in one topology, joined at their NICs."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError

__all__ = ["NetworkLink", "join"]

_MBPS_PER_GBPS = 8000.0


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """A network path between two NICs, both directions alike. Ends are `host/nic`, as `join` names them."""

    a: str
    b: str
    capacity_gbps: float | None = None
    latency_us: float | None = None
    provenance: str = ""


def join(topologies: Mapping[str, Topology], network_links: Iterable[NetworkLink] | None = None) -> Topology:
    """One topology of several hosts: ids become `host/id`, GPUs stay in the order of hosts, then of ranks.

    Without `network_links` the first NIC of each host is joined to the first of each other host, the second to the
    second and so on (rails), with the lower of their speeds as nominal capacity where sysfs or NCCL said one.

    Raises:
        TopologyError: a link names no NIC, or a host without a NIC would stay alone.
    """
    nodes = [_moved(host, node) for host, topology in topologies.items() for node in topology.nodes]
    links = [
        dataclasses.replace(link, src=f"{host}/{link.src}", dst=f"{host}/{link.dst}")
        for host, topology in topologies.items()
        for link in topology.links
    ]
    nics = {node.id: node for node in nodes if node.kind is NodeKind.NIC}
    for network in [*network_links] if network_links is not None else [*_rails(topologies, nics)]:
        for end in (network.a, network.b):
            if end not in nics:
                raise TopologyError(f"network link {network.a} - {network.b}: there is no NIC {end!r}")
        facts = (network.capacity_gbps, network.latency_us, network.provenance)
        for src, dst in ((network.a, network.b), (network.b, network.a)):
            links.append(Link(src, dst, LinkKind.NETWORK, 0, 0, 0, 0, *facts))
    hidden = [(f"{host}/{a}", f"{host}/{b}") for host, topology in topologies.items() for a, b in topology.hidden]
    notes = [f"{host}: {note}" for host, topology in topologies.items() for note in topology.disagreements]
    name = " + ".join(topology.name or host for host, topology in topologies.items())
    return Topology(tuple(nodes), tuple(links), name, tuple(hidden), tuple(notes))


def _moved(host: str, node: Node) -> Node:
    return Node(f"{host}/{node.id}", node.kind, {**node.attributes, "host": host})


def _rails(topologies: Mapping[str, Topology], nics: Mapping[str, Node]) -> Iterable[NetworkLink]:
    of_host = {host: [name for name in nics if name.startswith(f"{host}/")] for host in topologies}
    for one, other in itertools.combinations(topologies, 2):
        if not of_host[one] or not of_host[other]:
            alone = other if of_host[one] else one
            raise TopologyError(f"host {alone!r} has no NIC in its topology: nothing joins it to the others")
        for a, b in zip(of_host[one], of_host[other], strict=False):
            speeds = [_speed_mbps(nics[a]), _speed_mbps(nics[b])]
            known = [speed for speed in speeds if speed]
            capacity = min(known) / _MBPS_PER_GBPS if known else None
            yield NetworkLink(a, b, capacity, None, "nominal: speed of the NICs" if known else "")


def _speed_mbps(nic: Node) -> float:
    """Speed of a NIC, its ports together; 0 where nobody said it."""
    return float(sum(int(part) for part in nic.attributes.get("speed_mbps", "").split(",") if part.isdecimal()))
