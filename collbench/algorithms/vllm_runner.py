"""Runs vLLM's kernels on inputs that the peers read where they lie, as they do when captured in a graph."""

from collections.abc import Mapping
from typing import ClassVar

from collbench.algorithms.cuda.peer_runner import PeerRunner
from collbench.algorithms.cuda.tuning import Launch

__all__ = ["OneStage", "TwoStage"]

_THREADS = 512


class _Vllm(PeerRunner):
    source = "peer_vllm.cu"
    header = "vllm_custom_all_reduce.cuh"
    max_blocks = 36
    max_threads = _THREADS
    kernel: ClassVar[tuple[str, int, str]]

    def kernels(self) -> Mapping[str, tuple[int, str]]:
        """See `PeerRunner.kernels`."""
        name, number, symbol = self.kernel
        return {name: (number, symbol)}

    def usual(self) -> Launch:
        """Blocks of 512 threads for every vector of the message, at most 36, for both kernels."""
        return Launch("", min(self.max_blocks, -(-self.call.bytes // 16 // _THREADS)), _THREADS)


class OneStage(_Vllm):
    """Every rank reads everything."""

    kernel = ("one_stage", 0, "cross_device_reduce_1stage")


class TwoStage(_Vllm):
    """Every rank reads its share, then the sums of the others."""

    kernel = ("two_stage", 1, "cross_device_reduce_2stage")

    def items(self) -> int:
        """See `PeerRunner.items`: the largest share."""
        return -(-self.call.bytes // 16 // self.call.world_size)
