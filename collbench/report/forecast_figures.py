"""Figures of a forecast: latency over size, and the terms of the fastest."""

from collections.abc import Sequence
from dataclasses import replace

from collbench.report import answer, figure
from collbench.report.canvas import Drawn, Table
from collbench.report.forecast import STEP_BYTES, Cast, headline, nearest
from collbench.report.gain import usual
from collbench.report.reasons import predicted_reasons
from collbench.report.series import Panel, Point, Series, Spread
from collbench.report.svg import Styles, inline
from collbench.units import format_bytes, format_us

__all__ = ["curves", "terms"]

_MOST_BARS = 11
_NO_BANDS = "Without bands; a point that is pointed at tells its interval."


def curves(made: Cast, styles: Styles) -> list[Drawn]:
    """First who is the fastest somewhere, beside NCCL, with intervals; then every curve without them."""
    panel, most = made.every, figure.MOST_CURVES
    best = {lead.best.name for lead in answer.leads(made.answer)}
    other = usual(made.answer)
    first = [one for one in panel.series if one.name in best or one is other][:most]
    order = [*first, *(one for one in panel.series if one not in first)]  # so that no two of the first share a colour
    numbered = {one.name: replace(one, index=number) for number, one in enumerate(order)}
    panel = replace(panel, series=tuple(numbered[one.name] for one in panel.series))
    first = [numbered[one.name] for one in first]
    told = f"By the model {headline(made)}"
    found = [_figure(panel, first, styles, "first-", "the fastest", told, _note(made))]
    for start in range(0, len(panel.series), most):
        shown = panel.series[start : start + most]
        which = f"curves {start + 1} to {start + len(shown)} of {len(panel.series)}"
        words = f"At {_step(made)} they take {_span(shown, nearest(panel.sizes))} us."
        found.append(_figure(panel, shown, styles, f"f{start}-", which, words, _NO_BANDS, bands=False))
    return found


def _figure(
    panel: Panel, shown: Sequence[Series], styles: Styles, prefix: str, which: str, finding: str, note: str,
    *, bands: bool = True,
) -> Drawn:  # fmt: skip
    """Its titles have the intervals also where no bands are drawn."""
    title, step = f"{panel.title}, {which}", format_bytes(nearest(panel.sizes))
    drawn = shown if bands else [replace(one, points=tuple(map(_bare, one.points))) for one in shown]
    text = figure.draw(panel, drawn, predicted=True)
    svg, _ = inline(text, prefix, styles, f"{title}. {finding}", figure.titles(shown, predicted=True))
    return Drawn(
        title, finding, svg, _table(title, panel, shown), note, [figure.key_of(one) for one in shown],
        f"Curves, fastest at {step} first", "bytes per rank, logarithmic", "microseconds per call, logarithmic",
    )  # fmt: skip


def _bare(point: Point) -> Point:
    return replace(point, spread=Spread(point.p50_us, point.p50_us))


def _span(shown: Sequence[Series], size: int) -> str:
    times = [point.p50_us for one in shown if (point := one.at(size))]
    return f"{format_us(min(times))} to {format_us(max(times))}" if times else "no known"


def _step(made: Cast) -> str:
    return format_bytes(nearest(made.every.sizes))


def _note(made: Cast) -> str:
    floors = figure.floor_line(made.every).values()
    floor = f" Floor: {format_us(min(floors))} to {format_us(max(floors))} us, shaded." if floors else ""
    return (
        "Dashed with hollow points: predicted. Bands: the model's nominal 90 % interval. Algorithms that put the same "
        f"on the wires are one curve, under the shortest name.{floor}"
    )


def _table(title: str, panel: Panel, shown: Sequence[Series]) -> Table:
    sizes = panel.sizes
    columns = [("algorithm", False), *((format_bytes(size), True) for size in sizes)]
    lines = [
        [one.name, *(format_us(point.p50_us) if (point := one.at(size)) else "" for size in sizes)] for one in shown
    ]
    return Table(f"Microseconds by bytes, {title}", columns, lines)


def terms(made: Cast, styles: Styles) -> list[Drawn]:
    """The fastest curves at a token's and a verify step's size, and NCCL's best, split into terms."""
    other = usual(made.answer)
    found = []
    for size in dict.fromkeys(nearest(made.every.sizes, wanted) for wanted in STEP_BYTES):
        there = [(one, point) for one in made.every.series if (point := one.at(size))]
        ranked = sorted(there, key=lambda pair: pair[1].p50_us)
        first, rest = ranked[:_MOST_BARS], ranked[_MOST_BARS:]
        ranked = [*first, *(pair for pair in rest if pair[0] is other)]
        bars = [(one.name, made.predictions[point.cell_id]) for one, point in ranked]
        title = f"{format_bytes(size)}, {made.every.title}"
        found.append(predicted_reasons(title, bars, styles, f"why{size}-"))
    return found
