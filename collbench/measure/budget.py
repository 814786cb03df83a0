"""The time that a sweep has, and what a cell or an algorithm may take of it."""

import math
import time
from collections.abc import Callable

__all__ = ["Budget", "seconds_text"]

_SLACK = 1.25
"""An algorithm may take so much more than its share of the budget before its last cells wait for what is left over."""

_GRACE_S = 2.0
"""How far a cell may go beyond the budget before it is cut off."""

_OVERHEAD_SHARE = 0.6
"""Part of a cell's share of the budget that is spent in timed iterations; the rest opens, fills and verifies."""

_MIN_SECONDS, _MAX_SECONDS = 0.02, 2.0


class Budget:
    """`seconds` from now on, less those `reserved_s` that are somebody else's, such as the probes'; None: no end.

    `now` gives the time in seconds.
    """

    def __init__(
        self, seconds: float | None, reserved_s: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self._now = now
        self._end = now() + self.seconds - reserved_s

    @property
    def is_endless(self) -> bool:
        """Whether there is no budget."""
        return math.isinf(self.seconds)

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 behind the end; infinite without one."""
        return max(0.0, self._end - self._now())

    @property
    def is_over(self) -> bool:
        """Whether its end has come."""
        return self.left_s <= 0

    def used_up(self, doing: str = "") -> str:
        """The sentence that says so; `doing` is what was going on at the end."""
        return f"the budget of {seconds_text(self.seconds)} was used up" + (f" while {doing}" if doing else "")

    def share_s(self, cells: int, planned: int) -> float:
        """Seconds that an algorithm may go on, so that a slow one does not use up the budget of those behind it."""
        return _SLACK * self.left_s * cells / max(1, planned)

    def timed_s(self, planned: int) -> float:
        """Timed seconds of one of the `planned` cells that are left."""
        return min(_MAX_SECONDS, max(_MIN_SECONDS, _OVERHEAD_SHARE * self.left_s / max(1, planned)))

    def start_limit_s(self) -> float | None:
        """Seconds in which workers have to start; None where nothing but their own deadline limits it."""
        return None if self.is_endless else max(0.1, self.left_s)

    def cell_limits_s(self, timeout_s: float, opening_s: float) -> tuple[float, float]:
        """Seconds for a cell and for its opening, within what is left."""
        left = max(0.1, self.left_s) + _GRACE_S
        cell_s = min(timeout_s, left)
        return cell_s, min(opening_s, left - cell_s)


def seconds_text(seconds: float) -> str:
    """A budget as it is told: `245 s`, and what is less than a second not as none."""
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"
