"""NCCL's all-reduce with the algorithm chosen per call (2.31 and later), on a communicator that knows no preference.

Beside the rows that force the same algorithm by variables it shows whether choosing per call costs anything: then one
process can use LL for small messages and leave large ones to NCCL.
"""

from functools import partial

from collbench.algorithms.base import Algorithm
from collbench.algorithms.cuda_support import refuse, version_text
from collbench.algorithms.known_system import nccl_sharing, verdict
from collbench.algorithms.nccl import DTYPES, WIRE_FACTOR, cost_us, environment
from collbench.contention import traffic
from collbench.contention.traffic import Schedule
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS"]

_SINCE = (2, 31)
_SOURCE = "nccl.h of 2.31.2 and 2.32.3: ncclAllReduceConfig, ncclCollConfig_t.algSelection"


def _torch(machine: Machine, call: Call) -> Support | None:
    return refuse(machine, call, DTYPES)


def _release(machine: Machine, call: Call) -> Support | None:
    del call
    version = machine.version("nccl")
    if not version:
        return Support.unknown("the version of NCCL is not known before it is loaded", "", _SOURCE)
    if version >= _SINCE:
        return None
    reason = f"NCCL {version_text(version)} takes no algorithm per call; {version_text(_SINCE)} and later do"
    return Support.no(reason, "give the libnccl.so.2 of a later one with --nccl PATH", _SOURCE)


def _traffic(algorithm: str, call: Call, topology: Topology) -> Schedule:
    del topology
    build = traffic.chain if algorithm == "Tree" else traffic.ring
    return build(call, wire_factor=WIRE_FACTOR["LL"], protocol="LL")


def _algorithm(algorithm: str) -> Algorithm:
    return Algorithm(
        name=f"nccl_per_call_{algorithm.lower()}_ll", collective=Collective.ALL_REDUCE,
        summary=f"NCCL's {algorithm.lower()} with LL, asked for in the call instead of by variables",
        reference="https://github.com/NVIDIA/nccl", traffic=partial(_traffic, algorithm),
        support=partial(verdict, (_torch, nccl_sharing, _release), Support.yes("", _SOURCE)),
        runner=f"collbench.algorithms.nccl_per_call_runner:PerCall{algorithm}LL", family="nccl",
        imports=("torch", "torch.distributed"), environment=partial(environment, "", ""),
        cost_us=partial(cost_us, "LL"),
    )  # fmt: skip


ALGORITHMS = (_algorithm("Ring"), _algorithm("Tree"))
