"""Runs NCCL's all-reduce on symmetric windows, and proves that a symmetric kernel ran."""

import contextlib
from types import TracebackType
from typing import Any

from collbench.algorithms.base import Ranks
from collbench.algorithms.cuda.tensors import tensor_at
from collbench.algorithms.cuda_buffers import make_slots, stride_of
from collbench.algorithms.nccl_calls import NcclCalls
from collbench.algorithms.nccl_library import NcclLibrary
from collbench.algorithms.nccl_log import Choice, NcclLog
from collbench.algorithms.nccl_runner import NcclRunner
from collbench.results.records import Call

__all__ = ["Symmetric", "judge_symmetric"]

_WINDOW = 4096
"""NCCL_WIN_REQUIRED_ALIGNMENT: windows are whole multiples of it."""

_KERNELS = ("ncclsymdevkernel", "ncclsymkdevkernel")
"""Names of the symmetric kernels in 2.27 and since 2.28."""


class Symmetric(NcclRunner):
    """Slots lie in two windows, one for inputs and one for outputs; the call is the same `ncclAllReduce`."""

    described = "ncclAllReduce on symmetric windows,"
    estimated = False
    needs = ("ncclMemAlloc", "ncclCommWindowRegister")

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._memory: list[int] = []
        self._windows: list[int] = []
        self._communicator = 0
        self._calls: NcclCalls | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        calls, self._calls = self._calls, None
        if calls is not None:
            with contextlib.suppress(RuntimeError, OSError):
                for window in self._windows:
                    calls.deregister_window(self._communicator, window)
                for address in self._memory:
                    calls.free(address)
        self._windows, self._memory = [], []

    def _allocate(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        """Memory of NCCL's own, the same size on every rank.

        Raises:
            NotImplementedError: this libnccl has no memory of its own to give.
        """
        library = NcclLibrary.loaded()
        if not hasattr(library.handle, self.needs[0]):
            raise NotImplementedError(f"NCCL {'.'.join(map(str, library.version))} has no {self.needs[0]}")
        self._calls = NcclCalls(library)
        call = self.call
        count = self.slots * stride_of(call.count, call.itemsize)
        self._memory += [self._calls.allocate(self._window_bytes(count)) for _ in range(2)]
        blocks = [tensor_at(torch, address, call, count, self.ranks.device) for address in self._memory]
        for block in blocks:
            block.zero_()
        self._x, self._y = (make_slots(self.slots, call.count, call.itemsize, block) for block in blocks)

    def _window_bytes(self, count: int) -> int:
        return -(-count * self.call.itemsize // _WINDOW) * _WINDOW

    def _bound_call(self, library: NcclLibrary, communicator: int, i: int) -> tuple[Any, ...]:
        if not self._windows and self._calls is not None:
            self._communicator = communicator
            size = self._window_bytes(self.slots * stride_of(self.call.count, self.call.itemsize))
            self._windows = [self._calls.register_window(communicator, address, size) for address in self._memory]
            if not all(self._windows):
                raise RuntimeError("NCCL registered no symmetric window here, and said no reason")
        return super()._bound_call(library, communicator, i)

    def _judge(self, choice: Choice | None, log: NcclLog) -> str:
        del log
        return judge_symmetric(choice, [kernel.name for kernel in self.kernels])


def judge_symmetric(choice: Choice | None, kernels: list[str]) -> str:
    """Empty if a symmetric kernel ran, by NCCL's log or the captured kernel's name, else what ran instead."""
    if choice is not None and choice.algorithm.startswith("symmetric"):
        return ""
    if any(word in name.lower() for word in _KERNELS for name in kernels):
        return ""
    if choice is not None:
        return f"NCCL ran {choice.name} instead of a symmetric kernel"
    return f"NCCL ran {', '.join(kernels) or 'an unknown kernel'} instead of a symmetric kernel"
