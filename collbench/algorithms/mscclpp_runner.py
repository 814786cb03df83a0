"""Runs MSCCL++'s one-shot packet all-reduce through the operators inside sgl-kernel.

Read in sgl-kernel 0.3.21 and sglang-kernel 0.4.3. Its kernel exists for eight ranks of one host. SGLang 0.5.9, which
used it, tries nine grids; so does this runner.
"""

from typing import Any

from collbench.algorithms.base import Ranks
from collbench.algorithms.cuda import chain_time
from collbench.algorithms.cuda.tuning import Choice, Launch, best
from collbench.algorithms.kernel_nodes import capture_kernels
from collbench.algorithms.library_build import Request
from collbench.algorithms.library_modules import SGL_KERNEL_OPS
from collbench.algorithms.library_runner import LibraryRunner
from collbench.algorithms.library_uses import Use
from collbench.results.records import Call

__all__ = ["USES", "OneShotPacket"]

_OPS = SGL_KERNEL_OPS
_ONE_HOST = 1  # MSCCL1SHOT1NODELL of SGLang 0.5.9's pymscclpp.py
_MOST_BYTES = 1 << 20
_SCRATCH = 8 * _MOST_BYTES
_BLOCKS, _THREADS = (21, 42, 84), (256, 512, 1024)

USES = (
    Use(_OPS, "mscclpp_generate_unique_id"), Use(_OPS, "mscclpp_init_context", (), 9),
    Use(_OPS, "mscclpp_allreduce", (), 5),
)  # fmt: skip
"""Everything that is called here."""


class OneShotPacket(LibraryRunner):
    """Every rank pushes its message in packets of data and flag; the fastest of its grids."""

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._ops: Any = None
        self._context = 0
        self._buffers: list[Any] = []
        self._launch = Launch("", _BLOCKS[0], _THREADS[0])

    def request(self) -> Request:
        """See `LibraryRunner.request`."""
        return Request("sgl-kernel", (_OPS,), USES)

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        import sgl_kernel.allreduce as ops

        self._ops, ranks = ops, self.ranks
        mine = ops.mscclpp_generate_unique_id().tolist() if ranks.rank == 0 else None
        told = ranks.exchange(mine)[0]
        sizes = (_SCRATCH, _SCRATCH // ranks.local_world_size)
        self._buffers = [torch.zeros(size, dtype=torch.uint8, device=ranks.device) for size in sizes]
        self._context = ops.mscclpp_init_context(
            torch.tensor(told, dtype=torch.uint8), ranks.rank, ranks.world_size, *self._buffers,
            ranks.local_world_size, [0] * ranks.world_size, [ranks.rank] * ranks.world_size, _ONE_HOST,
        )  # fmt: skip
        self._drain("opening MSCCL++")
        ranks.barrier()
        choice = self._choose(torch)
        self._launch = choice.launch
        self._notes["grid"] = choice.launch.text.strip()
        if choice.tried:
            self._notes["tuning"] = choice.evidence

    def _choose(self, torch: Any) -> Choice:  # noqa: ANN401 - the module
        if not self.on_gpu:
            return Choice(self._launch)
        room, sharing = self._room(torch)
        launches = [
            Launch("", blocks, threads)
            for threads in _THREADS
            for blocks in _BLOCKS
            if blocks <= room * self._blocks_per_sm(threads)
        ]
        if not launches:
            raise NotImplementedError(f"{_BLOCKS[0]} blocks of each of {sharing} ranks do not fit on this GPU together")
        return best(launches, self._graph_us, self.ranks.exchange)

    def _blocks_per_sm(self, threads: int) -> int:
        """Occupancy of its kernel, read from a captured launch; one where the driver does not tell."""
        self._launch = Launch("", _BLOCKS[0], threads)
        try:
            return max((kernel.blocks_per_sm or 1 for kernel in capture_kernels(lambda: self._run(0))), default=1)
        except (RuntimeError, OSError):
            return 1

    def _graph_us(self, launch: Launch) -> float:
        chain_time.drain(self.ranks.deadline_s, "the calls before")
        self.ranks.barrier()
        self._launch = launch
        return chain_time.graph_us(self._run, self.slots, self.ranks.barrier, self.ranks.deadline_s)

    def _run(self, i: int) -> None:
        at = self._launch
        self._ops.mscclpp_allreduce(self._context, self._x[i], self._y[i], at.threads, at.blocks)
