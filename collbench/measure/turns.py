"""Who is launched next, so that within a budget as many algorithms as possible come to the launches asked for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collbench.measure.plan import Key
from collbench.results.intervals import LEAST_LAUNCHES

__all__ = ["MARGIN", "Turn", "Work", "fitting", "needed_s", "next_turn"]

MARGIN = 1.1
"""Launches of one algorithm differ by so much (up to 10 % were seen with 8 ranks): a plan has to fit with it."""

_DOUBT = 0.5
"""What was expected and never measured may take half as long: where nothing else fits it is tried."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is left to do for one algorithm: its open launches, and the seconds that one of them takes.

    `is_known` is false where `seconds` was expected and not measured.
    """

    key: Key
    launches: tuple[int, ...]
    seconds: float
    is_known: bool = True

    @property
    def remaining_s(self) -> float:
        """Seconds until it has all of its launches."""
        return len(self.launches) * self.seconds


@dataclass(frozen=True, slots=True)
class Turn:
    """The launch that is next, and everything else that is planned beside it: key and number of the launch."""

    key: Key
    launch: int
    planned: tuple[tuple[Key, int], ...]


def next_turn(work: Sequence[Work], left_s: float) -> Turn | None:
    """The next launch within the `left_s` seconds that are left; None where no whole launch fits any more.

    `work` is in the order of the plan. Whoever comes to all of its launches goes there and back: any two of them are
    launched in the order A B B A, so that drift favours neither. What is left over goes to the next cheapest. Where
    not all fits, launches behind the fifth wait until nobody comes to five any more.
    """
    some = [one for one in work if one.launches]
    first = _up_to_an_interval(some)
    for stage in (some,) if len(fitting(some, left_s)) == len(some) else (first, some):
        together = fitting(stage, left_s)
        if together:
            one = _there_and_back(together)
            return Turn(one.key, one.launches[0], tuple((w.key, launch) for w in together for launch in w.launches))
    for one in (*_cheapest_first(first), *_cheapest_first(some)):
        if one.seconds * (MARGIN if one.is_known else _DOUBT) <= left_s:
            return Turn(one.key, one.launches[0], ((one.key, one.launches[0]),))
    return None


def _up_to_an_interval(work: Sequence[Work]) -> list[Work]:
    """The part of the work after which there is an interval: nobody has a sixth launch before others have five."""
    cut = [replace(one, launches=tuple(n for n in one.launches if n < LEAST_LAUNCHES)) for one in work]
    return [one for one in cut if one.launches]


def fitting(work: Sequence[Work], left_s: float) -> list[Work]:
    """The largest set whose launches all fit into `left_s` seconds: those with the fewest seconds to go.

    Of equals, who needs fewer launches comes first. The order is that of `work`.
    """
    total, chosen = 0.0, set()
    for one in _cheapest_first(work):
        total += one.remaining_s
        if total * MARGIN > left_s:
            break
        chosen.add(one.key)
    return [one for one in work if one.key in chosen]


def needed_s(work: Sequence[Work], key: Key) -> float:
    """Seconds in which an algorithm, and all that come before it, would come to their launches."""
    total = 0.0
    for one in _cheapest_first([w for w in work if w.launches]):
        total += one.remaining_s
        if one.key == key:
            return total * MARGIN
    return math.inf


def _cheapest_first(work: Sequence[Work]) -> list[Work]:
    return sorted(work, key=lambda one: (one.remaining_s, len(one.launches)))


def _there_and_back(work: Sequence[Work]) -> Work:
    """The first of those whose next launch has the lowest number; odd launches go backwards."""
    lowest = min(one.launches[0] for one in work)
    due = [one for one in work if one.launches[0] == lowest]
    return due[0] if lowest % 2 == 0 else due[-1]
