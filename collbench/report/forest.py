"""A forest plot: every cell's change with its interval against the band that does not count."""

import math
from collections.abc import Sequence
from typing import Any

from collbench.gate.names import change, interval, short_names, times
from collbench.gate.verdicts import CellVerdict, Outcome
from collbench.results.summary import clean

__all__ = ["ROW", "WIDTH", "axis", "lines"]

WIDTH, ROW = 280.0, 22.0
"""Size of one cell's drawing, in CSS pixels."""

_EDGE = 22.0
_LABEL = 46.0
_MARKS = (0, 80, -40, 40, -20, 20, -10, 10, -5, 5)
_MARK = {"REGRESSED": "k3", "IMPROVED": "k2", "OK": "k0", "INCONCLUSIVE": "k7", "INVALID": "k10"}


def _reach(cells: Sequence[CellVerdict]) -> float:
    """Largest log ratio of the axis: of what the intervals need at least 5 %, at most a factor of two."""
    ends = [abs(math.log(end)) for cell in cells for end in (cell.low, cell.high) if end]
    return min(math.log(2), max([-math.log(0.95), *ends]) * 1.05)


def _place(log_ratio: float, reach: float) -> float:
    inside = max(-reach, min(reach, log_ratio))
    return round(_EDGE + (inside + reach) / (2 * reach) * (WIDTH - 2 * _EDGE), 1)


def _side(log_ratio: float, reach: float) -> int:
    """-1 and 1 for what lies beyond an end of the axis, else 0."""
    return (log_ratio > reach) - (log_ratio < -reach)


def axis(cells: Sequence[CellVerdict]) -> list[tuple[float, str]]:
    """Marks of the axis: where, and what stands there. The outermost that fit come first, and no two touch."""
    reach = _reach(cells)
    marks: list[tuple[float, str]] = []
    for percent in _MARKS:
        place = _place(math.log1p(percent / 100), reach)
        inside = abs(math.log1p(percent / 100)) <= reach
        if inside and all(abs(place - other) >= _LABEL for other, _ in marks):
            marks.append((place, f"{percent:+d} %" if percent else "0"))
    return sorted(marks)


def _arrow(side: int) -> str:
    """A filled triangle that points off the axis."""
    at = _place(side * math.inf, 1.0)
    return f"M{at - 4 * side:g} {ROW / 2 - 6:g}L{at + 8 * side:g} {ROW / 2:g}L{at - 4 * side:g} {ROW / 2 + 6:g}Z"


def _chevron(side: int) -> str:
    """The open end of an interval that goes on beyond the axis."""
    at = _place(side * math.inf, 1.0)
    return f"M{at - 2 * side:g} {ROW / 2 - 5:g}L{at + 4 * side:g} {ROW / 2:g}L{at - 2 * side:g} {ROW / 2 + 5:g}"


def lines(outcome: Outcome, cells: Sequence[CellVerdict]) -> list[dict[str, Any]]:
    """One row per cell as text, with the places of its interval, its band and its dot.

    What lies beyond the axis is an arrow at its end: `arrow` is the outline in the dot's place, `ends` those of an
    interval whose ratio itself can be shown; both are empty where all of it is on the axis.
    """
    names = short_names(cell.cell_id for cell in outcome.cells)
    reach = _reach(cells)
    found = []
    for cell in cells:
        base, now = times(cell)
        margin = math.log1p(cell.margin if cell.margin is not None else outcome.rules.min_effect)
        drawn = cell.ratio is not None and cell.low is not None and cell.high is not None
        logs = [math.log(value or 1) for value in (cell.ratio, cell.low, cell.high)]
        beyond, *ends = (_side(value, reach) if drawn else 0 for value in logs)
        found.append({
            "name": names[cell.cell_id], "verdict": str(cell.verdict), "mark": _MARK[str(cell.verdict)], "base": base,
            "now": now, "change": change(cell), "interval": interval(cell), "reason": clean(cell.reason),
            "control": cell.control, "band": (_place(-margin, reach), _place(margin, reach)),
            "whisker": tuple(_place(end, reach) for end in logs[1:]) if drawn else None,
            "dot": _place(logs[0], reach), "arrow": _arrow(beyond) if beyond else "",
            "ends": "" if beyond else "".join(_chevron(side) for side in ends if side), "middle": _place(0.0, reach),
        })  # fmt: skip
    return found
