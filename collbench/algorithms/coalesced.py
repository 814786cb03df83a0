"""Several all-reduces in one launch: grouped by NCCL, or copied into one flat message.

torch groups calls of one operation and type (`_coalescing_manager`); NCCL uses no symmetric LL kernel in a group.
"""

from collbench.algorithms.cuda_support import refuse
from collbench.algorithms.known_system import Check, nccl_sharing, system
from collbench.contention.traffic import Schedule, ring
from collbench.results.records import Call, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS"]

_SOURCE = "torch 2.14 distributed_c10d._coalescing_manager; NCCL 2.30.7 enqueue.cc"
_DTYPES = ("float32", "float16", "bfloat16", "int32")


def _torch(machine: Machine, call: Call) -> Support | None:
    return refuse(machine, call, _DTYPES)


_CHECKS: tuple[Check, ...] = (_torch, nccl_sharing)


def _ring(call: Call, topology: Topology) -> Schedule:
    del topology
    return ring(call, wire_factor=2.0, protocol="LL")


ALGORITHMS = (
    system(
        "nccl_grouped", "k all-reduces in one group: one launch, k times the bytes", "https://github.com/NVIDIA/nccl",
        _CHECKS, Support.yes("where no call needs the result of the one before", _SOURCE), _ring, family="coalesced",
    ),
    system(
        "flat_bucket", "k messages copied into one, one all-reduce, views back", "https://github.com/pytorch/pytorch",
        _CHECKS, Support.yes("two copies more than a group", _SOURCE), _ring, family="coalesced",
    ),
)  # fmt: skip
"""Batches; a decode step's all-reduces depend on each other, so only independent ones may be joined."""
