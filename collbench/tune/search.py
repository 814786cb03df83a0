"""Successive halving: everybody gets one launch, the best third a second, the best of them four.

Each trial is judged beside the default's trial that was made last before it, so that a drift of the machine is in both.
Trials are judged from their list alone: a search that was stopped goes on from the trials that it had.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from collbench.results.records import Status
from collbench.tune.reserve import LaunchCost
from collbench.tune.space import Candidate

__all__ = ["CellTime", "Search", "Standing", "Trial", "standings"]

RUNGS = (1, 2, 4)
"""Launches that a candidate has had when a rung ends."""

KEEP = 3
"""One of so many goes on to the next rung."""

AGAIN = 8
"""After so many trials the default is measured anew."""


@dataclass(frozen=True, slots=True)
class CellTime:
    """One cell of one trial: its median in microseconds per call where it is `ok`, else the reason."""

    status: Status
    us: float = math.nan
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """One launch of one candidate: times by cell; a cell's key is its name without the variant."""

    candidate: str
    launch: int
    cells: Mapping[str, CellTime]

    @property
    def is_ok(self) -> bool:
        """Whether every cell has a time."""
        return all(cell.status is Status.OK for cell in self.cells.values())


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a candidate stands: geometric mean of its times over the default's, below 1 where it is faster.

    `reason` says why it is out; `ratio` is NaN then, and where it was not measured. `us` is each cell's geometric mean
    over launches.
    """

    candidate: Candidate
    launches: int
    ratio: float = math.nan
    status: Status = Status.OK
    reason: str = ""
    us: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_in(self) -> bool:
        """Whether it is measured and right in every cell."""
        return self.status is Status.OK and math.isfinite(self.ratio)


def standings(candidates: Sequence[Candidate], trials: Sequence[Trial]) -> list[Standing]:
    """All candidates, the fastest first, then those not measured, then those that are out.

    A cell that the default itself cannot do counts for nobody.
    """
    default = next(c.name for c in candidates if c.is_default)
    beside = _beside(trials, default)
    found = [_standing(candidate, trials, beside) for candidate in candidates]
    return sorted(
        found, key=lambda one: (not one.is_in, one.status is not Status.NOT_RUN, one.ratio if one.is_in else 0)
    )


def _beside(trials: Sequence[Trial], default: str) -> list[Mapping[str, float]]:
    """For every trial, the times of the default's last one up to it: those cells that were ok."""
    found: list[Mapping[str, float]] = []
    last: dict[str, float] = {}
    for trial in trials:
        if trial.candidate == default:
            last = {key: cell.us for key, cell in trial.cells.items() if cell.status is Status.OK} or last
        found.append(last)
    return found


def _standing(candidate: Candidate, trials: Sequence[Trial], beside: Sequence[Mapping[str, float]]) -> Standing:
    own = [(trial, base) for trial, base in zip(trials, beside, strict=True) if trial.candidate == candidate.name]
    for trial, base in own:
        for key in base:
            cell = trial.cells.get(key, CellTime(Status.NOT_RUN, reason="not in the trial"))
            if cell.status is not Status.OK:
                return Standing(candidate, len(own), math.nan, cell.status, cell.reason or "no reason was recorded")
    logs = [math.log(trial.cells[key].us / us) for trial, base in own for key, us in base.items()]
    if not logs:
        return Standing(candidate, len(own), math.nan, Status.NOT_RUN, "not measured within the budget")
    keys = own[-1][1]
    us = {key: math.exp(_mean([math.log(t.cells[key].us) for t, b in own if key in b])) for key in keys}
    return Standing(candidate, len(own), math.exp(_mean(logs)), us=us)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


class Search:
    """Runs trials until every rung is done or the time is up.

    `evaluate(candidate, launch)` makes a trial and must not raise for a candidate that fails; None says that the
    deadline cut it. `until()` is asked before each trial for a time of `clock`; no trial is begun that would end behind
    it, as far as `cost` can tell. Candidates in `cut` were cut in an earlier call: they come last, so that one that
    hangs does not take every call's time.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        evaluate: Callable[[Candidate, int], Trial | None],
        trials: Sequence[Trial] = (),
        clock: Callable[[], float] = time.monotonic,
        cut: Collection[str] = (),
    ) -> None:
        self.candidates = list(candidates)
        self.trials = list(trials)
        self.cost = LaunchCost()
        self._cut = frozenset(cut)
        self._default = next(c for c in candidates if c.is_default)
        self._evaluate = evaluate
        self._clock = clock
        self._since_default = AGAIN

    def run(self, until: Callable[[], float], told: Callable[[Trial], None] = lambda _trial: None) -> bool:
        """True when all rungs are done, False when the time was up before."""
        field_ = self.candidates
        for rung in RUNGS:
            for candidate in self._turns(field_):
                while self._launches(candidate) < rung:
                    if not self._trial(candidate, until, told):
                        return False
            ranked = [one.candidate for one in standings(field_, self.trials) if one.is_in]
            kept = ranked[: max(2, math.ceil(len(ranked) / KEEP))]
            field_ = [self._default, *(c for c in kept if not c.is_default)]
        return True

    def measure_default(self, deadline: float, told: Callable[[Trial], None] = lambda _trial: None) -> None:
        """A launch of the default before all others."""
        self._trial(self._default, lambda: deadline, told)

    def default_is_ok(self) -> bool:
        """Whether the default has a time in any cell: without one there is nothing to compare with."""
        return any(one.candidate.is_default and one.is_in for one in standings(self.candidates, self.trials))

    def _turns(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Single changes as they come, then combinations, those first whose parts did best alone.

        A short budget is then not spent on combinations with a setting that was seen to be slow, or to hang.
        """
        late = [c for c in candidates if c.name in self._cut and not c.is_default]
        candidates = [c for c in candidates if c not in late]
        yield from (c for c in candidates if len(c.settings) <= 1)
        alone = {_key(one.candidate): one for one in standings(self.candidates, self.trials)}
        yield from sorted((c for c in candidates if len(c.settings) > 1), key=lambda c: _promise(c, alone))
        yield from late

    def _launches(self, candidate: Candidate) -> int:
        """Trials so far; a candidate that is out needs no more."""
        own = [trial for trial in self.trials if trial.candidate == candidate.name]
        (standing,) = (s for s in standings(self.candidates, self.trials) if s.candidate.name == candidate.name)
        out = own and not standing.is_in and standing.status is not Status.NOT_RUN
        return max(RUNGS) if out else len(own)

    def _trial(self, candidate: Candidate, until: Callable[[], float], told: Callable[[Trial], None]) -> bool:
        needs_default = self._since_default >= AGAIN and not candidate.is_default
        for one in [self._default, candidate] if needs_default else [candidate]:
            begin = self._clock()
            if begin + self.cost.next_s(one.library) > until():
                return False
            trial = self._evaluate(one, sum(t.candidate == one.name for t in self.trials))
            if trial is None:
                return False
            self.cost.note(one.library, self._clock() - begin, is_ok=trial.is_ok)
            self.trials.append(trial)
            self._since_default = 0 if one.is_default else self._since_default + 1
            told(trial)
        return True


def _key(candidate: Candidate) -> tuple[int, tuple[tuple[str, str], ...]]:
    return candidate.library, tuple(candidate.settings.items())


def _promise(candidate: Candidate, alone: Mapping[tuple[int, tuple[tuple[str, str], ...]], Standing]) -> float:
    """The ratio that a combination would have if its parts did not touch each other; infinite with one that is out."""
    library = _ratio(alone.get((candidate.library, ())))
    if not math.isfinite(library):
        return math.inf
    parts = [_ratio(alone.get((candidate.library, (setting,)))) for setting in candidate.settings.items()]
    return library * math.prod(part / library for part in parts)


def _ratio(one: Standing | None) -> float:
    """1 where it was not measured: nothing is known of it."""
    if one is None or one.status is Status.NOT_RUN:
        return 1.0
    return one.ratio if one.is_in else math.inf
