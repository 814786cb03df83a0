"""Our all-gather, reduce-scatter, all-to-all and barrier: every rank writes its parts to its peers, once.

A flag stands in every 8 bytes, so any element type and any bits travel. Kernels: cuda/exchange.cuh; for parts of
different length cuda/exchange_uneven.cuh.
"""

from collections.abc import Callable
from dataclasses import replace

from collbench.algorithms.cuda.designs import FLOATS
from collbench.algorithms.own import Takes, own_algorithm
from collbench.contention.patterns import all_gather, all_to_all, reduce_scatter
from collbench.contention.traffic import Schedule
from collbench.results.records import Call, Collective
from collbench.topology.graph import Topology

__all__ = ["ALGORITHMS"]

_PROTOCOL = "flag in every 8 bytes"
_FLAG_WIRE = 2.0  # 4 bytes of flag beside 4 bytes of data
_FORMAT = "NCCL LL and MSCCL++ packets (the format; no code)"


def _flagged(build: Callable[..., Schedule], call: Call, topology: Topology) -> Schedule:
    del topology
    return replace(build(call, protocol=_PROTOCOL), wire_factor=_FLAG_WIRE)


def _all_gather(call: Call, topology: Topology) -> Schedule:
    return _flagged(all_gather, call, topology)


def _reduce_scatter(call: Call, topology: Topology) -> Schedule:
    return _flagged(reduce_scatter, call, topology)


def _all_to_all(call: Call, topology: Topology) -> Schedule:
    """Of parts of different length it reads the table of lengths first, then part after part."""
    return replace(_flagged(all_to_all, call, topology), own_reads=1 + call.world_size if call.splits else 0)


def _takes(collective: Collective) -> Takes:
    return Takes(collective, (*FLOATS, "int32"), splits=collective is Collective.ALL_TO_ALL)


ALGORITHMS = (
    own_algorithm(
        "push_all_gather", "write the own part to every peer", _FORMAT, _all_gather, "PushAllGather",
        _takes(Collective.ALL_GATHER),
    ),
    own_algorithm(
        "push_reduce_scatter", "write every part to its owner, who sums them in rank order", _FORMAT, _reduce_scatter,
        "PushReduceScatter", _takes(Collective.REDUCE_SCATTER),
    ),
    own_algorithm(
        "push_all_to_all", "write every part to the rank that it is for", _FORMAT, _all_to_all, "PushAllToAll",
        _takes(Collective.ALL_TO_ALL),
    ),
    own_algorithm(
        "push_barrier", "write one element with a flag to every peer, wait for everybody's", _FORMAT, _all_gather,
        "PushBarrier", _takes(Collective.BARRIER),
    ),
)  # fmt: skip
