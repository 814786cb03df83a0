"""Traffic: what an algorithm puts on the wires, as a schedule of phases, and one builder per communication pattern.

Builders are pure. S is `call.bytes`, n the world size; ranks are numbered as in `Topology.gpus`. Flows hold payload;
`wire_factor` says how many bytes on the wire each payload byte costs.
"""

from dataclasses import dataclass
from enum import StrEnum

from collbench.results.records import Call

__all__ = [
    "Flow",
    "Move",
    "Phase",
    "Schedule",
    "binomial_tree",
    "chain",
    "multicast",
    "one_stage",
    "recursive_doubling",
    "ring",
    "two_stage",
]


class Move(StrEnum):
    """Who moves the bytes: the source by posted writes, or the destination by reads (a round trip).

    `host`: through the memory of the source's processor, written by the source and read by the destination.
    """

    PUSH = "push"
    PULL = "pull"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Flow:
    """`bytes` payload from rank `src` to rank `dst`; the data flows in this direction for a pull too."""

    src: int
    dst: int
    bytes: float
    move: Move = Move.PUSH


@dataclass(frozen=True, slots=True)
class Phase:
    """Flows that run together, behind `syncs` synchronisations (each one flag flight between the ranks involved).

    `steps` > 1 says that the flows are pipelined over that many dependent hops: bytes are charged once, latency per
    step. `fences` says how often a rank waits for its own writes, between writes and flags; None: once before each
    synchronisation, unless data announce themselves. `turns`: of a pull, how many of its reads a thread makes one after
    the other, each a round trip. `stores`: flags that a thread sets one after the other in each synchronisation, beside
    those for its peers.
    """

    flows: tuple[Flow, ...]
    syncs: int = 0
    steps: int = 1
    label: str = ""
    fences: int | None = None
    turns: int = 1
    stores: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Phases in order, and what a call costs beside them.

    `reduce_bytes` is what the slowest rank reads while it sums; `wire_factor` the bytes on the wire per payload byte
    (LL 2, LL128 128/120, else 1: docs/design.md section 6); `launches` the kernel launches per call. `launcher` says
    whose host code launches eagerly: `own`, `torch`, `library`; empty where nobody knows how, nor how calls were timed.
    `early`: in a chain its launch overlaps the call before it (programmatic dependent launch). `epilogue`: its kernel
    adds a residual and normalises rows besides. `own_reads`: reads of a rank's own memory that wait for one another,
    beside each kernel's first: tables, counters, data that have to lie there before they can go on.
    """

    phases: tuple[Phase, ...]
    reduce_bytes: float = 0.0
    wire_factor: float = 1.0
    launches: int = 1
    protocol: str = ""
    launcher: str = ""
    early: bool = False
    epilogue: bool = False
    own_reads: int = 0


def one_stage(
    call: Call,
    move: Move,
    *,
    syncs: int = 1,
    fences: int | None = None,
    wire_factor: float = 1.0,
    protocol: str = "",
) -> Schedule:
    """Every rank gets every other rank's whole message and sums by itself: (n-1) S into and out of each port.

    `syncs` counts flag flights: 1 for a push whose flag follows the data or for a pull behind a start barrier, 2 for a
    pull that has an end barrier too. `fences`: see `Phase`.
    """
    phase = Phase(_all_pairs(call.world_size, call.bytes, move), syncs, label="exchange", fences=fences)
    return Schedule((phase,), float(call.bytes * call.world_size), wire_factor, protocol=protocol)


def two_stage(
    call: Call,
    move: Move,
    gather: Move | None = None,
    *,
    fences: tuple[int | None, int | None] = (None, None),
    turns: int = 1,
    wire_factor: float = 1.0,
    protocol: str = "",
) -> Schedule:
    """Reduce-scatter, then all-gather, each between all pairs at once: 2 (n-1)/n S through each port.

    `move` is how the first stage moves bytes, `gather` how the second does (the same if left out). `fences` are those
    of both stages, `turns` those of the second: see `Phase`.
    """
    share = call.bytes / call.world_size
    phases = (
        Phase(_all_pairs(call.world_size, share, move), 1, label="reduce-scatter", fences=fences[0]),
        Phase(_all_pairs(call.world_size, share, gather or move), 1, label="all-gather", fences=fences[1], turns=turns),
    )
    return Schedule(phases, float(call.bytes), wire_factor, protocol=protocol)


def ring(
    call: Call, channels: int = 1, wire_factor: float = 1.0, *, move: Move = Move.PUSH, protocol: str = ""
) -> Schedule:
    """A ring in rank order: 2 (n-1)/n S over each edge in 2 (n-1) dependent hops.

    The channels carry equal parts over the same edges, as NCCL's do on one node, so they change how a shared link is
    divided between flows but not its load.
    """
    n, steps = call.world_size, 2 * (call.world_size - 1)
    if n == 1:
        return Schedule((Phase((), label="ring"),), wire_factor=wire_factor, protocol=protocol)
    part = call.bytes * steps / n / channels
    flows = tuple(Flow(r, (r + 1) % n, part, move) for r in range(n) for _ in range(channels))
    reduced = call.bytes * (n - 1) / n * 2
    return Schedule((Phase(flows, steps, steps, "ring"),), reduced, wire_factor, protocol=protocol)


def chain(call: Call, wire_factor: float = 1.0, *, move: Move = Move.PUSH, protocol: str = "") -> Schedule:
    """Sum along a chain of ranks, send the result back along it: S each way over each edge in 2 (n-1) dependent hops.

    It is what NCCL's tree is inside one node (trees span nodes; below, all GPUs stand in a line).
    """
    n, steps = call.world_size, 2 * (call.world_size - 1)
    up = tuple(Flow(r, r - 1, float(call.bytes), move) for r in range(n - 1, 0, -1))
    down = tuple(Flow(r, r + 1, float(call.bytes), move) for r in range(n - 1))
    reduced = 2.0 * call.bytes if n > 1 else 0.0
    return Schedule((Phase(up + down, steps, max(steps, 1), "chain"),), reduced, wire_factor, protocol=protocol)


def multicast(call: Call, *, protocol: str = "") -> Schedule:
    """The switch sums for each rank a share of S/n and sends the sum to all: (1 + 1/n) S out of and into each port.

    A rank sends its S for the switch to sum, and the sum of its share for the switch to copy; it receives the sum of
    its share, and all S of the result. On one NVSwitch only ports can bind, so the flows are those of a ring with as
    many bytes at each port.
    """
    n = call.world_size
    part = call.bytes * (1 + 1 / n)
    flows = tuple(Flow(r, (r + 1) % n, part) for r in range(n)) if n > 1 else ()
    return Schedule((Phase(flows, label="multicast"),), protocol=protocol)


def recursive_doubling(call: Call, move: Move = Move.PUSH, *, wire_factor: float = 1.0, protocol: str = "") -> Schedule:
    """Pairs at distance 1, 2, 4, ... exchange whole partial sums: log2 n x S through each port.

    For a world size that is no power of two, the ranks above it fold into the lower ones first and get the result last.
    """
    n, size = call.world_size, float(call.bytes)
    core = 1 << (n.bit_length() - 1)
    phases = [
        Phase(tuple(Flow(r, r ^ distance, size, move) for r in range(core)), 1, label=f"distance {distance}")
        for distance in (1 << level for level in range(core.bit_length() - 1))
    ]
    if core < n:
        before = tuple(Flow(r, r - core, size, move) for r in range(core, n))
        after = tuple(Flow(r - core, r, size, move) for r in range(core, n))
        phases = [Phase(before, 1, label="fold"), *phases, Phase(after, 1, label="unfold")]
    sums = core.bit_length() - 1 + (core < n)
    return Schedule(tuple(phases), 2.0 * size * sums, wire_factor, protocol=protocol)


def binomial_tree(call: Call, move: Move = Move.PULL, *, wire_factor: float = 1.0, protocol: str = "") -> Schedule:
    """Sum up a binomial tree to rank 0, level by level, then every rank gets the result from rank 0 directly."""
    n, size = call.world_size, float(call.bytes)
    levels = [1 << level for level in range((n - 1).bit_length())]
    phases = [
        Phase(tuple(Flow(r + d, r, size, move) for r in range(0, n - d, 2 * d)), 1, label=f"reduce, distance {d}")
        for d in levels
    ]
    phases.append(Phase(tuple(Flow(0, r, size, move) for r in range(1, n)), 1 if n > 1 else 0, label="broadcast"))
    return Schedule(tuple(phases), 2.0 * size * len(levels), wire_factor, protocol=protocol)


def _all_pairs(n: int, size: float, move: Move) -> tuple[Flow, ...]:
    return tuple(Flow(src, dst, float(size), move) for src in range(n) for dst in range(n) if src != dst)
