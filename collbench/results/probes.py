"""Results of microbenchmarks: one record each, one line each of `probes.jsonl` in a run folder."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError, UsageError
from collbench.results import lines
from collbench.results.files import append_whole, readable_errors, refuse_special
from collbench.results.kinds import number, rows, text, whole
from collbench.results.records import MAX_NAME, MAX_RANKS, Status
from collbench.units import MAX_BYTES

__all__ = ["PROBES", "SEVERAL", "Probe", "append_probe", "probe_rows", "read_probes"]

PROBES = "probes.jsonl"
"""Name of the file in a run folder."""

SEVERAL = -1
"""`src` or `dst` of a probe in which several ranks take that part."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One microbenchmark's result.

    `name` says what was measured (`flag`, `read_chain`, `bandwidth.load`, ...), `pattern` which flows ran together
    (`solo`, `both_ways`, `one_to_3`, `all_to_all`, ...; empty for what has no flows). Data flow from `src` to `dst`;
    `flows` lists all pairs. `bytes` is what each flow moved, `value` the median in `unit`, `spread` the distance from
    the first to the third quartile as a part of the median. `value` is None unless `status` is ok.
    """

    name: str
    pattern: str = ""
    src: int = SEVERAL
    dst: int = SEVERAL
    flows: tuple[tuple[int, int], ...] = ()
    bytes: int = 0
    value: float | None = None
    unit: str = "us"
    spread: float = 0.0
    status: Status = Status.OK
    reason: str = ""

    def row(self) -> dict[str, Any]:
        """JSON form; inverse of `from_row`."""
        return {**asdict(self), "flows": [list(pair) for pair in self.flows], "status": str(self.status)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Probe":
        """Read one line.

        Raises:
            InvalidError: a field is missing or of the wrong kind, a value is not finite, or an ok probe has none.
        """
        try:
            value = row["value"]
            src, dst = (whole(row, name, SEVERAL, MAX_RANKS) for name in ("src", "dst"))
            found = cls(
                text(row, "name", most=MAX_NAME), text(row, "pattern", most=MAX_NAME), src, dst, _flows(row),
                whole(row, "bytes", 0, MAX_BYTES), None if value is None else number(row, "value"),
                text(row, "unit", most=MAX_NAME), number(row, "spread"), Status(text(row, "status")),
                text(row, "reason"),
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise InvalidError(f"{type(error).__name__}: {error}") from error
        if (found.value is None) == (found.status is Status.OK):
            raise InvalidError(f"probe {found.name}: status {found.status} with value {found.value}")
        if not math.isfinite(found.value or 0.0) or (found.value or 0.0) < 0 or not 0 <= found.spread < math.inf:
            raise InvalidError(f"probe {found.name}: {found.value} is no finite number from zero on")
        return found


def _flows(row: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    pairs = [rows({"flows": pair}, "flows", int) for pair in rows(row, "flows", list)]
    if any(len(pair) != 2 or not 0 <= min(pair) <= max(pair) <= MAX_RANKS for pair in pairs):  # noqa: PLR2004 - from, to
        raise InvalidError("flows holds something that is no pair of ranks")
    return tuple((pair[0], pair[1]) for pair in pairs)


def append_probe(folder: Path, probe: Probe) -> None:
    """Add a line to the folder's file; when this returns it is written.

    Raises:
        InvalidError: no permission, a full disk, or no regular file in its place.
    """
    text = json.dumps(probe.row(), allow_nan=False, separators=(",", ":")).encode() + b"\n"
    path = folder / PROBES
    with readable_errors(path, option="--out"):
        refuse_special(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            append_whole(descriptor, text)
        finally:
            os.close(descriptor)


def read_probes(folder: Path) -> tuple[list[Probe], list[str]]:
    """Probes of a run folder in the order in which they were taken, and what is damaged: a sentence each.

    Raises:
        UsageError: the folder holds none.
        InvalidError: none of its lines is of use.
    """
    path = folder / PROBES
    if not path.exists():
        raise UsageError(f"{folder}: holds no {PROBES}: run collbench probe --out FOLDER first")
    parsed = lines.read(path, Probe.from_row)
    return [probe for _, probe in parsed.records], list(parsed.problems)


def probe_rows(probes: list[Probe]) -> str:
    """Probes as a text table."""
    head = ["probe", "pattern", "src", "dst", "bytes", "value", "unit", "spread", "status"]
    body = [
        [
            p.name, p.pattern or "-", *("-" if rank == SEVERAL else str(rank) for rank in (p.src, p.dst)),
            str(p.bytes or "-"), "-" if p.value is None else f"{p.value:.4g}", p.unit, f"{p.spread:.0%}",
            str(p.status) + (f": {p.reason}" if p.reason else ""),
        ]
        for p in probes
    ]  # fmt: skip
    width = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    numbers = {2, 3, 4, 5, 7}
    lined = [
        "  ".join(c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, width, strict=True)))
        for row in [head, *body]
    ]
    return "\n".join(line.rstrip() for line in lined)
