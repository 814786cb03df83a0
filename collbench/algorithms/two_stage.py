"""Our all-reduces in two stages: rank k sums chunk k, then everybody gets the sums. Kernels: cuda/two_stage.cuh."""

from collbench.algorithms.own import own_algorithm
from collbench.contention.traffic import Move, Schedule, two_stage
from collbench.results.records import Call
from collbench.topology.graph import Topology

__all__ = ["ALGORITHMS"]


def _pull(call: Call, topology: Topology) -> Schedule:
    del topology
    return two_stage(call, Move.PULL, protocol="data announces itself")  # the form that tuning prefers


def _push(call: Call, topology: Topology) -> Schedule:
    del topology
    return two_stage(call, Move.PUSH, protocol="data announces itself")


ALGORITHMS = (
    own_algorithm(
        "two_stage_pull", "read and sum the own chunk, then read the others' sums",
        "vLLM csrc/custom_all_reduce.cuh, cross_device_reduce_2stage (the design; no code)", _pull, "TwoStagePull",
    ),
    own_algorithm(
        "two_stage_push", "write chunks to their owners, who write the sums to everybody",
        "SGLang custom all-reduce v2, two-shot push (the design; no code)", _push, "TwoStagePush",
    ),
)  # fmt: skip
