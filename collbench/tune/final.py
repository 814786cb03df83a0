"""The finalist against the default, in pairs of fresh launches: the search's own times are the luckiest of many."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from collbench.results.records import Status
from collbench.tune.reserve import LaunchCost
from collbench.tune.search import Trial
from collbench.tune.space import Candidate

__all__ = ["Final", "Interval", "PairMaker", "PairedRatio", "judge_final", "pairs_made"]


class Interval(Protocol):
    """A ratio, candidate over default, and the ends of its 95 % interval."""

    @property
    def ratio(self) -> float:
        """Candidate over default."""

    @property
    def lower(self) -> float:
        """Lower end."""

    @property
    def upper(self) -> float:
        """Upper end."""


PairedRatio = Callable[[Sequence[float], Sequence[float]], Interval]
"""From launch times of default and candidate, pair by pair; `gate.paired.paired_ratio`."""


@dataclass(frozen=True, slots=True)
class Final:
    """What the pairs say: `overall` is of each launch's geometric mean over cells, `cells` of each cell alone.

    `pairs` are those that were made, `wanted` those that were asked for. Values are (default us, candidate us, ratio,
    lower, upper), microseconds as geometric means. Empty, with a `status` and reason, where a launch of either side was
    not ok, or too few pairs were made.
    """

    candidate: Candidate
    pairs: int
    status: Status = Status.OK
    reason: str = ""
    overall: tuple[float, float, float, float, float] | None = None
    cells: Mapping[str, tuple[float, float, float, float, float]] = field(default_factory=dict)
    wanted: int = 0

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval lies below the default's time."""
        return self.overall is not None and self.overall[4] < 1

    @property
    def missing(self) -> int:
        """Pairs that a later call could still make."""
        return max(0, self.wanted - self.pairs) if self.status in {Status.OK, Status.NOT_RUN} else 0

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        names = ("default_us", "candidate_us", "ratio", "lower", "upper")
        return {
            "candidate": self.candidate.name, "pairs": self.pairs, "status": str(self.status), "reason": self.reason,
            "overall": dict(zip(names, self.overall, strict=True)) if self.overall else None,
            "cells": [{"cell_id": key, **dict(zip(names, of, strict=True))} for key, of in self.cells.items()],
        }  # fmt: skip


def pairs_made(default: Candidate, candidate: Candidate, trials: Sequence[Trial]) -> int:
    """Launches, from the first on, that both sides have."""
    return min(len({t.launch for t in trials if t.candidate == one.name}) for one in (default, candidate))


@dataclass(frozen=True, slots=True)
class PairMaker:
    """Makes launches of default and finalist by turns, as long as pairs end before `deadline`, a time of `clock`."""

    evaluate: Callable[[Candidate, int], Trial | None]
    cost: LaunchCost
    deadline: float
    clock: Callable[[], float] = time.monotonic

    def has_room(self, default: Candidate, candidate: Candidate) -> bool:
        """Whether a pair made now would end in time, as far as can be told."""
        return self._fit([default, candidate])

    def make(
        self, default: Candidate, candidate: Candidate, pairs: int, trials: Sequence[Trial],
        told: Callable[[int, Trial, Trial], None] = lambda _pair, _base, _own: None,
    ) -> list[Trial]:  # fmt: skip
        """Make the pairs that `trials` lacks, in the order A B B A; gives all trials.

        It ends with a launch that is not ok, and before a pair that would not end in time.
        """
        made, keys = {(trial.candidate, trial.launch): trial for trial in trials}, list[str]()
        for pair in range(pairs):
            open_ = [c for c in ([default, candidate] if pair % 2 == 0 else [candidate, default])
                     if (c.name, pair) not in made]  # fmt: skip
            if open_ and not (self._fit(open_) and self._launch(open_, pair, made)):
                break
            base, own = made[default.name, pair], made[candidate.name, pair]
            if open_:
                told(pair, base, own)
            keys = keys or [key for key, cell in base.cells.items() if cell.status is Status.OK]
            if not keys or any(side.cells[key].status is not Status.OK for side in (base, own) for key in keys):
                break
        return list(made.values())

    def _fit(self, sides: Sequence[Candidate]) -> bool:
        return self.clock() + sum(self.cost.next_s(one.library) for one in sides) <= self.deadline

    def _launch(self, sides: Sequence[Candidate], pair: int, made: dict[tuple[str, int], Trial]) -> bool:
        for one in sides:
            begin = self.clock()
            trial = self.evaluate(one, pair)
            if trial is None:
                return False
            self.cost.note(one.library, self.clock() - begin, is_ok=trial.is_ok)
            made[one.name, pair] = trial
        return True


def judge_final(
    candidate: Candidate, default: str, trials: Sequence[Trial], pairs: int, paired_ratio: PairedRatio, least: int = 8
) -> Final:
    """Judge the launches 0 .. pairs-1 of both. Cells that the default cannot do are left out.

    Of fewer pairs, `least` or more are judged too, an even number of them, in which a drift cancels.
    """
    sides = [{t.launch: t for t in trials if t.candidate == name} for name in (default, candidate.name)]
    common = sorted(sides[0].keys() & sides[1].keys())[:pairs]
    made = len(common)
    keys = [key for key, cell in sides[0][common[0]].cells.items() if cell.status is Status.OK] if common else []
    for side, name in zip(sides, (default, candidate.name), strict=True):
        for launch in common:
            for key in keys:
                cell = side[launch].cells[key]
                if cell.status is not Status.OK:
                    return Final(candidate, made, cell.status, f"{name}, launch {launch}: {cell.reason}", wanted=pairs)
    if made and not keys:
        return Final(candidate, made, Status.NOT_RUN, f"{default}, launch {common[0]}: no cell is ok", wanted=pairs)
    reason = "" if made == pairs else f"{made} of {pairs} pairs of launches were made"
    if made < min(pairs, least):
        return Final(candidate, made, Status.NOT_RUN, reason, wanted=pairs)
    judged = common if made == pairs else common[: made - made % 2]
    times = {key: [[side[k].cells[key].us for k in judged] for side in sides] for key in keys}
    base, own = ([_mean([times[key][side][n] for key in keys]) for n in range(len(judged))] for side in (0, 1))
    return Final(
        candidate, made, Status.OK, reason, _row(base, own, paired_ratio),
        {key: _row(both[0], both[1], paired_ratio) for key, both in times.items()}, pairs,
    )  # fmt: skip


def _row(
    base: Sequence[float], own: Sequence[float], paired_ratio: PairedRatio
) -> tuple[float, float, float, float, float]:
    found = paired_ratio(base, own)
    return _mean(base), _mean(own), found.ratio, found.lower, found.upper


def _mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))
