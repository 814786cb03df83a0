"""Builders beside those of `traffic`: other collectives, trees over hosts, batches, the way through host memory.

Builders are pure. S is `call.bytes`, n the world size; `bytes` is the larger of one rank's send and receive buffer.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from collbench.contention.traffic import Flow, Move, Phase, Schedule, chain, two_stage
from collbench.errors import UsageError
from collbench.results.records import Call

__all__ = [
    "all_gather", "all_to_all", "coalesced", "half_ring", "reduce_scatter", "skewed_splits", "through_host", "tree",
    "two_stage_in_turn",
]  # fmt: skip


def all_gather(call: Call, move: Move = Move.PUSH, *, syncs: int = 1, protocol: str = "") -> Schedule:
    """Every rank gets every other rank's shard of S/n: (n-1)/n S into and out of each port."""
    return Schedule((Phase(_shards(call, move), syncs, label="all-gather"),), protocol=protocol)


def reduce_scatter(call: Call, move: Move = Move.PUSH, *, syncs: int = 1, protocol: str = "") -> Schedule:
    """Every rank gets its shard of S/n from every other rank and sums them."""
    return Schedule((Phase(_shards(call, move), syncs, label="reduce-scatter"),), float(call.bytes), protocol=protocol)


def half_ring(call: Call, wire_factor: float = 1.0, *, sums: bool = False, protocol: str = "") -> Schedule:
    """One way round a ring, an all-gather or with `sums` a reduce-scatter: (n-1)/n S per edge in n-1 dependent hops."""
    n, hops = call.world_size, call.world_size - 1
    part = call.bytes * hops / n
    flows = tuple(Flow(r, (r + 1) % n, part) for r in range(n)) if hops else ()
    phase = Phase(flows, hops, max(hops, 1), "ring")
    return Schedule((phase,), 2.0 * part if sums else 0.0, wire_factor, protocol=protocol)


def two_stage_in_turn(call: Call, *, protocol: str = "") -> Schedule:
    """Two stages as in vLLM: reads of shares, then of the peers' sums, each stored before the next one is read.

    The rank's own sum is among them, and a barrier waits for it alone. So the loads stand in what nvcc 13.0 makes of
    cross_device_reduce_2stage for sm_90a: a load and a store that waits for it, eight times for eight ranks.
    """
    turns = max(call.world_size - 1, 1)
    return replace(two_stage(call, Move.PULL, fences=(0, 1), turns=turns, protocol=protocol), own_reads=1)


def all_to_all(call: Call, move: Move = Move.PUSH, *, syncs: int = 1, protocol: str = "") -> Schedule:
    """Every rank sends a part of its own to every other rank: even, or as `call.splits` says.

    n splits: elements that every rank sends to rank 0, 1, ...; n x n of them: row r is what rank r sends. A rank's part
    for itself stays off the wires.

    Raises:
        UsageError: neither n nor n x n splits, or a negative one.
    """
    n, splits = call.world_size, call.splits
    if not splits:
        return Schedule((Phase(_shards(call, move), syncs, label="all-to-all"),), protocol=protocol)
    if len(splits) not in {n, n * n} or min(splits) < 0:
        raise UsageError(f"{len(splits)} splits for {n} ranks: give {n} or {n * n} numbers of elements, none negative")
    rows = [splits[r * n : r * n + n] if len(splits) == n * n else splits for r in range(n)]
    flows = tuple(
        Flow(src, dst, float(rows[src][dst] * call.itemsize), move)
        for src in range(n)
        for dst in range(n)
        if src != dst and rows[src][dst]
    )
    return Schedule((Phase(flows, syncs, label="all-to-all"),), protocol=protocol)


def skewed_splits(elements: int, world_size: int, exponent: float = 1.0) -> tuple[int, ...]:
    """Elements per rank when popularity of experts falls as 1/k^exponent; whole numbers that sum to `elements`.

    Raises:
        UsageError: fewer than one rank, negative elements, or an exponent that is negative or not finite.
    """
    if world_size < 1 or elements < 0 or not 0 <= exponent < math.inf:
        raise UsageError(f"skew of {elements} elements over {world_size} ranks with exponent {exponent}: out of range")
    weights = [1 / (k + 1) ** exponent for k in range(world_size)]
    edges = [round(elements * sum(weights[:k]) / sum(weights)) for k in range(world_size + 1)]
    return tuple(high - low for low, high in itertools.pairwise(edges))


def tree(call: Call, hosts: Sequence[Sequence[int]], wire_factor: float = 1.0, *, protocol: str = "") -> Schedule:
    """NCCL's tree: a chain of the ranks of each host, and between hosts two binary trees with half of the bytes each.

    `hosts` lists each host's ranks; its first rank talks to other hosts. On one host it is the chain alone. A
    host that is a leaf of one tree is an inner node of the other, so both directions of its network card are busy.

    Raises:
        UsageError: `hosts` does not name every rank once.
    """
    if sorted(rank for ranks in hosts for rank in ranks) != list(range(call.world_size)):
        raise UsageError(f"tree over {len(hosts)} hosts: expected every rank from 0 to {call.world_size - 1} once")
    if len(hosts) == 1:
        order = hosts[0]
        line = chain(call, wire_factor, protocol=protocol)
        phases = tuple(
            replace(p, flows=tuple(replace(f, src=order[f.src], dst=order[f.dst]) for f in p.flows))
            for p in line.phases
        )
        return replace(line, phases=phases)
    size = float(call.bytes)
    edges = [(b, a, size) for ranks in hosts for a, b in itertools.pairwise(ranks)]
    edges += [(hosts[child][0], hosts[parent][0], size / 2) for child, parent in _double_tree(len(hosts))]
    flows = tuple(flow for low, high, part in edges for flow in (Flow(low, high, part), Flow(high, low, part)))
    steps = 2 * (max(map(len, hosts)) - 1 + _depth(len(hosts)))
    return Schedule((Phase(flows, steps, steps, "tree"),), 3.0 * size, wire_factor, protocol=protocol)


def coalesced(schedules: Sequence[Schedule]) -> Schedule:
    """Several calls of one shape in one launch: flows between the same ranks are joined, synchronisations shared.

    Raises:
        UsageError: none, or schedules of different shape.
    """
    if not schedules:
        raise UsageError("a batch of no calls: give at least one")
    first = schedules[0]
    shape = [[(f.src, f.dst, f.move) for f in p.flows] for p in first.phases]
    if any([[(f.src, f.dst, f.move) for f in p.flows] for p in one.phases] != shape for one in schedules):
        raise UsageError("a batch of calls of different algorithms: join calls of one algorithm and world size")
    phases = tuple(
        replace(p, flows=tuple(
            replace(f, bytes=sum(one.phases[i].flows[j].bytes for one in schedules)) for j, f in enumerate(p.flows)
        ))
        for i, p in enumerate(first.phases)
    )  # fmt: skip
    return replace(first, phases=phases, reduce_bytes=sum(one.reduce_bytes for one in schedules))


def through_host(schedule: Schedule) -> Schedule:
    """The same schedule without peer access: sources write to host memory, destinations read there (NCCL's SHM)."""
    phases = tuple(replace(p, flows=tuple(replace(f, move=Move.HOST) for f in p.flows)) for p in schedule.phases)
    return replace(schedule, phases=phases)


def _shards(call: Call, move: Move) -> tuple[Flow, ...]:
    n, share = call.world_size, call.bytes / call.world_size
    return tuple(Flow(src, dst, share, move) for src in range(n) for dst in range(n) if src != dst)


def _parent(node: int, count: int) -> int | None:
    """Parent in the binary tree of 0..count-1 in which odd numbers are leaves; None for the root, 0."""
    if node == 0:
        return None
    bit = node & -node
    up = (node ^ bit) | (bit << 1)
    return up if up < count else node ^ bit


def _double_tree(count: int) -> list[tuple[int, int]]:
    """Child and parent of every edge of both trees; the second is the first mirrored, or shifted for an odd count."""
    edges = [(node, parent) for node in range(count) if (parent := _parent(node, count)) is not None]
    if count % 2:
        return edges + [((child + 1) % count, (parent + 1) % count) for child, parent in edges]
    return edges + [(count - 1 - child, count - 1 - parent) for child, parent in edges]


def _depth(count: int) -> int:
    """Edges from the farthest node to the root."""

    def height(node: int) -> int:
        parent = _parent(node, count)
        return 0 if parent is None else 1 + height(parent)

    return max(map(height, range(count)))
