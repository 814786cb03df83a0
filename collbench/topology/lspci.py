"""What `lspci -tv` prints: the PCI tree as a drawing, with the names of devices."""

import re

from collbench.topology import pci_names, pci_tree
from collbench.topology.captured_text import lines_of, refuse
from collbench.topology.graph import Topology, TopologyError
from collbench.topology.pci_tree import PciDevice

__all__ = ["is_tree", "parse", "parse_tree", "read_tree"]

_ROOT = re.compile(r"-\[(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}(?:-[0-9a-fA-F]{2})?\]")
_BRANCH = re.compile(r"[+\\`]-(?=\[|[0-9a-fA-F]{2}\.[0-7])|-(?=\[)")
_PART = re.compile(
    r"(?P<bus>\[(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<low>[0-9a-fA-F]{2})(?:-[0-9a-fA-F]{2})?\])"
    r"|(?P<slot>[0-9a-fA-F]{2}\.[0-7])|(?P<open>\+)|(?P<last>[\\`])|(?P<line>-)"
)
_MOST = 20_000
_SOURCE = "lspci -tv"


def is_tree(lines: list[str]) -> bool:
    """Whether some line draws a root bus such as `-[0000:00]-`."""
    return any(_ROOT.search(line[:200]) for line in lines if line)


def parse(text: str) -> Topology:
    """Topology of a tree (`lspci -tv`) or of sections (`lspci -vv`).

    Raises:
        TopologyError: neither; quotes the line and says what was expected.
    """
    if is_tree(lines_of(text)):
        return parse_tree(text)
    from collbench.topology import lspci_verbose

    return lspci_verbose.parse(text)


def parse_tree(text: str) -> Topology:
    """Topology of an `lspci -tv` capture.

    The drawing knows buses and names, no speeds, sockets or ACS. Two sockets are told apart on AMD EPYC, by the data
    fabric devices that each processor has on bus 00, their root buses being numbered one after the other; elsewhere all
    host bridges hang on one socket, and `disagreements` says so.

    Raises:
        TopologyError: the drawing is damaged, or there is none; quotes the line.
    """
    devices, roots = read_tree(text)
    devices = pci_tree.without_consoles(devices)
    sockets, note = _sockets(devices, roots)
    return pci_tree.build(devices, sockets, _SOURCE, [note] if note else [])


def read_tree(text: str) -> tuple[list[PciDevice], list[str]]:
    """Devices and bridges of the drawing, and its root buses as `0000:bb`, both in order.

    Raises:
        TopologyError: as `parse_tree`.
    """
    lines = lines_of(text)
    try:
        return _Drawing(lines, by_column=True).read()
    except TopologyError as error:
        try:  # blanks were collapsed: the order of the branches tells as much
            return _Drawing(lines, by_column=False).read()
        except TopologyError:
            raise error from None


class _Drawing:
    """Reads line by line; a bus whose `+` is still open waits in `_columns` by its place, in `_stack` by order."""

    def __init__(self, lines: list[str], *, by_column: bool) -> None:
        self._lines = lines
        self._by_column = by_column
        self._columns: dict[int, str] = {}
        self._stack: list[str] = []
        self._devices: list[PciDevice] = []
        self._roots: list[str] = []
        self._first = 0

    def read(self) -> tuple[list[PciDevice], list[str]]:
        """Devices and root buses."""
        for index, line in enumerate(self._lines):
            start = _BRANCH.search(line[:400]) if line else None
            if start is None:
                continue
            if _ROOT.match(line[start.end() - 1 : start.end() + 20]):
                self._columns, self._stack = {}, []
                self._first = self._first or index
                self._branch(index, start.end(), "")
            elif self._roots:
                self._branch(index, start.end(), self._parent(index, start.start()))
            if len(self._devices) > _MOST:
                refuse(self._lines, index, f"more than {_MOST} devices: expected the tree of one machine")
        if not self._roots:
            place = next((i for i, line in enumerate(self._lines) if line.strip()), 0)
            refuse(self._lines, place, "no tree in it: expected what lspci -tv prints, `-[0000:00]-+-00.0  ...`")
        if self._devices and not any(d.attributes for d in self._devices):
            refuse(self._lines, self._first, "devices without names: expected lspci -tv, which prints them")
        return self._devices, self._roots

    def _parent(self, index: int, column: int) -> str:
        """Bus that a branch at the start of a line belongs to."""
        if self._by_column:
            self._columns = {c: bus for c, bus in self._columns.items() if c <= column}
            found = self._columns.get(column, "")
        else:
            found = self._stack[-1] if self._stack else ""
            if self._stack and self._lines[index][column] != "+":
                self._stack.pop()
        if not found:
            problem = f"a branch at column {column + 1} below no bus: expected it below a + of a line above"
            refuse(self._lines, index, problem)
        return found

    def _branch(self, index: int, place: int, bus: str) -> None:
        """One line from its branch to the right: buses and bridges in turn, at its end the name of a device."""
        line = self._lines[index]
        slot = ""
        while (part := _PART.match(line, place)) is not None:
            place = part.end()
            if part["bus"]:
                bus, slot = self._enter(index, part, bus, slot), ""
            elif part["slot"]:
                if slot or not bus:
                    break
                slot = part["slot"].lower()
                if line[place : place + 2] != "-[":
                    break  # a device: its name follows
            elif part["open"] and bus:
                self._columns[part.start()] = bus
                self._stack.append(bus)
        if slot:
            self._devices.append(_device(f"{bus}:{slot}", line[place:].strip()))

    def _enter(self, index: int, part: re.Match[str], bus: str, slot: str) -> str:
        """The bus below a bridge, or a root bus where there is none yet."""
        domain = part["domain"] or bus.rpartition(":")[0] or "0000"
        below = f"{int(domain, 16):04x}:{part['low'].lower()}"
        if slot:
            self._devices.append(PciDevice(f"{bus}:{slot}", None, below))
        elif bus:
            problem = f"bus {part['bus']} right below bus {bus}: expected a bridge such as 01.0 between"
            refuse(self._lines, index, problem)
        else:
            self._roots.append(below)
        return below


def _device(busid: str, name: str) -> PciDevice:
    kind = pci_names.kind_of_name(name, int(busid[-1]))
    facts = {"model": pci_names.model_of(name)[:200], "vendor": pci_names.vendor_of(name)}
    return PciDevice(busid, kind, attributes={key: text for key, text in facts.items() if text})


def _sockets(devices: list[PciDevice], roots: list[str]) -> tuple[dict[str, str], str]:
    """Processor of each root bus, and what that rests on."""
    fabric = [
        d for d in devices
        if re.fullmatch(r"0000:00:1[89a-f]\.0", d.busid) and d.attributes.get("model", "").startswith("Advanced Micro")
    ]  # fmt: skip
    first = [root for root in dict.fromkeys(roots) if root.startswith("0000:")]
    others = [root for root in roots if root not in first]
    count = len(fabric)
    if count > 1 and len(first) % count == 0 and not others:
        share = len(first) // count
        ordered = sorted(first, key=lambda root: int(root[-2:], 16))
        named = {root: f"processor {index // share}" for index, root in enumerate(ordered)}
        rest = "root buses in their order: lspci -tv names none"
        return named, f"{count} sockets by the {count} data fabric devices on bus 00, {rest}"
    note = "" if len(roots) == 1 else "lspci -tv names no sockets: all host bridges are drawn at one"
    return dict.fromkeys(roots, "processor 0"), note
