"""What the GPUs of a topology can do, from their attributes: whose they are, and whether they reach each other."""

from collections.abc import Mapping

from collbench.topology.graph import NodeKind, Topology

__all__ = ["PEER_ACCESS", "SWITCHED_OFF", "has_peer_access", "vendor"]

PEER_ACCESS = ("direct", "none")
"""Values of a GPU's attribute `peer_access`: it reads and writes its peers' memory, or all goes through host memory."""

SWITCHED_OFF = ("ns", "off", "disabled")
"""Values of the fact `p2p` of a machine that say the same as `none`."""

_BY_ID = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}
_BY_WORD = {"nvidia": "NVIDIA", "tesla": "NVIDIA", "geforce": "NVIDIA", "quadro": "NVIDIA", "amd": "AMD",
            "instinct": "AMD", "radeon": "AMD", "intel": "Intel", "arc": "Intel"}  # fmt: skip


def has_peer_access(topology: Topology) -> bool:
    """Whether GPUs map each other's memory; where no GPU says otherwise, they do."""
    return all(node.attributes.get("peer_access") != "none" for node in topology.nodes if node.kind is NodeKind.GPU)


def vendor(topology: Topology) -> str:
    """Vendor of the GPUs, `NVIDIA`, `AMD` or `Intel`; empty where nothing says so, or where they differ."""
    found = {_vendor(topology.node(gpu).attributes) for gpu in topology.gpus}
    return found.pop() if len(found) == 1 else ""


def _vendor(attributes: Mapping[str, str]) -> str:
    by_id = _BY_ID.get(attributes.get("vendor", "").lower().removeprefix("0x"), "")
    words = attributes.get("model", "").lower().split()
    return by_id or next((_BY_WORD[word] for word in words if word in _BY_WORD), "")
