"""What launches cost, and the part of a budget that is kept for the final."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["LaunchCost", "Reserve"]

_LATEST = 20
"""So many launches tell what the next ones take: a machine that is busy for a while does not count for ever."""

_LONG = 0.9
"""The next launch is taken to be as long as this part of the latest ones is at most."""

_MARGIN = 1.1
"""A final is taken to last so much longer than the usual launch says."""

_MOST_RESERVED = 0.75
"""Largest part of a budget that is kept for the final: what finds no finalist needs none."""


class LaunchCost:
    """Seconds of a launch, from those that this process made and that went well.

    The first launch of each library waits until a fork server has imported what workers need. That is paid once, so it
    tells nothing about later launches, and is kept apart.
    """

    def __init__(self) -> None:
        self._first: dict[int, float | None] = {}
        self._later: list[float] = []

    def note(self, library: int, seconds: float, *, is_ok: bool) -> None:
        """A launch was made. One that failed says nothing: it took its timeout, or ended early."""
        is_first = library not in self._first
        if is_first:
            self._first[library] = seconds if is_ok else None
        elif is_ok:
            self._later = [*self._later, seconds][-_LATEST:]

    @property
    def is_known(self) -> bool:
        """Whether a launch is among them that started no fork server."""
        return bool(self._later)

    def usual_s(self) -> float:
        """The median launch; while only first ones were made, the shortest of them, which is too much; 0 before all."""
        return statistics.median(self._later) if self._later else min(self._firsts(), default=0.0)

    def next_s(self, library: int) -> float:
        """What one more launch takes at most, as far as can be told.

        0 behind a first launch: that one says too much, and the deadline cuts what does not end.
        """
        start_s = self._start_s(library)
        if not self._later:
            return 0.0 if library in self._first else self.usual_s() + start_s
        return sorted(self._later)[math.ceil(_LONG * len(self._later)) - 1] + start_s

    def total_s(self, launches: Mapping[int, int]) -> float:
        """So many launches of each library, with a margin."""
        return _MARGIN * sum(
            n * self.usual_s() + (self._start_s(library) if n else 0) for library, n in launches.items()
        )

    def _start_s(self, library: int) -> float:
        """Seconds that starting the library's fork server adds, if it has not been started."""
        known = self._firsts()
        return 0.0 if library in self._first or not known else max(0.0, max(known) - self.usual_s())

    def _firsts(self) -> Sequence[float]:
        return [seconds for seconds in self._first.values() if seconds is not None]


class Reserve:
    """Until when a search may go on: what is kept for the final is kept only where the final then gets it.

    A final that would leave the search too little gets nothing; whether it does is decided as often as it is asked,
    since launches tell better and better what they cost. What was kept once stays kept.
    """

    def __init__(self, budget_s: float, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.deadline = deadline
        self._budget_s = budget_s
        self._clock = clock
        self._is_kept = False

    def until(self, final_s: float) -> float:
        """The time of the clock by which the search ends, if the final takes so long; 0 where there is no finalist."""
        if final_s <= 0:
            return self.deadline
        self._is_kept = self._is_kept or self.has_room(final_s)
        return self.deadline - final_s if self._is_kept else self.deadline

    def has_room(self, final_s: float) -> bool:
        """Whether a final of so many seconds still fits, and leaves the search its part."""
        return final_s <= _MOST_RESERVED * self._budget_s and self._clock() + final_s <= self.deadline

    def wanted_s(self, final_s: float, begun_s: float) -> int:
        """A budget with room for that final, in whole tens of seconds, if it takes `begun_s` to begin."""
        return 10 * math.ceil((final_s / _MOST_RESERVED + begun_s) / 10)
