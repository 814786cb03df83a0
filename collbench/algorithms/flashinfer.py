"""FlashInfer's all-reduces for PCIe: pushes that announce themselves, and pushes staged behind barriers.

Its groups are fixed: with 8 ranks, the ranks 0 to 3 are one island and 4 to 7 the other, whatever the topology. With 8
ranks its barriers wait for writes twice: a fence of all threads, and the release of the flag. Read in 0.7.4.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from collbench.algorithms.known_system import needs_ranks
from collbench.algorithms.peers import peer_algorithm, refuse_peer
from collbench.contention import own_traffic
from collbench.contention.traffic import Flow, Move, Phase, Schedule, one_stage, two_stage
from collbench.results.records import Call, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "DTYPES", "NEEDS_PCIE_RANKS", "PCIE_SOURCE", "by_seed"]

DTYPES = ("bfloat16", "float16")
"""Element types that its own binding admits."""

PCIE_SOURCE = "flashinfer pull request 4393"
NEEDS_PCIE_RANKS = needs_ranks("FlashInfer's PCIe all-reduce", (2, 4, 8), PCIE_SOURCE)
"""What servers meet that start these kernels."""

_SINCE = (0, 7, 0)
_ISLAND = 4
_SEED_STAGES = 32 << 10
"""Bytes from which its policy stages what nobody tuned (comm/pcie_ipc_policy.py, `_seed`, in 0.7.4)."""
_REFERENCE = "https://github.com/flashinfer-ai/flashinfer"


def _support(ranks: tuple[int, ...], machine: Machine, call: Call) -> Support:
    refused = refuse_peer(machine, call, DTYPES, ranks, _SINCE)
    if refused is not None:
        return refused
    if call.bytes < 16 * call.world_size:
        return Support.no(
            f"{call.bytes} bytes: it asks for 16 bytes of every rank's share", f"use {16 * call.world_size} or more"
        )
    return Support.yes()


def _islands(call: Call, protocol: str) -> Schedule:
    """Two islands of four; partial sums between them travel in the call's own type."""
    groups = [range(_ISLAND), range(_ISLAND, 2 * _ISLAND)]
    schedule = own_traffic.islands(call, groups, protocol=protocol)
    share = call.bytes / _ISLAND
    first, _, last = schedule.phases
    pairs = tuple(Flow(r, (r + _ISLAND) % (2 * _ISLAND), share) for r in range(2 * _ISLAND))
    cross = Phase(pairs, 1, label="between groups")
    return Schedule((first, cross, last), share * _ISLAND + 2 * share, protocol=protocol)


def _push(call: Call, topology: Topology) -> Schedule:
    """The input is read when the epoch is known."""
    del topology
    if call.world_size == 2 * _ISLAND:
        return replace(_islands(call, "sentinel"), own_reads=1)
    return replace(one_stage(call, Move.PUSH, protocol="sentinel"), own_reads=1)


def _flat(call: Call, topology: Topology) -> Schedule:
    del topology
    return replace(two_stage(call, Move.PUSH, protocol="sentinel"), own_reads=1)


def _block(call: Call, topology: Topology) -> Schedule:
    """Three steps, and a last barrier that frees the buffers; read are the input, what came twice, and the sum."""
    del topology
    if call.world_size != 2 * _ISLAND:
        return Schedule(())  # it is built for eight ranks
    schedule = _islands(call, "barriers")
    first, cross, last = (replace(phase, fences=2) for phase in schedule.phases)
    return replace(schedule, phases=(first, cross, replace(last, syncs=2, fences=3)), own_reads=4)


def _ring(call: Call, topology: Topology) -> Schedule:
    """One stream out of and one into each rank at a time: every pass goes to another peer, behind a barrier."""
    del topology
    if call.world_size == 2 * _ISLAND:
        return _staged_islands(call)
    passes = _passes(range(call.world_size), call.bytes / call.world_size, "reduce-scatter")
    passes += _passes(range(call.world_size), call.bytes / call.world_size, "all-gather")
    return Schedule(passes, float(call.bytes), protocol="barriers")


def _staged_islands(call: Call) -> Schedule:
    """A pass at a time within islands, then across, then within; a last barrier frees the buffers.

    Every pass reads what it sends; the sum and what came are read besides.
    """
    share, islands = call.bytes / _ISLAND, (range(_ISLAND), range(_ISLAND, 2 * _ISLAND))
    within = [_passes(island, share, "") for island in islands]
    merged = tuple(Phase(a.flows + b.flows, 1, label="within groups", fences=2) for a, b in zip(*within, strict=True))
    cross = replace(_islands(call, "").phases[1], fences=3)  # the last one behind the sum, before it is sent on
    *gathered, last = merged
    phases = (*merged, cross, *gathered, replace(last, syncs=2, fences=3))
    return Schedule(phases, share * (_ISLAND + 2), protocol="barriers", own_reads=len(phases) + 2)


def by_seed(call: Call, topology: Topology) -> Schedule:
    """What its workspace starts for a shape that nobody tuned: a push, from some size on and with 4 ranks staged."""
    if call.world_size == 2 or (call.world_size == 2 * _ISLAND and call.bytes < _SEED_STAGES):  # noqa: PLR2004 - a pair
        return _push(call, topology)
    if call.bytes < _SEED_STAGES:
        return two_stage(call, Move.PUSH, protocol="barriers")
    return _ring(call, topology)


def _passes(ranks: range, share: float, label: str) -> tuple[Phase, ...]:
    n = len(ranks)
    return tuple(
        Phase(tuple(Flow(ranks[i], ranks[(i + hop) % n], share) for i in range(n)), 1, label=label)
        for hop in range(1, n)
    )


_KINDS: tuple[tuple[str, str, Callable[[Call, Topology], Schedule], tuple[int, ...], str], ...] = (
    ("push", "pushes whole messages; with 8 ranks shares within two islands, then between them", _push, (2, 4, 8),
     "Push"),
    ("flat", "pushes each share to its owner, the owner pushes the sum to all", _flat, (4, 8), "Flat"),
    ("block", "two islands, each step behind a barrier", _block, (8,), "Block"),
    ("ring", "one stream out and one in per rank at any time, behind barriers", _ring, (4, 8), "Ring"),
)  # fmt: skip

ALGORITHMS = tuple(
    peer_algorithm(
        f"flashinfer_pcie_{kind}", summary, _REFERENCE, traffic, partial(_support, ranks), runner, "flashinfer"
    )
    for kind, summary, traffic, ranks, runner in _KINDS
)
