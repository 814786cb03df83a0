"""All-to-alls between CPU ranks of one host over shared memory, with even parts or splits.

Elements are moved as they are; both runners keep two halves of the memory and need no end barrier: a rank writes half h
in epoch e after it ended epoch e-1, for which every peer's flag had to reach e-1, even of peers that send it nothing. A
peer raises that flag after it ended epoch e-2, the last one that read half h.
"""

from functools import partial

from collbench.algorithms.base import Algorithm
from collbench.algorithms.host_runner import Array, HostRunner
from collbench.algorithms.host_support import ordered, place_problem
from collbench.algorithms.shapes import rows_of, splits_problem
from collbench.contention.patterns import all_to_all
from collbench.contention.traffic import Move, Schedule
from collbench.results.records import Call, Collective, Mode, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "MOST_BYTES", "refuse_all_to_all"]

MOST_BYTES = 8 << 20
"""Largest equal side of a call, as of the other host algorithms."""

_PAD = 128  # bytes: ranks write lines of their own


class _Exchange(HostRunner):
    """Parts lie in the memory by owner and sender; `owned[k]` is where in the half rank k's region starts."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]  # the base's own
        self.rows = rows_of(self.call)
        sizes = [-(-total * self.call.itemsize // _PAD) * _PAD for total in self.region_elements()]
        self.owned = [sum(sizes[:k]) for k in range(self.world)]
        self.half_bytes = sum(sizes)

    def region_elements(self) -> list[int]:
        """Elements of every rank's region."""
        return [sum(row[k] for row in self.rows) for k in range(self.world)]

    @property
    def size_bytes(self) -> int:
        """Two halves of all regions."""
        return 2 * self.half_bytes

    def region(self, owner: int, start: int, count: int) -> list[Array]:
        """`count` elements of an owner's region from `start` on, in both halves."""
        at = self.owned[owner] + start * self.call.itemsize
        return [self.memory.array(half * self.half_bytes + at, (count,), self.dtype) for half in (0, 1)]


class Push(_Exchange):
    """Each rank writes its parts into the inboxes of those whom they are for."""

    def prepare(self) -> None:
        """See `HostRunner`."""
        me, rows = self.rank, self.rows
        self.sent = []
        for dst in range(self.world):
            inbox = self.region(dst, sum(row[dst] for row in rows[:me]), rows[me][dst])
            low = sum(rows[me][:dst])
            self.sent.append((slice(low, low + rows[me][dst]), inbox))
        self.inbox = self.region(me, 0, sum(row[me] for row in rows))

    def launch(self, i: int) -> None:
        """See `Runner`."""
        self.epoch = epoch = self.epoch + 1
        x = self.x[i]
        for part, inbox in self.sent:
            inbox[epoch & 1][...] = x[part]
        self.publish(self.rank, epoch)
        self.await_all(epoch, "parts")
        self.y[i][...] = self.inbox[epoch & 1]


class Pull(_Exchange):
    """Each rank shows all of its parts, and reads from everybody's what is for it."""

    def region_elements(self) -> list[int]:
        """What each rank sends."""
        return [sum(row) for row in self.rows]

    def prepare(self) -> None:
        """See `HostRunner`."""
        me, rows, at = self.rank, self.rows, 0
        self.shown = self.region(me, 0, sum(rows[me]))
        self.wanted = []
        for src in range(self.world):
            there = self.region(src, sum(rows[src][:me]), rows[src][me])
            self.wanted.append((slice(at, at + rows[src][me]), there))
            at += rows[src][me]

    def launch(self, i: int) -> None:
        """See `Runner`."""
        self.epoch = epoch = self.epoch + 1
        self.shown[epoch & 1][...] = self.x[i]
        self.publish(self.rank, epoch)
        self.await_all(epoch, "parts")
        y = self.y[i]
        for part, there in self.wanted:
            y[part] = there[epoch & 1]


def refuse_all_to_all(call: Call) -> str:
    """Why a call is no all-to-all that can be carried out; empty if it can."""
    if call.collective is not Collective.ALL_TO_ALL or call.op or call.epilogue:
        return f"{call.collective} ({call.op or 'no operation'}): it is an all_to_all, without epilogue"
    if not call.splits and call.count % call.world_size:
        return f"{call.bytes} bytes: not the same for every rank"
    return splits_problem(call)


def _support(machine: Machine, call: Call) -> Support:
    problem = place_problem(machine)
    if problem is not None:
        return Support.no(*problem)
    reason = refuse_all_to_all(call)
    if not reason and not call.itemsize <= call.bytes <= MOST_BYTES:
        reason = f"{call.bytes} bytes: host algorithms take up to {MOST_BYTES >> 20} MiB"
    return Support.no(reason) if reason else ordered(machine)


def _traffic(move: Move, call: Call, topology: Topology) -> Schedule:
    del topology
    return all_to_all(call, move)


def _cost_us(call: Call, machine: Machine) -> float:
    """As of the one-stage all-reduces: waiting goes round all ranks, and copies share the cores."""
    del machine
    return 0.6 * call.world_size**2 + 1e-4 * call.bytes * call.world_size


def _algorithm(name: str, runner: type[HostRunner], move: Move, summary: str) -> Algorithm:
    return Algorithm(
        name=name, collective=Collective.ALL_TO_ALL, summary=summary, reference="collbench/algorithms/host_exchange.py",
        traffic=partial(_traffic, move), support=_support, runner=f"{runner.__module__}:{runner.__qualname__}",
        family="host", device="cpu", modes=(Mode.EAGER,), imports=("numpy", "ml_dtypes", __name__), cost_us=_cost_us,
    )  # fmt: skip


ALGORITHMS = (
    _algorithm("host_all_to_all_push", Push, Move.PUSH, "each rank writes its parts into the inboxes of the others"),
    _algorithm("host_all_to_all_pull", Pull, Move.PULL, "each rank shows its parts, and the others read theirs"),
)
"""Both take splits."""
