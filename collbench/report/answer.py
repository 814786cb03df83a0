"""Which algorithm is fastest for which sizes, in words that claim no more than was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from collbench.report.absent import absent, listed, never, sizes_text
from collbench.report.series import LEAST_LAUNCHES, TIE, Panel, Point, Series
from collbench.units import format_bytes, format_us

__all__ = ["TIE", "Lead", "finding", "headline", "leaders", "leads", "open_sizes", "rank", "tie_rule"]

_MOST_SPANS, _MOST_ABSENT = 4, 2
_FACTOR = 2.0
"""From here on a ratio is told as a factor."""

_BEYOND_CHANCE = 2.0
"""Ratio of two medians that no launches of one binary were seen to differ by, but where ranks take turns; there `tie`
is wider."""

_CHOOSER = "auto"
"""It times our own algorithms and keeps the fastest: a tie with it is no rival, and its lead no answer."""

_RANKED = {("graph", "chained"): 0, ("graph", "isolated"): 1, ("eager", "chained"): 2, ("eager", "isolated"): 3}


@dataclass(frozen=True, slots=True)
class Lead:
    """The fastest algorithm of one size, those that cannot be told from it, and the next one with its ratio.

    `launches` is 0 where intervals tell the two apart, or nothing is next; else how many launches the order rests on.
    """

    bytes: int
    best: Series
    point: Point
    ties: tuple[str, ...]
    runner_up: str
    ratio: float
    launches: int = 0


def leads(panel: Panel) -> list[Lead]:
    """One lead per size, ascending; values below the floor do not take part, nor `auto` beside what it chooses from."""
    found = []
    for size in panel.sizes:
        there = [(one, point) for one in panel.series if (point := one.at(size)) and point.plausible]
        others = [pair for pair in there if pair[0].algorithm != _CHOOSER]
        ranked = sorted(others or there, key=lambda pair: pair[1].p50_us)
        if not ranked:
            continue
        (best, point), *others = ranked
        ties = tuple(one.name for one, other in others if _tied(point, other, panel.tie))
        behind = next(((one, other) for one, other in others if one.name not in ties), None)
        if behind is None:
            found.append(Lead(size, best, point, ties, "", 1.0))
        else:
            one, other = behind
            found.append(Lead(size, best, point, ties, one.name, other.p50_us / point.p50_us, _rests(point, other)))
    return found


def _rests(best: Point, other: Point) -> int:
    """Launches that the order of two rests on; 0 where both have an interval, or come from no launch."""
    if best.spread.interval_us is not None and other.spread.interval_us is not None:
        return 0
    return min(len(best.spread.medians), len(other.spread.medians))


def leaders(found: Sequence[Lead]) -> list[str]:
    """Who leads at each size: one stays while tied with a faster one, so that noise makes no change of leader."""
    names: list[str] = []
    for lead in found:
        stays = bool(names) and names[-1] in lead.ties
        names.append(names[-1] if stays else lead.best.name)
    return names


def _tied(best: Point, other: Point, tie: float) -> bool:
    ours, theirs = best.spread, other.spread
    if ours.interval_us is not None and theirs.interval_us is not None:
        return ours.interval_us[1] >= theirs.interval_us[0]
    if other.p50_us < tie * best.p50_us:
        return True
    return bool({*best.flags, *other.flags} & {"noisy"}) and ours.high_us >= theirs.low_us


def tie_rule(launches: int, tie: float = TIE, eager_tie: float = 0.0, most: int = 0) -> str:
    """What counts as a tie in this run, for readers; `eager_tie` where eager calls have a wider rule.

    `launches` is the least that any cell has, `most` the most.
    """
    how = "their intervals overlap"
    if launches < LEAST_LAUNCHES:
        by_intervals = f"{how} or, where one has none, " if most >= LEAST_LAUNCHES else ""
        within = f"{100 * (tie - 1):.0f} %" if tie < _FACTOR else f"a factor of {tie:.0f}"
        within += f" (eager: {100 * (eager_tie - 1):.0f} %, the noise of the host)" if eager_tie > tie else ""
        how = f"medians are within {within}, or one is noisy and the middle halves of their iterations overlap"
        how = by_intervals + how
    return f"Tied: {how}. In the sentences above a leader stays while another one is only tied with it."


def headline(panels: Sequence[Panel]) -> Panel | None:
    """The panel of the page's first sentence: captured and chained, as a decode step runs, where it is there."""
    return min(panels, key=rank, default=None)


def rank(panel: Panel) -> int:
    """Place among the panels of a page."""
    return _RANKED.get((panel.mode, panel.cadence), len(_RANKED))


def finding(panel: Panel, *, times: bool = True) -> str:
    """One sentence, such as: a is fastest up to 4K (5.1 to 6.0 us), b from 14K (9.3 to 60 us); and what is tied.

    Nobody is called the fastest where all sizes of a span are ties. Further sentences say that too few launches may
    have put them in that order by chance, and name who was not run at all, or leads at some sizes and was not measured
    at others.
    """
    return " ".join([_finding(panel, times=times), *_chance(panel), *_not_measured(panel)])


def _chance(panel: Panel) -> list[str]:
    """Where the order of the first two rests on too few launches for an interval, and they are not far apart."""
    clear = [lead for lead in leads(panel) if not lead.ties and lead.runner_up]
    few = [lead for lead in clear if lead.launches and lead.ratio < _BEYOND_CHANCE]
    if not few:
        return []
    least = min(lead.launches for lead in few)
    many = "one launch" if least == 1 else f"{least} launches, too few for an interval"
    if len(few) == len(clear):
        return [f"In {many}: the order may be chance."]
    return [f"At {sizes_text([lead.bytes for lead in few], panel.sizes)} in {many}: there the order may be chance."]


def _finding(panel: Panel, *, times: bool) -> str:
    spans = _spans(panel)
    if not spans:
        return "No value is above its floor, so nothing can be said."
    told = [f" ({_times(span)})" if times else "" for span in spans]
    if len(panel.series) == 1:
        return f"Only {panel.series[0].name} ran{told[0]}."
    if all(span.open for span in spans):
        return _undecided(spans, times=times)
    if len(spans) > _MOST_SPANS:
        return f"{_counted(spans)}."
    where = [_where(span, i, len(spans)) for i, span in enumerate(spans)]
    clear = [f"{span.name} {where[i]}{told[i]}" for i, span in enumerate(spans) if not span.open]
    first = next(span.name for span in spans if not span.open)
    text = ", ".join(clear).replace(first, f"{first} is fastest", 1)
    tied = [f"{where[i]} {listed(span.names)} are tied{told[i]}" for i, span in enumerate(spans) if span.open]
    return "; ".join([text, *tied, *_some_ties(spans)]) + "."


def _undecided(spans: Sequence["_Span"], *, times: bool) -> str:
    names = list(dict.fromkeys(name for span in spans for name in span.names))
    low, high = (pick(p.p50_us for span in spans for p in span.points) for pick in (min, max))
    told = format_us(low) if format_us(low) == format_us(high) else f"{format_us(low)} to {format_us(high)}"
    return f"No fastest can be told at any size: {listed(names)} are tied{f' ({told} us)' if times else ''}."


def _some_ties(spans: Sequence["_Span"]) -> list[str]:
    """How many sizes are ties, where some of them lie within spans that are not; the count is of all."""
    if not any(span.ties for span in spans if not span.open):
        return []
    every, total = sum(len(span.ties) for span in spans), sum(len(span.points) for span in spans)
    if any(span.open for span in spans):
        return [f"{every} of {total} sizes are ties in all"]
    return [f"tied with another one at {every} of {total} sizes"]


def _not_measured(panel: Panel) -> list[str]:
    every = panel.sizes
    told = [f"at any size: {listed(names)}"] if (names := never(panel)) else []
    told += [
        f"at {sizes_text(one.missing, every)}: {listed(one.names)} (first or tied at {sizes_text(one.led, every)})"
        for one in absent(panel)[:_MOST_ABSENT]
    ]
    return [f"Not run {'; '.join(told)}."] if told else []


def open_sizes(panel: Panel) -> list[str]:
    """A caution for sizes at which the fastest is open, since who leads at others was not measured there."""
    found = absent(panel)
    if not found:
        return []
    names = [name for one in found for name in one.names]
    missing = sorted({size for one in found for size in one.missing})
    where, were = sizes_text(missing, panel.sizes), "was" if len(names) == 1 else "were"
    text = f"Who is the fastest at {where} is open: {listed(names)} {were} not run there, and elsewhere the fastest or"
    return [f"{text} within 5 % of it. Whoever is called the fastest there is so of those that ran."]


@dataclass(frozen=True, slots=True)
class _Span:
    """Neighbouring sizes with one leader; `ties` are the sizes at which another one is tied with the fastest.

    `names` are the leader's and those of all that are tied there.
    """

    name: str
    points: tuple[Point, ...]
    ties: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def open(self) -> bool:
        """All of it is a tie."""
        return len(self.ties) == len(self.points)


def _spans(panel: Panel) -> list[_Span]:
    found = leads(panel)
    spans = []
    for name, group in groupby(zip(leaders(found), found, strict=True), key=lambda pair: pair[0]):
        some = [lead for _, lead in group]
        kept = len(some)
        while any(not lead.ties for lead in some) and some[kept - 1].best.name != name:
            kept -= (
                1  # a tie behind which it never leads again is a span of its own, as the table has another one first
            )
        spans += [_span(panel, name, part) for part in (some[:kept], some[kept:]) if part]
    return spans


def _span(panel: Panel, name: str, some: Sequence[Lead]) -> _Span:
    curve = next(one for one in panel.series if one.name == name)
    points = [curve.at(lead.bytes) if any(lead.best.name == name for lead in some) else lead.point for lead in some]
    names = dict.fromkeys([name, *(tie for lead in some if lead.ties for tie in (lead.best.name, *lead.ties))])
    ties = tuple(lead.bytes for lead in some if lead.ties)
    return _Span(name, tuple(point for point in points if point), ties, tuple(names))


def _counted(spans: Sequence[_Span]) -> str:
    counts: dict[str, int] = {}
    for span in spans:
        counts[span.name] = counts.get(span.name, 0) + len(span.points) - len(span.ties)
    listed = sorted(((name, n) for name, n in counts.items() if n), key=lambda item: -item[1])[:_MOST_SPANS]
    total, tied = sum(len(span.points) for span in spans), sum(len(span.ties) for span in spans)
    told = ", ".join(f"{name} at {n}" for name, n in listed)
    more = f"; at {tied} the first ones are tied" if tied else ""
    return f"The fastest changes from size to size: {told} of {total} sizes{more}"


def _where(span: _Span, index: int, count: int) -> str:
    first, last = format_bytes(span.points[0].bytes), format_bytes(span.points[-1].bytes)
    if first == last:
        return f"at {first}"
    if count == 1:
        return "at every size"
    if index == 0:
        return f"up to {last}"
    if index == count - 1:
        return f"from {first}"
    return f"from {first} to {last}"


def _times(span: _Span) -> str:
    first, last = format_us(span.points[0].p50_us), format_us(span.points[-1].p50_us)
    return f"{first} us" if first == last else f"{first} to {last} us"
