"""Draws a panel: latency over message size, both logarithmic."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from collbench.report.canvas import COLOURS, CURVES, FLOOR, GRID, INK, MARKERS, MUTED, Key, glyph, sheet
from collbench.report.series import Panel, Point, Series
from collbench.report.ticks import labelled_sizes, log_axis
from collbench.results.intervals import LEAST_LAUNCHES
from collbench.units import format_bytes, format_us

__all__ = ["COLOURS", "MARKERS", "MOST_CURVES", "draw", "floor_line", "glyph", "key_of", "style_of", "titles"]

MOST_CURVES = 12
"""Curves of one figure: as many as there are colours and markers; of the 13th algorithm the pairs are shifted."""

_SIZE, _AXES = (7.4, 4.3), (0.085, 0.085, 0.9, 0.89)
"""Of a figure in inches, and its axes as parts of that."""

_MARGIN = 1.25
_NO_EXPONENT = 1e5
_DASHES = (0, (4, 3))


def style_of(one: Series) -> tuple[int, str]:
    """Number of a curve's colour, and its marker."""
    turn, number = divmod(one.index, len(CURVES))
    return number, MARKERS[(number + turn) % len(MARKERS)]


def key_of(one: Series) -> Key:
    """Its entry in a legend."""
    number, marker = style_of(one)
    return Key(one.name, number, glyph(marker))


def draw(panel: Panel, shown: Sequence[Series], *, predicted: bool = False) -> str:
    """SVG of some curves: medians with the middle half of the iterations, prediction dashed, floor shaded.

    Where the panel itself is `predicted`, its curves are dashed, its points hollow, and its bands the model's interval.
    """
    return sheet(partial(_paint, panel, shown, predicted), _SIZE)


def _paint(panel: Panel, shown: Sequence[Series], predicted: bool, figure: Any) -> None:  # noqa: ANN401, FBT001 - matplotlib has no types
    axes = figure.add_axes(_AXES)
    _curves(axes, shown, dashed=predicted)
    _axes(axes, panel, shown)


def titles(shown: Sequence[Series], *, predicted: bool = False) -> dict[str, list[str]]:
    """What each drawn point says, by the id of its curve's points: exact numbers."""
    told = _forecast if predicted else _title
    found = {}
    for number, one in enumerate(shown):
        for hollow in (False, True):
            some = [point for point in one.points if point.plausible is not hollow]
            found[_points_id(number, hollow=hollow)] = [told(one, point) for point in some]
    return found


def _points_id(number: int, *, hollow: bool) -> str:
    return f"points{number}{'h' if hollow else ''}"


def _title(one: Series, point: Point) -> str:
    low, high = _exact(point.spread.low_us), _exact(point.spread.high_us)
    parts = [f"{one.name}, {point.bytes} bytes: {_exact(point.p50_us)} us", f"middle half {low} to {high}"]
    if point.spread.interval_us:
        parts.append("95 % interval {} to {}".format(*map(_exact, point.spread.interval_us)))
    for word, value in (("p99", point.p99_us), ("predicted", point.predicted_us), ("floor", point.floor_us)):
        parts += [f"{word} {_exact(value)}"] if value is not None else []
    count = len(point.spread.medians)
    if 0 < count < LEAST_LAUNCHES:
        parts.append(f"no interval: {'one launch' if count == 1 else f'{count} launches'}")
    return ", ".join([*parts, *point.flags])


def _exact(us: float) -> str:
    """Five digits, no exponent."""
    return f"{us:.5g}" if us < _NO_EXPONENT else f"{us:.0f}"


def _forecast(one: Series, point: Point) -> str:
    low, high = format_us(point.spread.low_us), format_us(point.spread.high_us)
    floor = "" if point.floor_us is None else f", floor {format_us(point.floor_us)}"
    time = format_us(point.p50_us)
    return f"{one.name}, {point.bytes} bytes: {time} us predicted, nominal 90 % interval {low} to {high}{floor}"


def _curves(axes: Any, shown: Sequence[Series], *, dashed: bool) -> None:  # noqa: ANN401 - matplotlib has no types
    for place, one in reversed(list(enumerate(shown))):
        number, marker = style_of(one)
        colour, x = CURVES[number], [p.bytes for p in one.points]
        low, high = [p.spread.low_us for p in one.points], [p.spread.high_us for p in one.points]
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
        line = _DASHES if dashed else "-"
        axes.plot(x, [p.p50_us for p in one.points], color=colour, linewidth=1.5, linestyle=line, zorder=3)
        for hollow in (False, True):
            some = [p for p in one.points if p.plausible is not hollow]
            face = "none" if hollow or dashed else colour
            axes.plot(
                [p.bytes for p in some], [p.p50_us for p in some], linestyle="none", marker=marker, markersize=5.5,
                color=colour, markerfacecolor=face, markeredgewidth=1.0 if hollow or dashed else 0.0, zorder=4,
                gid=_points_id(place, hollow=hollow),
            )  # fmt: skip
        told = [(p.bytes, p.predicted_us) for p in one.points if p.predicted_us is not None]
        if told:
            axes.plot(*zip(*told, strict=True), color=colour, linewidth=1.1, linestyle=_DASHES, zorder=2)


def _axes(axes: Any, panel: Panel, shown: Sequence[Series]) -> None:  # noqa: ANN401 - matplotlib has no types
    from matplotlib.ticker import FixedLocator, FuncFormatter

    lows = [min(p.spread.low_us, p.p50_us, p.predicted_us or p.p50_us) for one in shown for p in one.points]
    highs = [max(p.spread.high_us, p.p50_us, p.predicted_us or p.p50_us) for one in shown for p in one.points]
    least, most = min(x for x in lows if x > 0) / 1.25, max(highs) * 1.25
    sizes = panel.sizes
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(sizes[0] / _MARGIN, sizes[-1] * _MARGIN)
    axes.set_ylim(least, most)
    axes.xaxis.set_major_locator(FixedLocator(labelled_sizes(sizes, _width(sizes))))
    axes.xaxis.set_minor_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(round(value))))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    log_axis(axes, "y")
    axes.tick_params(which="major", length=4, labelcolor=INK)
    axes.tick_params(which="minor", length=2)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    _floor(axes, panel, least)


def _width(sizes: Sequence[int]) -> float:
    """Points on the paper from the first size to the last."""
    span = math.log(sizes[-1] / sizes[0])
    return _SIZE[0] * _AXES[2] * 72 * span / (span + 2 * math.log(_MARGIN))


def _floor(axes: Any, panel: Panel, least: float) -> None:  # noqa: ANN401 - matplotlib has no types
    floors = floor_line(panel)
    if floors and max(floors.values()) > least:
        axes.fill_between(list(floors), [least / 10] * len(floors), list(floors.values()), color=FLOOR, linewidth=0)
        axes.plot(list(floors), list(floors.values()), color=MUTED, linewidth=1.0, linestyle=":")


def floor_line(panel: Panel) -> dict[int, float]:
    """Least floor of any curve, microseconds by size."""
    found: dict[int, float] = {}
    for one in panel.series:
        for point in one.points:
            if point.floor_us is not None:
                found[point.bytes] = min(point.floor_us, found.get(point.bytes, point.floor_us))
    return dict(sorted(found.items()))
