"""A search from its plan to its outcome, kept in a folder so that it can go on after whatever ended it.

tune.json    the plan (space, seed, candidates' number, options), and the outcome when there is one
search/      a run: every candidate a variant, launch by launch
final-NAME/  a run: default and finalist, in pairs of launches
"""

import datetime as dt
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collbench.algorithms.base import registry
from collbench.algorithms.cell_predictions import predictor
from collbench.errors import InvalidError, UsageError
from collbench.measure.plan import Options
from collbench.results.files import lock_folder, readable_errors, replace_whole
from collbench.results.records import SCHEMA, Cell, Collective, Mode, Run, Status
from collbench.results.store import RunFolder
from collbench.results.summary import clean
from collbench.tune.final import Final, PairedRatio, judge_final
from collbench.tune.outcome import Estimate, Outcome
from collbench.tune.search import RUNGS, Search, Standing, Trial, standings
from collbench.tune.space import DEFAULT, Candidate, Space
from collbench.tune.trials import Trials, Workplace, key_of, open_folder, trials_of

__all__ = ["STATE", "TunePlan", "options_of", "read_plan", "tune", "write_plan"]

STATE = "tune.json"

_FINALISTS = 3
"""So many candidates get their turn in the final, while those before fail."""

_MOST_RESERVED = 0.6
"""Largest part of a budget that is kept for the final."""


@dataclass(frozen=True, slots=True)
class TunePlan:
    """What is searched, and how. `libraries` are paths; `options` are a sweep's (`Options.as_dict`)."""

    algorithm: str
    space: Space
    most: int
    seed: int
    pairs: int
    ranks: int
    options: Mapping[str, Any]
    libraries: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "algorithm": self.algorithm, "space": self.space.as_dict(), "most": self.most, "seed": self.seed,
            "pairs": self.pairs, "ranks": self.ranks, "options": dict(self.options), "libraries": list(self.libraries),
        }  # fmt: skip

    def candidates(self, versions: Sequence[str]) -> list[Candidate]:
        """The candidates, the default first."""
        return self.space.candidates(self.most, self.seed, versions or ("",))


def write_plan(folder: Path, plan: TunePlan, outcome: Outcome | None = None) -> None:
    """Write `tune.json` anew.

    Raises:
        InvalidError: it cannot be written.
    """
    data = {"schema": SCHEMA, "kind": "tune-plan", "plan": plan.as_dict(), "outcome": outcome and outcome.as_dict()}
    with readable_errors(folder / STATE, option="--out", resume=True):
        replace_whole(folder / STATE, lambda file: file.write(json.dumps(data, indent=1).encode() + b"\n"))


def read_plan(folder: Path) -> TunePlan:
    """Read the plan of a search to go on with.

    Raises:
        UsageError: the folder holds none.
        InvalidError: it is damaged, or of another schema.
    """
    path = folder / STATE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise InvalidError(f"{path}: schema {clean(str(data['schema']))[:40]!r}, expected {SCHEMA}")
        plan = data["plan"]
        return TunePlan(
            str(plan["algorithm"]), Space.from_dict(plan["space"], str(path)), int(plan["most"]), int(plan["seed"]),
            int(plan["pairs"]), int(plan["ranks"]), dict(plan["options"]), tuple(map(str, plan["libraries"])),
        )  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"--resume {folder}: no {STATE} there: it is the folder of no search") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


def options_of(plan: TunePlan) -> Options:
    """A sweep's options from their JSON form.

    Raises:
        InvalidError: a field is missing, strange, or of the wrong kind.
    """
    given = dict(plan.options)
    try:
        return Options(**{
            **given, "modes": tuple(map(Mode, given["modes"])), "calls": tuple(map(int, given["calls"])),
            "sizes": tuple(map(int, given["sizes"])), "skews": tuple(map(str, given["skews"])),
            "collective": Collective(given["collective"]),
        })  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidError(f"{STATE}: its options cannot be read: {type(error).__name__}: {error}") from error


@dataclass(slots=True)
class _Tuning:
    plan: TunePlan
    workplace: Workplace
    folder: Path
    paired_ratio: PairedRatio
    say: Callable[[str], None]

    @property
    def candidates(self) -> list[Candidate]:
        return self.plan.candidates([facts["nccl"] for _, facts in self.workplace.libraries])

    def run(self, deadline: float, budget_s: float) -> Outcome:
        candidates = self.candidates
        with self._run_folder("search", candidates, max(RUNGS)) as folder:
            search = Search(candidates, Trials(self.workplace, folder), trials_of(folder))
            each_s = search.measure_default(self._tell(search))
            if not search.default_is_ok():
                raise InvalidError(_why_not(self.plan.algorithm, search.trials))
            reserve = min(_MOST_RESERVED * budget_s, 2.2 * self.plan.pairs * each_s)
            finished = search.run(deadline - reserve, self._tell(search))
            if finished:
                folder.finish()
            ranked = standings(candidates, search.trials)
            finals, note = self._finals(ranked, deadline, each_s)
            return self._outcome(folder, ranked, finals, note, finished=finished)

    def _tell(self, search: Search) -> Callable[[Trial], None]:
        def tell(trial: Trial) -> None:
            (one,) = (s for s in standings(search.candidates, search.trials) if s.candidate.name == trial.candidate)
            told = f"{one.ratio:.3g} of the default's time" if one.is_in else f"{one.status}: {clean(one.reason)[:160]}"
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

    def _finals(self, ranked: Sequence[Standing], deadline: float, each_s: float) -> tuple[list[Final], str]:
        most = max((one.launches for one in ranked if one.is_in and not one.candidate.is_default), default=0)
        hopeful = [s for s in ranked if s.is_in and s.ratio < 1 and not s.candidate.is_default and s.launches == most]
        finals: list[Final] = []
        for one in hopeful[:_FINALISTS]:
            if time.monotonic() + 2 * self.plan.pairs * each_s > deadline and not self._has_final(one.candidate):
                return finals, f"the budget left no room for the final of {one.candidate.name}: go on with --resume"
            finals.append(self._final(one.candidate))
            if finals[-1].status is Status.OK:
                break
        if finals and finals[-1].overall is not None and not finals[-1].is_faster:
            return finals, "the fastest candidate is not told apart from the default: leave the settings as they are"
        return finals, ""

    def _has_final(self, candidate: Candidate) -> bool:
        return (self.folder / _final_name(candidate)).exists()

    def _final(self, candidate: Candidate) -> Final:
        default = next(c for c in self.candidates if c.is_default)
        self.say(f"final: {candidate.name} against the default, {self.plan.pairs} pairs of launches")
        with self._run_folder(_final_name(candidate), [default, candidate], self.plan.pairs) as folder:
            self.workplace.launch(folder, [default, candidate], self.plan.pairs)
            folder.finish()
            return judge_final(candidate, default.name, trials_of(folder), self.plan.pairs, self.paired_ratio)

    def _outcome(
        self, folder: RunFolder, ranked: Sequence[Standing], finals: Sequence[Final], note: str, *, finished: bool
    ) -> Outcome:
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
    say: Callable[[str], None] = lambda _text: None,
) -> Outcome:  # fmt: skip
    """Search within `budget_s` seconds and put the best to the final; what is measured stays in `folder`.

    Raises:
        InvalidError: the default itself has no cell that is ok, somebody else writes to the folder, a full disk.
    """
    deadline = time.monotonic() + budget_s
    with readable_errors(folder, option="--out"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = lock_folder(folder)
    try:
        write_plan(folder, plan)
        outcome = _Tuning(plan, workplace, folder, paired_ratio, say).run(deadline, budget_s)
        write_plan(folder, plan, outcome)
        return outcome
    finally:
        os.close(lock)


def _final_name(candidate: Candidate) -> str:
    return f"final-{hashlib.sha256(candidate.name.encode()).hexdigest()[:8]}"


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
