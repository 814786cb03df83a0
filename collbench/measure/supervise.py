"""The supervisor: one worker group per algorithm, cell after cell, and a status for every cell whatever happens."""

import math
import shutil
import time
from typing import Any

from collbench.algorithms.base import Algorithm
from collbench.measure.agenda import Agenda
from collbench.measure.answers import combine, evidence_of
from collbench.measure.budget import Budget
from collbench.measure.costs import TOOK
from collbench.measure.estimates import LEAST, MOST
from collbench.measure.group import GroupFailure
from collbench.measure.launcher import Launcher
from collbench.measure.plan import Key, Options, Plan, key_of, seconds_per_cell
from collbench.measure.progress import Progress
from collbench.measure.shortfall import Shortfall
from collbench.measure.team import Place, ServerPool
from collbench.measure.turns import Turn, next_turn
from collbench.results.records import Cell, Mode, Samples, Status
from collbench.results.store import RunFolder
from collbench.topology.machine import Machine

__all__ = ["Supervisor"]

WORK = ".work"
"""Folder in a run's for the workers' logs and meeting points; gone when the sweep ends, cleared when it resumes."""

PATIENCE = 3
"""After so many cells in a row that hung or crashed, an algorithm's remaining cells are not run."""

_LATE = 2.0
"""A launch that takes so many times what its algorithm's launches take: its last cells wait for a turn of their own."""

_FATAL = frozenset({Status.HUNG, Status.CRASHED, Status.OUT_OF_MEMORY})


class Supervisor:
    """Measures a plan's cells that a run folder does not hold yet, and appends each as it ends."""

    def __init__(
        self,
        options: Options,
        machine: Machine,
        plan: Plan,
        folder: RunFolder,
        place: Place,
        progress: Progress,
        reserved_s: float = 0.0,
        pool: ServerPool | None = None,
    ) -> None:
        # a pool that is given outlives the supervisor: several of them then share its fork servers
        self._options = options
        self._machine = machine
        self._plan = plan
        self._folder = folder
        self._progress = progress
        self._work = folder.path / WORK
        self._launcher = Launcher(machine, place, self._work, options.timeout_s, progress.say, pool)
        earlier = folder.samples()
        self._agenda = Agenda.of(plan, options.launches, folder)
        self._ledger, self._costs = self._agenda.ledger, self._agenda.costs
        self._planned = self._ledger.left
        self._pace = {s.cell_id: _timed_s(s) for s in reversed(earlier) if s.latency_us}
        self._tried: set[Key] = {key_of(c) for c in plan.cells if c.cell_id in self._pace}
        self._told = {s.cell_id: (s.launch, s.reason) for s in earlier if s.status is Status.NOT_RUN}
        self._budget = Budget(options.budget_s, reserved_s)

    @property
    def sick(self) -> str:
        """Why nothing can be measured on the GPU any more; empty where it can."""
        return self._launcher.sick

    def run(self) -> None:
        """Measure everything. Whatever ends it, no worker, fork server or MPS daemon is left."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(mode=0o700)
        try:
            self._first_launches()
            able = {key_of(algorithm): algorithm for algorithm in self._plan.algorithms}
            while turn := self._next():
                self._further_launch(able[turn.key], turn)
            self._give_up()
        finally:
            self._launcher.close()
            shutil.rmtree(self._work, ignore_errors=True)

    def _first_launches(self) -> None:
        """One of each, so that every cell has a value; a slow one's last cells come behind those of all others."""
        waiting = []
        for algorithm in self._plan.algorithms:
            share_s = self._budget.share_s(self._ledger.count(key_of(algorithm), 0), self._planned)
            if not self._measure(algorithm, 0, share_s):
                waiting.append(algorithm)
        for algorithm in waiting:
            self._measure(algorithm, 0)

    def _next(self) -> Turn | None:
        return None if self._budget.is_over else next_turn(self._agenda.work(), self._budget.left_s)

    def _further_launch(self, algorithm: Algorithm, turn: Turn) -> None:
        self._planned = sum(self._ledger.count(key, launch) for key, launch in turn.planned)
        share_s = self._budget.share_s(self._ledger.count(turn.key, turn.launch), self._planned)
        self._measure(algorithm, turn.launch, max(share_s, _LATE * self._costs.of(turn.key)))

    def _give_up(self) -> None:
        """Every cell with launches that the budget does not hold gets a record that says so."""
        can_run = self._tried | set(self._plan.launch_s)
        work = [one for one in self._agenda.work() if one.key in can_run]
        short = Shortfall(work, self._options.launches, self._budget.seconds, self._launcher.servers_s)
        for algorithm in self._plan.algorithms:
            self._leave(algorithm, short.reason(key_of(algorithm)) or self._budget.used_up())
        if not self.sick and (summary := short.summary()):
            self._progress.say(summary)

    def _leave(self, algorithm: Algorithm, reason: str) -> None:
        """Close an algorithm's open launches. A record of one that was not run stands for those behind it."""
        key = key_of(algorithm)
        found: dict[str, tuple[Status, str]] = {}
        for launch in self._ledger.launches(key):
            for cell in self._ledger.cells(key, launch):
                is_first = cell.cell_id not in found
                if is_first:
                    found[cell.cell_id] = self._refusal(algorithm, cell, 0) or (Status.NOT_RUN, reason)
                status, why = found[cell.cell_id]
                samples = Samples(cell.cell_id, launch, status, why, calls=cell.calls)
                if is_first or status is not Status.NOT_RUN:
                    self._keep(cell, samples)
                else:
                    self._close(cell, samples)

    def _measure(self, algorithm: Algorithm, launch: int, limit_s: float = math.inf) -> bool:
        """Measure an algorithm's open cells; False if some are left behind `limit_s` seconds."""
        key = key_of(algorithm)
        cells = self._ledger.cells(key, launch)
        if not cells:
            return True
        self._progress.start(algorithm.name)
        first_reason, failures, counted = "", 0, 0
        begin, servers_s = time.monotonic(), self._launcher.servers_s
        limit = begin + limit_s
        for cell in cells:
            if cell is not cells[0] and time.monotonic() > limit:
                break
            samples = self._cell(algorithm, cell, launch, failures)
            if cell is cells[0]:
                limit = max(limit, _worth_opening(begin, time.monotonic()))
            failures = failures + 1 if samples.status in {Status.HUNG, Status.CRASHED} else 0
            failures = PATIENCE if samples.reason.startswith("the cells before") else failures
            first_reason = first_reason or samples.reason
            counted += not self._budget.is_over
            self._keep(cell, samples)
        self._launcher.end(kill=False)
        # a fork server's imports are paid once, and not by the next launch
        servers_s = self._launcher.servers_s - servers_s
        self._costs.learn(key, launch, time.monotonic() - begin - servers_s, counted)
        self._progress.end(algorithm.name, first_reason)
        return self._ledger.count(key, launch) == 0

    def _keep(self, cell: Cell, samples: Samples) -> None:
        """Write what became of a cell in a launch; not again what an earlier call wrote last of one not run."""
        told = (samples.launch, samples.reason)
        if samples.status is not Status.NOT_RUN or self._told.get(cell.cell_id) != told:
            self._folder.append(samples)
        if samples.status is Status.NOT_RUN:
            self._told[cell.cell_id] = told
        self._close(cell, samples)

    def _close(self, cell: Cell, samples: Samples) -> None:
        self._ledger.close(cell, samples.launch)
        self._planned -= 1
        self._progress.cell(cell, samples)

    def _cell(self, algorithm: Algorithm, cell: Cell, launch: int, failures: int) -> Samples:
        refusal = self._refusal(algorithm, cell, failures)
        if refusal is None and self._budget.is_over:
            refusal = Status.NOT_RUN, self._budget.used_up()
        if refusal is not None:
            return Samples(cell.cell_id, launch, *refusal, calls=cell.calls)
        self._tried.add(key_of(algorithm))
        opening_s = 0.0 if self._launcher.running else algorithm.opening_s
        begin, starting = time.monotonic() - self._launcher.servers_s, True
        try:
            if not self._launcher.running:
                self._launcher.start(algorithm, self._budget.start_limit_s())
            starting = False
            limits_s = self._budget.cell_limits_s(self._options.timeout_s, opening_s)
            answers = self._launcher.run(self._command(cell), *limits_s)
            samples = combine(cell, launch, answers)
        except GroupFailure as failure:
            samples = self._failed(cell, launch, failure, starting=starting)
        else:
            # a fork server's imports are paid once, and not by the next launch
            seconds = time.monotonic() - self._launcher.servers_s - begin
            self._keep_evidence(cell, launch, evidence_of(answers), seconds)
        if samples.status in _FATAL:
            self._launcher.after_failure(next((a for a in self._plan.algorithms if a.device == "cuda"), algorithm))
        return samples

    def _keep_evidence(self, cell: Cell, launch: int, evidence: dict[str, str], seconds: float) -> None:
        if evidence:
            self._folder.append_evidence(cell.cell_id, launch, {**evidence, TOOK: f"{seconds:.3f} s"})

    def _failed(self, cell: Cell, launch: int, failure: GroupFailure, *, starting: bool) -> Samples:
        status, reason = Status(failure.kind), str(failure)
        if status is Status.HUNG and self._budget.is_over:
            # whoever resumes the run gives it its turn
            status = Status.NOT_RUN
            reason = self._budget.used_up("its workers started" if starting else "it was opened and measured")
            self._launcher.end(kill=True)
        return Samples(cell.cell_id, launch, status, reason, calls=cell.calls)

    def _refusal(self, algorithm: Algorithm, cell: Cell, failures: int) -> tuple[Status, str] | None:
        support = algorithm.support(self._machine, cell.call)
        if not support:
            return Status.UNSUPPORTED, support.reason
        if cell.mode not in algorithm.modes:
            told = "cannot be captured in a CUDA graph" if cell.mode is Mode.GRAPH else "runs in CUDA graphs only"
            return Status.UNSUPPORTED, f"{algorithm.name} {told}"
        if self.sick and algorithm.device == "cuda":
            return Status.NOT_RUN, self.sick
        if failures >= PATIENCE:
            return Status.NOT_RUN, f"the cells before it hung or crashed, {PATIENCE} in a row"
        return None

    def _command(self, cell: Cell) -> dict[str, Any]:
        seconds = seconds_per_cell(len(self._plan.cells))
        if not self._budget.is_endless:
            # as long as in the first launch at most: what the others cost was planned from that
            seconds = self._budget.timed_s(self._planned)
            seconds = min(seconds, self._pace.setdefault(cell.cell_id, seconds))
        return {
            "op": "cell", "cell": cell.row(), "slots": self._plan.slots_of(cell), "seconds": seconds,
            "iterations": self._options.iterations, "warmup": self._options.warmup, "least": LEAST, "most": MOST,
        }  # fmt: skip


def _worth_opening(begin: float, opened: float) -> float:
    """Until when an algorithm may go on whose first cell began and ended then: it would have to be opened again."""
    return opened + (opened - begin)


def _timed_s(samples: Samples) -> float:
    """Seconds that the slowest rank timed."""
    return max(sum(rank) for rank in samples.latency_us) * samples.calls / 1e6
