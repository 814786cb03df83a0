"""Our ring: one outbound and one inbound stream per rank, for fabrics on which writes to several root ports collapse.

Kernel: cuda/staged_ring.cuh.
"""

from collbench.algorithms.own import own_algorithm
from collbench.contention.own_traffic import staged_ring
from collbench.contention.traffic import Schedule
from collbench.results.records import Call
from collbench.topology.graph import Topology

__all__ = ["ALGORITHMS"]


def _traffic(call: Call, topology: Topology) -> Schedule:
    del topology
    return staged_ring(call, protocol="data announces itself")


ALGORITHMS = (
    own_algorithm(
        "staged_ring", "ring of fp32 partial sums, then of sums; one peer to write to",
        "FlashInfer PCIe IPC staged ring (the design; no code)", _traffic, "StagedRing",
    ),
)  # fmt: skip
