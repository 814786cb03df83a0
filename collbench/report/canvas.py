"""The sheet that figures are drawn on: colours that become the page's variables, one size of type, titles on points."""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.report.svg import Styles, inline

__all__ = [
    "BACK",
    "BLOCK",
    "COLOURS",
    "CURVES",
    "FLOOR",
    "GRID",
    "INK",
    "MARKERS",
    "MUTED",
    "Drawn",
    "Key",
    "Table",
    "glyph",
    "named_rows",
    "picture",
    "sheet",
]

INK, MUTED, GRID, FLOOR, BACK = "#000001", "#000002", "#000003", "#000004", "#000005"
CURVES = tuple(f"#0000{16 + i:02x}" for i in range(12))
COLOURS: Mapping[str, str] = {
    INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)", FLOOR: "var(--floor)",
    BACK: "var(--back)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(CURVES)},
}  # fmt: skip
"""Stand-ins that are drawn with, and the page's variables that take their place."""

MARKERS = "os^DvPX<>ph*"
_MOST_LETTERS, _LETTER = 34, 0.0128
"""Of a name to the left of a row, and the width of one as a part of a figure of 7.4 inches, in wide fonts too."""

BLOCK = "M-5 -5H5V5H-5Z"
"""Outline of a key for areas."""


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: number of its colour, outline of its marker."""

    name: str
    colour: int
    glyph: str


@dataclass(frozen=True, slots=True)
class Table:
    """Columns as (name, is a number), and the texts of each line; the first column heads its line."""

    caption: str
    columns: Sequence[tuple[str, bool]]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure for the template: what it shows in a sentence, the picture, its keys, and the same as a table."""

    title: str
    finding: str
    svg: str
    table: Table
    note: str = ""
    legend: Sequence[Key] = field(default_factory=tuple)
    legend_title: str = "Curves, fastest first"
    x: str = ""
    y: str = ""


def sheet(paint: Callable[[Any], None], size: tuple[float, float]) -> str:
    """What `paint` puts on a matplotlib figure of that size in inches, as SVG in stand-in colours."""
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.hashsalt": "collbench", "svg.fonttype": "none", "svg.id": None, "font.size": 10, "axes.linewidth": 0.8,
        "axes.edgecolor": MUTED, "text.color": INK, "xtick.color": MUTED, "ytick.color": MUTED,
        "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.labelcolor": MUTED, "axes.facecolor": "none",
        "axes.titlesize": 10, "path.simplify": False, "text.parse_math": False,
    }  # fmt: skip
    with sns.axes_style("ticks"), mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # the reader's fonts count, not ours
        figure = Figure(figsize=size)
        paint(figure)
        for axes in figure.axes:
            sns.despine(ax=axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def picture(
    paint: Callable[[Any], None],
    size: tuple[float, float],
    prefix: str,
    styles: Styles,
    label: str,
    titles: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The same for a page; `titles` as `svg.inline` takes them."""
    return inline(sheet(paint, size), prefix, styles, label, titles)[0]


def named_rows(figure: Any, names: Sequence[str]) -> Any:  # noqa: ANN401 - matplotlib has no types
    """Axes with a name to the left of each row, the first one on top; row i lies at y = i."""
    height = figure.get_figheight()
    shown = [name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…" for name in names]
    left = max(0.12, 0.02 + _LETTER * max(map(len, shown), default=0))
    axes = figure.add_axes((left, 0.42 / height, 0.98 - left, 1 - 0.5 / height))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), shown)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def glyph(marker: str) -> str:
    """Outline of a marker as SVG path data in a box from -6 to 6."""
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import Affine2D

    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform() + Affine2D().scale(9, -9))
    rings: Any = path.to_polygons(closed_only=True)
    return "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in ring) + "Z" for ring in rings)
