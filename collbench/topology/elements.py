"""What topologies are made of: nodes, links and their kinds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from collbench.errors import InvalidError

__all__ = ["PCIE_GENERATIONS", "Link", "LinkKind", "Node", "NodeKind", "TopologyError"]

PCIE_GENERATIONS: Mapping[int, float] = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
"""GT/s per lane of each PCIe generation (PCI-SIG)."""


class TopologyError(InvalidError):
    """A topology that cannot be read or makes no sense: names the place, quotes it, says what was expected."""


class NodeKind(StrEnum):
    """What a node is."""

    GPU = "gpu"
    NIC = "nic"
    SWITCH = "switch"
    ROOT_PORT = "root_port"
    HOST_BRIDGE = "host_bridge"
    SOCKET = "socket"
    NVSWITCH = "nvswitch"


class LinkKind(StrEnum):
    """What a link is.

    `socket` is UPI or xGMI between processors, `xgmi` the one between AMD GPUs, `memory` the path from a core to host
    memory.
    """

    PCIE = "pcie"
    NVLINK = "nvlink"
    XGMI = "xgmi"
    C2C = "c2c"
    SOCKET = "socket"
    MEMORY = "memory"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Node:
    """One device. `attributes` holds facts as text: `busid`, `model`, `numa`, `vendor`, `cores`, `acs`, ..."""

    id: str
    kind: NodeKind
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link.

    `generation` x `width` is what the link can do (for NVLink: version and number of links; 0 where unknown),
    `current_*` what it does now: idle GPUs downtrain, so the two are kept apart. `capacity_gbps` is payload in GB/s
    (1e9 bytes) of this direction, `latency_us` one way; both None where nobody has said. `provenance` says who did.
    """

    src: str
    dst: str
    kind: LinkKind
    generation: int = 0
    width: int = 0
    current_generation: int = 0
    current_width: int = 0
    capacity_gbps: float | None = None
    latency_us: float | None = None
    provenance: str = ""

    def __hash__(self) -> int:
        """Ends alone: links are looked up by the thousand, and equal ones have equal ends."""
        return hash((self.src, self.dst))

    @property
    def link_class(self) -> str:
        """Name of what it can do: `pcie5x16`, `nvlink4x18`, `socket`, `memory`, `network`; `pcie` where unknown."""
        known = self.kind in {LinkKind.PCIE, LinkKind.NVLINK} and self.generation and self.width
        return f"{self.kind}{self.generation}x{self.width}" if known else str(self.kind)


def check_link(link: Link, nodes: Mapping[str, Node], seen: set[tuple[str, str, str]]) -> None:
    """Refuse a link to an unknown node, to itself, a doubled one, or one whose numbers are not positive."""
    where = f"link {link.src} -> {link.dst}"
    for end in (link.src, link.dst):
        if end not in nodes:
            raise TopologyError(f"{where}: there is no node {end!r}")
    if link.src == link.dst:
        raise TopologyError(f"{where}: a link joins two different nodes")
    if (link.src, link.dst, link.kind) in seen:
        raise TopologyError(f"{where} ({link.kind}) stands twice: add the widths up in one link")
    for name, value in (("capacity_gbps", link.capacity_gbps), ("latency_us", link.latency_us)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < float("inf")):
            raise TopologyError(f"{where}: {name} is {value!r}, expected a finite number above zero")


def link_dict(link: Link) -> dict[str, Any]:
    """JSON form of a link (docs/design.md section 4)."""
    return {
        "src": link.src, "dst": link.dst, "class": link.link_class, "kind": str(link.kind),
        "capacity_gbps": link.capacity_gbps, "latency_us": link.latency_us, "provenance": link.provenance,
        "generation": link.generation, "width": link.width,
        "current_generation": link.current_generation, "current_width": link.current_width,
    }  # fmt: skip


def link_from_dict(row: Mapping[str, Any]) -> Link:
    """Inverse of `link_dict`; what is wrong with the row comes out as the KeyError, TypeError or ValueError it is."""
    return Link(
        src=row["src"], dst=row["dst"], kind=LinkKind(row["kind"]),
        generation=int(row.get("generation", 0)), width=int(row.get("width", 0)),
        current_generation=int(row.get("current_generation", 0)), current_width=int(row.get("current_width", 0)),
        capacity_gbps=row.get("capacity_gbps"), latency_us=row.get("latency_us"),
        provenance=str(row.get("provenance", "")),
    )  # fmt: skip
