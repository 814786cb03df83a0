"""The floor: the least time that the fabric allows for one call of a chain. Below it a number is implausible.

It must be a true lower bound, so everything that can overlap is left out and every constant errs to the low side:

- a launch that overlaps the call before it (programmatic dependent launch) counts for a twentieth, on links a fifth.
- on links: launch + path + busiest link. The path is what the schedule's phases need for a message without bytes. Where
  a phase is pipelined over several hops, latency hides behind bytes, so the longer of the two counts there. Through
  host memory it is the way there and the way back: the read that fetches the data may have been sent before they came.
- on `shared-gpu`: launch + one flag flight through the GPU's memory; links are not used.
- on `host`: one flag flight between two cores; a call launches nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from collbench.contention.parameters import Parameters
from collbench.contention.traffic import Flow, Move, Phase, Schedule
from collbench.results.records import Fabric, Mode
from collbench.topology.gpus import host_route
from collbench.topology.graph import Link, LinkKind, Topology, TopologyError

__all__ = ["Floor", "floor"]

_SHARED_GPU: tuple[tuple[int, float, float], ...] = ((8, 1.2, 0.38), (4, 1.0, 0.32), (2, 0.75, 0.32))
"""Ranks, empty kernel node and one flag flight in us: one H200, MPS, captured graph, CUDA 13.0, medians rounded down.
4 ranks' flight was not measured and takes the smaller neighbour's."""

_LINK_LAUNCH_US = 0.5
"""Empty kernel node with a GPU for each rank: an assumption, two thirds of the least that was seen on a shared GPU."""

_LEFT_SHARED, _LEFT_ON_LINKS = 0.05, 0.2
"""Part of a launch that is left where it overlaps the call before: 5 % quantiles of 200 grids of two ranks on one H200
and of 463 on two, each timed with and without (docs/measurements/model.md). With eight ranks on one a quarter of the
grids saved more than a launch, since ranks meet earlier too; a twentieth of their launch is 0.06 us."""

_HOST_FLIGHT_US = 0.01
"""Half of 0.0195 us, the best of 200 means of 10,000 round trips / 2 between two hardware threads of an Intel Xeon
(family 6, model 167, 2.6 GHz; pinned C threads, acquire loads and release stores)."""

_NVLINK_WIRE_GBPS = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
"""Of one NVLink in one direction, by generation: NVIDIA's data sheets.

Machine files often have what NCCL counts on, and kernels exceed it: one-stage pulls move 783 GB/s into each of 8 B300
(vLLM pull request 37756), NCCL counts on 722.
"""

_FAR = (Fabric.PCIE, Fabric.NVLINK, Fabric.MIXED, Fabric.NETWORK)


@dataclass(frozen=True, slots=True)
class Floor:
    """`us` per call, and in words what it is made of and what was not known."""

    us: float
    text: str


def floor(
    schedule: Schedule,
    topology: Topology,
    fabric: Fabric,
    mode: Mode,
    *,
    ranks: int | None = None,
    device: str = "cuda",
    known: Parameters | None = None,
) -> Floor:
    """Least time of one call of a chain, microseconds.

    Rank i is `topology.gpus[i]`. `ranks` is the world size (default: the highest rank of the schedule's flows).
    `device` is the algorithm's: ranks that compute on the CPU get the host's floor on any fabric. Links without a
    capacity or latency do not bind, and the text says so. With `known`, links without a latency, and host memory, take
    the model's: a forecast compares machines, of which one file may tell latencies and another none. Never raises.
    """
    flows = [flow for phase in schedule.phases for flow in phase.flows]
    world = ranks or 1 + max((max(flow.src, flow.dst) for flow in flows), default=0)
    if world == 1 or not flows:
        return Floor(0.0, "one rank: no floor")
    if device == "cpu" or fabric is Fabric.HOST:
        return Floor(_HOST_FLIGHT_US, f"one flag flight between two cores {_HOST_FLIGHT_US:g} us")
    if fabric in _FAR:
        return _on_links(schedule, _Ways(topology, known), world, mode)
    launch, flight = next(row[1:] for row in _SHARED_GPU if world >= row[0])
    launch *= _launches(schedule, _LEFT_SHARED)
    return Floor(
        launch + flight, f"launch {launch:.3g} + one flag flight {flight:g} us (several ranks on one GPU: no links)"
    )


@dataclass(frozen=True, slots=True)
class _Ways:
    """Links that flows take, and how long they take through them."""

    topology: Topology
    known: Parameters | None

    def route(self, flow: Flow) -> tuple[Link, ...]:
        src, dst = self.topology.gpus[flow.src], self.topology.gpus[flow.dst]
        return host_route(self.topology, src, dst) if flow.move is Move.HOST else self.topology.route(src, dst)

    def flight_us(self, flow: Flow) -> float:
        """One way for a push; a pull's request goes the other way first; what is staged is read from memory."""
        there = math.fsum(map(self._latency, self.route(flow)))
        if flow.move is Move.HOST:
            return there + (2 * self.known["latency.memory"].value if self.known else 0.0)  # it is half of a load
        back = self.route(Flow(flow.dst, flow.src, 0)) if flow.move is Move.PULL else ()
        return there + math.fsum(map(self._latency, back))

    def _latency(self, link: Link) -> float:
        if link.latency_us is None and self.known:
            return self.known.latency(link).value
        return link.latency_us or 0.0

    def uses(self, schedule: Schedule) -> Iterator[tuple[Flow, Link]]:
        for phase in schedule.phases:
            for flow in phase.flows:
                for link in self.route(flow):
                    yield flow, link

    def unknown(self, schedule: Schedule) -> str:
        used = {link for _, link in self.uses(schedule)}
        parts = [
            f"{missing} of {len(used)} links have no {name} and {told}"
            for name, missing, told in (
                ("capacity", sum(link.capacity_gbps is None for link in used), "do not bind"),
                ("latency", sum(link.latency_us is None for link in used),
                 "take the model's" if self.known else "do not bind"),
            )
            if missing
        ]  # fmt: skip
        return f" ({'; '.join(parts)})" if parts else ""


def _on_links(schedule: Schedule, ways: _Ways, world: int, mode: Mode) -> Floor:
    topology = ways.topology
    launch = _LINK_LAUNCH_US * _launches(schedule, _LEFT_ON_LINKS)
    head = f"launch {launch:.3g} us ({mode})"
    if len(topology.gpus) < world:
        return Floor(
            launch, f"{head}; {world} ranks, but the topology has {len(topology.gpus)} GPUs: links not counted"
        )
    try:
        path, hop = _path(schedule, ways)
        busy, link = _busiest(schedule, ways)
    except TopologyError as error:
        return Floor(launch, f"{head}; links not counted: {error}")
    pipelined = any(phase.steps > 1 for phase in schedule.phases)
    us = launch + (max(path, hop + busy) if pipelined else path + busy)
    joint = ", the longer of" if pipelined else " +"
    unknown = ways.unknown(schedule)
    return Floor(us, f"{head}{joint} path {path:.3g} us {'and' if pipelined else '+'} {link} {busy:.3g} us{unknown}")


def _launches(schedule: Schedule, left: float) -> float:
    """Launches that a call of a chain must wait for, of early ones the part that is left."""
    return schedule.launches * (left if schedule.early else 1.0)


def _path(schedule: Schedule, ways: _Ways) -> tuple[float, float]:
    """Latency of all phases in us, and that of the shortest single hop."""
    phases = [_phase_path(phase, ways) for phase in schedule.phases if phase.flows]
    return sum(whole for whole, _ in phases), min((hop for _, hop in phases), default=0.0)


def _phase_path(phase: Phase, ways: _Ways) -> tuple[float, float]:
    """A phase's latency and its shortest hop's.

    Pipelined hops: the steps go over all edges in turn, so the mean counts for each. All pairs at once: nobody goes on
    before the farthest pair's data are there, averaged over its two directions. Else only the shortest flow is sure to
    lie on the chain of what depends on what.
    """
    hops = {(flow.src, flow.dst): ways.flight_us(flow) for flow in phase.flows}
    shortest = min(hops.values())
    if phase.steps > 1:
        return phase.steps * math.fsum(hops.values()) / len(hops), shortest
    members = {end for pair in hops for end in pair}
    if len(hops) == len(members) * (len(members) - 1):
        return max((us + hops[dst, src]) / 2 for (src, dst), us in hops.items()), shortest
    return shortest, shortest


def _busiest(schedule: Schedule, ways: _Ways) -> tuple[float, str]:
    """Time in us that the busiest link needs for its bytes of the whole call, and its name."""
    loads: defaultdict[Link, float] = defaultdict(float)
    for flow, link in ways.uses(schedule):
        loads[link] += flow.bytes * schedule.wire_factor
    times = [(load / _at_most(link) / 1e3, link) for link, load in loads.items() if link.capacity_gbps]
    if not times:
        return 0.0, "links of unknown capacity"
    us, link = max(times, key=lambda item: item[0])
    return us, f"busiest link {link.src} -> {link.dst}"


def _at_most(link: Link) -> float:
    """GB/s that a link of known capacity cannot exceed: of NVLink what the wires carry, since kernels can beat NCCL."""
    wires = _NVLINK_WIRE_GBPS.get(link.generation, 0.0) * link.width if link.kind is LinkKind.NVLINK else 0.0
    return max(link.capacity_gbps or 0.0, wires)
