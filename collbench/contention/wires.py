"""The wires under a phase: routes, capacities and four counterfactual fluid runs, kept by pattern of flows.

The runs, each slower than the one before: `port` (only the GPUs' own links hold back), `shared` (all links do),
`efficient` (links lose what direction, mechanism and dense traffic cost), `windowed` (reads in flight are limited too).
A pattern's times are proportional to its bytes, so one set of runs serves every size.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from collbench.contention.fairshare import Fluid, Usage, run
from collbench.contention.losses import Pair, Routes, Row, dense, half_duplex, lossy, windows
from collbench.contention.parameters import Parameter, Parameters
from collbench.contention.traffic import Flow, Move, Phase
from collbench.errors import InvalidError
from collbench.topology.graph import Link, LinkKind, NodeKind, Topology, TopologyError

__all__ = ["MOST_FLOWS", "STAGES", "Cost", "Stage", "Wires", "check_tree", "most_partners"]

STAGES = ("port", "shared", "efficient", "windowed")

MOST_FLOWS = 65_280
"""All pairs of 256 GPUs: more would take minutes."""

_EXACT_FLOWS, _MERGE = 512, 0.015  # above so many flows near ends share an event: within 0.5 % of exact
_UNIT = 1e6  # bytes of the largest flow in a run


@dataclass(frozen=True, slots=True)
class Stage:
    """One counterfactual: `us` per byte of the largest flow, what binds its last flow, and how sure that number is."""

    us: float = 0.0
    link: str = ""
    flows: int = 0
    gbps: float = 0.0
    sd: float = 0.0
    is_prior: bool = False


@dataclass(frozen=True, slots=True)
class Latency:
    """Microseconds, and how many of them rest on priors."""

    us: float = 0.0
    prior_us: float = 0.0

    def __add__(self, other: "Latency") -> "Latency":
        return Latency(self.us + other.us, self.prior_us + other.prior_us)

    def times(self, factor: float) -> "Latency":
        """So many of them."""
        return Latency(self.us * factor, self.prior_us * factor)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a phase costs on its wires: the farthest and the mean flight of its flows and flags, and the stages.

    `unlimited` counts flows all of whose links are of unknown capacity.
    """

    farthest: Latency = Latency()
    mean: Latency = Latency()
    flag: Latency = Latency()
    peers: int = 0
    kind: str = "pcie"
    unlimited: int = 0
    stages: tuple[Stage, ...] = (Stage(),) * len(STAGES)


class Wires:
    """A topology with parameters: what any phase of `ranks` ranks costs on it. Keeps what it has computed.

    Raises:
        TopologyError: fewer GPUs than ranks, or PCIe links that form a cycle.
    """

    def __init__(self, topology: Topology, parameters: Parameters, ranks: int) -> None:
        if ranks > len(topology.gpus):
            name = topology.name or "(unnamed)"
            raise TopologyError(f"{ranks} ranks, but topology {name} has {len(topology.gpus)} GPUs: give fewer ranks")
        check_tree(topology)
        self.topology, self.parameters = topology, parameters
        self._costs: dict[object, Cost] = {}
        self._flights: dict[Pair, Latency] = {}
        self._known: dict[int, Parameter | None] = {}  # by id: the topology keeps its links
        self._hosts: dict[int, str] = {}

    def cost(self, phase: Phase) -> tuple[Cost, float]:
        """Cost of a phase, and the bytes of its largest flow, with which its stages' times are multiplied.

        Raises:
            TopologyError: ranks without a GPU, or without a route between them.
            InvalidError: more than `MOST_FLOWS` flows, or a flow whose size is negative or not finite.
        """
        flows = phase.flows
        if len(flows) > MOST_FLOWS:
            raise InvalidError(f"{len(flows)} flows in one phase: the model takes {MOST_FLOWS}, all pairs of 256 GPUs")
        largest = max((flow.bytes for flow in flows), default=0.0)
        scale = largest or 1.0
        key = tuple((flow.src, flow.dst, flow.move, flow.bytes / scale) for flow in flows)
        if key not in self._costs:
            self._check(flows)
            self._costs[key] = self._compute(flows, scale) if flows else Cost()
        return self._costs[key], largest

    def _check(self, flows: Sequence[Flow]) -> None:
        highest = max((max(flow.src, flow.dst) for flow in flows), default=0)
        if highest >= len(self.topology.gpus):
            name = self.topology.name or "(unnamed)"
            raise TopologyError(f"traffic of rank {highest}, but topology {name} has {len(self.topology.gpus)} GPUs")
        worst = next((flow for flow in flows if not 0 <= flow.bytes < float("inf")), None)
        if worst is not None:
            raise InvalidError(f"flow from rank {worst.src} to {worst.dst} of {worst.bytes} bytes: no finite size")

    def route(self, src: int, dst: int, move: Move = Move.PUSH) -> tuple[Link, ...]:
        """Links that the data of a flow take."""
        gpus, topology = self.topology.gpus, self.topology
        if move is Move.HOST:
            memory = self._host(src)
            return topology.route(gpus[src], memory) + topology.route(memory, gpus[dst])
        return topology.route(gpus[src], gpus[dst])

    def _host(self, rank: int) -> str:
        if rank not in self._hosts:
            sockets, gpu = self.topology.sockets, self.topology.gpus[rank]
            if not sockets:
                raise TopologyError("traffic through host memory, but the topology has no processor")
            self._hosts[rank] = min(sockets, key=lambda socket: len(self.topology.route(gpu, socket)))
        return self._hosts[rank]

    def _flight(self, pair: Pair) -> Latency:
        """One way of the data of a flow."""
        if pair not in self._flights:
            found = [self.parameters.latency(link) for link in self.route(*pair)]
            whole, prior = sum(one.value for one in found), sum(one.value for one in found if one.is_prior)
            self._flights[pair] = Latency(whole, prior)
        return self._flights[pair]

    def _compute(self, flows: Sequence[Flow], scale: float) -> Cost:
        routes = {(f.src, f.dst, f.move): self.route(f.src, f.dst, f.move) for f in flows}
        there = {pair: self._flight(pair) for pair in routes}
        trips = {
            (src, dst, move): us + self._flight((dst, src, Move.PUSH)) if move is Move.PULL else us
            for (src, dst, move), us in there.items()
        }
        mean = sum(trips.values(), Latency()).times(1 / len(trips))
        nvlink = all(link.kind is LinkKind.NVLINK for links in routes.values() for link in links)
        unlimited = sum(
            all(self._capacity(link) is None for link in routes[f.src, f.dst, f.move]) for f in flows if f.bytes
        )
        return Cost(
            max(trips.values(), key=lambda one: one.us), mean, max(there.values(), key=lambda one: one.us),
            most_partners((src, dst) for src, dst, _ in routes), "nvlink" if nvlink else "pcie", unlimited,
            self._stages(flows, routes, trips, scale),
        )  # fmt: skip

    def _stages(
        self,
        flows: Sequence[Flow],
        routes: Routes,
        trips: dict[Pair, Latency],
        scale: float,
    ) -> tuple[Stage, ...]:
        size = np.array([flow.bytes / scale * _UNIT for flow in flows])
        real = self._real_rows(flows, routes)
        ports = [row for row in real if row.link and self._is_port(row.link)]
        port = _stage(ports, size)
        shared = _stage(real, size, port)
        known, gpus = self.parameters, self.topology.gpus
        slow = lossy(real, known, gpus, flows)
        slow += [*dense(real, known, gpus, flows, routes), *half_duplex(real, known)]
        efficient = shared if slow == real else _stage(slow, size, shared)
        limits = windows(known, gpus, flows, routes, {pair: trip.us for pair, trip in trips.items()})
        return port, shared, efficient, _stage([*slow, *limits], size, efficient) if limits else efficient

    def _is_port(self, link: Link) -> bool:
        return NodeKind.GPU in {self.topology.node(link.src).kind, self.topology.node(link.dst).kind}

    def _real_rows(self, flows: Sequence[Flow], routes: Routes) -> list[Row]:
        rows: dict[int, Row | None] = {}
        request = self.parameters["efficiency.request"].value
        for number, flow in enumerate(flows):
            for link in routes[flow.src, flow.dst, flow.move]:
                reads = flow.move is Move.PULL and link.kind is LinkKind.PCIE
                self._load(rows, link, number, _COMPLETION if reads else 1.0)
            if flow.move is Move.PULL:
                for link in self.route(flow.dst, flow.src):
                    if link.kind is LinkKind.PCIE:
                        self._load(rows, link, number, request)
        return [row for row in rows.values() if row is not None]

    def _load(self, rows: dict[int, Row | None], link: Link, flow: int, coefficient: float) -> None:
        if id(link) not in rows:
            known = self._capacity(link)
            name = f"{link.src} -> {link.dst}"
            rows[id(link)] = Row(name, known.value, known.sd, known.is_prior, {}, link) if known else None
        row = rows[id(link)]
        if row is not None:
            row.load[flow] = row.load.get(flow, 0.0) + coefficient

    def _capacity(self, link: Link) -> Parameter | None:
        if id(link) not in self._known:
            self._known[id(link)] = self.parameters.capacity(link)
        return self._known[id(link)]


_COMPLETION = 276 / 280
"""Cost of a byte that is read against one that is written: headers of 20 and 24 bytes per 256."""


def _stage(rows: Sequence[Row], size: "np.ndarray[tuple[int], np.dtype[np.float64]]", before: Stage = Stage()) -> Stage:
    """Makespan on these rows; never less than that of the stage before, whose links all count here too."""
    entries: list[list[tuple[int, float]]] = [[] for _ in size]
    for number, row in enumerate(rows):
        for flow, coefficient in row.load.items():
            entries[flow].append((number, coefficient))
    usage = Usage.of(entries, len(rows))
    fluid = run(usage, [row.gbps for row in rows], size, merge=_MERGE if size.size > _EXACT_FLOWS else 0.0)
    us = fluid.makespan_us / _UNIT
    if us <= before.us or us == 0:
        return before
    return _named(rows, size, fluid, us)


def _named(rows: Sequence[Row], size: "np.ndarray[tuple[int], np.dtype[np.float64]]", fluid: Fluid, us: float) -> Stage:
    row = rows[int(fluid.bottleneck[int(fluid.finish_us.argmax())])]
    data = [flow for flow, coefficient in row.load.items() if coefficient > 0.5]  # noqa: PLR2004 - a request costs less
    carried = float(size[data].sum()) / _UNIT
    return Stage(us, row.name, len(data), carried / us / 1e3, row.sd, row.is_prior)


def most_partners(pairs: Iterable[tuple[int, int]]) -> int:
    """Peers of the rank that has most, of pairs that exchange something."""
    partners = defaultdict[int, set[int]](set)
    for src, dst in pairs:
        partners[src].add(dst)
        partners[dst].add(src)
    return max(map(len, partners.values()), default=0)


def check_tree(topology: Topology) -> None:
    """PCIe is a tree: where its links close a circle, nobody knows which way traffic takes.

    Raises:
        TopologyError: names a link of the cycle.
    """
    parent = {node.id: node.id for node in topology.nodes}

    def root(node: str) -> str:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    pairs = {(min(ends), max(ends)) for link in topology.links if link.kind is LinkKind.PCIE
             for ends in ((link.src, link.dst),)}  # fmt: skip
    for a, b in sorted(pairs):
        near, far = root(a), root(b)
        if near == far:
            raise TopologyError(f"PCIe links form a cycle through {a} and {b}: PCIe is a tree, so one of them is wrong")
        parent[near] = far
