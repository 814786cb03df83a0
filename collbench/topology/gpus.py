"""What the GPUs of a topology can do, from their attributes: whose they are, and whether they reach each other."""

from collections.abc import Mapping

from collbench.topology.graph import Link, NodeKind, Topology, TopologyError

__all__ = ["PEER_ACCESS", "SWITCHED_OFF", "has_peer_access", "host_route", "vendor"]

PEER_ACCESS = ("direct", "none")
"""Values of a GPU's attribute `peer_access`: it reads and writes its peers' memory, or all goes through host memory."""

SWITCHED_OFF = ("ns", "off", "disabled")
"""Values of the fact `p2p` of a machine that say the same as `none`."""

_P2P_ROWS = ("p2p", "p2p_read", "p2p_write")
_REFUSED = frozenset({"CNS", "GNS", "TNS", "NS", "DR"})

_BY_ID = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}
_BY_WORD = {"nvidia": "NVIDIA", "tesla": "NVIDIA", "geforce": "NVIDIA", "quadro": "NVIDIA", "amd": "AMD",
            "instinct": "AMD", "radeon": "AMD", "intel": "Intel", "arc": "Intel"}  # fmt: skip


def has_peer_access(topology: Topology) -> bool:
    """Whether GPUs map each other's memory: they do where nothing says that they do not.

    A machine file says so by `peer_access`, a capture of `nvidia-smi topo -p2p` by pairs none of which is OK.
    """
    known = [node.attributes for node in topology.nodes if node.kind is NodeKind.GPU]
    if any(attributes.get("peer_access") == "none" for attributes in known):
        return False
    rows = [attributes[key] for attributes in known for key in _P2P_ROWS if attributes.get(key)]
    states = {words[-1] for row in rows for pair in row.split(", ") if (words := pair.split())}
    return not states or not states <= _REFUSED


def host_route(topology: Topology, src: str, dst: str) -> tuple[Link, ...]:
    """Links from GPU to GPU through the memory of the source's processor.

    Raises:
        TopologyError: there is no processor, or no way to it.
    """
    if not topology.sockets:
        raise TopologyError("traffic through host memory, but the topology has no processor")
    near = min((topology.route(src, socket) for socket in topology.sockets), key=len)
    return (*near, *topology.route(near[-1].dst, dst))


def vendor(topology: Topology) -> str:
    """Vendor of the GPUs, `NVIDIA`, `AMD` or `Intel`; empty where nothing says so, or where they differ."""
    found = {_vendor(topology.node(gpu).attributes) for gpu in topology.gpus}
    return found.pop() if len(found) == 1 else ""


def _vendor(attributes: Mapping[str, str]) -> str:
    by_id = _BY_ID.get(attributes.get("vendor", "").lower().removeprefix("0x"), "")
    words = attributes.get("model", "").lower().split()
    return by_id or next((_BY_WORD[word] for word in words if word in _BY_WORD), "")
