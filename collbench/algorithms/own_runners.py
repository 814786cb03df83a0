"""The runners of our own designs: each names the device functions among which its tuning chooses."""

from collbench.algorithms.cuda.runner import OwnRunner

__all__ = [
    "Islands", "OneStagePull", "OneStagePullBuffered", "Push", "PushFlags", "StagedRing", "TwoStagePull",
    "TwoStagePush",
]  # fmt: skip


class OneStagePull(OwnRunner):
    """Zero-copy between two barriers; peers read the slots where they lie."""

    kernels = ("one_stage_pull",)


class OneStagePullBuffered(OwnRunner):
    """A staged copy in memory that peers read: its data announces itself, or a flag per block does."""

    kernels = ("one_stage_pull_data", "one_stage_pull_flag")


class TwoStagePull(OwnRunner):
    """Chunks and their sums are read where they lie: staged data that announces itself, or zero-copy."""

    kernels = ("two_stage_pull_data", "two_stage_pull_flag")


class TwoStagePush(OwnRunner):
    """Chunks are written to their owners, sums to everybody."""

    kernels = ("two_stage_push",)


class Push(OwnRunner):
    """The message is written to everybody; data announces itself."""

    kernels = ("push",)


class PushFlags(OwnRunner):
    """The message is written to everybody with a flag in every 8 bytes."""

    kernels = ("push_flags",)


class Islands(OwnRunner):
    """Within groups, between groups, within groups."""

    kernels = ("islands",)


class StagedRing(OwnRunner):
    """One stream out and one in per rank."""

    kernels = ("staged_ring",)
