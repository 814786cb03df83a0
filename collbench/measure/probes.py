"""Runs microbenchmarks on a worker group: one answer per rank and task becomes one record, whatever happens."""

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from collbench.measure.group import GroupFailure
from collbench.measure.placement import devices
from collbench.measure.probe_plan import Task
from collbench.measure.team import Place, ServerPool, Team
from collbench.results.probes import Probe
from collbench.results.records import Status
from collbench.topology.machine import Machine

if TYPE_CHECKING:
    from collbench.measure.shared_gpu import MpsServer

__all__ = ["Prober", "fold"]

WORK = ".work"
"""Folder for the workers' logs and meeting points, below the run's; gone when the probes end."""

_FAILURES = 3
"""After so many tasks of one kind that hung or crashed, the kind's remaining tasks are not run."""

_BENCH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cpu": ("collbench.measure.probe_host:HostProbes", ("numpy",)),
    "cuda": ("collbench.measure.probe_cuda:CudaProbes", ("torch", "torch.distributed")),
}
_QUARTERS = 4
_LEAST_START_S = 30.0
"""A short budget of probes begins once the workers are there: importing torch alone may take as long."""

_RANK = (Status.OUT_OF_MEMORY, Status.CRASHED, Status.UNSUPPORTED, Status.HUNG)


class Prober:
    """A context manager around the ranks: `run` gives a record for every task. Whatever ends it, no process is left."""

    def __init__(self, machine: Machine, device: str, folder: Path, *, timeout_s: float = 45.0) -> None:
        self._machine, self._device, self._timeout_s = machine, device, timeout_s
        self._place = Place(ranks=machine.ranks, local_ranks=machine.ranks)
        self._pool = ServerPool()
        self._work = folder / WORK
        self._team = Team(self._place, self._pool, self._work)
        self._mps: MpsServer | None = None
        self._turn = 0

    def __enter__(self) -> Self:
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(mode=0o700)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(GroupFailure):
            self._team.stop(kill=kind is not None)
        self._pool.close()
        if self._mps is not None:
            self._mps.__exit__(None, None, None)
        shutil.rmtree(self._work, ignore_errors=True)

    def run(self, tasks: Sequence[Task], budget_s: float, tell: Callable[[Task], None]) -> Iterator[Probe]:
        """Run tasks in order; `tell` is called before each. What does not fit into the budget is `not_run`."""
        end = time.monotonic() + budget_s
        failures: dict[str, int] = {}
        for task in tasks:
            if time.monotonic() >= end:
                yield _without(task, Status.NOT_RUN, f"the budget of {budget_s:.0f} s was used up")
            elif failures.get(task.name, 0) >= _FAILURES:
                yield _without(task, Status.NOT_RUN, f"{task.name} hung or crashed {_FAILURES} times")
            else:
                tell(task)
                probe = self._one(task, end)
                failures[task.name] = failures.get(task.name, 0) + (probe.status in {Status.HUNG, Status.CRASHED})
                yield probe

    def _one(self, task: Task, end: float) -> Probe:
        try:
            if not self._team.running:
                self._start(max(_LEAST_START_S, end - time.monotonic()))
            self._turn += 1
            command = {"op": "probe", "task": task.as_dict(), "turn": self._turn}
            probe = fold(task, self._team.run(command, self._timeout_s))
        except GroupFailure as failure:
            probe = _without(task, Status(failure.kind), str(failure))
        if probe.status in {Status.HUNG, Status.CRASHED, Status.OUT_OF_MEMORY}:
            self._after_failure()
        return probe

    def _start(self, limit_s: float) -> None:
        if self._machine.share_gpu and self._device == "cuda" and self._mps is None:
            from collbench.measure.shared_gpu import MpsServer

            self._mps = MpsServer().__enter__()
        bench, imports = _BENCH[self._device]
        spec = {
            "bench": bench, "deadline_s": 0.6 * self._timeout_s, "share_gpu": self._machine.share_gpu,
            "devices": devices(self._device, self._place.local_ranks, self._machine),
        }  # fmt: skip
        shared = {} if self._mps is None else dict(self._mps.environment)
        self._team.start({
            "imports": list(imports), "spec": spec, "preload": "", "environment": shared, "limit_s": limit_s,
        })  # fmt: skip

    def _after_failure(self) -> None:
        with contextlib.suppress(GroupFailure):
            self._team.stop(kill=True)
        if self._mps is not None:
            self._mps.restart()


def fold(task: Task, answers: Sequence[Mapping[str, Any]]) -> Probe:
    """One record of all ranks' answers.

    Latencies are the slowest rank's median; bandwidth is all bytes over the time from the first start to the last end;
    a litmus counts violations.
    """
    failed = [(rank, a) for rank, a in enumerate(answers) if a.get("failed") and a["failed"] != "peer"]
    failed.sort(key=lambda one: bool(one[1].get("heard")))  # who waited says for whom; the others only heard of it
    for status in _RANK:
        told = next(((rank, a) for rank, a in failed if a["failed"] == status), None)
        if told is not None:
            return _without(task, status, f"rank {told[0]}: {told[1]['reason']}")
    given = [a["answer"] for a in answers if a.get("answer")]
    if not given:
        return _without(task, Status.CRASHED, "no rank gave an answer")
    if "violations" in given[0] or any("violations" in one for one in given):
        return _litmus(task, given)
    values = _rates(task, given) if task.kind == "bandwidth" else _slowest(given)
    return _made(task, values, int(next((one["bytes"] for one in given if "bytes" in one), 0)))


def _slowest(given: Sequence[Mapping[str, Any]]) -> list[float]:
    lists = [[float(us) for us in one["us"]] for one in given if one.get("us")]
    return max(lists, key=statistics.median) if lists else []


def _rates(task: Task, given: Sequence[Mapping[str, Any]]) -> list[float]:
    """GB/s in each repeat."""
    timed = [one for one in given if one.get("end")]
    begins = [[float(t) for t in one["begin"]] for one in timed]
    ends = [[float(t) for t in one["end"]] for one in timed]
    size = len(task.flows) * float(timed[0]["bytes"]) if timed else 0.0
    spans = [
        max(end) - min(begin) for begin, end in zip(zip(*begins, strict=True), zip(*ends, strict=True), strict=True)
    ]
    return [size / span / 1e9 for span in spans if span > 0]


def _made(task: Task, values: Sequence[float], size: int) -> Probe:
    if not values:
        return _without(task, Status.CRASHED, "no rank gave a time above zero")
    middle = statistics.median(values)
    if middle <= 0:  # a slope between two chains of launches, on a machine that was busy during one of them
        reason = (
            f"the time came out as {middle:.3g} {task.unit}: other load moved the clock more than what was measured"
        )
        return _without(task, Status.WRONG, reason)
    quarters = statistics.quantiles(values, n=_QUARTERS, method="inclusive") if len(values) > 1 else [middle] * 3
    spread = (quarters[2] - quarters[0]) / middle
    return Probe(task.name, task.pattern, *task.ends, task.flows, size, middle, task.unit, spread)


def _litmus(task: Task, given: Sequence[Mapping[str, Any]]) -> Probe:
    found = sum(int(one.get("violations", 0)) for one in given)
    looks = sum(int(one.get("looks", 0)) for one in given)
    extra = "".join(f", {one['detail']}" for one in given if one.get("detail"))
    if not looks:
        return _without(task, Status.CRASHED, "the reader never looked: nothing was tested")
    return Probe(task.name, task.pattern, *task.ends, task.flows, 16, float(found), task.unit, 0.0,
                 reason=f"{looks} looks{extra}")  # fmt: skip


def _without(task: Task, status: Status, reason: str) -> Probe:
    return Probe(task.name, task.pattern, *task.ends, task.flows, unit=task.unit, status=status, reason=reason)
