"""A search from its plan to its outcome, kept in a folder so that it can go on after whatever ended it.

tune.json    the plan (space, seed, candidates' number, options), and the outcome when there is one
search/      a run: every candidate a variant, launch by launch
final-NAME/  a run: default and finalist, in pairs of launches
"""

import datetime as dt
import hashlib
import math
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from collbench.algorithms.base import registry
from collbench.algorithms.cell_predictions import predictor
from collbench.errors import InvalidError
from collbench.results.files import lock_folder, readable_errors
from collbench.results.records import Cell, Run, Status
from collbench.results.store import RunFolder
from collbench.results.summary import clean
from collbench.tune.final import Final, PairedRatio, PairMaker, judge_final, pairs_made
from collbench.tune.outcome import Estimate, Outcome, short_name
from collbench.tune.reserve import Reserve
from collbench.tune.search import RUNGS, Search, Standing, Trial, standings
from collbench.tune.space import DEFAULT, Candidate
from collbench.tune.trials import Trials, Workplace, cut_candidates, key_of, open_folder, trials_of
from collbench.tune.tune_plan import TunePlan, write_plan
from collbench.units import format_us

__all__ = ["tune"]

_FINALISTS = 3
"""So many candidates get their turn in the final, while those before fail."""

_ALIKE = 1.01
"""Candidates within so much of the fastest are alike: a search's launches do not tell 1 % apart."""


class _Tuning:
    def __init__(
        self, plan: TunePlan, workplace: Workplace, folder: Path, paired_ratio: PairedRatio,
        say: Callable[[str], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.plan, self.workplace, self.folder = plan, workplace, folder
        self.paired_ratio, self.say = paired_ratio, say
        self._clock, self._begun_s = clock, 0.0
        self.candidates = plan.candidates([facts["nccl"] for _, facts in workplace.libraries])
        self.default = next(c for c in self.candidates if c.is_default)

    def run(self, budget_s: float) -> Outcome:
        deadline = self.workplace.deadline
        with self._run_folder("search", self.candidates, max(RUNGS)) as folder:
            trials, cut = trials_of(folder), cut_candidates(folder)
            search = Search(self.candidates, Trials(self.workplace, folder), trials, self._clock, cut)
            reserve = Reserve(budget_s, deadline, self._clock)
            self._begin(search, reserve)
            finished = search.run(lambda: reserve.until(self._final_s(search)), self._tell(search))
            finals = self._finals(search)
            if not finished and all(final.status is not Status.OK for final in finals):
                # what the final did not take is the search's
                finished = search.run(lambda: deadline, self._tell(search))
            if finished:
                folder.finish()
            note = self._note(search, finals, reserve, finished=finished)
            return self._outcome(folder, search, finals, note, finished=finished)

    def _begin(self, search: Search, reserve: Reserve) -> None:
        """Measure the default, once more where the budget may be too short for a final, and say so if it is."""
        made, begin = list[Trial](), self._clock()
        search.measure_default(reserve.deadline, made.append)
        if not made and not search.trials:
            raise InvalidError("the budget ended before the default's first launch did: give a longer --budget")
        if not search.default_is_ok():
            raise InvalidError(_why_not(self.plan.algorithm, search.trials))
        if not reserve.has_room(self._final_s(search, self.default)):
            # the first launch started a fork server, and says too much
            search.measure_default(reserve.deadline, made.append)
        self._begun_s = self._clock() - begin
        final_s = self._final_s(search) or self._final_s(search, self.default)
        if not reserve.has_room(final_s):
            self.say(
                f"a final of {self.plan.pairs} pairs of launches takes about {math.ceil(final_s)} s here: all of this "
                f"budget goes to the search; a final wants --budget {reserve.wanted_s(final_s, self._begun_s)}s"
            )
        for trial in made:
            self._tell(search)(trial)

    def _tell(self, search: Search) -> Callable[[Trial], None]:
        def tell(trial: Trial) -> None:
            (one,) = (s for s in standings(search.candidates, search.trials) if s.candidate.name == trial.candidate)
            told = f"{one.ratio:.3g} of the default's time" if one.is_in else f"{one.status}: {clean(one.reason)[:160]}"
            if one.is_in and one.candidate.is_default:
                told = _times(trial)
            self.say(f"{trial.candidate}, launch {trial.launch}: {told}")

        return tell

    def _run_folder(self, name: str, candidates: Sequence[Candidate], launches: int) -> RunFolder:
        def make() -> Run:
            now = dt.datetime.now(dt.UTC)
            run_id = f"{now:%Y%m%dT%H%M%S}-{os.urandom(4).hex()}"
            command = ("collbench", "tune-nccl", name)
            plan = self.workplace.plan(candidates)
            return self.workplace.run_record(run_id, now.isoformat(timespec="seconds"), command, plan, launches)

        return open_folder(self.folder / name, make)

    def _hopeful(self, search: Search) -> list[Candidate]:
        """Those that may go to the final, the fastest first; of such as cannot be told apart, who sets least."""
        ranked = [s for s in standings(self.candidates, search.trials) if s.is_in and not s.candidate.is_default]
        most = max((one.launches for one in ranked), default=0)
        hopeful = [one for one in ranked if one.ratio < 1 and one.launches == most]
        alike = [one for one in hopeful if one.ratio <= _ALIKE * hopeful[0].ratio]
        alike.sort(key=lambda one: len(one.candidate.settings))
        return [one.candidate for one in [*alike, *hopeful[len(alike) :]]]

    def _final_s(self, search: Search, candidate: Candidate | None = None) -> float:
        """Seconds that the final of the candidate takes, by default of the fastest: 0 where there is none."""
        candidate = candidate or next(iter(self._hopeful(search)), None)
        if candidate is None:
            return 0.0
        pairs = self.plan.pairs - pairs_made(self.default, candidate, self._final_trials(candidate))
        launches = Counter({self.default.library: pairs})
        launches[candidate.library] += pairs
        return search.cost.total_s(launches)

    def _final_trials(self, candidate: Candidate) -> list[Trial]:
        path = self.folder / _final_name(candidate)
        if not path.exists():
            return []
        with RunFolder.open(path) as folder:
            return trials_of(folder)

    def _finals(self, search: Search) -> list[Final]:
        finals: list[Final] = []
        for candidate in self._hopeful(search)[:_FINALISTS]:
            finals.append(self._final(candidate, search))
            if finals[-1].status in {Status.OK, Status.NOT_RUN}:
                break
        return finals

    def _final(self, candidate: Candidate, search: Search) -> Final:
        pairs, default = self.plan.pairs, self.default
        trials = self._final_trials(candidate)
        pair_s = search.cost.next_s(default.library) + search.cost.next_s(candidate.library)
        has_room = self._clock() + pair_s <= self.workplace.deadline
        if pairs_made(default, candidate, trials) < pairs and has_room:
            self.say(f"final: {candidate.name} against the default, {pairs} pairs of launches")
            with self._run_folder(_final_name(candidate), [default, candidate], pairs) as folder:
                maker = PairMaker(Trials(self.workplace, folder), search.cost, self.workplace.deadline, self._clock)
                trials = maker.make(default, candidate, pairs, trials_of(folder), self._tell_pair)
                if pairs_made(default, candidate, trials) == pairs:
                    folder.finish()
        return judge_final(candidate, default.name, trials, pairs, self.paired_ratio)

    def _tell_pair(self, pair: int, base: Trial, own: Trial) -> None:
        both = [(cell.us, own.cells[key].us) for key, cell in base.cells.items() if cell.status is Status.OK]
        ratio = math.exp(math.fsum(math.log(mine / theirs) for theirs, mine in both) / len(both)) if both else math.nan
        told = f"{ratio:.3g} of the default's time" if math.isfinite(ratio) else "not ok"
        self.say(f"final, pair {pair + 1} of {self.plan.pairs}: {told}")

    def _note(self, search: Search, finals: Sequence[Final], reserve: Reserve, *, finished: bool) -> str:
        """What stands in place of a winner, and what a later call could still do."""
        last = finals[-1] if finals else None
        if last is None:
            return "" if finished else f"nothing that was measured is faster than the default; {self._go_on()}"
        wanted_s = reserve.wanted_s(self._final_s(search, last.candidate), self._begun_s)
        if last.missing:
            made = f"{last.pairs} of {last.wanted} pairs of the final of {last.candidate.name}"
            return f"the budget had room for {made}; {self._go_on(wanted_s)}"
        if last.status is not Status.OK:
            return f"no finalist was right in every launch of its final; {self._go_on()}"
        if not last.is_faster:
            return "the fastest candidate is not told apart from the default: leave the settings as they are"
        return ""

    def _go_on(self, budget_s: int = 0) -> str:
        budget = f" --budget {budget_s}s" if budget_s else ""
        return f"go on with: collbench tune-nccl --resume {shlex.quote(str(self.folder))}{budget}"

    def _outcome(
        self, folder: RunFolder, search: Search, finals: Sequence[Final], note: str, *, finished: bool
    ) -> Outcome:
        ranked = standings(self.candidates, search.trials)
        names = [DEFAULT, *(final.candidate.name for final in finals)]
        chosen = [s for s in ranked if s.candidate.name in names or (s.candidate.is_default and s.is_in)]
        return Outcome(
            self.plan.algorithm, str(self.workplace.machine.fabric), self.plan.ranks, ranked, finals, finished,
            self.plan.space.size * max(1, len(self.workplace.libraries)),
            {facts["nccl"]: Path(path).name for path, facts in self.workplace.libraries},
            _estimates(folder, chosen), note,
        )  # fmt: skip


def tune(
    plan: TunePlan, workplace: Workplace, folder: Path, budget_s: float, paired_ratio: PairedRatio,
    say: Callable[[str], None] = lambda _text: None, clock: Callable[[], float] = time.monotonic,
) -> Outcome:  # fmt: skip
    """Search within `budget_s` seconds and put the best to the final; what is measured stays in `folder`.

    Raises:
        InvalidError: the default itself has no cell that is ok, somebody else writes to the folder, a full disk.
    """
    workplace.deadline, workplace.say = clock() + budget_s, say
    with readable_errors(folder, option="--out"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = lock_folder(folder)
    try:
        write_plan(folder, plan)
        outcome = _Tuning(plan, workplace, folder, paired_ratio, say, clock).run(budget_s)
        write_plan(folder, plan, outcome)
        return outcome
    finally:
        os.close(lock)


def _final_name(candidate: Candidate) -> str:
    return f"final-{hashlib.sha256(candidate.name.encode()).hexdigest()[:8]}"


def _times(trial: Trial) -> str:
    return ", ".join(
        f"{short_name(key)} {format_us(cell.us)} us" for key, cell in trial.cells.items() if cell.status is Status.OK
    )


def _why_not(algorithm: str, trials: Sequence[Trial]) -> str:
    told = next((cell for trial in trials for cell in trial.cells.values() if cell.status is not Status.OK), None)
    return f"{algorithm}: {told.status if told else 'not_run'}: {told.reason if told else 'the default made no launch'}"


def _estimates(folder: RunFolder, chosen: Sequence[Standing]) -> list[Estimate]:
    """What NCCL and the model say of the chosen candidates' cells, from the evidence of their last launch."""
    evidence = {
        cell_id: facts for (cell_id, _), facts in sorted(folder.evidence().items(), key=lambda item: item[0][1])
    }
    model, found = predictor(folder.run), []
    for one in chosen:
        for cell in folder.run.cells:
            us = one.us.get(key_of(cell))
            if cell.variant != one.candidate.name or us is None:
                continue
            facts = evidence.get(cell.cell_id, {})
            predicted = model(_as_chosen(cell, facts.get("choice", "")))
            told = facts.get("nccl_estimate_us", "")
            found.append(Estimate(
                one.candidate.name, key_of(cell), us, float(told) if told else None,
                predicted.total_us if predicted else None, facts.get("choice", ""), facts.get("transport", ""),
            ))  # fmt: skip
    return found


def _as_chosen(cell: Cell, choice: str) -> Cell:
    """The cell as that of the forced algorithm that NCCL chose, which the model can predict: `Ring/LL`."""
    name = f"nccl_{choice.lower().replace('/', '_')}"
    return replace(cell, algorithm=name) if name in registry() else cell
