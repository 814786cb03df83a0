"""Our own choice: at each size the designs are timed on the ranks themselves, and the fastest is kept.

The choice is made when a cell is opened: one grid of every design in a short captured chain, then all grids of the two
fastest; the slowest rank's time counts, so all ranks choose alike. What was timed stands in the cell's evidence, and so
in the run. Not every design is timed everywhere: where GPUs read each other over PCIe, those that poll a peer's memory
are left out, since every poll is a round trip that takes bandwidth from the data that it waits for. The others come in
the order of the model's predictions, and the four likeliest are timed.
"""

from collections.abc import Mapping
from dataclasses import replace

from collbench.algorithms.base import Algorithm
from collbench.algorithms.epilogues import RESIDUAL_RMSNORM
from collbench.algorithms.own import Takes, environment, own_algorithm
from collbench.contention.own_traffic import islands, islands_of, staged_ring
from collbench.contention.predict import Model
from collbench.contention.traffic import Move, Schedule, one_stage, two_stage
from collbench.errors import CollbenchError
from collbench.results.records import Call, Fabric
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "EVERYWHERE", "ON_PCIE", "candidates_on"]

EVERYWHERE = (
    "push", "one_stage_pull_data", "one_stage_pull_kept", "one_stage_pull_flag", "two_stage_push",
    "two_stage_pull_data", "islands",
)  # fmt: skip
"""Device functions that are timed where ranks share a GPU or NVLink, the likeliest first."""

ON_PCIE = ("push", "two_stage_push", "islands", "one_stage_pull_flag", "two_stage_pull_flag", "staged_ring")
"""Device functions that poll their own memory only: safe where a read crosses PCIe."""

_TIMED_ON_PCIE = 4
_TYPICAL_BYTES = 43_008
"""Three tokens of 7168 elements of bfloat16: the size at which the model puts the designs in order."""

_SMALL_BYTES = 32 << 10
_OVER_PCIE = (Fabric.PCIE, Fabric.MIXED)


def candidates_on(machine: Machine) -> tuple[str, ...]:
    """Device functions that `auto` times on a machine."""
    if machine.fabric not in _OVER_PCIE:
        return EVERYWHERE
    call = Call(_TYPICAL_BYTES, machine.ranks)
    try:
        model = Model(machine.topology, None, machine.ranks)
        ranked = sorted(ON_PCIE, key=lambda kernel: model.predict(_schedule(kernel, call, machine.topology)).total_us)
    except CollbenchError:
        ranked = list(ON_PCIE)  # a topology without routes: in the order above
    return tuple(ranked[:_TIMED_ON_PCIE])


def _schedule(kernel: str, call: Call, topology: Topology) -> Schedule:
    if kernel == "islands":
        return islands(call, islands_of(topology, call.world_size))
    if kernel == "staged_ring":
        return staged_ring(call)
    move = Move.PUSH if "push" in kernel else Move.PULL
    return two_stage(call, move) if kernel.startswith("two_stage") else one_stage(call, move)


def _traffic(call: Call, topology: Topology) -> Schedule:
    """That of the design which usually wins: what was really chosen stands in the evidence."""
    split = len(islands_of(topology, call.world_size)) > 1 and len(topology.groups) > 1
    large = "islands" if split else "two_stage_push"
    return _schedule("push" if call.bytes <= _SMALL_BYTES else large, call, topology)


def _environment(machine: Machine) -> Mapping[str, str]:
    return {**environment(machine), "COLLBENCH_AUTO": ",".join(candidates_on(machine))}


def _record() -> Algorithm:
    plain = own_algorithm(
        "auto", "time our designs at each size on these ranks, keep the fastest", "docs/kernels.md", _traffic, "Auto",
        Takes(epilogues=(RESIDUAL_RMSNORM,)),
    )  # fmt: skip
    return replace(plain, environment=_environment)


ALGORITHMS = (_record(),)
