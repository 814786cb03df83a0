"""Runs torch's symmetric-memory all-reduces: one symmetric allocation per runner, cut into slots."""

import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from collbench.algorithms.base import Proof, Ranks, Runner
from collbench.algorithms.cuda_buffers import make_slots, stride_of, wait_event
from collbench.algorithms.kernel_nodes import KernelNode, capture_kernels
from collbench.algorithms.symmetric_memory import launch_size
from collbench.results.records import Call

__all__ = ["Multimem", "OneShot", "TwoShot"]


class SymmetricRunner(Runner):
    """Inputs lie in symmetric memory, outputs in plain device memory. The group is gloo's: NCCL is not needed here."""

    kind: ClassVar[str] = ""
    operation: ClassVar[str] = ""
    staged: ClassVar[bool] = False
    """Whether calls read a copy of their input, in one symmetric buffer of all slots: the two-shot kernel overwrites
    its share of what it reads. The kernel's last barrier makes the buffer free again."""

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        grid = launch_size(self.kind, call)
        self.blocks, self.threads, self.blocks_per_sm = grid.blocks, grid.threads, 0
        self.kernels: tuple[KernelNode, ...] = ()
        self._x: list[Any] = []
        self._y: list[Any] = []
        self._symmetric: list[Any] = []
        self._handle: Any = None
        self._run: Any = None
        self._group_name = ""
        self._notes: dict[str, str] = {}

    def __enter__(self) -> Self:
        import torch

        torch.cuda.set_device(self.ranks.device)
        try:
            self._open(torch)
        except RuntimeError as error:
            text = _refusal(str(error))
            if text:
                raise NotImplementedError(text) from error
            raise
        self._read_kernels()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del error, trace
        # peers map the memory by references of their own: only our own kernels must be through before it is unmapped
        if kind is None and self._handle is not None:
            self._drain()
        self._run = self._handle = None
        self._x, self._y, self._symmetric = [], [], []

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.inputs`."""
        return {"x": self._x[i]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.outputs`."""
        return {"y": self._y[i]}

    def launch(self, i: int) -> None:
        """See `Runner.launch`."""
        if self.staged:
            self._symmetric[0].copy_(self._x[i])
            self._run(self._symmetric[0], "sum", self._group_name, self._y[i])
            return
        self._run(self._x[i], "sum", self._group_name, self._y[i])

    def proof(self) -> Proof:
        """The kernels that a launch enqueues: a call that enqueues none of torch's own would be no all-reduce."""
        evidence = {**self._notes, "call": f"torch.ops.symm_mem.{self.operation}"}
        evidence["kernel"] = "; ".join(k.text for k in self.kernels) or evidence.get("kernel", "not read")
        named = [k.name for k in self.kernels if "all_reduce" in k.name]
        if self.kernels and not named:
            return Proof(f"torch launched {self.kernels[-1].name} instead of an all-reduce", evidence)
        return Proof("", evidence)

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        import torch.distributed._symmetric_memory as symmetric

        group = self.ranks.process_group("gloo")
        self._group_name = str(group.group_name)
        count, itemsize, dtype = self.call.count, self.call.itemsize, getattr(torch, self.call.dtype)
        stride, places = stride_of(count, itemsize), 1 if self.staged else self.slots
        with warnings.catch_warnings():
            # needed up to torch 2.10, deprecated and without effect since
            warnings.simplefilter("ignore")
            symmetric.enable_symm_mem_for_group(group.group_name)
        block = symmetric.empty(places * stride, dtype=dtype, device=torch.device(self.ranks.device))
        block.zero_()
        self._handle = symmetric.rendezvous(block, group)
        self._check_handle()
        self._symmetric = make_slots(places, count, itemsize, block)
        plain = [torch.zeros(self.slots * stride, dtype=dtype, device=self.ranks.device) for _ in range(2)]
        self._x = make_slots(self.slots, count, itemsize, plain[0]) if self.staged else self._symmetric
        self._y = make_slots(self.slots, count, itemsize, plain[1])
        self._run = getattr(torch.ops.symm_mem, self.operation).default
        self._drain()
        self.ranks.barrier()

    def _check_handle(self) -> None:
        if self._handle is None:
            raise NotImplementedError("torch made no symmetric memory for this group")
        self._notes["multicast"] = "on" if self._handle.multicast_ptr else "off"
        if self.kind == "multimem" and not self._handle.multicast_ptr:
            raise NotImplementedError("no multicast address: NVLink multicast is off or missing on this device")

    def _drain(self) -> None:
        import torch

        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        wait_event(event, self.ranks.deadline_s, "work on the symmetric buffers")

    def _read_kernels(self) -> None:
        """The real grid and occupancy, before anything waits for a peer on a GPU that cannot hold all ranks' blocks."""
        try:
            self.kernels = capture_kernels(lambda: self.launch(0))
        except Exception as error:  # noqa: BLE001 - the grid is known from torch's source as well
            self._notes["kernel"] = f"not read: {type(error).__name__}: {str(error)[:200]}"
        waiting = [kernel for kernel in self.kernels if "all_reduce" in kernel.name]
        if waiting:
            self.blocks, self.threads = waiting[0].blocks, waiting[0].threads
            self.blocks_per_sm = waiting[0].blocks_per_sm


def _refusal(text: str) -> str:
    """What torch's words mean for the user; empty where they are no known refusal."""
    known = {
        "overlapping devices": "several ranks on one GPU, and TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES is not 1",
        "pidfd": "ranks may not pass memory handles to each other here (pidfd_getfd needs ptrace permission)",
        "only supports": text.splitlines()[0] if text else "",
        "multicast support": "no multicast on this device",
    }
    return next((meaning for words, meaning in known.items() if words in text), "")[:300]


class OneShot(SymmetricRunner):
    """Every rank pulls all inputs and sums them in rank order."""

    kind, operation = "one_shot", "one_shot_all_reduce_out"


class TwoShot(SymmetricRunner):
    """Every rank sums its share, then pulls the other shares."""

    kind, operation, staged = "two_shot", "two_shot_all_reduce_out", True


class Multimem(SymmetricRunner):
    """Every rank loads sums through the multicast address."""

    kind, operation = "multimem", "multimem_one_shot_all_reduce_out"
