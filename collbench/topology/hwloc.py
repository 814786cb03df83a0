"""hwloc's XML (`lstopo x.xml`): the PCI tree below the packages, and its matrix of NVLink bandwidths."""

import dataclasses
import re
from collections.abc import Iterator

from collbench.topology import pci_names, pci_tree, pcie
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collbench.topology.pci_tree import PciDevice
from collbench.topology.xml_tree import Element, read_tree

__all__ = ["is_hwloc", "parse"]

_SOURCE = "hwloc XML"
_DOCTYPE = re.compile(r'<!DOCTYPE topology SYSTEM "hwloc2?\.dtd">')
_TYPE = re.compile(r"([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_BRIDGE = re.compile(r"([0-9a-fA-F]{4,8}):\[([0-9a-fA-F]{2})-[0-9a-fA-F]{2}\]")
_NVLINKS = 'name="NVLinkBandwidth"'
_NUMBERS = re.compile(r"<(indexes|u64values)[^>]{0,40}>([^<]*)<")
_MOST = 512


def is_hwloc(text: str) -> bool:
    """Whether this is a topology of hwloc."""
    start = text.find("<topology")
    return start >= 0 and ("<object " in text[start : start + 4000] or "hwloc" in text[:start])


def parse(text: str) -> Topology:
    """Topology of a file that hwloc 2 or 3 wrote; GPUs in the order of their bus ids, packages as sockets.

    Link capacities of NVLink are hwloc's (MB/s), PCIe's are left unknown: hwloc states the present speed alone.

    Raises:
        TopologyError: not such a file, or damaged; quotes the line.
    """
    root = read_tree(_DOCTYPE.sub("", text, count=1), ("topology",))
    if root.name != "topology":
        raise root.error("expected <topology>, as hwloc writes it")
    devices: list[PciDevice] = []
    sockets: dict[str, str] = {}
    owners: dict[str, str] = {}
    for element, package, device in _walk(root):
        found = _device(element) if element.get("pci_busid") else None
        if found is not None:
            devices.append(found)
        inside = found.busid if found is not None else device
        owners[element.get("gp_index")] = inside
        bridge = _BRIDGE.match(element.get("bridge_pci"))
        if bridge and element.get("bridge_type").startswith("0"):
            sockets[f"{bridge[1].lower()}:{bridge[2].lower()}"] = package
        if element.get("name").startswith("nvml") or element.get("type") == "OSDev":
            _name(devices, inside, element)
    topology = pci_tree.build(devices, sockets, _SOURCE)
    return _with_nvlinks(topology, text, owners)


def _walk(root: Element) -> Iterator[tuple[Element, str, str]]:
    """Objects with the package above them and the bus id of the device that they are part of."""
    queue = [(child, "", "") for child in reversed(root.children)]
    while queue:
        element, package, device = queue.pop()
        if element.name != "object":
            continue
        if element.get("type") == "Package":
            package = element.get("os_index")
        yield element, package, device
        below = pcie.normal_busid(element.get("pci_busid")) if element.get("pci_busid") else device
        queue += [(child, package, below) for child in reversed(element.children)]


def _device(element: Element) -> PciDevice:
    """A PCI device or bridge.

    Raises:
        TopologyError: its bus id is none.
    """
    busid = pcie.normal_busid(element.get("pci_busid"))
    if not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", busid):
        raise element.error("pci_busid is no bus id: expected one such as 0000:3b:00.0")
    pci = _TYPE.match(element.get("pci_type"))
    vendor = f"[{pci[2].lower()}:{pci[3].lower()}]" if pci else ""
    kind = pci_names.kind_of_class(pci[1].lower(), vendor)[0] if pci else None
    bridge = _BRIDGE.match(element.get("bridge_pci"))
    secondary = f"{bridge[1].lower()}:{bridge[2].lower()}" if bridge else ""
    facts = {"vendor": f"0x{pci[2].lower()}", "device": f"0x{pci[3].lower()}"} if pci else {}
    return PciDevice(busid, None if secondary else kind, secondary, attributes=facts)


def _name(devices: list[PciDevice], busid: str, element: Element) -> None:
    """Model of a GPU or name of a network card, from the software device below it."""
    model = next((info.get("value") for info in element.all("info") if info.get("name") == "GPUModel"), "")
    for index in range(len(devices) - 1, -1, -1):
        device = devices[index]
        if device.busid == busid:
            if device.kind is NodeKind.GPU and model:
                devices[index] = dataclasses.replace(device, attributes={**device.attributes, "model": model})
            elif device.kind is NodeKind.NIC:
                devices[index] = dataclasses.replace(
                    device, attributes={"name": element.get("name"), **device.attributes}
                )
            return


def _with_nvlinks(topology: Topology, text: str, owners: dict[str, str]) -> Topology:
    """Add NVSwitches and NVLinks by the matrix of bandwidths, if there is one that adds up."""
    start = text.find(_NVLINKS)
    if start < 0:
        return topology
    block = text[start : text.find("</distances", start)]
    found: dict[str, list[str]] = {"indexes": [], "u64values": []}
    for match in _NUMBERS.finditer(block):
        found[match[1]] += match[2].split()
    names, values = found["indexes"][:_MOST], found["u64values"]
    count = len(names)
    if len(values) != count * count or not all(value.isdecimal() and len(value) < 10 for value in values):  # noqa: PLR2004 - 1e9 MB/s
        line = text.count("\n", 0, start) + 1
        raise TopologyError(f"line {line}: {_NVLINKS}: {len(values)} numbers for {count} devices: expected {count**2}")
    busids = {node.attributes.get("busid", ""): node.id for node in topology.nodes}
    places = [owners.get(name.rpartition(":")[2], "") for name in names]
    ends: dict[str, str] = {}
    for busid in places:
        ends[busid] = busids.get(busid) or f"nvswitch{sum(e.startswith('nvswitch') for e in ends.values())}"
    switches = [
        Node(end, NodeKind.NVSWITCH, {"busid": b}) for b, end in ends.items() if end.startswith("nvswitch") and b
    ]
    known = {node.id for node in (*topology.nodes, *switches)}
    links = []
    for at, value in enumerate(values):
        src, dst = ends[places[at // count]], ends[places[at % count]]
        if int(value) and src != dst and {src, dst} <= known:
            links.append(Link(src, dst, LinkKind.NVLINK, capacity_gbps=int(value) / 1000, provenance=_SOURCE))
    return dataclasses.replace(topology, nodes=(*topology.nodes, *switches), links=(*topology.links, *links))
