"""Runs NCCL's all-reduce out of place on the communicator of torch.distributed's process group, and proves what ran."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from collbench.algorithms.base import Proof, Ranks, Runner
from collbench.algorithms.cuda_buffers import make_slots, stride_of, wait_event
from collbench.algorithms.kernel_nodes import KernelNode, capture_kernels
from collbench.algorithms.nccl_calls import NcclCalls, missing
from collbench.algorithms.nccl_library import DebugLog, NcclLibrary
from collbench.algorithms.nccl_log import Choice, NcclLog, parse
from collbench.results.records import Call

__all__ = [
    "Auto", "NcclRunner", "RingLL", "RingLL128", "RingSimple", "TreeLL", "TreeLL128", "TreeSimple", "judge",
    "start_log",
]  # fmt: skip

_THREADS = 640
"""Most threads of a block of NCCL's collectives (LL128 and tree), until the kernel itself has been asked."""

_DEFAULT_BLOCKS = 32

_REFUSALS = ("no algorithm/protocol available", "Duplicate GPU detected", "NCCL_MULTI_RANK_GPU_ENABLE")
"""Words of NCCL's warnings that say that it will not run this configuration, whatever is tried."""

_log: list[DebugLog] = []
"""The process's log: NCCL opens its file once, so it outlives the runners of one worker."""


class NcclRunner(Runner):
    """All slots in two allocations, one call per launch; `wanted` is what the algorithm's name promises."""

    wanted: ClassVar[tuple[str, str]] = ("", "")
    logged: ClassVar[str] = "AllReduce"
    """The collective's name in NCCL's log."""
    described: ClassVar[str] = "ncclAllReduce out of place,"
    estimated: ClassVar[bool] = True
    """Whether NCCL's own estimate means this call: it knows no groups, no sends and no symmetric kernels."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Entry points without which it cannot run: there is no other way through torch.distributed."""

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self.blocks_per_sm = 0
        self.kernels: tuple[KernelNode, ...] = ()
        self._x: list[Any] = []
        self._y: list[Any] = []
        self._bound: list[tuple[Any, ...]] = []
        self._library: NcclLibrary | None = None
        self._notes: dict[str, str] = {}
        self._current_stream: Any = None

    def __enter__(self) -> Self:
        import torch

        torch.cuda.set_device(self.ranks.device)
        self._current_stream = torch.cuda.current_stream
        log = start_log()
        try:
            group = self.ranks.process_group("nccl")
            self._allocate(torch)
            self._first_call(torch, group)
            self._bind(torch, group)
            if self._library is not None:
                log.resume(self._library)
            self._call_of_this_size(torch)
            self._ask_for_an_estimate()
        except torch.distributed.DistBackendError as error:
            raise _explained(error, log) from error
        self._read_kernels()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._bound, self._x, self._y = [], [], []

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.inputs`."""
        return {"x": self._x[i]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.outputs`."""
        return {"y": self._y[i]}

    def launch(self, i: int) -> None:
        """See `Runner.launch`.

        Raises:
            RuntimeError: NCCL refused the call.
        """
        if self._library is not None:
            self._enqueue(i, self._current_stream().cuda_stream)
            return
        import torch.distributed as dist

        self._y[i].copy_(self._x[i])
        dist.all_reduce(self._y[i])

    def _bound_call(self, library: NcclLibrary, communicator: int, i: int) -> tuple[Any, ...]:
        """Slot i's call, converted once; what `_enqueue` passes on."""
        x, y = self._x[i].data_ptr(), self._y[i].data_ptr()
        return library.bind(x, y, self.call.count, self.call.dtype, communicator)

    def _enqueue(self, i: int, stream: int) -> None:
        """Enqueue slot i's bound call."""
        assert self._library is not None  # noqa: S101 - asked before; says so to the type checker
        self._library.all_reduce(self._bound[i], stream)

    def proof(self) -> Proof:
        """What NCCL's log says of calls of this size: rank 0's word, the only rank that logs choices, on every rank."""
        log = parse(start_log().text())
        own = log.choice(self.logged, self.call.bytes)
        told = self.ranks.exchange([own.algorithm, own.protocol, own.channels] if own else None)
        first = next((choice for choice in told if choice), None)
        choice = Choice(str(first[0]), str(first[1]), channels=first[2]) if first else None
        evidence = {**log.evidence(), **_choice_evidence(choice), **self._notes}
        evidence["kernel"] = "; ".join(kernel.text for kernel in self.kernels) or evidence.get("kernel", "not read")
        if self._library is None or not start_log().quiet(self._library):
            evidence["log"] = "NCCL logs one line per eager call on rank 0 while times are taken"
        return Proof(self._judge(choice, log), evidence)

    def _judge(self, choice: Choice | None, log: NcclLog) -> str:
        return judge(self.wanted, choice, self.kernels, log)

    def _allocate(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        dtype, call = getattr(torch, self.call.dtype), self.call
        size = self.slots * stride_of(call.count, call.itemsize)
        blocks = [torch.zeros(size, dtype=dtype, device=self.ranks.device) for _ in range(2)]
        self._x, self._y = (make_slots(self.slots, call.count, call.itemsize, block) for block in blocks)

    def _first_call(self, torch: Any, group: Any) -> None:  # noqa: ANN401 - torch objects
        """One call through torch.distributed makes the communicator and its connections."""
        import torch.distributed as dist

        word = torch.ones(1, dtype=torch.float32, device=self.ranks.device)
        dist.all_reduce(word, group=group)
        _wait(torch, self.ranks.deadline_s, "NCCL's first call")

    def _call_of_this_size(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        """NCCL connects the ranks for an algorithm when it first chooses it: that must not happen inside a capture."""
        self.launch(0)
        _wait(torch, self.ranks.deadline_s, f"NCCL's first call of {self.call.bytes} bytes")

    def _bind(self, torch: Any, group: Any) -> None:  # noqa: ANN401 - torch objects
        """Find the communicator and the library; where either is missing, all ranks fall back to torch.distributed."""
        problem, bound = "", []
        try:
            backend = group._get_backend(torch.device(self.ranks.device))  # noqa: SLF001 - no public way to it
            communicator = int(backend._comm_ptr())  # noqa: SLF001 - since torch 2.8; its absence is handled below
            library = NcclLibrary.loaded()
            problem = "" if communicator else "torch.distributed shows no communicator"
            problem = problem or missing(library, self.needs)
            bound = [] if problem else [self._bound_call(library, communicator, i) for i in range(self.slots)]
        except (AttributeError, OSError, RuntimeError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"
        problems = [str(text) for text in self.ranks.exchange(problem)]
        if any(problems):
            reason = next(text for text in problems if text)
            if self.needs:
                raise NotImplementedError(reason)
            self._notes["call"] = f"torch.distributed.all_reduce in place, behind a copy kernel ({reason})"
            return
        self._library, self._bound = library, bound
        self._notes["call"] = f"{self.described} on torch.distributed's communicator"
        self._notes["nccl_library"] = ".".join(map(str, library.version))

    def _ask_for_an_estimate(self) -> None:
        """NCCL's own estimate of a call, for the record; a library that has none or fails at it changes nothing."""
        if self._library is None or not self.estimated:
            return
        stream = self._current_stream().cuda_stream
        try:
            found = NcclCalls(self._library).estimate_us(lambda: self._enqueue(0, stream))
        except (RuntimeError, OSError, AttributeError) as error:
            self._notes["nccl_estimate"] = f"not given: {str(error)[:200]}"
            return
        if found is not None:
            self._notes["nccl_estimate_us"] = f"{found:.3f}"

    def _read_kernels(self) -> None:
        self.threads, self.blocks = _THREADS, int(os.environ.get("NCCL_MAX_CTAS", _DEFAULT_BLOCKS))
        try:
            self.kernels = capture_kernels(lambda: self.launch(0))
        except Exception as error:  # noqa: BLE001 - the name is a second witness only; the log is the first
            self._notes["kernel"] = f"not read: {type(error).__name__}: {str(error)[:200]}"
        if self.kernels:
            largest = max(self.kernels, key=lambda kernel: kernel.blocks)
            self.blocks, self.threads, self.blocks_per_sm = largest.blocks, largest.threads, largest.blocks_per_sm


def _wait(torch: Any, deadline_s: float, what: str) -> None:  # noqa: ANN401 - the module, imported lazily
    event = torch.cuda.Event()
    event.record()
    wait_event(event, deadline_s, what)


def _explained(error: RuntimeError, log: DebugLog) -> Exception:
    """NCCL's refusal with the warning that says why; what NCCL cannot do at all is no crash but unsupported."""
    warnings = parse(log.text()).warnings
    text = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    told = f"NCCL: {warnings[-1]}" if warnings else f"NCCL: {text}"
    refused = any(words in told for words in _REFUSALS)
    return NotImplementedError(told) if refused else RuntimeError(told)


def judge(wanted: tuple[str, str], choice: Choice | None, kernels: tuple[KernelNode, ...], log: NcclLog) -> str:
    """Empty if NCCL ran what was wanted, else what it ran instead; `("", "")` wants nothing in particular.

    The kernel's name tells the algorithm only (`..._RING_LL` serves every protocol of the ring); it decides where the
    log is silent.
    """
    if not wanted[0]:
        return ""
    if choice is not None:
        same = (choice.algorithm.lower(), choice.protocol.lower()) == (wanted[0].lower(), wanted[1].lower())
        return "" if same else f"NCCL ran {choice.name} instead of {'/'.join(wanted)}"
    names = " ".join(kernel.name.upper() for kernel in kernels if "nccl" in kernel.name.lower())
    other = {"RING": "TREE", "TREE": "RING"}[wanted[0].upper()]
    if f"_{other}_" in names and f"_{wanted[0].upper()}_" not in names:
        return f"NCCL ran the {other.capitalize()} kernel instead of {'/'.join(wanted)}"
    if log.environment.get("NCCL_ALGO", wanted[0]).lower() != wanted[0].lower():
        return f"NCCL read NCCL_ALGO={log.environment['NCCL_ALGO']} instead of {wanted[0]}"
    return ""


def _choice_evidence(choice: Choice | None) -> dict[str, str]:
    if choice is None:
        return {"choice": "not in NCCL's log"}
    used = {} if choice.channels is None else {"channels_used": str(choice.channels)}
    return {"choice": choice.name, **used}


def start_log() -> DebugLog:
    """The process's log, begun at the first call: before NCCL logs its first line."""
    if not _log:
        _log.append(DebugLog())
    return _log[0]


class RingLL(NcclRunner):
    """Ring, 8-byte packets of data and flag."""

    wanted = ("Ring", "LL")


class RingLL128(NcclRunner):
    """Ring, 128-byte lines with one flag."""

    wanted = ("Ring", "LL128")


class RingSimple(NcclRunner):
    """Ring, data behind a fence and a counter."""

    wanted = ("Ring", "Simple")


class TreeLL(NcclRunner):
    """Tree (a chain inside a node), 8-byte packets of data and flag."""

    wanted = ("Tree", "LL")


class TreeLL128(NcclRunner):
    """Tree (a chain inside a node), 128-byte lines with one flag."""

    wanted = ("Tree", "LL128")


class TreeSimple(NcclRunner):
    """Tree (a chain inside a node), data behind a fence and a counter."""

    wanted = ("Tree", "Simple")


class Auto(NcclRunner):
    """Whatever NCCL chooses; the choice is recorded."""
