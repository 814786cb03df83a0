"""What a call pays beside its traffic: launches, what its kernels take at both ends, and work fused behind them."""

import math

from collbench.contention.parameters import Parameter, Parameters
from collbench.contention.prediction import Terms
from collbench.contention.traffic import Phase, Schedule

__all__ = [
    "BLOCKS", "CALL", "EARLY", "EPILOGUE", "FENCE_BEHIND_DATA", "KERNEL_ENDS", "OWN", "OWN_READ", "READ_ENDS", "STARTS",
    "STORE", "early_name", "ends_name", "fence_name", "launch_name", "use_ends", "use_launches", "use_own_reads",
    "use_stores",
]  # fmt: skip

READ_ENDS = "read.ends"
"""Parameter: what a dependent read costs beside its wires."""

OWN_READ, STORE = "memory.read", "sync.store"
"""Parameters: a read of a rank's own memory that waits for the one before it, and a flag set behind another one."""

FENCE_BEHIND_DATA = "shared_gpu.fence.data."
"""Beginning of the names of a fence's cost on a shared GPU where the kernel's own data are still on their way."""

EPILOGUE = "epilogue"
"""Parameter: residual add and normalisation, fused behind a collective."""

KERNEL_ENDS, BLOCKS = "kernel.ends", "kernel.ends.blocks"
"""Parameters: what a kernel of one warp that meets others takes at its beginning and end, and what others take more."""

OWN, CALL = "launch.eager.own", "launch.eager.call"
"""Parameters of an eager call of ours: the host's launch, and what the runner takes around it."""

STARTS = ("launch.start.graph", "launch.start.eager")
"""Parameters of what a call alone takes beyond one of a chain, captured and eager."""


EARLY = ".early"
"""Part of the names of the parameters that say what of a launch is left where it overlaps the call before it."""


def early_name(launch: str) -> str:
    """Of a launch, that of the part of it that is left: `shared_gpu.launch.early.8` for `shared_gpu.launch.8`."""
    return f"launch{EARLY}" if launch == "launch.graph" else launch.replace(".launch", f".launch{EARLY}")


def ends_name(launch: str) -> str:
    """Of a launch, that of what its kernel takes at both ends: `shared_gpu.kernel.ends.8` for `shared_gpu.launch.8`."""
    return KERNEL_ENDS if launch == "launch.graph" else launch.replace(".launch", f".{KERNEL_ENDS}")


def use_ends(found: Terms, known: Parameters, launch: str, schedule: Schedule) -> None:
    """What the kernels of a call take at both ends, and fused work behind the collective.

    With a GPU each, kernels of several blocks take more than the one-warp kernels of the probe.
    """
    alone = launch == "launch.graph"
    for name in (KERNEL_ENDS, BLOCKS) if alone else (ends_name(launch),):
        found.use("launch", known[name].value * schedule.launches, name, known[name])
    if schedule.epilogue:
        name = EPILOGUE if alone else f"shared_gpu.{EPILOGUE}"
        found.use("reduce", known[name].value, name, known[name])


def use_launches(found: Terms, known: Parameters, name: str, schedule: Schedule, *, chained: bool = True) -> None:
    """Launches of a captured graph; in a chain what is left of them where they overlap the call before."""
    launch = known[name]
    if chained and schedule.early:
        name, left = early_name(name), known[early_name(name)]
        source = left.provenance if left.is_prior else launch.provenance
        launch = Parameter(launch.value * left.value, math.hypot(launch.sd, left.sd), source)
    found.use("launch", launch.value * schedule.launches, name, launch)


def use_own_reads(found: Terms, known: Parameters, reads: int) -> None:
    """Reads of a rank's own memory, one after the other."""
    if reads:
        found.use("path", known[OWN_READ].value * reads, OWN_READ, known[OWN_READ])


def use_stores(found: Terms, known: Parameters, phase: Phase) -> None:
    """Flags that a thread sets one after the other, beside those for its peers."""
    if phase.stores:
        found.use("sync", known[STORE].value * phase.stores * phase.syncs, STORE, known[STORE])


def launch_name(ranks: int) -> str:
    """Of the launch cost that the model takes for so many ranks on one GPU."""
    return f"shared_gpu.launch.{_as_measured(ranks)}"


def fence_name(ranks: int, *, behind_data: bool) -> str:
    """Of a fence of so many ranks on one GPU: one that data of the kernel stand before, or flags alone."""
    return f"{FENCE_BEHIND_DATA}{_as_measured(ranks)}" if behind_data else "shared_gpu.fence"


def _as_measured(ranks: int) -> int:
    return 8 if ranks > 4 else 4 if ranks > 2 else 2  # noqa: PLR2004 - as measured
