"""Where the fastest algorithm changes, at which size, and how sure that size is."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collbench.report.answer import leaders, leads
from collbench.report.canvas import Table
from collbench.report.series import LEAST_LAUNCHES, Panel, Series
from collbench.results.intervals import NO_INTERVAL
from collbench.units import format_bytes

__all__ = ["Crossing", "crossings", "told"]

_DRAWS, _SEED = 1000, 11
_TAIL = 0.025
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Crossing:
    """`before` is the fastest up to size `below`, `after` from size `above` on; they take equal times at `bytes`.

    `bytes` lies between the two sizes, as if logarithmic time were a straight line over logarithmic size there.
    `interval` is 95 % in bytes, from launches; an end beyond the measured sizes is None. None without enough launches.
    `absent` names an algorithm without a time on the other side: then nothing crosses, and `bytes` says nothing.
    """

    before: str
    after: str
    below: int
    above: int
    bytes: float
    launches: int
    interval: tuple[float | None, float | None] | None = None
    absent: str = ""


def crossings(panel: Panel) -> list[Crossing]:
    """Changes of the fastest, ascending; a leader stays while another one is only tied with it.

    None where every size is a tie: nobody is known to be the fastest before or after.
    """
    curves = {one.name: one for one in panel.series}
    found = leads(panel)
    if all(lead.ties for lead in found):
        return []
    return [
        _crossing(curves[before], curves[after], found[i].bytes, found[i + 1].bytes)
        for i, (before, after) in enumerate(itertools.pairwise(leaders(found)))
        if before != after
    ]


def _crossing(before: Series, after: Series, below: int, above: int) -> Crossing:
    absent = next((one.name for one, size in ((before, above), (after, below)) if _missing(one, size)), "")
    if absent:
        return Crossing(before.name, after.name, below, above, math.nan, 0, None, absent)
    sizes = [point.bytes for point in before.points if not _missing(before, point.bytes) | _missing(after, point.bytes)]
    logs = [_logs(one, sizes) for one in (before, after)]
    launches = min(len(values) for one in logs for values in one)
    middle = np.array([[np.mean(a) - np.mean(b) for a, b in zip(*logs, strict=True)]])
    where = math.log(math.sqrt(below * above))
    x = np.log(np.array(sizes, float))
    exact = float(_zero(middle, x, where)[0])
    size = math.exp(exact) if math.isfinite(exact) and below <= math.exp(exact) <= above else math.exp(where)
    interval = _interval(logs, x, math.log(size)) if launches >= LEAST_LAUNCHES else None
    return Crossing(before.name, after.name, below, above, size, launches, interval)


def _missing(one: Series, size: int) -> bool:
    point = one.at(size)
    return point is None or not point.plausible


def _logs(one: Series, sizes: Sequence[int]) -> list[_Floats]:
    """Logarithms of the launches' medians at each size."""
    points = [point for size in sizes if (point := one.at(size))]
    return [np.log(np.array(point.spread.medians or (point.p50_us,))) for point in points]


def _interval(logs: Sequence[Sequence[_Floats]], x: _Floats, where: float) -> tuple[float | None, float | None]:
    """Bootstrap over launches, each algorithm's drawn on its own: a launch is the unit of statistics."""
    draw = np.random.default_rng(_SEED)
    means = [
        np.stack([v[draw.integers(len(v), size=(_DRAWS, len(v)))].mean(axis=1) for v in curve], axis=1)
        for curve in logs
    ]
    found = _zero(means[0] - means[1], x, where)
    low, high = (float(q) for q in np.quantile(found, (_TAIL, 1 - _TAIL), method="closest_observation"))
    return math.exp(low) if math.isfinite(low) else None, math.exp(high) if math.isfinite(high) else None


def _zero(difference: _Floats, x: _Floats, where: float) -> _Floats:
    """Where each row of differences over x turns from negative to positive, nearest to `where`; infinite if nowhere.

    `-inf`: it is positive at every x; `inf`: it never turns.
    """
    found = np.where((difference > 0).all(axis=1), -math.inf, math.inf)
    for i in range(len(x) - 1):
        a, b = difference[:, i], difference[:, i + 1]
        turns = (a <= 0) & (b > 0)
        at = x[i] + np.where(turns, -a / np.where(turns, b - a, 1.0), 0.0) * (x[i + 1] - x[i])
        found = np.where(turns & (abs(at - where) < abs(found - where)), at, found)
    return found


def told(panels: Sequence[Panel]) -> dict[str, Any]:
    """`crossings` with a finding for each panel, and `crossings_table` with all of them, for the template."""
    found = [(panel, crossings(panel)) for panel in panels]
    columns = [
        ("mode", False),
        ("from", False),
        ("to", False),
        ("between", False),
        ("about", True),
        ("interval", False),
    ]
    lines = [
        [p.title, c.before, c.after, f"{format_bytes(c.below)} and {format_bytes(c.above)}", _size(c.bytes), _span(c)]
        for p, some in found
        for c in some
    ]
    return {
        "crossings": [{"title": panel.title, "finding": _finding(panel, some)} for panel, some in found],
        "crossings_table": Table("Sizes at which the fastest changes", columns, lines),
    }


def _finding(panel: Panel, found: Sequence[Crossing]) -> str:
    if len(panel.sizes) < 2 or len(panel.series) < 2:  # noqa: PLR2004 - one size or one curve crosses nothing
        return "One size or one algorithm only: nothing can cross."
    ties = sum(bool(lead.ties) for lead in leads(panel))
    tied = f" At {ties} of {len(panel.sizes)} sizes the fastest is tied with another one." if ties else ""
    if not found:
        return f"The fastest never changes beyond ties.{tied}"
    c = next((one for one in found if not one.absent), found[0])
    if c.absent:
        return f"{c.after} follows {c.before} only because {_span(c)}.{tied}"
    start = f"{c.after} overtakes {c.before} at about {_size(c.bytes)} ({_span(c)})"
    more = f"; {len(found) - 1} more change{'s' if len(found) > 2 else ''} below" if len(found) > 1 else ""  # noqa: PLR2004
    return f"{start}{more}.{tied}"


def _span(crossing: Crossing) -> str:
    if crossing.absent:
        size = crossing.above if crossing.absent == crossing.before else crossing.below
        return f"{crossing.absent} has no time at {format_bytes(size)}"
    if crossing.interval is None:
        n = crossing.launches
        return NO_INTERVAL if n == 1 else f"no interval: {n} launches"
    low, high = crossing.interval
    ends = _size(low) if low is not None else "below all sizes", _size(high) if high is not None else "above all sizes"
    return f"95 %: {ends[0]} to {ends[1]}"


def _size(value: float) -> str:
    """Two digits of a size: crossings are not known better; empty where nothing crosses."""
    if math.isnan(value):
        return ""
    for unit, word in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if value >= unit:
            return f"{value / unit:.2g}{word}" if value < 100 * unit else f"{value / unit:.0f}{word}"
    return f"{value:.0f}"
