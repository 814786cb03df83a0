"""What nvbandwidth prints, as text or with `-j`.

The arrows of its titles are not the data's: a read test is titled GPU(row) -> GPU(column) and moves from the column's
device to the row's, a write test is titled GPU(row) <- GPU(column) and moves from the row's to the column's (its own
source, `testcases_ce.cpp` and `testcases_sm.cpp`). The test's name is what counts.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collbench.interop.matrices import Matrix, MatrixError, PciDevice, header_of, read_rows, stripped
from collbench.topology.captured_text import quoted

__all__ = ["NvbandwidthOutput", "NvbandwidthTest", "looks_like_json", "parse"]

_VERSION = re.compile(r"nvbandwidth Version:\s*(\S{1,40})")
_DRIVER = re.compile(r"(?<!CUDA )Driver Version:\s*(\d[\w.]{1,30})")
_DEVICE = re.compile(r"[Dd]evice (\d{1,4}): (.{0,80}?) \(([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})")
_RUNNING = re.compile(r"Running ([a-z0-9_]{1,80})\.?\s*$")
_TITLE = re.compile(r"\((?:row|GB/s|ns)\)")
_SUM = re.compile(r"SUM ([a-z0-9_]{1,80}) (\d{1,12}(?:\.\d{1,6})?)\s*$")
_MOST, _SUM_TOLERANCE = 20, 0.002


@dataclass(frozen=True, slots=True)
class NvbandwidthTest:
    """One matrix of one test; `title` is the line above it, from which `unit` is taken (GB/s, or ns)."""

    name: str
    title: str
    matrix: Matrix

    @property
    def unit(self) -> str:
        """GB/s, or ns for latencies."""
        return "ns" if "(ns)" in self.title else "GB/s"


@dataclass(frozen=True, slots=True)
class NvbandwidthOutput:
    """Versions, devices, tests in order; `skipped` counts tests that were waived or ended in an error."""

    version: str
    driver: str
    devices: Sequence[PciDevice]
    tests: Sequence[NvbandwidthTest]
    skipped: int = 0
    problems: Sequence[str] = ()


def looks_like_json(text: str) -> bool:
    """Whether it is what `-j` prints."""
    return re.match(r"\s*\{", text) is not None


def parse(text: str) -> NvbandwidthOutput:
    """Read the output, whole or a part of it.

    Raises:
        MatrixError: not one matrix in it can be read: the line is quoted.
    """
    found = _json(text) if looks_like_json(text) else _Text(stripped(text)).read()
    if found.tests:
        return found
    if found.problems:
        raise MatrixError(f"{found.problems[0]}: no matrix can be read")
    if found.skipped:
        raise MatrixError(f"all {found.skipped} tests were waived or ended in an error: nothing was measured")
    lines = stripped(text[:10_000])
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    raise MatrixError(f"{quoted(lines, first)}: no test of nvbandwidth: expected Running TEST. and a matrix under it")


class _Text:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.name = self.title = ""
        self.skipped = 0
        self.devices: list[PciDevice] = []
        self.tests: list[NvbandwidthTest] = []
        self.problems: list[str] = []

    def read(self) -> NvbandwidthOutput:
        version = driver = ""
        index = 0
        while index < len(self.lines):
            line = self.lines[index]
            index += 1
            if "ersion" in line and (match := _VERSION.search(line)):
                version = match[1]
            elif "ersion" in line and (match := _DRIVER.search(line)):
                driver = match[1]
            elif "evice " in line and (match := _DEVICE.search(line)):
                number, model, domain, bus, device = match.groups()
                self.devices.append(PciDevice(int(number), model, f"{int(domain, 16):04x}:{bus}:{device}.0".lower()))
            elif "Running" in line and (match := _RUNNING.search(line)):
                self.name, self.title = match[1], ""
            elif "SUM" in line and (match := _SUM.match(line.strip())):
                self._sum(index - 1, match)
            elif line.strip().startswith("Waived"):
                self.skipped += 1
            elif _TITLE.search(line):
                self.title = " ".join(line.split())[:120]
            elif self.name and self.title and (header := header_of(line)) is not None:
                index = self._matrix(index, header)
        return NvbandwidthOutput(version, driver, self.devices, self.tests, self.skipped, self.problems)

    def _matrix(self, index: int, header: tuple[str, tuple[int, ...]]) -> int:
        try:
            values, after = read_rows(self.lines, index, header[1])
        except ValueError as error:
            self._problem(error.args[1], str(error.args[0]))
            return index
        if values:
            self.tests.append(NvbandwidthTest(self.name, self.title, Matrix(header[0], header[1], values)))
            self.title = ""
        return after

    def _sum(self, index: int, match: re.Match[str]) -> None:
        """The program's own sum must be that of the matrix above: people cut columns out of what they post."""
        last = self.tests[-1] if self.tests else None
        if last is None or not match[1].startswith(last.name) or self.title:
            return
        said, seen = float(match[2]), last.matrix.total
        if abs(said - seen) > max(0.05, _SUM_TOLERANCE * said):
            self._problem(index, f"the matrix above adds up to {seen:.2f}: a part of it is missing, or was changed")

    def _problem(self, index: int, text: str) -> None:
        if len(self.problems) < _MOST:
            self.problems.append(f"{quoted(self.lines, index)}: {text}")


def _json(text: str) -> NvbandwidthOutput:
    try:
        data = json.loads(text, parse_constant=lambda _: None)
    except RecursionError:
        raise MatrixError("JSON that is nested too deep: not what nvbandwidth -j prints") from None
    except ValueError as error:
        raise MatrixError(f"damaged JSON: {str(error)[:120]}") from None
    root = data.get("nvbandwidth") if isinstance(data, dict) else None
    if not isinstance(root, dict) or not isinstance(root.get("testcases"), list):
        raise MatrixError(f"JSON without nvbandwidth's testcases: {text.strip()[:60]!r}: expected what -j prints")
    tests: list[NvbandwidthTest] = []
    problems: list[str] = []
    skipped = 0
    for index, case in enumerate(root["testcases"]):
        if not isinstance(case, dict) or str(case.get("status")) not in {"Passed", "Running"}:
            skipped += 1
            continue
        try:
            tests.append(_case(case))
        except ValueError as error:
            problems.append(f"testcases[{index}] {str(case.get('name'))[:60]!r}: {error}")
    version, driver = (str(root.get(key, ""))[:40] for key in ("version", "Driver Version"))
    return NvbandwidthOutput(version, driver, _json_devices(root), tests, skipped, problems[:_MOST])


def _json_devices(root: Mapping[str, Any]) -> list[PciDevice]:
    listed = root.get("GPU Device list", [])
    texts = listed if isinstance(listed, list) else []
    found = []
    for index, text in enumerate(texts):
        match = re.match(r"(?:\d+: )?(.{0,80}?) \(([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})", str(text))
        if match:
            found.append(PciDevice(index, match[1], f"{int(match[2], 16):04x}:{match[3]}:{match[4]}.0".lower()))
    return found


def _case(case: Mapping[str, Any]) -> NvbandwidthTest:
    rows = case.get("bandwidth_matrix")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise ValueError("no bandwidth_matrix")
    if len({len(row) for row in rows}) > 1:
        raise ValueError("a bandwidth_matrix with rows of several lengths")
    words = [[str(number), *("_".join(str(value).split()) or "-" for value in row)] for number, row in enumerate(rows)]
    lines = [" ".join(row) for row in words]
    columns = tuple(range(len(rows[0])))
    values, after = read_rows(lines, 0, columns)
    if after < len(rows):
        raise ValueError("a bandwidth_matrix whose rows are no numbers")
    return NvbandwidthTest(
        str(case.get("name", ""))[:80], str(case.get("bandwidth_description", ""))[:120], Matrix("", columns, values)
    )
