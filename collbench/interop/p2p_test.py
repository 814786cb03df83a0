"""What p2pBandwidthLatencyTest of the CUDA samples prints.

A row is the device whose stream copies. `(P2P Writes)` copies from the row's device to the column's, `(P2P Reads)` the
other way round; a bidirectional value counts both directions (the sample's source). `P2P=Enabled` only says what was
asked for: between devices that cannot access each other the copy goes through host memory all the same, and the first
lines say for which.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collbench.interop.matrices import Matrix, MatrixError, PciDevice, header_of, read_rows, stripped
from collbench.topology.captured_text import quoted

__all__ = ["P2pOutput", "P2pTable", "parse"]

_TITLE = re.compile(
    r"(?:(Uni|Bi)directional )?P2P=(Enabled|Disabled) (Bandwidth|Latency)\s*(?:\(P2P (Writes|Reads)\) ?)?Matrix"
)
_DEVICE = re.compile(
    r"Device: (\d{1,4}), (.{0,80}), pciBusID: ([0-9a-fA-F]{1,4}), pciDeviceID: ([0-9a-fA-F]{1,4}), "
    r"pciDomainID: ?([0-9a-fA-F]{1,8})"
)
_ACCESS = re.compile(r"Device=(\d{1,4}) (CAN|CANNOT) Access Peer Device=(\d{1,4})")
_MOST = 20


@dataclass(frozen=True, slots=True)
class P2pTable:
    """One matrix with what its title says: `bandwidth` in GB/s or `latency` in us; empty without a title.

    `writes` is None where the title does not say who initiates; latencies stand twice, as the GPU and as the CPU times
    them (`matrix.corner`).
    """

    what: str
    enabled: bool | None
    both_ways: bool
    writes: bool | None
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class P2pOutput:
    """Devices, who can access whom (absent pairs: not printed), and the matrices in order."""

    devices: Sequence[PciDevice] = ()
    access: Mapping[tuple[int, int], bool] = field(default_factory=dict)
    tables: Sequence[P2pTable] = ()
    problems: Sequence[str] = ()


def parse(text: str) -> P2pOutput:
    """Read the output, whole or a part of it.

    Raises:
        MatrixError: not one matrix in it can be read: the line is quoted.
    """
    return _Reader(stripped(text)).read()


class _Reader:
    """Goes through the lines once; a title holds for the matrices under it."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.devices: list[PciDevice] = []
        self.access: dict[tuple[int, int], bool] = {}
        self.tables: list[P2pTable] = []
        self.problems: list[str] = []
        self._title: re.Match[str] | None = None
        self._connectivity = False

    def read(self) -> P2pOutput:
        index = 0
        while index < len(self.lines):
            line = self.lines[index]
            index += 1
            if "Device: " in line and (match := _DEVICE.search(line)):
                number, model, *bus = match.groups()
                bus_hex, device_hex, domain_hex = (int(part, 16) for part in bus)
                self.devices.append(PciDevice(int(number), model, f"{domain_hex:04x}:{bus_hex:02x}:{device_hex:02x}.0"))
            elif "Access" in line and (match := _ACCESS.search(line)):
                self.access[int(match[1]), int(match[3])] = match[2] == "CAN"
            elif "P2P=" in line and (match := _TITLE.search(line)):
                self._title, self._connectivity = match, False
            elif "Connectivity Matrix" in line:
                self._title, self._connectivity = None, True
            elif ("D" in line or "PU" in line) and (header := header_of(line)) is not None and header[0]:
                index = self._matrix(index, *header)
        if not self.tables:
            _refuse(self.lines, self.problems)
        return P2pOutput(self.devices, self.access, self.tables, self.problems)

    def _matrix(self, index: int, corner: str, columns: tuple[int, ...]) -> int:
        """Take the matrix at a line; gives the line behind it."""
        try:
            values, after = read_rows(self.lines, index, columns)
        except ValueError as error:
            if len(self.problems) < _MOST:
                self.problems.append(f"{quoted(self.lines, error.args[1])}: {error.args[0]}")
            return index
        if self._connectivity:
            self.access |= {pair: value == 1 for pair, value in values.items() if pair[0] != pair[1]}
        elif values:
            self.tables.append(_titled(self._title, Matrix(corner, columns, values)))
        self._connectivity = False
        return after


def _titled(title: re.Match[str] | None, matrix: Matrix) -> P2pTable:
    if title is None:
        return P2pTable("", None, False, None, matrix)
    ways, state, what, how = title.groups()
    writes = None if how is None else how == "Writes"
    return P2pTable(what.lower(), state == "Enabled", ways == "Bi", writes, matrix)


def _refuse(lines: Sequence[str], problems: Sequence[str]) -> None:
    if problems:
        raise MatrixError(f"{problems[0]}: no matrix can be read")
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    raise MatrixError(
        f"{quoted(list(lines), first)}: no matrix of p2pBandwidthLatencyTest: expected D\\D 0 1 ... under a title such "
        "as Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)"
    )
