"""Runs FlashInfer's kernels for PCIe over a work space of its layout."""

from collections.abc import Mapping
from typing import ClassVar

from collbench.algorithms.cuda.peer_runner import PeerRunner
from collbench.algorithms.cuda.tuning import Launch

__all__ = ["Block", "Flat", "Push", "Ring"]

_Kernels = Mapping[str, tuple[int, str]]


class _FlashInfer(PeerRunner):
    """Numbers are those of its `Variant`; a variant is another kernel for each world size."""

    source = "peer_flashinfer.cu"
    header = "pcie_ipc_all_reduce.cuh"
    max_blocks = 128
    max_threads = 1024
    unsigned_zeros = True  # +0 says "not yet written": the ranks that are sent a sum of 0 get -0
    by_ranks: ClassVar[Mapping[int, _Kernels]]
    seed: ClassVar[Mapping[int, tuple[int, int]]] = {}
    """Grid that its own policy starts from, by world size; else one block of 256 threads."""

    def kernels(self) -> _Kernels:
        """See `PeerRunner.kernels`."""
        return self.by_ranks[self.call.world_size]

    def usual(self) -> Launch:
        """See `PeerRunner.usual`."""
        return Launch("", *self.seed.get(self.call.world_size, (1, 256)))


class Push(_FlashInfer):
    """With 2 ranks its staged variant is a push too, vector by vector: the faster of both is taken."""

    by_ranks: ClassVar[Mapping[int, _Kernels]] = {
        2: {"unstaged": (0, "ipc_tp2_remote_push_kernel"), "staged": (1, "ipc_tp2_remote_push_kernel")},
        4: {"unstaged": (0, "push_oneshot_param_kernel")},
        8: {"unstaged": (0, "ipc_topo_rsag8_push_param_kernel")},
    }
    seed: ClassVar[Mapping[int, tuple[int, int]]] = {2: (16, 128), 8: (16, 256)}


class Flat(_FlashInfer):
    """Reduce-scatter and all-gather by pushes; the same kernel has another number with 4 ranks."""

    by_ranks: ClassVar[Mapping[int, _Kernels]] = {
        4: {"staged": (1, "ipc_rsag_push_param_kernel")}, 8: {"flat_staged": (3, "ipc_rsag_push_param_kernel")},
    }  # fmt: skip


class Block(_FlashInfer):
    """Two islands with barriers; a quarter of the blocks for each quarter of the message."""

    multiple = 4
    by_ranks: ClassVar[Mapping[int, _Kernels]] = {8: {"staged": (1, "ipc_topo_rsag8_block_param_kernel")}}


class Ring(_FlashInfer):
    """One peer at a time, with barriers."""

    by_ranks: ClassVar[Mapping[int, _Kernels]] = {
        4: {"staged_ring": (2, "ipc_rsag_ring_push_param_kernel")},
        8: {"staged_ring": (2, "ipc_topo_rsag8_ring_push_param_kernel")},
    }

    def items(self) -> int:
        """See `PeerRunner.items`: the share that one pass sends."""
        shares = 4  # of the world with 4 ranks, of an island with 8
        return max(1, self.call.bytes // 16 // shares)
