"""Draws a panel: latency over message size, both logarithmic."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from collbench.report.series import Panel, Series
from collbench.units import format_bytes

__all__ = ["COLOURS", "MARKERS", "MOST_CURVES", "draw", "glyph", "style_of"]

MOST_CURVES = 12
"""Curves of one figure: as many as there are colours and markers; of the 13th algorithm the pairs are shifted."""

MARKERS = "os^DvPX<>ph*"
_INK, _MUTED, _GRID, _FLOOR = "#000001", "#000002", "#000003", "#000004"
_CURVES = tuple(f"#0000{16 + i:02x}" for i in range(12))
COLOURS: Mapping[str, str] = {
    _INK: "var(--ink)", _MUTED: "var(--muted)", _GRID: "var(--line)", _FLOOR: "var(--floor)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(_CURVES)},
}  # fmt: skip
"""Stand-ins that are drawn with, and the page's variables that take their place."""

_MOST_TICKS = 9


def style_of(one: Series) -> tuple[int, str]:
    """Number of a curve's colour, and its marker."""
    turn, number = divmod(one.index, len(_CURVES))
    return number, MARKERS[(number + turn) % len(MARKERS)]


def draw(panel: Panel, shown: Sequence[Series]) -> str:
    """SVG of some curves: medians with the middle half of the iterations, prediction dashed, floor shaded."""
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.hashsalt": "collbench", "svg.fonttype": "none", "svg.id": None, "font.size": 10, "axes.linewidth": 0.8,
        "axes.edgecolor": _MUTED, "text.color": _INK, "xtick.color": _MUTED, "ytick.color": _MUTED,
        "axes.facecolor": "none", "path.simplify": False,
    }  # fmt: skip
    with sns.axes_style("ticks"), mpl.rc_context(settings):
        figure = Figure(figsize=(7.4, 4.3))
        axes = figure.add_axes((0.085, 0.085, 0.9, 0.89))
        _curves(axes, shown)
        _axes(axes, panel, shown)
        sns.despine(ax=axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def _curves(axes: Any, shown: Sequence[Series]) -> None:  # noqa: ANN401 - matplotlib has no types
    for one in reversed(shown):
        number, marker = style_of(one)
        colour, x = _CURVES[number], [p.bytes for p in one.points]
        low, high = [p.spread.low_us for p in one.points], [p.spread.high_us for p in one.points]
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
        axes.plot(x, [p.p50_us for p in one.points], color=colour, linewidth=1.5, zorder=3)
        for hollow in (False, True):
            some = [p for p in one.points if p.plausible is not hollow]
            face = "none" if hollow else colour
            axes.plot(
                [p.bytes for p in some], [p.p50_us for p in some], linestyle="none", marker=marker, markersize=5.5,
                color=colour, markerfacecolor=face, markeredgewidth=1.0 if hollow else 0.0, zorder=4,
            )  # fmt: skip
        told = [(p.bytes, p.predicted_us) for p in one.points if p.predicted_us is not None]
        if told:
            axes.plot(*zip(*told, strict=True), color=colour, linewidth=1.1, linestyle=(0, (4, 3)), zorder=2)


def _axes(axes: Any, panel: Panel, shown: Sequence[Series]) -> None:  # noqa: ANN401 - matplotlib has no types
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    lows = [min(p.spread.low_us, p.p50_us, p.predicted_us or p.p50_us) for one in shown for p in one.points]
    highs = [max(p.spread.high_us, p.p50_us, p.predicted_us or p.p50_us) for one in shown for p in one.points]
    least, most = min(x for x in lows if x > 0) / 1.25, max(highs) * 1.25
    sizes = panel.sizes
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axes.set_ylim(least, most)
    step = math.ceil(len(sizes) / _MOST_TICKS)
    axes.xaxis.set_major_locator(FixedLocator(sizes[::-step][::-1]))
    axes.xaxis.set_minor_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(round(value))))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if most / least < 1000 else (1.0,)))  # noqa: PLR2004 - decades
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(which="major", length=4, labelcolor=_INK)
    axes.tick_params(which="minor", length=2)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    _floor(axes, panel, least)


def _floor(axes: Any, panel: Panel, least: float) -> None:  # noqa: ANN401 - matplotlib has no types
    floors = floor_line(panel)
    if floors and max(floors.values()) > least:
        axes.fill_between(list(floors), [least / 10] * len(floors), list(floors.values()), color=_FLOOR, linewidth=0)
        axes.plot(list(floors), list(floors.values()), color=_MUTED, linewidth=1.0, linestyle=":")


def floor_line(panel: Panel) -> dict[int, float]:
    """Least floor of any curve, microseconds by size."""
    found: dict[int, float] = {}
    for one in panel.series:
        for point in one.points:
            if point.floor_us is not None:
                found[point.bytes] = min(point.floor_us, found.get(point.bytes, point.floor_us))
    return dict(sorted(found.items()))


def glyph(marker: str) -> str:
    """Outline of a marker as SVG path data in a box from -6 to 6."""
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import Affine2D

    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform() + Affine2D().scale(9, -9))
    rings: Any = path.to_polygons(closed_only=True)
    return "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in ring) + "Z" for ring in rings)
