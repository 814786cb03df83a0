"""Trials as launches of a sweep: each candidate a variant of one algorithm, verified and kept in one run folder."""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from collbench.algorithms.base import Algorithm
from collbench.measure.library import with_library
from collbench.measure.plan import Options, Plan, make_plan
from collbench.measure.progress import Progress
from collbench.measure.supervise import Supervisor
from collbench.measure.team import Place, ServerPool
from collbench.results.records import Cell, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.results.summary import fold
from collbench.topology.machine import Machine
from collbench.tune.search import CellTime, Trial
from collbench.tune.space import Candidate

__all__ = ["Library", "Trials", "Workplace", "cut_candidates", "key_of", "open_folder", "trials_of"]

Library = tuple[str, Mapping[str, str]]
"""Path of a libnccl, and what it says of itself (`measure.library.nccl_facts`)."""


class Workplace:
    """What all launches of a search share: the algorithm, the machine, the libraries, the options, the fork servers.

    At `deadline`, a time of `time.monotonic`, whatever runs is cut off: it is `not_run` then, and open.
    """

    def __init__(
        self, algorithm: Algorithm, machine: Machine, libraries: Sequence[Library], options: Options, place: Place
    ) -> None:
        self.algorithm = algorithm
        self.machine = machine
        self.libraries = tuple(libraries)
        self.options = replace(options, budget_s=None)
        self.place = place
        self.pool = ServerPool()
        self.deadline = math.inf
        self.say: Callable[[str], None] = lambda _text: None

    def variant(self, candidate: Candidate) -> Algorithm:
        """The algorithm with a candidate's settings and library, told apart by the candidate's name."""
        base = self.algorithm
        if self.libraries:
            base = with_library(base, *self.libraries[candidate.library])

        def environment(machine: Machine) -> Mapping[str, str]:
            return {**base.environment(machine), **candidate.settings}

        return replace(base, environment=environment, variant=candidate.name)

    def plan(self, candidates: Sequence[Candidate]) -> Plan:
        """The cells of these candidates."""
        plan = make_plan(self.options, self.machine, [self.variant(c) for c in candidates])
        # the search has planned what its budget holds: nothing that is asked for may seem too dear to be tried
        return replace(plan, launch_s={})

    def run_record(self, run_id: str, created: str, command: tuple[str, ...], plan: Plan, launches: int) -> Run:
        """`run.json` of a folder that holds this plan's launches."""
        from collbench import __version__

        return Run(
            run_id=run_id, created=created, command=command, version=__version__, fabric=self.machine.fabric,
            world_size=self.machine.ranks, launches=launches, cells=plan.cells, machine=self.machine.as_dict(),
            settings=replace(self.options, launches=launches).as_dict(),
            environment={f"{a.name} {a.variant}": dict(a.environment(self.machine)) for a in plan.algorithms},
        )  # fmt: skip

    def launch(self, folder: RunFolder, candidates: Sequence[Candidate], launches: int) -> None:
        """Measure what the folder does not hold yet of the first `launches` launches of these candidates."""
        left_s = None if math.isinf(self.deadline) else max(0.0, self.deadline - time.monotonic())
        options = replace(self.options, launches=launches, budget_s=left_s)
        progress = _Silent(self.say)
        Supervisor(
            options, self.machine, self.plan(candidates), folder, self.place, progress, pool=self.pool
        ).run()  # fmt: skip

    def close(self) -> None:
        """End the fork servers, and with them every worker."""
        self.pool.close()


class Trials:
    """Makes trials, each one launch of one candidate, in a folder."""

    def __init__(self, workplace: Workplace, folder: RunFolder) -> None:
        self._workplace = workplace
        self._folder = folder

    def __call__(self, candidate: Candidate, launch: int) -> Trial | None:
        """One launch, None where the deadline cut it; earlier ones of this candidate are in the folder already."""
        self._workplace.launch(self._folder, [candidate], launch + 1)
        made = [t for t in trials_of(self._folder) if (t.candidate, t.launch) == (candidate.name, launch)]
        if not made:
            self._workplace.say(f"{candidate.name}, launch {launch}: cut off by the budget")
        return made[-1] if made else None


class _Silent(Progress):
    """The search says itself how far it is; what else there is to say goes to `tell`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(0, _Nowhere())  # type: ignore[arg-type]  # of a stream only what Progress asks for
        self._tell = tell

    def end(self, algorithm: str, reason: str = "") -> None:
        del algorithm, reason

    def say(self, text: str) -> None:
        self._tell(text)


class _Nowhere:
    def isatty(self) -> bool:
        return False


def key_of(cell: Cell) -> str:
    """A cell's name without its variant: what cells of different candidates have in common."""
    return replace(cell, variant="").cell_id


def trials_of(folder: RunFolder) -> list[Trial]:
    """All trials of a folder in the order in which they were made; a trial that was cut short is left out.

    Cells of a launch follow each other, since launches are made one after the other.
    """
    cells = {cell.cell_id: cell for cell in folder.run.cells}
    per_candidate: dict[str, int] = {}
    for cell in cells.values():
        per_candidate[cell.variant] = per_candidate.get(cell.variant, 0) + 1

    def whose(samples: Samples) -> tuple[str, int]:
        return cells[samples.cell_id].variant, samples.launch

    found: dict[tuple[str, int], dict[str, CellTime]] = {}
    for who, group in itertools.groupby(folder.samples(), whose):
        # what goes on later stands where it went on: beside the default's launch of that time
        found[who] = found.pop(who, {}) | {key_of(cells[one.cell_id]): _time(one) for one in group}
    whole = [Trial(*who, times) for who, times in found.items() if len(times) == per_candidate[who[0]]]
    return [trial for trial in whole if not _is_cut(trial)]


def cut_candidates(folder: RunFolder) -> set[str]:
    """Names of the candidates with a launch that the budget ended."""
    made = {(trial.candidate, trial.launch) for trial in trials_of(folder)}
    names = {cell.cell_id: cell.variant for cell in folder.run.cells}
    return {names[one.cell_id] for one in folder.samples() if (names[one.cell_id], one.launch) not in made}


def _is_cut(trial: Trial) -> bool:
    """Whether the budget ended within it. Cells that are not run behind one that failed are its own doing."""
    return {cell.status for cell in trial.cells.values()} <= {Status.OK, Status.NOT_RUN} and not trial.is_ok


def _time(samples: Samples) -> CellTime:
    if samples.status is not Status.OK:
        return CellTime(samples.status, math.nan, samples.reason)
    return CellTime(Status.OK, float(np.median(fold(samples))))


def open_folder(path: Path, make: Callable[[], Run]) -> RunFolder:
    """The run folder at `path` to go on with, or a new one that holds the record that `make` makes."""
    if (path / "run.json").exists():
        return RunFolder.open(path, write=True)
    return RunFolder.create(path, make())
