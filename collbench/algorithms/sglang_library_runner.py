"""Runs SGLang's custom all-reduces through its own classes, with their gates and past them. Read in SGLang 0.5.23.

Its second version returns a tensor of its own: outputs are what it returned last, so that nothing is copied. It is not
told of captures, so that its pulls read copies of their inputs in a graph as they do outside.
"""

import ctypes
from functools import partial
from typing import Any, ClassVar

from collbench.algorithms.base import Ranks
from collbench.algorithms.library_build import Request, Step
from collbench.algorithms.library_modules import SGL_KERNEL_OPS, SGLANG_V1, SGLANG_V2
from collbench.algorithms.library_runner import LibraryRunner, said
from collbench.algorithms.library_uses import Use
from collbench.results.records import Call

__all__ = [
    "USES", "Classic", "Gated", "OneShotPull", "OneShotPush", "TwoShotPull", "TwoShotPush", "compile_kernels",
]  # fmt: skip

_V2, _V1 = SGLANG_V2, SGLANG_V1
_OPS = "sglang.kernels.ops.communication.all_reduce"

_V2_USES = (
    Use(_V2, "CustomAllReduceV2.__init__",
        ("group", "device", "max_push_size", "max_pull_blocks", "max_push_blocks"), 1),
    Use(_V2, "CustomAllReduceV2.should_custom_ar", (), 2),
    Use(_V2, "CustomAllReduceV2.custom_all_reduce", (), 2),
    Use(_V2, "CustomAllReduceV2.close", (), 1),
    Use(_V2, "can_use_custom_all_reduce_v2", ("group", "device")),
    Use(_OPS, "AllReduceAlgo.ONE_SHOT_PUSH", called=False), Use(_OPS, "AllReduceAlgo.TWO_SHOT_PUSH", called=False),
    Use(_OPS, "AllReduceAlgo.ONE_SHOT_PULL", called=False), Use(_OPS, "AllReduceAlgo.TWO_SHOT_PULL", called=False),
    Use(_OPS, "get_all_reduce_module", (), 2), Use(_OPS, "_init_communicator"), Use(_OPS, "_init_ipc_manager"),
)  # fmt: skip
_V1_USES = (
    Use(_V1, "CustomAllreduce.__init__", ("group", "device"), 1),
    Use(_V1, "CustomAllreduce.should_custom_ar", (), 2),
    Use(_V1, "CustomAllreduce.close", (), 1),
    Use(_V1, "can_use_custom_all_reduce_with_nvlink", ("group", "device", "supported_world_size", "cls_name")),
    Use(SGL_KERNEL_OPS, "all_reduce", (), 5), Use(SGL_KERNEL_OPS, "meta_size"),
    Use(SGL_KERNEL_OPS, "get_graph_buffer_ipc_meta", (), 1),
    Use(SGL_KERNEL_OPS, "register_graph_buffers", (), 3),
)  # fmt: skip
USES = (*_V2_USES, *_V1_USES)
"""Everything that is called here, and what stands in for a gate."""


def compile_kernels(dtype: str, world_size: int) -> None:
    """What the second version compiles at its first call."""
    import torch
    from sglang.kernels.ops.communication import all_reduce

    all_reduce._init_communicator()  # noqa: SLF001 - there is no other name for it
    all_reduce._init_ipc_manager()  # noqa: SLF001 - the same
    all_reduce.get_all_reduce_module(getattr(torch, dtype), world_size)


class Gated(LibraryRunner):
    """`CustomAllReduceV2` as a server starts it, with its own choice by size."""

    algo: ClassVar[str] = ""
    """`AllReduceAlgo` that is forced, past the gate."""
    unsigned_zeros = True  # its pushes take +0 for "not yet written"
    no_peers = ("memcpy_kernel",)  # stages its own message before a pull

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._communicator: Any = None

    def request(self) -> Request:
        """See `LibraryRunner.request`."""
        step = Step(f"{__name__}:compile_kernels", (self.call.dtype, self.call.world_size))
        return Request("SGLang", (_V2,), _V2_USES, (step,))

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        from sglang.srt.distributed.device_communicators import custom_all_reduce_v2 as module

        group, device = self.group, torch.device(self.ranks.device)
        if self.algo:
            with said("sglang", self._notes):
                self._note_gate(lambda: module.can_use_custom_all_reduce_v2(group=group, device=device))
            self._past_attribute(module, "can_use_custom_all_reduce_v2", lambda group, device: True)  # noqa: ARG005
        with said("sglang", self._notes):
            self._communicator = module.CustomAllReduceV2(
                group=group, device=device, **self._grid(torch), **self._slot()
            )
        self._close.callback(self._free)
        if self._communicator.disabled:
            raise NotImplementedError(f"SGLang keeps it off: {self._notes.get('warned', 'it said no reason')}")
        if self.algo:
            self._communicator.override_algo = getattr(module.AllReduceAlgo, self.algo)
        if not self._communicator.should_custom_ar(self._x[0]):
            raise NotImplementedError(f"SGLang's gate refuses {self.call.bytes} bytes per call")
        self._notes["algorithm"] = self.algo or "as its table chooses"

    def _grid(self, torch: Any) -> dict[str, int]:  # noqa: ANN401 - the module
        """Fewer blocks than it would take, where several ranks share a GPU: they wait for each other there."""
        if not self.on_gpu or not self.algo:
            return {}
        room, sharing = self._room(torch)
        return {"max_pull_blocks": max(1, room), "max_push_blocks": max(1, room)} if sharing > 1 else {}

    def _slot(self) -> dict[str, int]:
        """Room for this message where a push is forced: its own table ends where it would choose something else."""
        # a two-shot slot holds a rank's share twice, as it came and as a sum, in whole vectors
        share = 2 * 16 * -(-self.call.bytes // (16 * self.call.world_size))
        size = {"ONE_SHOT_PUSH": self.call.bytes, "TWO_SHOT_PUSH": share}.get(self.algo)
        return {} if size is None else {"max_push_size": size}

    def _run(self, i: int) -> None:
        self._y[i] = self._communicator.custom_all_reduce(self._x[i])

    def _free(self) -> None:
        communicator, self._communicator = self._communicator, None
        self.ranks.barrier()
        communicator.close()


class OneShotPush(Gated):
    """Every rank pushes its message into slots of all peers; data announces itself."""

    algo = "ONE_SHOT_PUSH"


class TwoShotPush(Gated):
    """Parts are pushed to their owners, sums to all."""

    algo = "TWO_SHOT_PUSH"


class OneShotPull(Gated):
    """Every rank pulls all messages behind semaphores."""

    algo, unsigned_zeros = "ONE_SHOT_PULL", False


class TwoShotPull(Gated):
    """Every rank pulls its part, then the sums."""

    algo, unsigned_zeros = "TWO_SHOT_PULL", False


class Classic(LibraryRunner):
    """The first version, vLLM's design, past its gate: `SGLANG_CUSTOM_ALLREDUCE_ALGO` of its workers names the kernel.

    It is called by its operator, since its class returns a tensor of its own.
    """

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._communicator: Any = None
        self._ops: Any = None

    def request(self) -> Request:
        """See `LibraryRunner.request`; `meta_size` says whether the operators were built for this torch and CUDA."""
        return Request("SGLang", (_V1,), _V1_USES, (Step(f"{SGL_KERNEL_OPS}:meta_size"),))

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        import sgl_kernel.allreduce as ops
        from sglang.srt.distributed.device_communicators import custom_all_reduce as module

        group, device = self.group, torch.device(self.ranks.device)
        name = "can_use_custom_all_reduce_with_nvlink"
        gate = partial(
            getattr(module, name), group=group, device=device, supported_world_size=[2, 4, 6, 8],
            cls_name="CustomAllreduce",
        )  # fmt: skip
        with said("sglang", self._notes):
            self._note_gate(lambda: gate() is not None)
        self._past_attribute(module, name, lambda *_, **__: True)
        self._ops, self._communicator = ops, module.CustomAllreduce(group=group, device=device)
        self._close.callback(self._free)
        if self._communicator.disabled:
            raise NotImplementedError("SGLang keeps it off: its operators are not there")
        self._clear_signals(module)

    def _clear_signals(self, module: Any) -> None:  # noqa: ANN401 - a module
        """Its class takes its signals as cudaMalloc gives them: what another cell left there would be counted on."""
        if not self.on_gpu:
            return
        signals = ctypes.c_void_p(self._communicator.meta_ptrs[self.ranks.rank])
        module.CudaRTLibrary().cudaMemset(signals, 0, self._ops.meta_size())
        self._drain("clearing SGLang's signals")
        self.ranks.barrier()

    def _run(self, i: int) -> None:
        import torch

        made = self._communicator
        captured = self.on_gpu and torch.cuda.is_current_stream_capturing()
        staging, room = (0, 0) if captured else (made.buffer_ptrs[self.ranks.rank], made.max_size)
        self._ops.all_reduce(made._ptr, self._x[i], self._y[i], staging, room)  # noqa: SLF001 - its handle

    def captured(self) -> None:
        """Tell the peers where captured inputs lie."""
        self._communicator.register_graph_buffers()

    def _free(self) -> None:
        communicator, self._communicator = self._communicator, None
        self.ranks.barrier()
        communicator.close()
