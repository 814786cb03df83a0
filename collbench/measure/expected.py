"""What a budget is expected to hold: the sweep's own turns, played with the seconds that are expected of launches."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from collbench.measure.agenda import Agenda
from collbench.measure.budget import Budget
from collbench.measure.plan import Key, Plan
from collbench.measure.turns import MARGIN, Turn, Work, next_turn
from collbench.results.intervals import LEAST_LAUNCHES

__all__ = ["Expected", "expect"]


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds until a sweep ends, and what is then left to do of everything that can run."""

    seconds: float
    work: tuple[Work, ...]

    @property
    def complete(self) -> int:
        """How many algorithms have all of their launches."""
        return sum(not one.launches for one in self.work)


def expect(agenda: Agenda, plan: Plan, budget_s: float | None, reserved_s: float = 0.0) -> Expected:
    """Play a sweep of the agenda within a budget, None without one, of which `reserved_s` are kept for other work.

    Nothing is measured, and no time passes: every launch takes what the agenda expects.
    """
    play = _Play(agenda, plan, budget_s, reserved_s)
    if any(one.launches for one in play.work.values()):
        play.now = min(plan.once_s, play.budget.left_s)
    play.first_launches()
    while not play.budget.is_over and (turn := next_turn(list(play.work.values()), play.budget.left_s)) is not None:
        play.take(_several(turn, play.work[turn.key], play.budget.left_s))
    return Expected(play.now, tuple(play.work.values()))


class _Play:
    """A sweep without workers: `now` is its clock, `work` what is left."""

    def __init__(self, agenda: Agenda, plan: Plan, budget_s: float | None, reserved_s: float) -> None:
        self.now = 0.0
        self.budget = Budget(budget_s, reserved_s, lambda: self.now)
        self.work = {one.key: one for one in agenda.work() if one.key in plan.launch_s}
        self._ledger = agenda.ledger

    def first_launches(self) -> None:
        """One of each, as the supervisor makes them: who takes longer than its share comes again behind the others."""
        due = [one for one in self.work.values() if 0 in one.launches]
        planned = sum(len(self._ledger.cells(one.key, n)) for one in self.work.values() for n in one.launches)
        waiting = []
        for one in due:
            cells = self._ledger.count(one.key, 0)
            share_s = self.budget.share_s(cells, planned)
            planned -= cells
            if one.seconds > share_s:
                waiting.append((one.key, one.seconds - share_s))
                self.now += min(share_s, self.budget.left_s)
            else:
                self._first(one.key, one.seconds)
        for key, seconds in waiting:
            self._first(key, seconds)

    def _first(self, key: Key, seconds: float) -> None:
        if seconds <= self.budget.left_s:
            self.now += seconds
            one = self.work[key]
            self.work[key] = replace(one, launches=one.launches[1:], is_known=True)
        else:
            self.now += self.budget.left_s

    def take(self, launches: Iterable[tuple[Key, int]]) -> None:
        """These launches are made."""
        made: dict[Key, set[int]] = {}
        for key, launch in launches:
            made.setdefault(key, set()).add(launch)
        for key, numbers in made.items():
            one = self.work[key]
            self.now += len(numbers) * one.seconds
            left = tuple(n for n in one.launches if n not in numbers)
            self.work[key] = replace(one, launches=left, is_known=True)


def _several(turn: Turn, one: Work, left_s: float) -> list[tuple[Key, int]]:
    """What follows a turn without another question: all that is planned with it; of one alone, while it fits."""
    if len(turn.planned) > 1:
        return list(turn.planned)
    stage = [n for n in one.launches if n < LEAST_LAUNCHES or turn.launch >= LEAST_LAUNCHES]
    if math.isinf(left_s) or one.seconds <= 0:
        return [(turn.key, n) for n in stage]
    fitting = int((left_s - MARGIN * one.seconds) / one.seconds) + 1
    return [(turn.key, n) for n in stage[: max(1, fitting)]]
