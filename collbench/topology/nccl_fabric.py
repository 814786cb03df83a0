"""NVLink, xGMI and C2C elements of NCCL's topology XML: who is joined to whom, and which GPU lost links."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from collbench.topology import pcie
from collbench.topology.graph import Link, LinkKind, NodeKind
from collbench.topology.xml_tree import Element

if TYPE_CHECKING:
    from collbench.topology.nccl_reader import GpuPlace, Reader

__all__ = ["NVLINK_GENERATIONS", "join_fabric"]

NVLINK_GENERATIONS = {60: 1, 70: 2, 72: 2, 75: 2, 80: 3, 86: 3, 90: 4, 100: 5, 103: 5}
"""NVLink version of each compute capability that has NVLinks (NVIDIA's data sheets)."""

SWITCH_CLASS, CPU_CLASS = "0x068000", "0x068001"
"""`tclass` of an NVSwitch, and of a POWER9's NVLink port."""

_SM86_GBPS = 12.0  # NCCL's SM86_NVLINK_BW: A40, A6000 and RTX 3090 have slower links than A100
_XGMI_GBPS = {
    "gfx90a": 36.0,
    "910": 36.0,
    "940": 48.0,
    "gfx940": 48.0,
    "gfx942": 48.0,
    "gfx950": 48.0,
}  # RCCL, src/graph/topo.h; older ones 24
_OLD_XGMI_GBPS = 24.0
_CHIPS = 64  # a DGX-2 has 12; a longer list is noise


def join_fabric(reader: "Reader") -> None:
    """Add what the `nvlink`, `xgmi` and `c2c` elements say, and note what does not agree."""
    at = {(place.host, place.busid): place.id for place in reader.gpus}
    for place in reader.gpus:
        for element in place.gpu.children if place.gpu is not None else ():
            if element.name == "c2c":
                _c2c(reader, place, element)
            elif element.name in {"nvlink", "xgmi"}:
                _peer(reader, place, element, at)
    _note_one_way(reader)
    _note_lost_links(reader)


def _peer(reader: "Reader", place: "GpuPlace", element: Element, at: dict[tuple[int, str], str]) -> None:
    count = element.integer("count", 1)
    if count <= 0:
        return
    target = pcie.normal_busid(element.get("target"))
    other = at.get((place.host, target))
    if other is not None and other != place.id:
        reader.link(_link(place, other, element, count))
        return
    tclass = element.get("tclass").lower()
    if element.get("to") or tclass == SWITCH_CLASS or (not tclass and other is None):
        far = _nvswitch(reader, element, target)
    elif tclass == CPU_CLASS:
        far = place.socket
    else:
        far = _unknown_end(reader, place, target)
    for link in (_link(place, far, element, count), _link(place, far, element, count, back=True)):
        reader.link(link)


def _link(place: "GpuPlace", other: str, element: Element, count: int, *, back: bool = False) -> Link:
    sm = place.gpu.get("sm") if place.gpu is not None else ""
    ends = (other, place.id) if back else (place.id, other)
    if element.name == "xgmi":
        gcn = place.gpu.get("gcn") if place.gpu is not None else ""
        rate = _XGMI_GBPS.get(gcn, _OLD_XGMI_GBPS) if gcn else None
        source = "NCCL XML; nominal: RCCL's xGMI rate per link" if gcn else "NCCL XML"
        return Link(*ends, LinkKind.XGMI, width=count, capacity_gbps=rate and rate * count, provenance=source)
    generation = next((g for capability, g in NVLINK_GENERATIONS.items() if str(capability) == sm), 0)
    if sm == "86":
        source = "NCCL XML; nominal: NCCL's rate per link of sm_86"
        return Link(*ends, LinkKind.NVLINK, generation, count, capacity_gbps=_SM86_GBPS * count, provenance=source)
    return Link(*ends, LinkKind.NVLINK, generation, count, provenance="NCCL XML")


def _nvswitch(reader: "Reader", element: Element, target: str) -> str:
    """All chips are one node, as in NCCL: each GPU spreads its links over all of them."""
    wanted = element.get("to") or "nvswitch0"
    if wanted not in reader.nodes:
        reader.add(NodeKind.NVSWITCH, wanted, {"busids": target})
        return wanted
    node = reader.nodes[wanted]
    chips = node.attributes.get("busids", "").split(",")
    if target not in chips and len(chips) < _CHIPS:
        del reader.nodes[wanted]
        reader.add(NodeKind.NVSWITCH, wanted, {"busids": ",".join([*chips, target])})
    return wanted


def _unknown_end(reader: "Reader", place: "GpuPlace", target: str) -> str:
    """Virtual machines hide the far end: the file names the GPU itself, or a device that it does not hold."""
    what = "the GPU itself" if target == place.busid else f"{target}, which is not in the file"
    reader.notes.append(f"{place.id} ({place.busid}): its NVLinks end at {what}: the far end is not known")
    wanted = f"{place.id}_nvlink_end"
    if wanted not in reader.nodes:
        reader.add(NodeKind.NVSWITCH, wanted, {"role": "unknown far end", "target": target})
    return wanted


def _c2c(reader: "Reader", place: "GpuPlace", element: Element) -> None:
    count, rate = element.integer("count", 1), element.integer("bw")
    capacity = rate * count / 1000 if rate > 0 and count > 0 else None
    reader.join(
        place.id, place.socket, LinkKind.C2C, width=max(count, 0), capacity_gbps=capacity,
        provenance="NCCL XML c2c bw x count",
    )  # fmt: skip


def _note_one_way(reader: "Reader") -> None:
    names = {place.id: f"{place.id} ({place.busid})" for place in reader.gpus}
    for src, dst, kind in [*reader.links]:
        if kind in {LinkKind.NVLINK, LinkKind.XGMI} and src in names and dst in names:
            back = reader.links.get((dst, src, kind))
            here = reader.links[src, dst, kind].width
            if back is None or back.width < here:
                there = back.width if back else 0
                reader.notes.append(f"{names[src]} has {here} {kind} to {names[dst]}, which has {there} back")


def _note_lost_links(reader: "Reader") -> None:
    """One GPU of a uniform set with fewer links than the others: NCCL takes it silently and slows the others down."""
    counts: Counter[str] = Counter()
    for link in reader.links.values():
        if link.kind in {LinkKind.NVLINK, LinkKind.XGMI}:
            counts[link.src] += link.width
    alike = defaultdict(list)
    for place in reader.gpus:
        attributes = reader.nodes[place.id].attributes
        alike[attributes.get("sm"), attributes.get("device"), attributes.get("gcn")].append(place)
    for places in alike.values():
        most = max(counts[place.id] for place in places)
        short = [place for place in places if counts[place.id] < most]
        if not 0 < 2 * len(short) <= len(places):  # a bridge between two of many cards is no fault
            continue
        for place in short:
            reader.notes.append(
                f"{place.id} ({place.busid}) has {counts[place.id] or 'no'} NVLinks where like GPUs have {most}"
            )
