"""What `lspci -vv` prints: one section a device, with buses behind bridges, link speeds, ACS and NUMA nodes."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from collbench.topology import pci_names, pci_tree, pcie
from collbench.topology.captured_text import lines_of, refuse
from collbench.topology.graph import NodeKind, Topology
from collbench.topology.pci_tree import PciDevice

__all__ = ["is_sections", "parse", "read_sections"]

_SOURCE = "lspci -vv"
_MOST = 20_000
_HEAD = re.compile(
    r"(?:^|^[^\t]{0,60}?[\s>:#])(?P<busid>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) "
    r"(?P<class>[A-Za-z0-9][^:\[]{1,60}(?:\[[0-9a-f]{4}\])?|[0-9a-f]{4}): (?P<name>.*)"
)
_BUS = re.compile(r"Bus: primary=[0-9a-f]{2}, secondary=(?P<secondary>[0-9a-f]{2}),")
_NUMA = re.compile(r"NUMA node:? (\d{1,4})\b")
_ROLE = re.compile(r"Express (?:\(v\d\) )?(?P<role>Root Port|Upstream Port|Downstream Port)")
_LINK = re.compile(
    r"Lnk(?P<which>Cap|Sta):\s.{0,60}?Speed (?P<speed>\d{1,3}(?:\.\d)?) ?GT/s.{0,40}?Width x(?P<width>\d{1,2})"
)
_ACS = re.compile(r"ACSCtl:\s*(?P<flags>.+)")
_FLAGS = {
    "SrcValid": "SV", "TransBlk": "TB", "ReqRedir": "RR", "CmpltRedir": "CR", "UpstreamFwd": "UF",
    "EgressCtrl": "EC", "DirectTrans": "DT",
}  # fmt: skip
_ROLES = {"Root Port": "root", "Upstream Port": "upstream", "Downstream Port": "downstream"}


@dataclass(slots=True)
class _Section:
    """A device and the lines below its head."""

    busid: str
    pci_class: str
    name: str
    line: int
    body: list[str] = field(default_factory=list)


def is_sections(lines: list[str]) -> bool:
    """Whether some line begins a section such as `01:00.0 VGA compatible controller: ...`."""
    return any(True for _ in _sections(lines))


def parse(text: str) -> Topology:
    """Topology of an `lspci -vv` capture; root buses are put on sockets by the NUMA nodes of their devices.

    Raises:
        TopologyError: no section in it; quotes the line and says what was expected.
    """
    devices = pci_tree.without_consoles(read_sections(text))
    numa: dict[str, str] = {}
    above = {d.secondary: d for d in devices if d.secondary}
    for device in devices:
        root, steps = device.bus, 0
        while root in above and steps < len(above):
            root, steps = above[root].bus, steps + 1
        if device.numa and (device.bus in above or device.secondary):
            numa.setdefault(root, device.numa)
    roots = {d.bus for d in devices if d.role == "root" or (d.secondary and d.bus not in above)}
    notes = [] if numa or any(d.numa for d in devices) else ["no NUMA nodes in it: all devices are drawn at one socket"]
    return pci_tree.build(devices, {root: numa.get(root, "") for root in roots}, _SOURCE, notes)


def read_sections(text: str) -> list[PciDevice]:
    """Every device of the capture, in its order.

    Raises:
        TopologyError: as `parse`.
    """
    lines = lines_of(text)
    devices: list[PciDevice] = []
    for section in _sections(lines):
        devices.append(_device(section))
        if len(devices) > _MOST:
            refuse(lines, section.line, f"more than {_MOST} devices: expected one machine")
    if not devices:
        place = next((i for i, line in enumerate(lines) if line.strip()), 0)
        refuse(lines, place, "no device in it: expected what lspci -vv prints, `01:00.0 3D controller: ...`")
    return devices


def _sections(lines: list[str]) -> Iterator[_Section]:
    section: _Section | None = None
    for index, line in enumerate(lines):
        head = _HEAD.search(line[:400]) if ": " in line[:200] else None
        if head is not None:
            if section is not None:
                yield section
            section = _Section(pcie.normal_busid(head["busid"]), head["class"], head["name"].strip(), index)
        elif section is not None:
            section.body.append(line[:400])
    if section is not None:
        yield section


def _device(section: _Section) -> PciDevice:
    kind, is_bridge = pci_names.kind_of_class(section.pci_class, _with_vendor(section.name))
    facts = {"model": pci_names.model_of(section.name)[:200], "vendor": pci_names.vendor_of(_with_vendor(section.name))}
    device = PciDevice(section.busid, kind, attributes={key: text for key, text in facts.items() if text})
    for line in section.body:
        device = _with_line(device, line, is_bridge=is_bridge)
    if kind is NodeKind.GPU and device.bus.endswith(":00") and facts["vendor"] == "0x8086":
        return dataclasses.replace(device, kind=None)  # graphics inside an Intel processor: no rank runs on it
    return device


def _with_vendor(name: str) -> str:
    """Names of `lspci -n` begin with numbers: `10de:2330`."""
    return f"[{name[:9]}] {name}" if re.match(r"[0-9a-f]{4}:[0-9a-f]{4}\b", name) else name


def _with_line(device: PciDevice, line: str, *, is_bridge: bool) -> PciDevice:
    """The device with what one line of its section says."""
    change: dict[str, Any] = {}
    if ":" not in line and "Express" not in line:
        return device
    if is_bridge and (bus := _BUS.search(line)):
        change["secondary"] = f"{device.busid.partition(':')[0]}:{bus['secondary']}"
    elif link := _LINK.search(line):
        prefix = "" if link["which"] == "Cap" else "current_"
        change[f"{prefix}generation"] = pcie.generation_of(f"{link['speed']} GT/s")
        change[f"{prefix}width"] = int(link["width"])
    elif role := _ROLE.search(line):
        change["role"] = _ROLES[role["role"]]
    elif numa := _NUMA.search(line):
        change["numa"] = numa[1]
    elif acs := _ACS.search(line):
        flags = [short for word, short in _FLAGS.items() if f"{word}+" in acs["flags"]]
        change["acs"] = ",".join(flags) or "off"
    return dataclasses.replace(device, **change) if change else device
