"""Tables of published measurements: their rows, and the traffic behind each."""

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collbench.contention import nccl_symmetric, nccl_tuner
from collbench.contention.nccl_tuner import Tuner
from collbench.contention.patterns import two_stage_in_turn
from collbench.contention.traffic import Move, Schedule, one_stage, two_stage
from collbench.errors import InvalidError, UsageError
from collbench.results.records import Call, Mode
from collbench.topology.graph import Topology

__all__ = [
    "BANDWIDTH",
    "LATENCY",
    "SYMMETRIC",
    "Bandwidth",
    "Latency",
    "folder",
    "nccl_choice",
    "read",
    "schedule",
]

SYMMETRIC = "nccl-symm"
"""Algorithm of rows of NCCL's kernels on symmetric memory."""

LATENCY, BANDWIDTH = "public_latency.csv", "public_bandwidth.csv"

_MOST_ROWS = 100_000
_MOST_US, _MOST_BYTES = 1e9, 1 << 40
_LEAST_GBPS, _MOST_GBPS = 1e-3, 1e6  # what is outside is a mistake of unit


@dataclass(frozen=True, slots=True)
class Latency:
    """One row of the table of latencies."""

    id: str
    system: str
    ranks: int
    wiring: str
    generation: int
    algorithm: str
    variant: str
    mode: Mode
    bytes: int
    time_us: float
    confidence: str

    @property
    def curve(self) -> tuple[str, int, str, str, Mode]:
        """Rows of one curve differ in bytes only."""
        return self.system, self.ranks, self.algorithm, self.variant, self.mode


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One row of the table of bandwidths; `solo_gbps` is that of one flow alone on the same machine."""

    id: str
    system: str
    mechanism: str
    direction: str
    pattern: str
    total_gbps: float
    solo_gbps: float


def folder() -> Path:
    """Folder of the tables that come with collbench: inside the package where it is installed, else in its checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "published"
    return inside if inside.is_dir() else package.parent / "docs" / "model" / "data"


def read(folder: Path) -> tuple[list[Latency], list[Bandwidth], list[str]]:
    """Rows of both tables in `folder`, and what was left out of them: a sentence each.

    Raises:
        UsageError: there is neither table.
        InvalidError: a file cannot be read, or none of its rows is of use.
    """
    found = [name for name in (LATENCY, BANDWIDTH) if (folder / name).is_file()]
    if not found:
        raise UsageError(f"{folder}: holds neither {LATENCY} nor {BANDWIDTH}")
    problems: list[str] = []
    latency = [_latency(r) for r in _rows(folder / LATENCY, _latency, problems)] if LATENCY in found else []
    bandwidth = [_bandwidth(r) for r in _rows(folder / BANDWIDTH, _bandwidth, problems)] if BANDWIDTH in found else []
    return latency, bandwidth, problems


def _rows(path: Path, parse: Any, problems: list[str]) -> list[Mapping[str, str]]:  # noqa: ANN401 - a function of a row
    kept: list[Mapping[str, str]] = []
    seen = 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                seen = number - 1
                if seen > _MOST_ROWS:
                    raise InvalidError(f"{path}: more than {_MOST_ROWS} rows")
                try:
                    parse(row)
                    kept.append(row)
                except (KeyError, TypeError, ValueError) as error:
                    problems.append(f"{path.name} line {number}: {type(error).__name__}: {error}; left out")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidError(f"{path}: cannot be read: {error}") from error
    if seen and not kept:
        raise InvalidError(f"{path}: none of {seen} rows is of use: {problems[-1]}")
    return kept


def _latency(row: Mapping[str, str]) -> Latency:
    time_us, size = float(row["time_us"]), int(float(row["bytes"]))
    ranks = int(row["n_gpus"])
    if not 0 < time_us <= _MOST_US or not 0 < size <= _MOST_BYTES or ranks < 2:  # noqa: PLR2004 - or it is no collective
        raise ValueError(f"time {time_us} us, {size} bytes, {ranks} GPUs")
    algorithm, graph = row["algo"], row["graph"]
    eager = graph == "eager" or (algorithm == "nccl" and "eager" in graph)
    confidence = row["notes"].partition("conf=")[2][:4].strip("; ,")
    return Latency(
        row["id"], row["system"], ranks, row["topology_class"], int(row["pcie_gen"] or 0), algorithm, row["variant"],
        Mode.EAGER if eager else Mode.GRAPH, size, time_us, confidence,
    )  # fmt: skip


def _bandwidth(row: Mapping[str, str]) -> Bandwidth:
    total, solo = float(row["total_GBps"]), float(row["uncontended_GBps"] or "nan")
    for name, value in (("total", total), ("uncontended", solo)):
        if not _LEAST_GBPS <= value <= _MOST_GBPS and not (name == "uncontended" and math.isnan(value)):
            raise ValueError(f"{name} {value} GB/s")
    return Bandwidth(row["id"], row["system"], row["mechanism"], row["direction"], row["pattern"], total, solo)


_RANGE = re.compile(r"\b(LL128|LL|Simple) ?(?:<=|to |(\d+)([KM])-)(\d+)([KM])\b")
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def nccl_choice(tuner: Tuner, row: Latency) -> tuple[str, str]:
    """Algorithm and protocol of a row of NCCL: what its variant says, else what NCCL itself would choose.

    A variant may name protocols up to a size or between two (`LL to 576K`, `LL128 448K-3M`), as tuner plugins do: they
    take Simple beyond (rtx6kpro, optimization/nccl-tuning.md).
    """
    words = row.variant.replace("/", " ").replace(",", " ").replace("(", " ").replace(")", " ").split()
    ranges = [(p, _bytes(low, a), _bytes(high, b)) for p, low, a, high, b in _RANGE.findall(row.variant)]
    told = [p for p in ("LL", "Simple") if p in words and not ranges]
    told += [p for p, low, high in ranges if low < row.bytes <= high]
    if ranges and row.bytes > max(high for _, _, high in ranges):
        told = ["Simple"]
    algorithms = tuple(a for a in ("ring", "tree") if a in words)
    return tuner.fastest(row.bytes, algorithms, tuple(told) if len(told) == 1 else ())


def _bytes(number: str, unit: str) -> int:
    return int(number) * _UNITS[unit] if number else 0


def _two_shot_of_torch(call: Call) -> Schedule:
    """With a copy into its own buffer, by a kernel of its own, and a third barrier at the end: as torch does."""
    found = two_stage(call, Move.PULL, protocol="signal pads")
    last = found.phases[-1]
    return replace(found, phases=(*found.phases[:-1], replace(last, syncs=last.syncs + 1)), launches=2)


def schedule(topology: Topology, row: Latency) -> Schedule | None:
    """Traffic of a row's algorithm; None where nobody knows what it sends."""
    call = Call(row.bytes, row.ranks)
    if row.algorithm == "nccl":
        return nccl_tuner.schedule(call, *nccl_choice(Tuner.of(topology, row.ranks), row))
    if row.algorithm == SYMMETRIC:
        picked = nccl_symmetric.pick(Tuner.of(topology, row.ranks), row.bytes)
        return nccl_symmetric.schedule(call, picked[0]) if picked else None
    barriers, fences = (2, 0) if "ca_1stage" in row.variant else (1, None)  # vLLM's, which wait for no writes
    known = {
        "oneshot-pull": lambda: one_stage(call, Move.PULL, syncs=barriers, fences=fences, protocol="flags"),
        "oneshot-push": lambda: one_stage(call, Move.PUSH, syncs=1, protocol="flags"),
        "twoshot-pull": lambda: two_stage_in_turn(call, protocol="flags"),
        "twoshot-symm": lambda: _two_shot_of_torch(call),
        "oneshot-symm": lambda: one_stage(call, Move.PULL, syncs=2, protocol="signal pads"),
        "mscclpp": lambda: one_stage(call, Move.PUSH, syncs=1, wire_factor=2.0, protocol="flag in every 8 bytes"),
    }
    return known[row.algorithm]() if row.algorithm in known else None
