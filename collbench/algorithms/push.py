"""Our one-stage pushes: every rank writes its message to every peer.

Kernels: cuda/one_stage.cuh and cuda/push_flags.cuh; with residual and RMSNorm behind `push`, cuda/fused.cuh.
"""

from collbench.algorithms.cuda.designs import FLOATS
from collbench.algorithms.epilogues import RESIDUAL_RMSNORM
from collbench.algorithms.own import Takes, own_algorithm
from collbench.contention.traffic import Move, Schedule, one_stage
from collbench.results.records import Call
from collbench.topology.graph import Topology

__all__ = ["ALGORITHMS"]

_FLAG_WIRE = 2.0  # 4 bytes of flag beside 4 bytes of data


def _push(call: Call, topology: Topology) -> Schedule:
    del topology
    return one_stage(call, Move.PUSH, syncs=1, protocol="data announces itself")


def _push_flags(call: Call, topology: Topology) -> Schedule:
    del topology
    return one_stage(call, Move.PUSH, syncs=1, wire_factor=_FLAG_WIRE, protocol="flag in every 8 bytes")


ALGORITHMS = (
    own_algorithm(
        "push", "write the message to every peer; data announces itself",
        "TensorRT-LLM one-shot Lamport (the design; no code)", _push, "Push",
        Takes(epilogues=(RESIDUAL_RMSNORM,)),
    ),
    own_algorithm(
        "push_flags", "write the message to every peer with a flag in every 8 bytes; any bits",
        "NCCL LL and MSCCL++ packets (the format; no code)", _push_flags, "PushFlags",
        Takes(dtypes=(*FLOATS, "int32")),
    ),
)  # fmt: skip
