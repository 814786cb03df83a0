"""Which curves a figure shows: the fastest, and always what runs where nobody chooses."""

from collections.abc import Sequence
from dataclasses import replace

from collbench.report.figure import MOST_CURVES
from collbench.report.gain import usual
from collbench.report.series import Panel, Series

__all__ = ["featured", "left_out", "numbered"]


def featured(panel: Panel) -> tuple[Series, ...]:
    """At most `MOST_CURVES` curves, fastest first; of many the last place is that of the usual algorithm."""
    first = panel.series[:MOST_CURVES]
    other = usual(panel)
    if other is None or other in first or len(panel.series) <= MOST_CURVES:
        return first
    return (*first[:-1], other)


def left_out(panel: Panel) -> str:
    """Says what a figure of the panel does not show; empty where it shows all."""
    more = len(panel.series) - MOST_CURVES
    if more <= 0:
        return ""
    shown, other = featured(panel), usual(panel)
    what = f"The {MOST_CURVES} fastest" if shown == panel.series[:MOST_CURVES] or other is None else (
        f"The {MOST_CURVES - 1} fastest and {other.name}"
    )  # fmt: skip
    return f"{what} of {len(panel.series)} algorithms."


def numbered(panels: Sequence[Panel]) -> list[Panel]:
    """The same panels with numbers of curves in the order in which they are shown, so that few look alike."""
    order: dict[tuple[str, str], int] = {}
    for some in (*(featured(panel) for panel in panels), *(panel.series for panel in panels)):
        for one in some:
            order.setdefault((one.algorithm, one.variant), len(order))
    return [
        replace(panel, series=tuple(replace(s, index=order[s.algorithm, s.variant]) for s in panel.series))
        for panel in panels
    ]
