"""The supervisor: one worker group per algorithm, cell after cell, and a status for every cell whatever happens."""

import contextlib
import shutil
import time
from typing import TYPE_CHECKING, Any

from collbench.algorithms.base import Algorithm
from collbench.measure.group import GroupFailure
from collbench.measure.placement import devices
from collbench.measure.plan import Options, Plan, seconds_per_cell
from collbench.measure.progress import Progress
from collbench.measure.team import Place, ServerPool, Team
from collbench.results.records import Cell, Flag, Samples, Status
from collbench.results.store import RunFolder
from collbench.topology.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collbench.measure.shared_gpu import MpsServer

__all__ = ["Supervisor"]

WORK = ".work"
"""Folder in a run's for the workers' logs and meeting points; gone when the sweep ends, cleared when it resumes."""

PATIENCE = 3
"""After so many cells in a row that hung or crashed, an algorithm's remaining cells are not run."""

_LEAST, _MOST = 3, 2000
_MIN_SECONDS, _MAX_SECONDS = 0.02, 2.0
_OVERHEAD_SHARE = 0.6
"""Part of a cell's share of the budget that is spent in timed iterations; the rest opens, fills and verifies."""

_SLACK = 1.25
"""An algorithm may take so much more than its share of the budget before its last cells wait for what is left over."""

_GRACE_S = 2.0
"""How far a cell may go beyond the budget before it is cut off."""

_HEALTH_DEADLINE_S = 60.0
_ORDER = (Status.OUT_OF_MEMORY, Status.CRASHED, Status.UNSUPPORTED, Status.HUNG)
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
        self._place = place
        self._pool, self._owns_pool = pool or ServerPool(), pool is None
        self._work = folder.path / WORK
        self._team = Team(place, self._pool, self._work)
        self._mps: MpsServer | None = None
        self._sick = ""
        # what a budget or a failure before it cut off gets its turn when the run is resumed
        self._done = {(s.cell_id, s.launch) for s in folder.samples() if s.status is not Status.NOT_RUN}
        self._left = len(plan.cells) * options.launches - len(self._done)
        # the rest of the budget is somebody else's, such as the probes'
        self._end = None if options.budget_s is None else time.monotonic() + options.budget_s - reserved_s

    @property
    def sick(self) -> str:
        """Why nothing can be measured on the GPU any more; empty where it can."""
        return self._sick

    def run(self) -> None:
        """Measure everything. Whatever ends it, no worker, fork server or MPS daemon is left."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(mode=0o700)
        try:
            waiting: list[tuple[Algorithm, int]] = []
            for launch in range(self._options.launches):
                # there and back: any two algorithms are launched in the order A B B A, so that drift favours neither
                order = self._plan.algorithms if launch % 2 == 0 else self._plan.algorithms[::-1]
                waiting += [(a, launch) for a in order if not self._measure(a, launch, fair=True)]
            for algorithm, launch in waiting:
                self._measure(algorithm, launch, fair=False)
        finally:
            self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(Exception):  # the other hosts may be gone; torchrun ends them
            self._team.leave()
        if self._owns_pool:
            self._pool.close()
        with contextlib.suppress(Exception):
            self._team.obey({"do": "stop", "kill": True})
        if self._mps is not None:
            self._mps.__exit__(None, None, None)
        shutil.rmtree(self._work, ignore_errors=True)

    def _measure(self, algorithm: Algorithm, launch: int, *, fair: bool) -> bool:
        """Measure an algorithm's open cells; False if some are left: `fair` keeps it to its share of the budget."""
        cells = [c for c in self._plan.cells_of(algorithm) if (c.cell_id, launch) not in self._done]
        if not cells:
            return True
        limit = self._share(len(cells)) if fair else None
        self._progress.start(algorithm.name)
        first_reason, failures = "", 0
        begin = time.monotonic()
        for cell in cells:
            if limit is not None and cell is not cells[0] and time.monotonic() > limit:
                break
            samples = self._cell(algorithm, cell, launch, failures)
            if limit is not None and cell is cells[0]:
                limit = max(limit, _worth_opening(begin, time.monotonic()))
            failures = failures + 1 if samples.status in {Status.HUNG, Status.CRASHED} else 0
            failures = PATIENCE if samples.reason.startswith("the cells before") else failures
            first_reason = first_reason or samples.reason
            self._keep(cell, samples)
        if self._team.running:
            with contextlib.suppress(GroupFailure):
                self._team.stop(kill=False)
        self._progress.end(algorithm.name, first_reason)
        return all((cell.cell_id, launch) in self._done for cell in cells)

    def _keep(self, cell: Cell, samples: Samples) -> None:
        self._folder.append(samples)
        self._done.add((cell.cell_id, samples.launch))
        self._left -= 1
        self._progress.cell(cell, samples)

    def _share(self, cells: int) -> float | None:
        """Until when an algorithm may go on, so that a slow one does not use up the budget of those behind it."""
        if self._end is None:
            return None
        now = time.monotonic()
        return now + _SLACK * max(0.0, self._end - now) * cells / max(1, self._left)

    def _cell(self, algorithm: Algorithm, cell: Cell, launch: int, failures: int) -> Samples:
        refusal = self._refusal(algorithm, cell, failures)
        if refusal is not None:
            return Samples(cell.cell_id, launch, refusal[0], refusal[1], calls=cell.calls)
        opening_s = 0.0 if self._team.running else algorithm.opening_s
        starting = True
        try:
            if not self._team.running:
                self._start(algorithm, self._left_s())
            starting = False
            answers = self._team.run(self._command(cell), *self._limits(opening_s))
            samples = _combine(cell, launch, answers)
        except GroupFailure as failure:
            status, reason = Status(failure.kind), str(failure)
            if status is Status.HUNG and self._is_over():
                # whoever resumes the run gives it its turn
                status, doing = Status.NOT_RUN, "its workers started" if starting else "it was opened and measured"
                reason = f"the budget of {self._options.budget_s:.0f} s was used up while {doing}"
                self._end_group()
            samples = Samples(cell.cell_id, launch, status, reason, calls=cell.calls)
        else:
            self._keep_evidence(cell, launch, answers)
        if samples.status in _FATAL:
            self._after_failure()
        return samples

    def _refusal(self, algorithm: Algorithm, cell: Cell, failures: int) -> tuple[Status, str] | None:
        support = algorithm.support(self._machine, cell.call)
        if not support:
            return Status.UNSUPPORTED, support.reason
        if cell.mode not in algorithm.modes:
            return Status.UNSUPPORTED, f"{algorithm.name} cannot be captured in a CUDA graph"
        if self._sick and algorithm.device == "cuda":
            return Status.NOT_RUN, self._sick
        if failures >= PATIENCE:
            return Status.NOT_RUN, f"the cells before it hung or crashed, {PATIENCE} in a row"
        if self._is_over():
            return Status.NOT_RUN, f"the budget of {self._options.budget_s:.0f} s was used up"
        return None

    def _is_over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def _limits(self, opening_s: float) -> tuple[float, float]:
        """Seconds for a cell and for its opening, within what is left of the budget."""
        left = self._left_s()
        if left is None:
            return self._options.timeout_s, opening_s
        cell_s = min(self._options.timeout_s, left + _GRACE_S)
        return cell_s, min(opening_s, left + _GRACE_S - cell_s)

    def _left_s(self) -> float | None:
        """Seconds of the budget that are left, None without one."""
        return None if self._end is None else max(0.1, self._end - time.monotonic())

    def _start(self, algorithm: Algorithm, limit_s: float | None = None) -> None:
        shared: Mapping[str, str] = {}
        if algorithm.device == "cuda" and self._machine.share_gpu:
            shared = self._start_mps().environment
        spec = {
            "algorithm": algorithm.name, "seed": time.time_ns() & 0xFFFFFFFF,
            "devices": devices(algorithm.device, self._place.local_ranks, self._machine),
            "deadline_s": 0.6 * self._options.timeout_s, "share_gpu": self._machine.share_gpu,
        }  # fmt: skip
        own = algorithm.environment(self._machine)
        try:
            self._team.start({
                "imports": list(algorithm.imports), "foreign": list(algorithm.foreign.modules),
                "variables": {name: own[name] for name in algorithm.foreign.variables if name in own},
                "preload": algorithm.preload, "environment": {**own, **shared}, "spec": spec, "limit_s": limit_s,
            })  # fmt: skip
        finally:
            self._pool.tell(self._progress.say)

    def _start_mps(self) -> "MpsServer":
        if self._mps is None:
            from collbench.measure.shared_gpu import MpsServer

            self._mps = MpsServer().__enter__()
        return self._mps

    def _command(self, cell: Cell) -> dict[str, Any]:
        seconds = seconds_per_cell(len(self._plan.cells))
        if self._end is not None:
            share = (self._end - time.monotonic()) / max(1, self._left)
            seconds = min(_MAX_SECONDS, max(_MIN_SECONDS, _OVERHEAD_SHARE * share))
        return {
            "op": "cell", "cell": cell.row(), "slots": self._plan.slots_of(cell), "seconds": seconds,
            "iterations": self._options.iterations, "warmup": self._options.warmup, "least": _LEAST, "most": _MOST,
        }  # fmt: skip

    def _keep_evidence(self, cell: Cell, launch: int, answers: list[dict[str, Any]]) -> None:
        """Rank 0's evidence by name, and that of other ranks where it differs, as `name@rank`."""
        first = answers[0].get("evidence") or {}
        kept = dict(first)
        for rank, answer in enumerate(answers[1:], start=1):
            kept |= {f"{k}@{rank}": v for k, v in (answer.get("evidence") or {}).items() if first.get(k) != v}
        if kept:
            self._folder.append_evidence(cell.cell_id, launch, kept)

    def _after_failure(self) -> None:
        """End the group. A fault under MPS takes all clients of that GPU: start the daemon anew and see if it works."""
        self._end_group()
        if self._mps is not None:
            self._sick = self._mps.restart_and_check(self._health)

    def _end_group(self) -> None:
        with contextlib.suppress(GroupFailure):
            self._team.stop(kill=True)

    def _health(self) -> str:
        """Run an empty piece of work in a fresh group; gives what went wrong, or nothing."""
        algorithm = next(a for a in self._plan.algorithms if a.device == "cuda")
        try:
            self._start(algorithm)
            self._team.run({"op": "health"}, _HEALTH_DEADLINE_S)
            self._team.stop(kill=False)
        except GroupFailure as failure:
            with contextlib.suppress(GroupFailure):
                self._team.stop(kill=True)
            return f"the GPU does not answer since a cell failed: {failure}"
        return ""


def _worth_opening(begin: float, opened: float) -> float:
    """Until when an algorithm may go on whose first cell began and ended then: it would have to be opened again."""
    return opened + (opened - begin)


def _combine(cell: Cell, launch: int, answers: list[dict[str, Any]]) -> Samples:
    """One status for all ranks: the failure that says most, else what they agreed on.

    Raises:
        GroupFailure: an answer lacks what belongs to it.
    """
    failed = [(rank, a) for rank, a in enumerate(answers) if a.get("failed") and a["failed"] != "peer"]
    for status in _ORDER:
        told = [(rank, a) for rank, a in failed if a["failed"] == status]
        if told:
            rank, answer = told[0]
            who = "" if status is Status.UNSUPPORTED else f"rank {rank}: "
            return Samples(cell.cell_id, launch, status, f"{who}{answer['reason']}", calls=cell.calls)
    try:
        return _agreed(cell, launch, answers)
    except (KeyError, TypeError, ValueError) as error:
        raise GroupFailure("crashed", f"the ranks' answers make no sense: {type(error).__name__}: {error}") from error


def _agreed(cell: Cell, launch: int, answers: list[dict[str, Any]]) -> Samples:
    first = answers[0]
    status = Status(first["status"])
    latency = tuple(tuple(float(us) for us in a["latency_us"]) for a in answers) if status is Status.OK else ()
    flags = tuple(Flag(f) for f in dict.fromkeys(f for a in answers for f in a.get("flags", ())))
    return Samples(cell.cell_id, launch, status, str(first["reason"]), flags, cell.calls, latency)
