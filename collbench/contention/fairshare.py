"""Max-min fair rates by progressive filling, and the fluid clock that runs flows to their end.

Rates are in GB/s, sizes in bytes, times in us (1 GB/s = 1e3 bytes/us). Everything that several flows share is a link
here, also a read window, what a GPU can send, or a socket link that is not full duplex ("virtual links").
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collbench.errors import InvalidError

__all__ = ["Fluid", "Rates", "Usage", "max_min", "run"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_TIE = 1e-12
_BYTES_PER_US = 1e3


@dataclass(frozen=True, slots=True)
class Usage:
    """Sparse matrix of `links` x `flows`: entry i says that each byte of `flow[i]` costs `coefficient[i]` on `link[i]`.

    Entries are sorted by flow, and within a flow stand in the order in which a tie between links is decided.
    """

    links: int
    flows: int
    link: Ints
    flow: Ints
    coefficient: Floats

    @classmethod
    def of(cls, rows: "list[list[tuple[int, float]]]", links: int) -> "Usage":
        """From one list of (link, coefficient) per flow."""
        flow = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        pairs = [pair for row in rows for pair in row]
        link = np.array([pair[0] for pair in pairs], np.intp)
        return cls(links, len(rows), link, flow.astype(np.intp), np.array([pair[1] for pair in pairs], np.float64))


@dataclass(frozen=True, slots=True)
class Rates:
    """`gbps` of each flow, and the link that holds it back (-1: none)."""

    gbps: Floats
    bottleneck: Ints


@dataclass(frozen=True, slots=True)
class Fluid:
    """When each flow ends, the link that held it back last (-1: none), the makespan, and how often rates were set."""

    finish_us: Floats
    bottleneck: Ints
    makespan_us: float
    events: int


def max_min(usage: Usage, capacity: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Rates:
    """Weighted max-min fair rates: all flows rise together (in proportion to their weight) until a link is full.

    Every link that fills up before any other link of its flows is handled in the same round, so there are as many
    rounds as links that wait for each other, not as links. A cap on one flow is a link of its own with that capacity.

    Raises:
        InvalidError: a capacity or weight that is not above zero.
    """
    limits = _positive(capacity, usage.links, "capacity")
    weight = np.ones(usage.flows) if weights is None else _positive(weights, usage.flows, "weight")
    usage = _finite(usage, limits)
    return _fill(usage.link, usage.flow, usage.coefficient, limits, weight)


def run(
    usage: Usage,
    capacity: npt.ArrayLike,
    size_bytes: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    merge: float = 0.0,
) -> Fluid:
    """Run flows of `size_bytes` to their end; rates are set anew whenever one has ended.

    `merge` > 0 lets flows whose ends lie within that part of the time so far share one event. It is put where as many
    bytes of them are still to come as their links have stood idle, so errors cancel out to far less than `merge`;
    in between, a link may seem to carry slightly more than it can.

    Raises:
        InvalidError: a capacity or weight that is not above zero, or a size that is negative or not finite.
    """
    limits = _positive(capacity, usage.links, "capacity")
    weight = np.ones(usage.flows) if weights is None else _positive(weights, usage.flows, "weight")
    left = np.array(np.broadcast_to(np.asarray(size_bytes, np.float64), usage.flows))
    if not (np.isfinite(left) & (left >= 0)).all():
        raise InvalidError("flow sizes: expected finite numbers of bytes, zero or more")
    clock = _Clock(_finite(usage, limits), left / _BYTES_PER_US, weight)
    while clock.alive.size:
        clock.advance(limits, merge)
    return Fluid(clock.finish, clock.bottleneck, float(clock.finish.max(initial=0.0)), clock.events)


class _Clock:
    """The flows that still run: their entries of the matrix, renumbered as flows end."""

    def __init__(self, usage: Usage, left: Floats, weight: Floats) -> None:
        self.finish = np.zeros(usage.flows)
        self.bottleneck = np.full(usage.flows, -1, np.intp)
        self.now, self.events = 0.0, 0
        self.link, self.flow, self.coefficient = usage.link, usage.flow, usage.coefficient
        self.alive, self.left, self.weight = np.arange(usage.flows), left, weight
        running = (left > 0) & (np.bincount(usage.flow, minlength=usage.flows) > 0)  # nothing holds back the others
        if not running.all():
            self._keep(running)

    def advance(self, limits: Floats, merge: float) -> None:
        rates = _fill(self.link, self.flow, self.coefficient, limits, self.weight)
        ends = self.left / rates.gbps
        first = ends.min()
        horizon = max(first, (self.now + first) * (1 + merge) - self.now) * (1 + _TIE)
        done = ends <= horizon
        step = float(ends[done] @ rates.gbps[done] / rates.gbps[done].sum())
        self.finish[self.alive[done]] = self.now + ends[done]
        self.bottleneck[self.alive[done]] = rates.bottleneck[done]
        self.now += step
        self.events += 1
        if done.all():
            self.alive = self.alive[:0]
            return
        self.left = self.left - rates.gbps * step
        self._keep(~done)

    def _keep(self, stay: Bools) -> None:
        number = np.cumsum(stay) - 1
        entries = stay[self.flow]
        self.link, self.coefficient = self.link[entries], self.coefficient[entries]
        self.flow = number[self.flow[entries]]
        self.alive, self.left, self.weight = self.alive[stay], self.left[stay], self.weight[stay]


def _fill(link: Ints, flow: Ints, coefficient: Floats, limits: Floats, weight: Floats) -> Rates:
    rate = np.full(weight.size, np.inf)
    held = np.full(weight.size, -1, np.intp)
    demand, room = coefficient * weight[flow], limits
    while link.size:
        total = np.bincount(link, demand, limits.size)
        level = np.divide(room, total, out=np.full(limits.size, np.inf), where=total > 0)[link]
        first = np.ones(flow.size, bool)
        first[1:] = flow[1:] != flow[:-1]
        starts = np.flatnonzero(first)
        ids = flow[starts]
        lowest = np.minimum.reduceat(level, starts)
        own = lowest[np.cumsum(first) - 1]
        tight = level <= own * (1 + _TIE)
        # a link is full first if it is the tightest of every flow that it carries
        full = np.bincount(link, ~tight, limits.size) == 0
        hit = np.flatnonzero(tight & full[link])[::-1]
        held[flow[hit]] = link[hit]  # written backwards, so the first of a flow's links stays
        frozen = held[ids] >= 0
        rate[ids[frozen]] = lowest[frozen] * weight[ids[frozen]]
        if frozen.all():
            break
        gone = held[flow] >= 0
        spent = np.bincount(link[gone], coefficient[gone] * rate[flow[gone]], limits.size)
        room = np.maximum(room - spent, 0.0)
        link, flow, coefficient, demand = link[~gone], flow[~gone], coefficient[~gone], demand[~gone]
    return Rates(rate, held)


def _finite(usage: Usage, limits: Floats) -> Usage:
    """Without the links that hold nobody back."""
    binds = np.isfinite(limits)[usage.link]
    if binds.all():
        return usage
    return Usage(usage.links, usage.flows, usage.link[binds], usage.flow[binds], usage.coefficient[binds])


def _positive(values: npt.ArrayLike, count: int, what: str) -> Any:  # noqa: ANN401 - an array of floats
    found = np.asarray(values, np.float64)
    if found.shape != (count,):
        found = np.broadcast_to(found, count)
    if not (found > 0).all():  # NaN is not above zero either
        bad = found[~(found > 0)][0]
        raise InvalidError(f"{what} {bad:g}: expected a number above zero")
    return found
