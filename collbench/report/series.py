"""From rows to what is drawn: panels of curves, aggregated once, before any figure is made."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from collbench.results.intervals import LEAST_LAUNCHES, interval_of_medians
from collbench.results.records import Mode, Samples, Status
from collbench.results.summary import clean, fold

__all__ = [
    "CROWDED_TIE", "EAGER_TIE", "LEAST_LAUNCHES", "TIE", "Panel", "Point", "Series", "Spread", "is_drawn", "panels",
    "spreads",
]  # fmt: skip

TIE = 1.05
"""Ratio of medians below which two algorithms of a run without intervals are called tied: launches of the same binary
were seen to differ by 1 % (2 pinned ranks) to 15 % (8 ranks on 2 cores)."""

CROWDED_TIE = 10.0
"""The same where ranks take turns on too few hardware threads: two launches of one algorithm were seen to differ by a
factor of 2 in the middle, and of 10 in one pair out of ten (docs/measurements/host-crowding.md)."""

EAGER_TIE = 1.3
"""The same for eager calls on GPUs, which wait for the host: in one launch on two H200 a chain of one algorithm took
6.9 us per call at 1K and 5.3 at 4K, though more bytes cannot be faster (docs/measurements/h200-x2/runs/pair-base)."""

_PANEL_FIELDS = (
    "collective", "mode", "cadence", "op", "dtype", "world_size", "place", "buffers", "epilogue", "skew",
)  # fmt: skip
_TITLE = (1, 2)


@dataclass(frozen=True, slots=True)
class Spread:
    """Middle half of a cell's folds in us, the 95 % interval of its median, and the medians of its launches."""

    low_us: float
    high_us: float
    interval_us: tuple[float, float] | None = None
    medians: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """One `ok` cell of a curve. Times in microseconds per call."""

    bytes: int
    p50_us: float
    spread: Spread
    floor_us: float | None
    predicted_us: float | None
    flags: tuple[str, ...]
    p99_us: float | None = None
    cell_id: str = ""

    @property
    def plausible(self) -> bool:
        """Not below the floor."""
        return "implausible" not in self.flags


@dataclass(frozen=True, slots=True)
class Series:
    """One curve.

    `index` numbers the algorithms of the run, so that colour and marker are the same in every panel; `calls` are the
    lengths of its chains, which may be shorter at large sizes.
    """

    algorithm: str
    variant: str
    calls: tuple[int, ...]
    index: int
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """What the legend says."""
        return " ".join(filter(None, (self.algorithm, self.variant)))

    def at(self, size: int) -> Point | None:
        """The point of that message size."""
        return next((point for point in self.points if point.bytes == size), None)


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves that may be compared: same call but for its size, same mode and cadence. Fastest first.

    `tie` is the ratio of medians below which two of them are tied, where there are no intervals. `unsupported` has by
    name of a curve the sizes that it cannot take, `not_run` those whose turn did not come.
    """

    mode: str
    cadence: str
    calls: tuple[int, ...]
    other: Mapping[str, str]
    series: tuple[Series, ...]
    tie: float = TIE
    unsupported: Mapping[str, frozenset[int]] = field(default_factory=dict)
    not_run: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """`graph, chained (122 calls)`, and what else differs between the panels of this run."""
        most = max(self.calls)
        some = "up to " if min(self.calls) < most else ""
        count = f" ({some}{most} calls)" if most > 1 else ""
        return ", ".join((self.mode, self.cadence + count, *(f"{k} {v}" for k, v in self.other.items())))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Message sizes of any curve, ascending."""
        return tuple(sorted({point.bytes for one in self.series for point in one.points}))


def spreads(samples: Iterable[Samples]) -> dict[str, Spread]:
    """Spread of each `ok` cell by cell_id, over all its launches."""
    folds: dict[str, list[np.ndarray[Any, np.dtype[np.float64]]]] = {}
    for one in samples:
        if one.status is Status.OK:
            folds.setdefault(one.cell_id, []).append(fold(one))
    return {cell_id: _spread(parts) for cell_id, parts in folds.items()}


def _spread(parts: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> Spread:
    low, high = np.quantile(np.concatenate(parts), (0.25, 0.75))
    medians = tuple(float(np.median(part)) for part in parts)
    return Spread(float(low), float(high), interval_of_medians(medians), medians)


def is_drawn(row: Mapping[str, Any]) -> bool:
    """Whether the row has a place on logarithmic axes: a time, and bytes, above zero."""
    return bool(row["p50_us"] and row["bytes"])


def panels(
    rows: Sequence[Mapping[str, Any]], spread: Mapping[str, Spread], tie: float = TIE, eager_tie: float = 0.0
) -> list[Panel]:
    """Panels of the `ok` rows, in the order of the plan; `isolated` and `chained` cells are never mixed.

    Eager panels take `eager_tie` where it is larger than `tie`. Rows that are not drawn (`is_drawn`) are in none.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if is_drawn(row) and row["cell_id"] in spread:
            groups.setdefault(tuple(_field(row, name) for name in _PANEL_FIELDS), []).append(row)
    varying = [i for i in range(len(_PANEL_FIELDS)) if len({key[i] for key in groups}) > 1 and i not in _TITLE]
    numbers: dict[tuple[str, str], int] = {}
    refused, waiting = _sizes_with(rows, Status.UNSUPPORTED), _sizes_with(rows, Status.NOT_RUN)
    found = []
    for key, members in groups.items():
        curves = _curves(members, spread)
        for one in curves:
            numbers.setdefault((one.algorithm, one.variant), len(numbers))
        other = {_PANEL_FIELDS[i].replace("_", " "): key[i] or "none" for i in varying}
        numbered = tuple(replace(one, index=numbers[one.algorithm, one.variant]) for one in curves)
        calls = tuple(sorted({row["calls"] for row in members}))
        near = max(tie, eager_tie) if key[1] == Mode.EAGER else tie
        found.append(Panel(key[1], key[2], calls, other, numbered, near, refused.get(key, {}), waiting.get(key, {})))
    return found


def _sizes_with(rows: Iterable[Mapping[str, Any]], status: Status) -> dict[tuple[str, ...], dict[str, frozenset[int]]]:
    """By panel and curve the sizes whose cells ended so."""
    found: dict[tuple[str, ...], dict[str, frozenset[int]]] = {}
    for row in rows:
        if row["status"] == status:
            name = " ".join(filter(None, (clean(row["algorithm"]), clean(row["variant"]))))
            some = found.setdefault(tuple(_field(row, part) for part in _PANEL_FIELDS), {})
            some[name] = some.get(name, frozenset()) | {row["bytes"]}
    return found


def _field(row: Mapping[str, Any], name: str) -> str:
    if name == "cadence":
        return "isolated" if row["calls"] == 1 else "chained"
    return str(row[name])


def _curves(rows: Sequence[Mapping[str, Any]], spread: Mapping[str, Spread]) -> list[Series]:
    """Curves of one panel, fastest first. Of several chains of one size, the longest is drawn; the table has all."""
    curves: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        at = curves.setdefault((row["algorithm"], row["variant"]), {})
        if row["bytes"] not in at or at[row["bytes"]]["calls"] < row["calls"]:
            at[row["bytes"]] = row
    found = [
        Series(
            clean(algorithm), clean(variant), tuple(sorted({row["calls"] for row in at.values()})), 0,
            tuple(_point(at[size], spread) for size in sorted(at)),
        )
        for (algorithm, variant), at in curves.items()
    ]  # fmt: skip
    return sorted(found, key=_slowness(found))


def _point(row: Mapping[str, Any], spread: Mapping[str, Spread]) -> Point:
    return Point(
        row["bytes"], row["p50_us"], spread[row["cell_id"]], row["floor_us"], row["predicted_us"], tuple(row["flags"]),
        row["p99_us"], row["cell_id"],
    )  # fmt: skip


def _slowness(series: Sequence[Series]) -> Any:  # noqa: ANN401 - a sort key
    """Geometric mean over sizes of a curve's time relative to the fastest one there."""
    best: dict[int, float] = {}
    for one in series:
        for point in one.points:
            best[point.bytes] = min(point.p50_us, best.get(point.bytes, point.p50_us))

    def key(one: Series) -> tuple[float, str]:
        logs = [math.log(point.p50_us / best[point.bytes]) for point in one.points]
        return round(math.fsum(logs) / len(logs), 9), one.name

    return key
