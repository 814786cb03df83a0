"""The runners of our own designs: each names the device functions among which its tuning chooses."""

import os

from collbench.algorithms.auto import EVERYWHERE
from collbench.algorithms.cuda.arguments import Plan, plan, splits_table, splits_table_at
from collbench.algorithms.cuda.designs import UNEVEN
from collbench.algorithms.cuda.runner import OwnRunner
from collbench.algorithms.shapes import rows_of

__all__ = [
    "Auto", "Islands", "OneStagePull", "OneStagePullBuffered", "Push", "PushAllGather", "PushAllToAll",
    "PushBarrier", "PushFlags", "PushReduceScatter", "StagedRing", "TwoStagePull", "TwoStagePush",
]  # fmt: skip


class OneStagePull(OwnRunner):
    """Zero-copy between two barriers; peers read the slots where they lie."""

    kernels = ("one_stage_pull",)


class OneStagePullBuffered(OwnRunner):
    """A staged copy in memory that peers read: its data announces itself, or a flag per block does."""

    kernels = ("one_stage_pull_data", "one_stage_pull_kept", "one_stage_pull_flag")


class TwoStagePull(OwnRunner):
    """Chunks and their sums are read where they lie: staged data that announces itself, or zero-copy."""

    kernels = ("two_stage_pull_data", "two_stage_pull_flag")


class TwoStagePush(OwnRunner):
    """Chunks are written to their owners, sums to everybody."""

    kernels = ("two_stage_push",)


class Push(OwnRunner):
    """The message is written to everybody; data announces itself."""

    kernels = ("push",)
    fused = ("push_fused",)


class PushFlags(OwnRunner):
    """The message is written to everybody with a flag in every 8 bytes."""

    kernels = ("push_flags",)


class Islands(OwnRunner):
    """Within groups, between groups, within groups."""

    kernels = ("islands",)
    fused = ("islands_fused",)


class StagedRing(OwnRunner):
    """One stream out and one in per rank."""

    kernels = ("staged_ring",)


class PushAllGather(OwnRunner):
    """The rank's part is written to everybody."""

    kernels = ("push_all_gather",)


class PushReduceScatter(OwnRunner):
    """Parts are written to their owners, who sum them."""

    kernels = ("push_reduce_scatter",)


class PushAllToAll(OwnRunner):
    """Parts are written to whom they are meant for; with splits, a table in the region says what goes where."""

    kernels = ("push_all_to_all",)

    def _kernel_names(self) -> tuple[str, ...]:
        return (UNEVEN,) if self.call.splits else self.kernels

    def _plan(self, kernel: str) -> Plan:
        call = self.call
        if kernel != UNEVEN:
            return plan(kernel, call.world_size, call.dtype, call.bytes)
        longest = max(count for row in rows_of(call) for count in row) * call.itemsize
        return plan(kernel, call.world_size, call.dtype, call.world_size * longest)

    def _reset(self, kernel: str) -> None:
        super()._reset(kernel)
        if kernel == UNEVEN and self._region is not None:
            table = splits_table(rows_of(self.call), self.ranks.rank, self.call.itemsize)
            self._region.write(splits_table_at(self._plan(kernel), self.call.world_size), table)
            self._drain("writing the table of splits")
            self.ranks.barrier()


class PushBarrier(OwnRunner):
    """One element is written to everybody."""

    kernels = ("push_barrier",)


class Auto(OwnRunner):
    """Times the designs that COLLBENCH_AUTO names (those of one machine without it) and keeps the fastest."""

    fused = ("push_fused", "islands_fused")

    def _kernel_names(self) -> tuple[str, ...]:
        given = os.environ.get("COLLBENCH_AUTO")
        return self.fused if self.call.epilogue else tuple(given.split(",")) if given else EVERYWHERE
