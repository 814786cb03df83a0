"""Runs NCCL's all-reduce with the algorithm chosen per call, which needs no variable and no process of its own."""

import ctypes
from typing import Any, ClassVar

from collbench.algorithms.nccl_calls import CollConfig, NcclCalls
from collbench.algorithms.nccl_library import NcclLibrary
from collbench.algorithms.nccl_runner import NcclRunner

__all__ = ["PerCallRingLL", "PerCallTreeLL"]


class _PerCall(NcclRunner):
    """`ncclAllReduceConfig` with a selection that NCCL must follow or refuse."""

    selection: ClassVar[str] = ""
    described = "ncclAllReduceConfig out of place,"
    needs = ("ncclAllReduceConfig",)

    def _bound_call(self, library: NcclLibrary, communicator: int, i: int) -> tuple[Any, ...]:
        if i == 0:
            self._config = CollConfig.selecting(self.selection, library.version)
            self._calls = NcclCalls(library)
        return super()._bound_call(library, communicator, i)

    def _enqueue(self, i: int, stream: int) -> None:
        self._calls.call("ncclAllReduceConfig", self._bound[i], stream, ctypes.byref(self._config))


class PerCallRingLL(_PerCall):
    """Ring, 8-byte packets of data and flag, asked for in the call."""

    wanted = ("Ring", "LL")
    selection = "RING_LL"


class PerCallTreeLL(_PerCall):
    """Tree (a chain inside a node), asked for in the call."""

    wanted = ("Tree", "LL")
    selection = "TREE_LL"
