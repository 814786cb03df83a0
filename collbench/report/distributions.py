"""How single iterations spread: distributions, tails, and drift in the order of the run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from collbench.report.canvas import CURVES, GRID, Drawn, Table, picture
from collbench.report.featured import featured, left_out
from collbench.report.figure import key_of, style_of
from collbench.report.reasons import chosen_sizes
from collbench.report.series import Panel, Series
from collbench.report.stragglers import last_matrix, last_ranks
from collbench.report.svg import Styles
from collbench.report.ticks import log_axis
from collbench.results.records import Samples, Status
from collbench.units import format_bytes, format_us

__all__ = ["distributions", "drift"]

_Floats = npt.NDArray[np.float64]
_QUANTILES = np.concatenate((np.linspace(0, 0.95, 39), np.linspace(0.955, 1.0, 10)))
_MOST_ORDERED, _MOST_POINTS = 6, 240
_LEAST_DRIFT = 6  # iterations of a launch below which thirds say nothing


@dataclass(frozen=True, slots=True)
class _Cell:
    """All launches of one cell: latencies as arrays of ranks x iterations, in us."""

    one: Series
    bytes: int
    launches: tuple[_Floats, ...]

    @property
    def folds(self) -> list[_Floats]:
        """The slowest rank's time in each iteration, by launch."""
        return [part.max(axis=0) for part in self.launches]

    @property
    def fold(self) -> _Floats:
        """Of all launches, in their order."""
        return np.concatenate(self.folds)


def distributions(panel: Panel | None, samples: Sequence[Samples], styles: Styles) -> dict[str, Any]:
    """`spread` for the template: figures of one panel and the matrix of last ranks; None where nothing was measured."""
    if panel is None:
        return {"spread": None}
    cells = _cells(panel, samples)
    sizes = chosen_sizes(panel)
    shown = [cell for cell in cells if cell.bytes in sizes and cell.one in featured(panel)]
    middle = min(sizes, key=lambda size: abs(sizes.index(size) - (len(sizes) - 1) // 2))
    ordered = [cell for cell in shown if cell.bytes == middle][:_MOST_ORDERED]
    return {"spread": {
        "mode": panel.title, "figures": [_ecdf(shown, sizes, styles), _order(ordered, middle, styles)],
        "last": last_matrix({
            one.name: [part for cell in cells if cell.one is one for part in cell.launches]
            for one in featured(panel)
        }),
        "left_out": left_out(panel),
    }}  # fmt: skip


def _cells(panel: Panel, samples: Sequence[Samples]) -> list[_Cell]:
    by_cell: dict[str, list[Samples]] = {}
    for sample in samples:
        if sample.status is Status.OK and sample.latency_us:
            by_cell.setdefault(sample.cell_id, []).append(sample)
    return [
        _Cell(one, point.bytes, tuple(np.asarray(s.latency_us, float) for s in by_cell[point.cell_id]))
        for one in panel.series
        for point in one.points
        if point.plausible and point.cell_id in by_cell
    ]


def _ecdf(cells: Sequence[_Cell], sizes: Sequence[int], styles: Styles) -> Drawn:
    finding = _tails(cells)
    titles: dict[str, list[str]] = {}
    svg = picture(partial(_paint_ecdf, cells, sizes, titles), (7.4, 3.3), "ecdf-", styles, finding, titles)
    names = list(dict.fromkeys(cell.one for cell in cells))
    note = "Height: the part of the iterations that took no longer. Filled marks: p50; hollow: p99."
    if any(cell.fold.size < 100 for cell in cells):  # noqa: PLR2004 - a percentile needs a hundred values
        note += " Below 100 iterations p99 is in effect the slowest one."
    columns = [
        ("algorithm", False), ("bytes", True), ("p50", True), ("p90", True), ("p99", True), ("p99 / p50", True),
        ("iterations", True), ("last rank", True), ("in", True),
    ]  # fmt: skip
    table = Table("Spread of iterations, microseconds per call", columns, [_line(cell) for cell in cells])
    return Drawn(
        "Distributions", finding, svg, table, note, [key_of(one) for one in names],
        x="microseconds per call, logarithmic",
    )  # fmt: skip


def _line(cell: _Cell) -> list[str]:
    p50, p90, p99 = (float(q) for q in np.quantile(cell.fold, (0.5, 0.9, 0.99)))
    parts = last_ranks(cell.launches)
    rank = int(parts.argmax())
    return [
        cell.one.name, format_bytes(cell.bytes), format_us(p50), format_us(p90), format_us(p99), format_us(p99 / p50),
        str(cell.fold.size), str(rank), f"{parts[rank]:.0%}",
    ]  # fmt: skip


def _tails(cells: Sequence[_Cell]) -> str:
    """Whose slowest hundredth is farthest from the median, and whose is nearest."""
    ratios = sorted(
        (float(np.quantile(cell.fold, 0.99) / np.median(cell.fold)), cell.one.name, cell.bytes) for cell in cells
    )
    if not ratios:
        return "No iteration can be shown."
    low, high = ratios[0], ratios[-1]
    where = f"{high[1]}'s at {format_bytes(high[2])}"
    text = f"The longest tail is {where}, with p99 at {format_us(high[0])} times the median"
    if len(ratios) > 1:
        text += f"; the shortest {low[1]}'s at {format_bytes(low[2])}, {format_us(low[0])} times"
    return f"{text}."


def _paint_ecdf(cells: Sequence[_Cell], sizes: Sequence[int], titles: dict[str, list[str]], figure: Any) -> None:  # noqa: ANN401 - matplotlib has no types
    width = (0.925 - 0.03 * (len(sizes) - 1)) / len(sizes)
    for place, size in enumerate(sizes):
        axes = figure.add_axes((0.065 + place * (width + 0.03), 0.105, width, 0.80))
        for number, cell in enumerate(cells):
            if cell.bytes == size:
                _curve(axes, cell, f"e{number}", titles)
        axes.set_title(format_bytes(size), loc="left")
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"] if place == 0 else [""] * 5)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        log_axis(axes, "x")


def _curve(axes: Any, cell: _Cell, name: str, titles: dict[str, list[str]]) -> None:  # noqa: ANN401 - same
    number, marker = style_of(cell.one)
    values = np.quantile(cell.fold, _QUANTILES)
    p50, p99 = (float(q) for q in np.quantile(cell.fold, (0.5, 0.99)))
    axes.plot(values, _QUANTILES, color=CURVES[number], linewidth=1.3, zorder=2)
    for word, value, at, face in (("p50", p50, 0.5, CURVES[number]), ("p99", p99, 0.99, "none")):
        axes.plot(
            [value], [at], marker=marker, markersize=5, color=CURVES[number], markerfacecolor=face,
            markeredgewidth=0.9, linestyle="none", zorder=3, gid=name + word,
        )  # fmt: skip
        titles[name + word] = [f"{cell.one.name}, {cell.bytes} bytes: {word} {format_us(value)} us"]


def _order(cells: Sequence[_Cell], size: int, styles: Styles) -> Drawn:
    finding = _drifts(cells, size)
    svg = picture(partial(_paint_order, cells), (7.4, 2.9), "order-", styles, finding)
    columns = [
        ("algorithm", False), ("launches", True), ("iterations", True), ("last third over first", True),
        ("slowest launch over fastest", True),
    ]  # fmt: skip
    lines = [
        [
            cell.one.name, str(len(cell.launches)), str(cell.fold.size), _percent(drift(cell.folds)),
            _percent(_between(cell)) if len(cell.launches) > 1 else "",
        ]
        for cell in cells
    ]  # fmt: skip
    table = Table(f"Drift in the order of the run, {format_bytes(size)}", columns, lines)
    note = (
        "Launches stand one behind the other, divided by upright lines; several iterations are drawn as their median."
    )
    return Drawn(
        f"In the order of the run, {format_bytes(size)}", finding, svg, table, note, [key_of(c.one) for c in cells],
        x="iterations of all launches", y="microseconds per call, logarithmic",
    )  # fmt: skip


def drift(folds: Sequence[_Floats]) -> float | None:
    """Median of the last third of iterations over that of the first, less one, mean over launches; None if too few."""
    logs = []
    for fold in folds:
        third = len(fold) // 3
        if len(fold) >= _LEAST_DRIFT:
            logs.append(math.log(float(np.median(fold[-third:])) / float(np.median(fold[:third]))))
    return math.exp(math.fsum(logs) / len(logs)) - 1 if logs else None


def _between(cell: _Cell) -> float:
    medians = [float(np.median(fold)) for fold in cell.folds]
    return max(medians) / min(medians) - 1


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def _drifts(cells: Sequence[_Cell], size: int) -> str:
    known = sorted((value, cell.one.name) for cell in cells if (value := drift(cell.folds)) is not None)
    if not known:
        return f"At {format_bytes(size)} there are too few iterations to see a drift."
    (low, first), (high, last) = known[0], known[-1]
    text = f"From the first to the last third of a launch medians move by {_percent(low)} ({first})"
    text += f" to {_percent(high)} ({last})" if len(known) > 1 else ""
    several = [(_between(cell), cell.one.name) for cell in cells if len(cell.launches) > 1]
    if several:
        most, name = max(several)
        text += f"; between launches by up to {100 * most:.1f} % ({name})"
    return f"{text}."


def _paint_order(cells: Sequence[_Cell], figure: Any) -> None:  # noqa: ANN401 - matplotlib has no types
    axes = figure.add_axes((0.085, 0.115, 0.9, 0.85))
    ends: set[float] = set()
    for cell in cells:
        number, marker = style_of(cell.one)
        fold = cell.fold
        step = max(1, math.ceil(fold.size / _MOST_POINTS))
        starts = range(0, fold.size, step)
        values = [float(np.median(fold[i : i + step])) for i in starts]
        x = [(i + step / 2) / fold.size for i in starts]
        axes.plot(
            x, values, color=CURVES[number], linewidth=1.0, marker=marker, markersize=4.5, markeredgewidth=0,
            markevery=max(1, len(x) // 8),
        )  # fmt: skip
        sizes = np.cumsum([len(part) for part in cell.folds])
        ends |= {round(float(end) / fold.size, 3) for end in sizes[:-1]}
    if len(ends) == max((len(cell.launches) for cell in cells), default=1) - 1:
        for end in ends:
            axes.axvline(end, color=GRID, linewidth=1.2, zorder=0)
    axes.set_yscale("log")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["first", "", "", "", "last"])
    log_axis(axes, "y")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
