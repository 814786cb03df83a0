"""What a call pays beside its traffic: launches, what its kernels take at both ends, and work fused behind them."""

import math

from collbench.contention.parameters import Parameter, Parameters
from collbench.contention.prediction import Terms
from collbench.contention.traffic import Schedule

__all__ = [
    "CALL", "EARLY", "EPILOGUE", "KERNEL_ENDS", "OWN", "READ_ENDS", "STARTS", "early_name", "ends_name", "launch_name",
    "use_ends", "use_launches",
]  # fmt: skip

READ_ENDS = "read.ends"
"""Parameter: what a dependent read costs beside its wires."""

EPILOGUE = "epilogue"
"""Parameter: residual add and normalisation, fused behind a collective."""

KERNEL_ENDS = "kernel.ends"
"""Parameter: what a kernel that meets others takes at its beginning and end, beside its launch."""

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
    """What the kernels of a call take at both ends, and fused work behind the collective."""
    ends = known[ends_name(launch)]
    found.use("launch", ends.value * schedule.launches, ends_name(launch), ends)
    if schedule.epilogue:
        name = EPILOGUE if launch == "launch.graph" else f"shared_gpu.{EPILOGUE}"
        found.use("reduce", known[name].value, name, known[name])


def use_launches(found: Terms, known: Parameters, name: str, schedule: Schedule, *, chained: bool = True) -> None:
    """Launches of a captured graph; in a chain what is left of them where they overlap the call before."""
    launch = known[name]
    if chained and schedule.early:
        name, left = early_name(name), known[early_name(name)]
        source = left.provenance if left.is_prior else launch.provenance
        launch = Parameter(launch.value * left.value, math.hypot(launch.sd, left.sd), source)
    found.use("launch", launch.value * schedule.launches, name, launch)


def launch_name(ranks: int) -> str:
    """Of the launch cost that the model takes for so many ranks on one GPU."""
    return f"shared_gpu.launch.{8 if ranks > 4 else 4 if ranks > 2 else 2}"  # noqa: PLR2004 - as measured
