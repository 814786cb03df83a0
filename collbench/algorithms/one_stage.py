"""Our all-reduces in one stage by reads: every rank reads every rank's message and sums it all.

`one_stage_pull` is the honest control: the shape of what vLLM and SGLang call 1-stage, written anew. Its inputs may be
overwritten as soon as the call has returned, as those of all our designs. Kernels: cuda/one_stage.cuh.
"""

from collbench.algorithms.own import own_algorithm
from collbench.contention.traffic import Move, Schedule, one_stage
from collbench.results.records import Call
from collbench.topology.graph import Topology

__all__ = ["ALGORITHMS"]

_SHAPE = "vLLM csrc/custom_all_reduce.cuh, cross_device_reduce_1stage (the design; no code)"
_STAGED = "b12x one-shot (the design; no code)"


def _pull(call: Call, topology: Topology) -> Schedule:
    del topology
    return one_stage(call, Move.PULL, syncs=2, fences=0, protocol="flags")  # no write of the kernel is waited for


def _pull_buffered(call: Call, topology: Topology) -> Schedule:
    del topology
    return one_stage(call, Move.PULL, syncs=1, protocol="data announces itself")  # the form that tuning prefers


ALGORITHMS = (
    own_algorithm(
        "one_stage_pull", "barrier, read all inputs where they lie, sum, barrier", _SHAPE, _pull, "OneStagePull"
    ),
    own_algorithm(
        "one_stage_pull_buffered", "copy into shared memory, read all copies, sum; no end barrier", _STAGED,
        _pull_buffered, "OneStagePullBuffered",
    ),
)  # fmt: skip
