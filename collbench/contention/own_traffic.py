"""Traffic of the two designs of ours that look at where ranks sit: islands, and a ring with one stream each way."""

from collections.abc import Sequence

from collbench.contention.traffic import Flow, Move, Phase, Schedule
from collbench.results.records import Call
from collbench.topology.graph import Topology

__all__ = ["islands", "islands_of", "staged_ring"]

_FLOAT_BYTES = 4
_LEAST_SPLIT = 4  # ranks from which two halves are two groups


def islands_of(topology: Topology, world_size: int) -> tuple[tuple[int, ...], ...]:
    """Groups of ranks below one switch each; every rank in one group.

    Ranks are numbered as in `Topology.gpus`. GPUs below no common switch form a group of what is left over. Where the
    topology tells no groups, or the ranks are no more than its GPUs' first ones or share one, two halves are taken, one
    group below four ranks.
    """
    where = {gpu: rank for rank, gpu in enumerate(topology.gpus)}
    groups = [tuple(where[gpu] for gpu in group if where[gpu] < world_size) for group in topology.groups]
    groups = [group for group in groups if group]
    told = {rank for group in groups for rank in group}
    rest = tuple(rank for rank in range(world_size) if rank not in told)
    if not groups or len(topology.gpus) < world_size:
        cut = world_size // 2 if world_size >= _LEAST_SPLIT else world_size
        groups, rest = [tuple(range(cut))], tuple(range(cut, world_size))
    return tuple(sorted((*groups, *((rest,) if rest else ()))))


def islands(call: Call, groups: Sequence[Sequence[int]], *, protocol: str = "") -> Schedule:
    """Push to the owner of a chunk in the own group, owners of a chunk exchange partial sums, push back to the group.

    There are as many chunks as the smallest group has members. Partial sums travel as fp32.
    """
    owners = min(len(group) for group in groups)
    share = call.bytes / owners
    partial = share * _FLOAT_BYTES / call.itemsize
    scatter = [Flow(src, dst, share) for g in groups for dst in g[:owners] for src in g if src != dst]
    gather = [Flow(src, dst, share) for g in groups for src in g[:owners] for dst in g if src != dst]
    cross = [
        Flow(a[q], b[q], partial) for q in range(owners) for a in groups for b in groups if a is not b
    ]  # fmt: skip
    phases = [Phase(tuple(scatter), 1, label="to the owner in the group")]
    if cross:
        phases.append(Phase(tuple(cross), 1, label="between groups"))
    phases.append(Phase(tuple(gather), 1, label="back to the group"))
    largest = max(len(group) for group in groups)
    return Schedule(tuple(phases), share * largest + partial * len(groups), protocol=protocol)


def staged_ring(call: Call, *, protocol: str = "") -> Schedule:
    """A ring in rank order: reduce-scatter of fp32 partial sums, then all-gather; n-1 dependent hops each."""
    n, hops = call.world_size, call.world_size - 1
    if n == 1:
        return Schedule((Phase((), label="ring"),), protocol=protocol)
    share = call.bytes / n * hops
    partial = share * _FLOAT_BYTES / call.itemsize

    def around(size: float, label: str) -> Phase:
        return Phase(tuple(Flow(r, (r + 1) % n, size, Move.PUSH) for r in range(n)), hops, hops, label)

    phases = (around(partial, "reduce-scatter"), around(share, "all-gather"))
    return Schedule(phases, partial + share, protocol=protocol)
