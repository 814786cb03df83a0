"""Which algorithm is fastest for which sizes, in words that claim no more than was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from collbench.report.series import LEAST_LAUNCHES, Panel, Point, Series
from collbench.results.records import Fabric
from collbench.units import format_bytes, format_us

__all__ = ["TIE", "Lead", "cautions", "finding", "headline", "leaders", "leads", "rank", "tie_rule"]

TIE = 1.05
"""Ratio of medians below which two algorithms of a run without intervals are called tied: launches of the same binary
were seen to differ by 1 % (2 pinned ranks) to 15 % (8 ranks on 2 cores)."""

_MOST_SPANS = 4
_SHARED = {
    Fabric.HOST: "CPU ranks share the memory of the host",
    Fabric.SHARED_GPU: "several ranks share one GPU",
}
_RANKED = {("graph", "chained"): 0, ("graph", "isolated"): 1, ("eager", "chained"): 2, ("eager", "isolated"): 3}


@dataclass(frozen=True, slots=True)
class Lead:
    """The fastest algorithm of one size, those that cannot be told from it, and the next one with its ratio."""

    bytes: int
    best: Series
    point: Point
    ties: tuple[str, ...]
    runner_up: str
    ratio: float


def leads(panel: Panel) -> list[Lead]:
    """One lead per size, ascending; values below the floor do not take part."""
    found = []
    for size in panel.sizes:
        there = [(one, point) for one in panel.series if (point := one.at(size)) and point.plausible]
        ranked = sorted(there, key=lambda pair: pair[1].p50_us)
        if not ranked:
            continue
        (best, point), *others = ranked
        ties = tuple(one.name for one, other in others if _tied(point, other))
        behind = next(
            ((one.name, other.p50_us / point.p50_us) for one, other in others if one.name not in ties), ("", 1.0)
        )
        found.append(Lead(size, best, point, ties, *behind))
    return found


def leaders(found: Sequence[Lead]) -> list[str]:
    """Who leads at each size: one stays while tied with a faster one, so that noise makes no change of leader."""
    names: list[str] = []
    for lead in found:
        stays = bool(names) and names[-1] in lead.ties
        names.append(names[-1] if stays else lead.best.name)
    return names


def _tied(best: Point, other: Point) -> bool:
    ours, theirs = best.spread.interval_us, other.spread.interval_us
    if ours is not None and theirs is not None:
        return ours[1] >= theirs[0]
    return other.p50_us < TIE * best.p50_us


def tie_rule(launches: int) -> str:
    """What counts as a tie in this run, for readers."""
    how = "their intervals overlap" if launches >= LEAST_LAUNCHES else f"medians are within {100 * (TIE - 1):.0f} %"
    return f"Tied: {how}. In the sentences above a leader stays while another one is only tied with it."


def headline(panels: Sequence[Panel]) -> Panel | None:
    """The panel of the page's first sentence: captured and chained, as a decode step runs, where it is there."""
    return min(panels, key=rank, default=None)


def rank(panel: Panel) -> int:
    """Place among the panels of a page."""
    return _RANKED.get((panel.mode, panel.cadence), len(_RANKED))


def finding(panel: Panel, *, times: bool = True) -> str:
    """One sentence, such as: a is fastest up to 4K (5.1 to 6.0 us), b from 14K (9.3 to 60 us); and what is tied."""
    found = leads(panel)
    tied = sum(bool(lead.ties) for lead in found)
    if not tied:
        return f"{_found(panel, times=times)}."
    where = "at every size" if tied == len(found) else f"at {tied} of {len(found)} sizes"
    return f"{_found(panel, times=times)}; tied with another one {where}."


def _found(panel: Panel, *, times: bool) -> str:
    spans = _spans(panel)
    told = [f" ({_times(span)})" if times else "" for span in spans]
    if not spans:
        return "No value is above its floor, so nothing can be said"
    if len(panel.series) == 1:
        return f"Only {panel.series[0].name} ran{told[0]}"
    if len(spans) == 1:
        return f"{spans[0].name} is fastest at every size{told[0]}"
    if len(spans) > _MOST_SPANS:
        return _counted(spans)
    parts = [f"{span.name} {_where(span, i, len(spans))}{told[i]}" for i, span in enumerate(spans)]
    return ", ".join(parts).replace(spans[0].name, f"{spans[0].name} is fastest", 1)


@dataclass(frozen=True, slots=True)
class _Span:
    name: str
    points: tuple[Point, ...]


def _spans(panel: Panel) -> list[_Span]:
    """Neighbouring sizes with one leader."""
    found = leads(panel)
    names = leaders(found)
    curves = {one.name: one for one in panel.series}
    pairs = [(name, curves[name].at(lead.bytes)) for name, lead in zip(names, found, strict=True)]
    grouped = [
        (name, [point for _, point in group if point]) for name, group in groupby(pairs, key=lambda pair: pair[0])
    ]
    return [_Span(name, tuple(points)) for name, points in grouped]


def _counted(spans: Sequence[_Span]) -> str:
    counts: dict[str, int] = {}
    for span in spans:
        counts[span.name] = counts.get(span.name, 0) + len(span.points)
    listed = sorted(counts.items(), key=lambda item: -item[1])[:_MOST_SPANS]
    total = sum(counts.values())
    return (
        f"The fastest changes from size to size: {', '.join(f'{name} at {n}' for name, n in listed)} of {total} sizes"
    )


def _where(span: _Span, index: int, count: int) -> str:
    first, last = format_bytes(span.points[0].bytes), format_bytes(span.points[-1].bytes)
    if index == 0:
        return f"up to {last}"
    if index == count - 1:
        return f"from {first}"
    return f"at {first}" if first == last else f"from {first} to {last}"


def _times(span: _Span) -> str:
    first, last = format_us(span.points[0].p50_us), format_us(span.points[-1].p50_us)
    return f"{first} us" if first == last else f"{first} to {last} us"


def cautions(fabric: Fabric, launches: int, noisy: int, ok: int, *, finished: bool) -> list[str]:
    """What the numbers do not say; `launches` is the least that any `ok` cell has, 0 where none is ok."""
    found = []
    if fabric in _SHARED:
        found.append(
            f"Fabric {fabric}: {_SHARED[fabric]}. It shows launch, synchronisation and protocol cost, "
            "says nothing about PCIe links."
        )
    if 0 < launches < LEAST_LAUNCHES:
        why = "one launch" if launches == 1 else f"{launches} launches, at least {LEAST_LAUNCHES} are needed"
        found.append(f"No interval: {why}. Bands show the spread within the launch{'es' if launches > 1 else ''}.")
    elif launches:
        found.append(f"Intervals: 95 %, from the medians of {launches} launches. Bands show the spread of iterations.")
    if noisy:
        found.append(
            f"{noisy} of {ok} measured cells are noisy: p99 above 3 x p50, launches over 10 % apart, or fewer than "
            "5 iterations."
        )
    if not finished:
        found.append("The sweep was stopped before its end: what is missing stands below as not_run.")
    return found
