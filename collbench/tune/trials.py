"""Trials as launches of a sweep: each candidate a variant of one algorithm, verified and kept in one run folder."""

import itertools
import math
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

__all__ = ["Library", "Trials", "Workplace", "key_of", "open_folder", "trials_of"]

Library = tuple[str, Mapping[str, str]]
"""Path of a libnccl, and what it says of itself (`measure.library.nccl_facts`)."""


class Workplace:
    """What all launches of a search share: the algorithm, the machine, the libraries, the options, the fork servers."""

    def __init__(
        self, algorithm: Algorithm, machine: Machine, libraries: Sequence[Library], options: Options, place: Place
    ) -> None:
        self.algorithm = algorithm
        self.machine = machine
        self.libraries = tuple(libraries)
        self.options = replace(options, budget_s=None)
        self.place = place
        self.pool = ServerPool()

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
        return make_plan(self.options, self.machine, [self.variant(c) for c in candidates])

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
        options = replace(self.options, launches=launches)
        progress = _Silent()
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

    def __call__(self, candidate: Candidate, launch: int) -> Trial:
        """One launch; earlier ones of this candidate are in the folder already."""
        self._workplace.launch(self._folder, [candidate], launch + 1)
        made = [t for t in trials_of(self._folder) if (t.candidate, t.launch) == (candidate.name, launch)]
        return made[-1] if made else Trial(candidate.name, launch, {})


class _Silent(Progress):
    """The search says itself how far it is."""

    def __init__(self) -> None:
        super().__init__(0, _Nowhere())  # type: ignore[arg-type]  # of a stream only what Progress asks for

    def end(self, algorithm: str, reason: str = "") -> None:
        del algorithm, reason


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
        found.setdefault(who, {}).update({key_of(cells[one.cell_id]): _time(one) for one in group})
    return [Trial(*who, times) for who, times in found.items() if len(times) == per_candidate[who[0]]]


def _time(samples: Samples) -> CellTime:
    if samples.status is not Status.OK:
        return CellTime(samples.status, math.nan, samples.reason)
    return CellTime(Status.OK, float(np.median(fold(samples))))


def open_folder(path: Path, make: Callable[[], Run]) -> RunFolder:
    """The run folder at `path` to go on with, or a new one that holds the record that `make` makes."""
    if (path / "run.json").exists():
        return RunFolder.open(path, write=True)
    return RunFolder.create(path, make())
