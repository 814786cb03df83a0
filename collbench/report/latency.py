"""Latency over size: one figure per mode and cadence, and the times of all curves as its table."""

from collections.abc import Sequence

from collbench.report import answer, figure
from collbench.report.canvas import Drawn, Table
from collbench.report.featured import featured, left_out
from collbench.report.series import Panel, Series
from collbench.report.svg import Styles, inline
from collbench.units import format_bytes, format_us

__all__ = ["latency_figure"]


def latency_figure(panel: Panel, prefix: str, styles: Styles, tool: str = "") -> Drawn:
    """The featured curves drawn, all of them in the table. `tool` is another tool that measured, if one did."""
    shown, finding = featured(panel), answer.finding(panel)
    svg, _ = inline(figure.draw(panel, shown), prefix, styles, f"{panel.title}. {finding}", figure.titles(shown))
    table = Table(
        f"p50_us by bytes, {panel.title}",
        [("algorithm", False), *((format_bytes(size), True) for size in panel.sizes)],
        [[one.name, *(_value(one, size) for size in panel.sizes)] for one in panel.series],
    )
    return Drawn(
        panel.title, finding, svg, table, _note(panel, shown, tool), [figure.key_of(one) for one in shown],
        x="bytes per rank, logarithmic", y="microseconds per call, logarithmic",
    )  # fmt: skip


def _value(one: Series, size: int) -> str:
    point = one.at(size)
    return format_us(point.p50_us) if point else ""


def _note(panel: Panel, shown: Sequence[Series], tool: str) -> str:
    """What stands in the figure, and where the floor is if it is too low to be seen."""
    parts = [f"{left_out(panel)} The table has all."] if left_out(panel) else []
    if tool:
        parts.append(f"Points: median of the times that {tool} gives. Bands: the middle half of them.")
    else:
        parts.append(
            "Points: median over iterations of the slowest rank's time. Bands: the middle half of the iterations."
        )
    if any(point.predicted_us is not None for one in shown for point in one.points):
        parts.append("Dashed: predicted.")
    if not all(point.plausible for one in shown for point in one.points):
        parts.append("Hollow: below the floor, so not believed.")
    floors = figure.floor_line(panel).values()
    if floors:
        low, high = format_us(min(floors)), format_us(max(floors))
        parts.append(
            f"Floor: {low if low == high else f'{low} to {high}'} us; it is shaded where it reaches into the figure."
        )
    most = max(panel.calls)
    shorter = [f"{one.name} {min(one.calls)}" for one in shown if min(one.calls) < most]
    if shorter:
        parts.append(f"Chains are shorter than {most} calls where memory or time ask for it: {', '.join(shorter)}.")
    return " ".join(parts)
