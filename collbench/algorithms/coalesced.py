"""Fewer, larger: k all-reduces that need nothing of each other in one, so that a step makes 122/k calls instead of 122.

A decode step's all-reduces depend on each other, so only a change of the model joins them (attention and feed-forward
side by side, as in PaLM: k = 2). What that would save is the difference per call between these rows and those of the
algorithm that they are made of, times 122:

- joined: the k messages lie behind each other in memory, and one call takes them all; the most that can be saved;
- bucket: they are copied into one message and back, for models whose tensors lie apart;
- grouped, coalesced: NCCL's group and torch's `all_reduce_coalesced`, k calls in one launch.

All times are per message. `batch` is k: a sample's calls are rounded up to a multiple of it.
"""

from dataclasses import replace
from functools import partial

from collbench.algorithms import auto, gloo, host, nccl, push
from collbench.algorithms.base import Algorithm
from collbench.contention.traffic import Schedule
from collbench.results.records import Call, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "BATCHES"]

BATCHES = (2, 8)
"""Two of one layer, and as many as a batch of independent requests could have."""

_OFFERED = (*host.ALGORITHMS, *gloo.ALGORITHMS, *nccl.ALGORITHMS, *push.ALGORITHMS, *auto.ALGORITHMS)
_BASES = {algorithm.name: algorithm for algorithm in _OFFERED}
_JOINED = ("host_one_stage_push", "host_two_stage", "gloo", "nccl_ring_ll", "nccl_auto", "push", "auto")
_BUCKETS = ("host_two_stage", "gloo", "nccl_ring_ll")


def _joined(call: Call, batch: int) -> Call:
    return replace(call, bytes=call.bytes * batch)


def _support(base: Algorithm, batch: int, machine: Machine, call: Call) -> Support:
    return base.support(machine, _joined(call, batch))


def _traffic(base: Algorithm, batch: int, call: Call, topology: Topology) -> Schedule:
    """Of all k messages at once."""
    return base.traffic(_joined(call, batch), topology)


def _cost_us(base: Algorithm, batch: int, call: Call, machine: Machine) -> float:
    return base.cost_us(_joined(call, batch), machine) / batch


def _batched(base: Algorithm, how: str, batch: int, summary: str, name: str = "") -> Algorithm:
    return replace(
        base, name=name or f"{base.name}_{how}_{batch}", summary=summary, family="coalesced", batch=batch,
        runner=f"collbench.algorithms.batch_runner:{base.name}__{how}__{batch}",
        support=partial(_support, base, batch), traffic=partial(_traffic, base, batch),
        cost_us=partial(_cost_us, base, batch),
    )  # fmt: skip


ALGORITHMS = tuple(
    [_batched(_BASES[name], "joined", k, f"{name} on {k} messages that lie behind each other")
     for name in _JOINED for k in BATCHES]
    + [_batched(_BASES[name], "bucket", k, f"{k} messages copied into one, {name}, copied back")
       for name in _BUCKETS for k in BATCHES]
    + [_batched(_BASES["nccl_auto"], "grouped", k, f"{k} all-reduces in one NCCL group", f"nccl_grouped_{k}")
       for k in BATCHES]
    + [_batched(_BASES["gloo"], "coalesced", k, f"torch's all_reduce_coalesced of {k} tensors over gloo")
       for k in BATCHES]
)  # fmt: skip
"""NCCL uses none of its symmetric kernels in a group (2.30.7, enqueue.cc)."""
