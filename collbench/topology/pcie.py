"""Facts of PCI: bus ids, device classes, link speeds, and what a link of a generation and width carries at best."""

import dataclasses
import re
from collections.abc import Iterable

from collbench.topology.graph import PCIE_GENERATIONS, Link, LinkKind, NodeKind

__all__ = [
    "BRIDGE_CLASS",
    "class_kind",
    "generation_of",
    "is_display_adapter",
    "normal_busid",
    "payload_gbps",
    "speed_text",
    "with_nominal",
]

BRIDGE_CLASS = "0x0604"
"""PCI-to-PCI bridge: root ports and the ports of switches."""

NVLINK_GBPS = {1: 18.0, 2: 20.0, 3: 20.0, 4: 20.6, 5: 40.1}
"""Payload of one NVLink of each version, one direction, GB/s, as NCCL assumes it (src/graph/topo.h, SM60 to SM100)."""

_BUSID = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-9a-fA-F])")
_SPEED = re.compile(r"\s*(\d+(?:\.\d+)?)\s*GT/s")
_MPS = 256
_WRITE_OVERHEAD = 24  # bytes per posted write: framing 4, sequence number and LCRC 6, header 12 or 16 (rounded)
_FLIT_OVERHEAD = 20
_LINK_LAYER = 0.985  # what DLLPs and skip ordered sets leave
_GPU_VENDORS = {"10de", "1002", "8086"}  # NVIDIA, AMD, Intel: the others' display adapters draw consoles


def normal_busid(text: str) -> str:
    """Bus id as `0000:bb:dd.f` in lower case; NVML's eight-digit domains are shortened, what is none comes back."""
    match = _BUSID.fullmatch(text.strip())
    if match is None:
        return text.strip().lower()
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def generation_of(text: str) -> int:
    """PCIe generation of a speed such as `32.0 GT/s PCIe`, `16 GT/s`; 0 where the text says nothing known."""
    match = _SPEED.match(text)
    speed = float(match[1]) if match else 0.0
    return next((generation for generation, rate in PCIE_GENERATIONS.items() if rate == speed), 0)


def speed_text(generation: int) -> str:
    """Speed as Linux 5.6+ and NCCL write it, `32.0 GT/s PCIe`; empty for an unknown generation."""
    return f"{PCIE_GENERATIONS[generation]:.1f} GT/s PCIe" if generation in PCIE_GENERATIONS else ""


def payload_gbps(generation: int, width: int) -> float | None:
    """Payload of posted writes in GB/s, one direction, largest payload 256 B; None where the link is not known.

    x16: Gen3 14.2, Gen4 28.4, Gen5 56.7, Gen6 109. Published solo copies on Gen5 reach 53.4 to 56.6.
    """
    if generation not in PCIE_GENERATIONS or width <= 0:
        return None
    lane = PCIE_GENERATIONS[generation] / 8
    if generation >= 6:  # flit mode: 236 of 256 bytes carry TLPs  # noqa: PLR2004 - the generation that brought flits
        return lane * width * 236 / 256 * _MPS / (_MPS + _FLIT_OVERHEAD)
    encoding = 0.8 if generation <= 2 else 128 / 130  # noqa: PLR2004 - 8b/10b up to the second generation
    return lane * width * encoding * _LINK_LAYER * _MPS / (_MPS + _WRITE_OVERHEAD)


def with_nominal(links: Iterable[Link]) -> tuple[Link, ...]:
    """Fill capacities that nobody has measured from generation and width; the provenance says `nominal: ...`."""
    return tuple(_nominal(link) for link in links)


def _nominal(link: Link) -> Link:
    if link.capacity_gbps is not None:
        return link
    value, source = None, ""
    if link.kind is LinkKind.PCIE:
        value = payload_gbps(link.generation, link.width)
        source = f"PCIe gen {link.generation} x{link.width}, writes, 256 B payload"
    elif link.kind is LinkKind.NVLINK and link.width and link.generation in NVLINK_GBPS:
        value = link.width * NVLINK_GBPS[link.generation]
        source = f"NVLink {link.generation} x{link.width}, NCCL's payload per link"
    if value is None:
        return link
    provenance = f"{link.provenance}; nominal: {source}".removeprefix("; ")
    return dataclasses.replace(link, capacity_gbps=round(value, 2), provenance=provenance)


def class_kind(pci_class: str, vendor: str = "") -> NodeKind | None:
    """Kind of node that a PCI class such as `0x030200` stands for; None for a device that is no part of a topology.

    Bridges come back as switches: whether one is a root port depends on where it sits. Display adapters of vendors that
    make no compute GPU (a server's console) are none.
    """
    text = pci_class.lower().removeprefix("0x")
    if text.startswith(("03", "12")):
        return NodeKind.GPU if is_display_adapter(pci_class, vendor) else None
    if text.startswith("02"):
        return NodeKind.NIC
    if text.startswith(("0604", "080100")):  # 0801: ConnectX-8 data direct, which NCCL counts as a bridge
        return NodeKind.SWITCH
    return NodeKind.NVSWITCH if text.startswith("068000") else None


def is_display_adapter(pci_class: str, vendor: str = "") -> bool:
    """Whether this is a GPU for computing: class 0x03 or 0x12 of NVIDIA, AMD or Intel (or of a vendor not said)."""
    text = pci_class.lower().removeprefix("0x")
    known = vendor.lower().removeprefix("0x")
    if known and known not in _GPU_VENDORS:
        return False
    return text.startswith(("0300", "0302", "0380", "12")) or text in {"03", ""}
