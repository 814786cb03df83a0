"""Our all-reduce for GPUs in groups below switches: three pushes, one of them between groups. Kernel: cuda/islands.cuh.

The groups come from the topology, in COLLBENCH_ISLANDS for the workers; two halves where it tells none.
"""

from collbench.algorithms.epilogues import RESIDUAL_RMSNORM
from collbench.algorithms.own import Takes, own_algorithm
from collbench.contention.own_traffic import islands, islands_of
from collbench.contention.traffic import Schedule
from collbench.results.records import Call
from collbench.topology.graph import Topology

__all__ = ["ALGORITHMS"]


def _traffic(call: Call, topology: Topology) -> Schedule:
    return islands(call, islands_of(topology, call.world_size), protocol="data announces itself")


ALGORITHMS = (
    own_algorithm(
        "islands", "push to chunk owners in the group, exchange sums between groups, push back",
        "FlashInfer PCIe IPC island kernel and b12x owner reduce (the design; no code)", _traffic, "Islands",
        Takes(epilogues=(RESIDUAL_RMSNORM,)),
    ),
)  # fmt: skip
