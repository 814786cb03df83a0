"""Microbenchmarks between GPUs, or between ranks that share one: own kernels, copy engines, captured launches."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from collbench.algorithms.cuda.compile import PROBE
from collbench.algorithms.cuda.driver import Function, Launcher, call
from collbench.algorithms.cuda.memory import SharedRegion
from collbench.algorithms.cuda.probes import (
    AT_CHAIN,
    AT_DATA,
    AT_RESULT,
    FLOW_BYTES,
    MESSAGES,
    RESULT_BYTES,
    Op,
    ProbeArgs,
    Result,
    chain,
    compile_probe,
    read_result,
    region_bytes,
)
from collbench.algorithms.cuda_buffers import wait_event
from collbench.algorithms.cuda_support import EARLY_SINCE
from collbench.measure.probe_launches import Launches
from collbench.measure.probe_plan import Task
from collbench.measure.ranks import WorkerRanks
from collbench.measure.worker import failure_of

__all__ = ["CudaProbes"]

_DEADLINE_NS = 2_000_000_000
_REPEATS = 7
_ROUNDS = {Op.BARRIER: 200, Op.FLAG: 200, Op.READ_CHAIN: 500, Op.MESSAGE_PASSING: MESSAGES, Op.TORN: 100_000}
_BLOCKS, _THREADS, _WARP = 32, 512, 32
_TARGET_S, _MOST_ROUNDS, _SLOW_S = 2e-3, 64, 0.3
_EPOCHS, _TURN_BITS = 8192, 19  # more than the rounds of a launch in which ranks meet, and room for 64 of them


class _HeardError(TimeoutError):
    """A peer gave up; it says itself for whom it waited."""


class CudaProbes:
    """The bench of one rank; `answer` takes `{"op": "probe", "task": ..., "turn": ...}`."""

    def __init__(self, ranks: WorkerRanks, spec: dict[str, Any]) -> None:
        del spec
        self._ranks = ranks
        self._close = contextlib.ExitStack()
        self._region: SharedRegion | None = None
        self._functions: dict[bool, Function] = {}
        self._arch = 0
        self._stream: Any = None
        self._streams: list[Any] = []
        self._chain_start = 0
        self._epoch = 0

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """See `measure.worker.Bench`."""
        import torch

        try:
            task = Task.from_dict(command["task"])
            self._ranks.phase(f"probe {task.name}")
            if self._region is None:
                self._open(torch)
            self._epoch = (int(command["turn"]) + 1) << _TURN_BITS
            self._ranks.barrier()
            with torch.cuda.stream(self._stream):
                return {"answer": self._run(torch, task)}
        except Exception as error:  # noqa: BLE001 - whatever it was becomes the probe's status and reason
            return {**failure_of(error), "heard": isinstance(error, _HeardError)}

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        ranks = self._ranks
        torch.cuda.set_device(ranks.device)
        torch.empty(1, device=ranks.device)  # makes the context
        major, minor = torch.cuda.get_device_capability()
        self._arch = 10 * major + minor
        self._function(pdl=False)
        region = self._close.enter_context(SharedRegion(ranks, region_bytes(ranks.world_size)))
        self._chain_start, data = chain()
        region.write(AT_CHAIN, data)
        self._stream = torch.cuda.Stream()
        self._streams = [torch.cuda.Stream() for _ in range(ranks.world_size)]
        torch.cuda.synchronize()
        self._region = region

    def _function(self, *, pdl: bool) -> Function:
        """The kernel, built when it is first asked for."""
        if pdl not in self._functions:
            made = Function(compile_probe(f"sm_{self._arch}", pdl=pdl).cubin, PROBE)
            self._close.callback(made.close)
            self._functions[pdl] = made
        return self._functions[pdl]

    @property
    def starts_early(self) -> bool:
        """Whether this GPU knows programmatic dependent launch."""
        return self._arch >= EARLY_SINCE

    def _run(self, torch: Any, task: Task) -> dict[str, Any]:  # noqa: ANN401 - the module
        if task.kind.startswith("launch"):
            return {"us": Launches(self, torch, self._ranks).us(task.kind)}
        if task.kind in {"barrier", "barrier_fence"}:
            return self._barriers(torch, task)
        if task.kind == "bandwidth":
            return self._bandwidth(torch, task)
        return self._pair(torch, task) if self._ranks.rank in task.flows[0] else {}

    def _barriers(self, torch: Any, task: Task) -> dict[str, Any]:  # noqa: ANN401 - the module
        members = task.members or set(range(self._ranks.world_size))
        if self._ranks.rank not in members:
            return {}
        mask, fenced = sum(1 << rank for rank in members), int(task.kind == "barrier_fence")
        return {"us": self._timed(torch, Op.BARRIER, threads=_WARP, mask=mask, fenced=fenced)}

    def _pair(self, torch: Any, task: Task) -> dict[str, Any]:  # noqa: ANN401 - the module
        """What two ranks measure between them."""
        (src, dst), me = task.flows[0], self._ranks.rank
        peer, first = (dst, 1) if me == src else (src, 0)
        if task.kind == "flag":
            times = self._timed(torch, Op.FLAG, peer=peer, first=first, steps=2)
            return {"us": times if first else []}
        if task.kind == "read_chain":
            return {} if first else {"us": self._timed(torch, Op.READ_CHAIN, peer=src, steps=1)}
        if task.kind == "litmus_message":
            return self._message(torch, peer, first)
        if task.kind == "litmus_torn":
            found = self._once(torch, Op.TORN, peer=peer, first=first)
            detail = f"{found.halves} within 8 bytes, {found.changes} values seen"
            return {} if first else {"violations": found.violations, "looks": found.looks, "detail": detail}
        raise NotImplementedError(f"no probe of kind {task.kind!r} on GPUs")

    # --- one launch per rank ----------------------------------------------------------------------------------------

    def record(self, op: Op, **fields: int) -> Any:  # noqa: ANN401 - a ctypes array of one record
        """Arguments of one launch; one in which ranks meet has an epoch of its own, the same on all that take part."""
        region = self._region
        assert region is not None  # noqa: S101 - opened before any task
        records = (ProbeArgs * 1)()
        args = records[0]
        args.base[: len(region.bases)] = region.bases
        args.op, args.rank, args.rounds = int(op), self._ranks.rank, _ROUNDS.get(op, 1)
        args.deadline_ns, args.epoch, args.start = _DEADLINE_NS, self._epoch, self._chain_start
        args.blocks_per_flow = 1
        if op in _ROUNDS:
            self._epoch += _EPOCHS  # the same on all ranks that take part: only kernels in which they meet count
        for name, value in fields.items():
            setattr(args, name, value)
        return records

    def launch(self, records: Any, blocks: int, threads: int, *, pdl: bool = False) -> None:  # noqa: ANN401 - a ctypes array
        """Enqueue one."""
        self.launcher(records, blocks, threads, pdl=pdl)(0, self._stream.cuda_stream)

    def launcher(self, records: Any, blocks: int, threads: int, *, pdl: bool = False) -> Launcher:  # noqa: ANN401 - a ctypes array
        """To launch the same record again and again; with `pdl` it may begin while the kernel before it ends."""
        return Launcher(self._function(pdl=pdl), blocks, threads, records, pdl=pdl)

    def _once(self, torch: Any, op: Op, threads: int = 1, **fields: int) -> Result:  # noqa: ANN401 - the module
        self.clear()
        self.launch(self.record(op, **fields), 1, threads)
        self._drain(torch, op.name.lower())
        return self.result(op.name.lower())

    def clear(self) -> None:
        """Zero the result in stream order, so that no launch's result is taken for another's."""
        assert self._region is not None  # noqa: S101 - opened before any task
        at = self._region.bases[self._ranks.rank] + AT_RESULT
        call("cuMemsetD32Async", at, 0, RESULT_BYTES // 4, self._stream.cuda_stream)

    def result(self, what: str) -> Result:
        """What the launch left.

        Raises:
            TimeoutError: this rank or a peer gave up waiting.
        """
        assert self._region is not None  # noqa: S101 - opened before any task
        head = self._region.read(0, AT_RESULT + RESULT_BYTES)
        result, gave_up = read_result(head[AT_RESULT:]), int.from_bytes(head[:8], "little")
        if result.missing is not None:
            raise TimeoutError(f"rank {self._ranks.rank} waited 2 s for rank {result.missing} in {what}")
        if gave_up:
            raise _HeardError(f"rank {gave_up - 1} gave up waiting in {what}")
        return result

    def _timed(self, torch: Any, op: Op, steps: int = 1, threads: int = 1, **fields: int) -> list[float]:  # noqa: ANN401 - the module
        """Microseconds of one step; rounds that take one before the clock starts have one step less."""
        rounds = _ROUNDS[op] - (0 if op is Op.READ_CHAIN else 1)
        found = [self._once(torch, op, threads, **fields) for _ in range(_REPEATS)]
        return [(one.end_ns - one.begin_ns) / 1e3 / rounds / steps for one in found]

    def _message(self, torch: Any, peer: int, first: int) -> dict[str, Any]:  # noqa: ANN401 - the module
        """With fences, which must hold; and without, to see whether the test can tell."""
        fenced = self._once(torch, Op.MESSAGE_PASSING, peer=peer, first=first, fenced=1)
        loose = self._once(torch, Op.MESSAGE_PASSING, peer=peer, first=first, fenced=0)
        detail = f"without fences {loose.violations} of {loose.looks}"
        return {} if first else {"violations": fenced.violations, "looks": fenced.looks, "detail": detail}

    def _drain(self, torch: Any, what: str) -> None:  # noqa: ANN401 - the module
        done = torch.cuda.Event()
        done.record(self._stream)
        wait_event(done, self._ranks.deadline_s, what)

    def span_s(self, torch: Any, work: Callable[[], object], what: str) -> float:  # noqa: ANN401 - the module
        """Seconds between events around what `work` enqueues.

        Raises:
            TimeoutError: it did not end within the ranks' deadline.
        """
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(self._stream)
        work()
        end.record(self._stream)
        wait_event(end, self._ranks.deadline_s, what)
        return float(begin.elapsed_time(end)) / 1e3

    # --- bandwidth --------------------------------------------------------------------------------------------------

    def _bandwidth(self, torch: Any, task: Task) -> dict[str, Any]:  # noqa: ANN401 - the module
        """Each repeat begins when all ranks that move or own data are there; the number of rounds is agreed on."""
        me, mask = self._ranks.rank, 0
        for rank in task.members:
            mask |= 1 << rank
        mine = [flow for flow in task.flows if flow[1 if task.mechanism == "load" else 0] == me]
        inside = bool(mask >> me & 1)
        first = self._repeat(torch, task.mechanism, mine, mask, 1) if inside else 0.0
        first = max(float(s) for s in self._ranks.exchange(first))
        rounds = max(1, min(_MOST_ROUNDS, int(_TARGET_S / max(first, 1e-7))))
        repeats = _REPEATS if first * rounds < _SLOW_S else 1
        spans = [self._repeat(torch, task.mechanism, mine, mask, rounds) for _ in range(repeats)] if inside else []
        return {"begin": [0.0] * repeats, "end": spans, "bytes": FLOW_BYTES * rounds} if mine else {}

    def _repeat(self, torch: Any, mechanism: str, mine: Sequence[tuple[int, int]], mask: int, rounds: int) -> float:  # noqa: ANN401 - the module
        assert self._region is not None  # noqa: S101 - opened before any task
        self.clear()
        self.launch(self.record(Op.BARRIER, mask=mask, rounds=1), 1, _WARP)
        if not mine:
            self._drain(torch, "a barrier before bandwidth")
            self.result(mechanism)
            return 0.0
        bases = self._region.bases
        pairs = [(bases[s] + AT_DATA, bases[d] + AT_DATA + (1 + s) * FLOW_BYTES) for s, d in mine]
        if mechanism == "copy":
            span = self.span_s(torch, lambda: self._copies(torch, pairs, rounds), "copies")
        else:
            records = self._moves(mechanism, pairs, rounds)
            blocks = len(mine) * int(records[0].blocks_per_flow)
            span = self.span_s(torch, lambda: self.launch(records, blocks, _THREADS), mechanism)
        self.result(mechanism)
        return span

    def _moves(self, mechanism: str, pairs: Sequence[tuple[int, int]], rounds: int) -> Any:  # noqa: ANN401 - a ctypes array
        records = self.record(Op.LOAD if mechanism == "load" else Op.STORE, rounds=rounds, vectors=FLOW_BYTES // 16)
        records[0].blocks_per_flow = max(1, _BLOCKS // len(pairs))
        for i, (source, target) in enumerate(pairs):
            records[0].from_[i], records[0].to[i] = source, target
        return records

    def _copies(self, torch: Any, pairs: Sequence[tuple[int, int]], rounds: int) -> None:  # noqa: ANN401 - the module
        """One stream per flow, so that copies run together; all begin behind the barrier and end before the clock."""
        start = torch.cuda.Event()
        start.record(self._stream)
        for stream, (source, target) in zip(self._streams, pairs, strict=False):
            stream.wait_event(start)
            for _ in range(rounds):
                call("cuMemcpyAsync", target, source, FLOW_BYTES, stream.cuda_stream)
            self._stream.wait_stream(stream)

    def close(self) -> None:
        """See `measure.worker.Bench`."""
        with contextlib.suppress(Exception):  # closing after a failure may fail again; the process ends anyway
            self._close.close()
