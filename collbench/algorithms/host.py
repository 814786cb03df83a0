"""All-reduces between CPU ranks of one host over shared memory: the algorithms that a laptop can compare.

Their patterns are those of GPU all-reduces. Numpy does the sums, waiting yields the processor, torch is not needed.
"""

import math
from collections.abc import Callable

import numpy as np

from collbench.algorithms.base import Algorithm
from collbench.algorithms.host_runner import SEGMENT, Array, HostRunner, chunks, pieces, segments
from collbench.algorithms.host_support import support
from collbench.contention.traffic import Move, Schedule, binomial_tree, one_stage, ring, two_stage
from collbench.results.records import Call, Collective, Mode
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS"]


class _OneStage(HostRunner):
    """Segments of the message go through two halves of the memory in turn; each segment is an epoch.

    No end barrier: a rank writes half h in epoch e after it ended epoch e-1, for which every peer's flag had to reach
    e-1. A peer raises it after it ended epoch e-2, the last one that read half h.
    """

    def prepare(self) -> None:
        """See `HostRunner`."""
        bounds = segments(0, self.call.count)
        self.sources = [pieces(x, bounds) for x in self.x]
        self.targets = [pieces(y, bounds) for y in self.y]
        self.widths = [high - low for low, high in bounds]

    @property
    def segment(self) -> int:
        """Padded elements of the longest segment."""
        return min(self.row, SEGMENT)


class OneStagePull(_OneStage):
    """Each rank shows its message, reads everybody's and sums."""

    @property
    def size_bytes(self) -> int:
        """Two halves of a segment for each rank."""
        return 2 * self.world * self.segment * self.wire.itemsize

    def prepare(self) -> None:
        """See `HostRunner`."""
        super().prepare()
        stage = self.memory.array(0, (2, self.world, self.segment), self.wire)
        self.stages = [[stage[half, :, :width] for half in (0, 1)] for width in self.widths]
        self.mine = [[stage[half, self.rank, :width] for half in (0, 1)] for width in self.widths]

    def launch(self, i: int) -> None:
        """See `Runner`."""
        parts = zip(self.mine, self.stages, self.sources[i], self.targets[i], strict=True)
        for mine, stage, source, target in parts:
            self.epoch = epoch = self.epoch + 1
            mine[epoch & 1][...] = source
            self.publish(self.rank, epoch)
            self.await_all(epoch, "inputs")
            self.total(stage[epoch & 1], target)


class OneStagePush(_OneStage):
    """Each rank writes its message to everybody's inbox, then sums its own inbox."""

    @property
    def size_bytes(self) -> int:
        """Two halves of a segment for each pair of ranks."""
        return 2 * self.world**2 * self.segment * self.wire.itemsize

    def prepare(self) -> None:
        """See `HostRunner`."""
        super().prepare()
        inbox = self.memory.array(0, (2, self.world, self.world, self.segment), self.wire)
        self.sent = [[inbox[half, :, self.rank, :width] for half in (0, 1)] for width in self.widths]
        self.inboxes = [[inbox[half, self.rank, :, :width] for half in (0, 1)] for width in self.widths]

    def launch(self, i: int) -> None:
        """See `Runner`."""
        parts = zip(self.sent, self.inboxes, self.sources[i], self.targets[i], strict=True)
        for sent, inbox, source, target in parts:
            self.epoch = epoch = self.epoch + 1
            sent[epoch & 1][...] = self.widened(source)
            self.publish(self.rank, epoch)
            self.await_all(epoch, "messages")
            self.total(inbox[epoch & 1], target)

    def widened(self, source: Array) -> Array:
        """The source in the type of the wire, converted once for all peers."""
        if self.exact:
            return source
        held = self.scratch[: source.size]
        held[...] = source
        return held


class TwoStage(HostRunner):
    """Each rank sums one chunk of everybody's message, then copies all chunks of the result.

    One set of buffers is enough. A message is overwritten in epoch e after all second flags of e-1, hence after all
    sums of e-1. A chunk of the result is overwritten after all first flags of e, hence after all copies of e-1.
    """

    @property
    def size_bytes(self) -> int:
        """A message for each rank, and the result."""
        return (self.world + 1) * self.row * self.wire.itemsize

    def prepare(self) -> None:
        """See `HostRunner`."""
        stage = self.shared(0, self.world, self.wire)
        self.result = self.shared(self.world, 1, self.dtype)[0]
        bounds = segments(*chunks(self.call.count, self.world)[self.rank])
        self.mine = stage[self.rank]
        self.sums = tuple(zip(pieces(stage, bounds), pieces(self.result, bounds), strict=True))

    def launch(self, i: int) -> None:
        """See `Runner`."""
        self.epoch = epoch = self.epoch + 2
        self.mine[...] = self.x[i]
        self.publish(self.rank, epoch - 1)
        self.await_all(epoch - 1, "reduce-scatter")
        for parts, out in self.sums:
            self.total(parts, out)
        self.publish(self.rank, epoch)
        self.await_all(epoch, "all-gather")
        self.y[i][...] = self.result


class Ring(HostRunner):
    """Each rank reads from its left neighbour: n-1 steps sum the chunks up, n-1 steps hand the results on.

    Chunk c is summed in the order of ranks c, c+1, ..., c+n-1 (mod n). One set of buffers is enough. A rank ends epoch
    e-1 with the chunk whose sum its right neighbour finished, so that neighbour has read all partial sums. It first
    overwrites a result in step n-1 of epoch e, which needs step n-2 of the left neighbour, and so on round to step 0 of
    the right one, which has left epoch e-1 with all its copies.
    """

    @property
    def size_bytes(self) -> int:
        """Partial sums and results of each rank."""
        return 2 * self.world * self.row * self.wire.itemsize

    def prepare(self) -> None:
        """See `HostRunner`."""
        n, bounds = self.world, chunks(self.call.count, self.world)
        self.left = (self.rank - 1) % n
        sums, results = self.shared(0, n, self.wire), self.shared(n, n, self.dtype)
        mine, left = pieces(sums[self.rank], bounds), pieces(sums[self.left], bounds)
        out, left_out = pieces(results[self.rank], bounds), pieces(results[self.left], bounds)
        held = pieces(self.scratch, bounds)
        self.sources = [pieces(x, bounds) for x in self.x] if self.exact else [held] * self.slots
        self.first, self.result = mine[self.rank], results[self.rank]
        adding = [(self.rank - step) % n for step in range(1, n)]
        self.adds = tuple((step + 1, c, left[c], mine[c]) for step, c in enumerate(adding))
        final = (self.rank + 1) % n
        self.last = (out[final], mine[final])
        copying = [(self.rank + 1 - step) % n for step in range(1, n)]
        self.copies = tuple((n + step, left_out[c], out[c]) for step, c in enumerate(copying))

    def launch(self, i: int) -> None:
        """See `Runner`."""
        base = self.epoch = self.epoch + 2 * self.world
        if not self.exact:
            self.scratch[: self.call.count] = self.x[i]
        source, me, left = self.sources[i], self.rank, self.left
        self.first[...] = source[me]
        if self.world > 1:
            self.publish(me, base + 1)
        for step, chunk, there, here in self.adds:
            self.await_one(left, base + step, left, f"reduce-scatter step {step}")
            np.add(there, source[chunk], here)
            if step < self.world - 1:
                self.publish(me, base + step + 1)
        self.last[0][...] = self.last[1]
        self.publish(me, base + self.world)
        for step, there, here in self.copies:
            self.await_one(left, base + step, left, f"all-gather step {step}")
            here[...] = there
            self.publish(me, base + step + 1)
        self.y[i][...] = self.result


class Tree(HostRunner):
    """Sums go up a binomial tree to rank 0, from which every rank copies the result.

    One set of buffers is enough. A rank ends epoch e-1 after rank 0 showed the result, so its parent has read its sum.
    Rank 0 overwrites the result after everybody's sum of epoch e reached it, so everybody has left epoch e-1.
    """

    @property
    def size_bytes(self) -> int:
        """A partial sum of each rank, and the result."""
        return (self.world + 1) * self.row * self.wire.itemsize

    def prepare(self) -> None:
        """See `HostRunner`."""
        sums = self.shared(0, self.world, self.wire)
        self.result = self.shared(self.world, 1, self.dtype)[0]
        self.mine = sums[self.rank]
        self.children = tuple((child, sums[child]) for child in children(self.rank, self.world))

    def launch(self, i: int) -> None:
        """See `Runner`."""
        self.epoch = epoch = self.epoch + 1
        self.mine[...] = self.x[i]
        for child, theirs in self.children:
            self.await_one(child, epoch, child, "reduce")
            np.add(self.mine, theirs, self.mine)
        if self.rank == 0:
            self.result[...] = self.mine
            self.publish(self.world, epoch)
        else:
            self.publish(self.rank, epoch)
            self.await_one(self.world, epoch, 0, "broadcast")
        self.y[i][...] = self.result


def children(rank: int, world: int) -> list[int]:
    """Children of a rank in a binomial tree that is rooted at rank 0, nearest first."""
    distances = (1 << level for level in range(world.bit_length()))
    return [rank + d for d in distances if rank % (2 * d) == 0 and rank + d < world]


def _wire_factor(call: Call) -> float:
    """Sums travel as float32: twice the bytes of a 16-bit type."""
    return 4 / call.itemsize


def _cost_us(fixed_us: float, byte_us: float, power: int) -> Callable[[Call, Machine], float]:
    """Fits of 8 and 2 ranks on 2 cores, 1 KiB to 8 MiB: work shares the cores, a wait goes round all ranks."""

    def cost(call: Call, machine: Machine) -> float:
        del machine
        n = float(call.world_size)
        return fixed_us * n * n + byte_us * call.bytes * _wire_factor(call) * math.pow(n, power)

    return cost


def _algorithm(
    name: str,
    runner: type[HostRunner],
    summary: str,
    traffic: Callable[[Call, Topology], Schedule],
    cost_us: Callable[[Call, Machine], float],
) -> Algorithm:
    return Algorithm(
        name=name, collective=Collective.ALL_REDUCE, summary=summary, reference="collbench/algorithms/host.py",
        traffic=traffic, support=support, runner=f"{runner.__module__}:{runner.__qualname__}", family="host",
        device="cpu", modes=(Mode.EAGER,), imports=("numpy", "ml_dtypes", __name__), cost_us=cost_us,
    )  # fmt: skip


ALGORITHMS = (
    _algorithm(
        "host_one_stage_pull",
        OneStagePull,
        "each rank reads all messages from shared memory and sums them",
        lambda call, _: one_stage(call, Move.PULL, wire_factor=_wire_factor(call)),
        _cost_us(0.6, 6e-05, 2),
    ),
    _algorithm(
        "host_one_stage_push",
        OneStagePush,
        "each rank writes its message to all ranks' inboxes, which they sum",
        lambda call, _: one_stage(call, Move.PUSH, wire_factor=_wire_factor(call)),
        _cost_us(0.6, 9e-05, 2),
    ),
    _algorithm(
        "host_two_stage",
        TwoStage,
        "each rank sums one chunk, then all copy all chunks",
        lambda call, _: two_stage(call, Move.PULL, wire_factor=_wire_factor(call)),
        _cost_us(0.7, 0.00016, 1),
    ),
    _algorithm(
        "host_ring",
        Ring,
        "chunks are summed and handed on around a ring, read from the left neighbour",
        lambda call, _: ring(call, wire_factor=_wire_factor(call), move=Move.PULL),
        _cost_us(2.0, 0.0004, 1),
    ),
    _algorithm(
        "host_tree",
        Tree,
        "sums go up a binomial tree to rank 0, whose result all ranks copy",
        lambda call, _: binomial_tree(call, wire_factor=_wire_factor(call)),
        _cost_us(0.8, 0.00022, 1),
    ),
)
