"""A worker: one rank of one algorithm. It opens the algorithm, verifies, times, verifies again, and reports."""

import contextlib
import faulthandler
import importlib
import itertools
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from collbench.algorithms.base import Algorithm, Proof, Runner, registry
from collbench.measure.channel import Channel
from collbench.measure.clock import Clock, HostClock
from collbench.measure.ranks import WorkerRanks, pin
from collbench.measure.trial import Trial
from collbench.measure.verify import Check, supported
from collbench.results.records import Cell, Flag, Mode, Status

__all__ = ["Bench", "failure_of", "run_worker"]

_SITE = "site-packages"


class Bench(Protocol):
    """What a worker does between `open` and `close` of its group."""

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry a command out; an error becomes an answer (`failure_of`)."""

    def close(self) -> None:
        """Free everything; never raises."""


def run_worker(fd: int, spec: dict[str, Any], local_rank: int) -> None:
    """Serve the supervisor's commands on the channel `fd` until it says `close` or is gone."""
    _redirect_output(f"{spec['folder']}/worker-{local_rank}.log")
    faulthandler.enable()
    channel = Channel(fd)
    ranks = WorkerRanks(channel, spec, local_rank)
    bench = _make_bench(ranks, spec)
    with contextlib.suppress(EOFError, OSError):
        while (command := channel.receive())["op"] != "close":
            channel.send(bench.answer(command))
    bench.close()
    ranks.close()


def _make_bench(ranks: WorkerRanks, spec: dict[str, Any]) -> Bench:
    """That of an algorithm's cells, or the one that `spec["bench"]` names as `module:function` of (ranks, spec)."""
    if "bench" in spec:
        module, _, name = str(spec["bench"]).partition(":")
        made: Bench = getattr(importlib.import_module(module), name)(ranks, spec)
        return made
    return _CellBench(ranks, registry()[spec["algorithm"]], int(spec["seed"]), list(spec["devices"]))


class _CellBench:
    """Keeps the runner open from cell to cell as long as the call stays the same."""

    def __init__(self, ranks: WorkerRanks, algorithm: Algorithm, seed: int, devices: list[str]) -> None:
        self._ranks = ranks
        self._algorithm = algorithm
        self._runner: Runner | None = None
        self._check: Check | None = None
        self._proof: Proof | None = None
        self._turns = itertools.count(1)
        self._seed = seed
        self._align: Callable[[], None] | None = None
        self._ranks_on_gpu = devices.count(ranks.device) if algorithm.device == "cuda" else 0
        self._cores = pin(ranks.local_rank, ranks.local_world_size) if algorithm.device == "cpu" else ""

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            if command["op"] == "health":
                return {"status": Status.OK, "reason": _health(self._ranks.device)}
            return self._measure(Cell.from_row(command["cell"]), command)
        except Exception as error:  # noqa: BLE001 - whatever it was becomes the cell's status and reason
            self._drop_runner(error)
            return failure_of(error)

    def _measure(self, cell: Cell, command: dict[str, Any]) -> dict[str, Any]:
        if not supported(cell.call):
            return {"status": Status.UNSUPPORTED, "reason": "no reference answer for this call", "latency_us": []}
        self._ranks.phase("opening")
        runner, check = self._open(cell, int(command["slots"]))
        with self._clock(runner, cell) as clock:
            trial = Trial(clock, check, self._ranks, self._turns, self._seed)
            self._ranks.phase("verification before timing")
            problem = trial.verify()
            if problem:
                return {"status": Status.WRONG, "reason": problem, "latency_us": []}
            proof = self._prove(runner)
            if proof.reason:
                return {"status": Status.UNSUPPORTED, "reason": proof.reason, "evidence": dict(proof.evidence)}
            timed = trial.time(command)
            if timed.problem:
                return {"status": Status.WRONG, "reason": f"in the timed run, {timed.problem}", "latency_us": []}
            facts = {**self._surroundings(), **timed.evidence}
        flags = [Flag.THROTTLED] if facts.get("throttle", "none") != "none" else []
        evidence = {**proof.evidence, **facts}
        return {"status": Status.OK, "reason": "", "latency_us": timed.samples, "evidence": evidence, "flags": flags}

    def _surroundings(self) -> dict[str, str]:
        """Where the cell ran, asked right behind the timed run: cores, or the GPU's clocks and link."""
        if self._algorithm.device == "cpu":
            return {"cores": self._cores}
        import pynvml
        import torch

        from collbench.measure.cuda_clock import clocks_and_throttle

        uuid = str(getattr(torch.cuda.get_device_properties(self._ranks.device), "uuid", ""))
        return clocks_and_throttle(f"GPU-{uuid}", pynvml) if self._ranks.local_rank == 0 or not self._shares() else {}

    def _shares(self) -> bool:
        return self._ranks_on_gpu > 1

    def _prove(self, runner: Runner) -> Proof:
        if self._proof is None:
            own = runner.proof()
            reasons = [str(r) for r in self._ranks.exchange(own.reason)]
            self._proof = Proof(next((r for r in reasons if r), ""), own.evidence)
        return self._proof

    def _open(self, cell: Cell, slots: int) -> tuple[Runner, Check]:
        kept = self._runner
        if kept is None or self._check is None or kept.call != cell.call or kept.slots < slots:
            self._drop_runner(None)
            runner = self._algorithm.load_runner()(self._ranks, cell.call, slots)
            self._runner = runner.__enter__()
            self._refuse_unless_resident(self._runner)
            self._check = Check(self._runner, cell.call, self._ranks.rank, seed=self._seed)
            self._proof = None
        assert self._runner is not None  # noqa: S101 - set above; says so to the type checker
        assert self._check is not None  # noqa: S101 - set above; says so to the type checker
        return self._runner, self._check

    def _refuse_unless_resident(self, runner: Runner) -> None:
        if self._ranks_on_gpu > 1:
            from collbench.measure.shared_gpu import not_resident

            reason = not_resident(runner, self._ranks_on_gpu)
            if reason:
                raise NotImplementedError(reason)

    def _clock(self, runner: Runner, cell: Cell) -> Clock:
        if self._algorithm.device == "cpu":
            return HostClock(runner, cell.calls, self._aligner())
        from collbench.measure.cuda_clock import EagerClock, GraphClock

        kind = GraphClock if cell.mode is Mode.GRAPH else EagerClock
        return kind(runner, cell.calls, self._aligner())

    def _aligner(self) -> Callable[[], None]:
        if self._align is None:
            self._align = _make_aligner(self._ranks)
        return self._align

    def _drop_runner(self, error: BaseException | None) -> None:
        runner, self._runner, self._check, self._proof = self._runner, None, None, None
        if runner is not None:
            runner.__exit__(type(error) if error else None, error, None)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # closing after a failure may fail again; the process ends anyway
            self._drop_runner(None)


def _make_aligner(ranks: WorkerRanks) -> Callable[[], None]:
    """A barrier from which all ranks start together: shared memory on one host, the process group across hosts."""
    if ranks.local_world_size == ranks.world_size:
        from collbench.algorithms.host_barrier import HostBarrier

        return HostBarrier.open(ranks).wait
    group = ranks.process_group("gloo") if ranks.device == "cpu" else None
    if group is None:
        return lambda: None
    import torch.distributed as dist

    return lambda: dist.barrier(group)


def _health(device: str) -> str:
    """Run an empty piece of work on the device; gives nothing if it is well."""
    if device != "cpu":
        import torch

        torch.zeros(1, device=device).add_(1).cpu()
    return ""


def failure_of(error: Exception) -> dict[str, Any]:
    """An error as a worker's answer: the status that it means, and its reason in one line."""
    return {"failed": _failure_kind(error), "reason": _one_line(error)}


def _failure_kind(error: Exception) -> Status:
    if isinstance(error, NotImplementedError):
        return Status.UNSUPPORTED
    text = f"{type(error).__name__} {_text(error)}".lower()
    if isinstance(error, MemoryError) or "out of memory" in text or "outofmemory" in text:
        return Status.OUT_OF_MEMORY
    return Status.HUNG if isinstance(error, TimeoutError) else Status.CRASHED


def _one_line(error: Exception) -> str:
    first = next((line.strip() for line in _text(error).splitlines() if line.strip()), "")
    told = isinstance(error, (NotImplementedError, TimeoutError)) and first
    return first[:400] if told else f"{type(error).__name__}: {first}"[:360] + _place(error)


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception of somebody else's may do anything
        return ""


def _place(error: Exception) -> str:
    """Where it was raised, as ` (file.py:12)`: the innermost line of an algorithm, which its author can look at."""
    package, skipped = str(Path(__file__).parents[1]), (str(Path(__file__).parent), "<")
    pythons = str(Path(os.__file__).parent)
    # walked, not extracted: that would read the source, and a name need not be a file that ends
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    lines = [one for one in lines if not one[0].startswith(skipped)]
    own = [one for one in lines if one[0].startswith(package) or not (one[0].startswith(pythons) or _SITE in one[0])]
    last = (own or lines)[-1:]
    return "".join(f" ({Path(name).name[-60:]}:{line})" for name, line in last)


def _redirect_output(path: str) -> None:
    """Everything that this process and its libraries print goes to a log, whose end explains a crash."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
