"""The wires under a phase: routes, capacities and four counterfactual fluid runs, kept by pattern of flows.

The runs, each slower than the one before: `port` (only the GPUs' own links hold back), `shared` (all links do),
`efficient` (links lose what direction, mechanism and dense traffic cost), `windowed` (reads in flight are limited too).
A pattern's times are proportional to its bytes, so one set of runs serves every size.
"""

import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collbench.contention.losses import Pair, Row, dense, half_duplex, lossy, windows
from collbench.contention.parameters import Parameter, Parameters
from collbench.contention.stages import UNIT, Stage, stage
from collbench.contention.traffic import Flow, Move, Phase
from collbench.errors import InvalidError
from collbench.topology.graph import Link, LinkKind, NodeKind, Topology, TopologyError

__all__ = ["MOST_FLOWS", "STAGES", "Cost", "Stage", "Wires", "check_tree", "most_partners"]

STAGES = ("port", "shared", "efficient", "windowed")

_LEAST_GBPS, _MOST_GBPS, _MOST_US = 1e-3, 1e6, 1e6  # a link outside is a mistake of unit

MOST_FLOWS = 65_280
"""All pairs of 256 GPUs: more would take minutes."""


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


@dataclass(frozen=True, slots=True)
class _Way:
    """Of a flow between two ranks: links of the data, flight of the data, of request and data, what loads each link."""

    route: tuple[Link, ...]
    there: Latency
    trip: Latency
    nvlink: bool
    limited: bool
    loads: tuple[tuple[int, Link, float], ...]


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
        self._ways: dict[Pair, _Way] = {}
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

    def _pair(self, pair: Pair) -> "_Way":
        """What is the same in every phase that a flow takes part in."""
        if pair not in self._ways:
            src, dst, move = pair
            route = self.route(*pair)
            back = self.route(dst, src) if move is Move.PULL else ()
            there, request = self._flight(route), self._flight(back)
            if move is Move.HOST:
                there += self._read(src, dst)
            nvlink = all(link.kind is LinkKind.NVLINK for link in route)
            limited = any(self._capacity(link) is not None for link in route)
            loads = self._loads(route, back)
            self._ways[pair] = _Way(route, there, there + request, nvlink, limited, loads)
        return self._ways[pair]

    def _read(self, src: int, dst: int) -> Latency:
        """What reading from host memory adds to the way of the data: the request, and the memory itself.

        The reader polls with one read at a time, which arrives anywhere between just behind the data and a round trip
        later: on average half a round trip goes by before one finds them, as long as a request takes.
        """
        memory = self.parameters["latency.memory"]
        read = 2 * memory.value  # the parameter is half of a load
        return self._flight(self.topology.route(self.topology.gpus[dst], self._host(src))) + Latency(
            read, read if memory.is_prior else 0.0
        )

    def _flight(self, links: Sequence[Link]) -> Latency:
        """One way through them."""
        found = [self.parameters.latency(link) for link in links]
        for link, one in zip(links, found, strict=True):
            if one.value > _MOST_US:
                words = f"link {link.src} -> {link.dst}: {one.value:g} us"
                raise TopologyError(f"{words}: latencies up to {_MOST_US:g} us are predicted")
        return Latency(sum(one.value for one in found), sum(one.value for one in found if one.is_prior))

    def _loads(self, route: Sequence[Link], back: Sequence[Link]) -> tuple[tuple[int, Link, float], ...]:
        """What a byte of a flow costs on each link: data, and on PCIe a read's headers and requests."""
        request = self.parameters["efficiency.request"].value
        costs = [(link, _COMPLETION if back and link.kind is LinkKind.PCIE else 1.0) for link in route]
        costs += [(link, request) for link in back if link.kind is LinkKind.PCIE]
        found: dict[int, tuple[Link, float]] = {}
        for link, cost in costs:
            found[id(link)] = (link, found.get(id(link), (link, 0.0))[1] + cost)
        return tuple((key, link, cost) for key, (link, cost) in found.items())

    def _compute(self, flows: Sequence[Flow], scale: float) -> Cost:
        ways = {(f.src, f.dst, f.move): self._pair((f.src, f.dst, f.move)) for f in flows}
        trips = [way.trip for way in ways.values()]
        mean = Latency(sum(t.us for t in trips) / len(trips), sum(t.prior_us for t in trips) / len(trips))
        nvlink = all(way.nvlink for way in ways.values())
        unlimited = sum(not ways[f.src, f.dst, f.move].limited for f in flows if f.bytes)
        return Cost(
            max(trips, key=lambda one: one.us), mean, max((way.there for way in ways.values()), key=lambda one: one.us),
            most_partners((src, dst) for src, dst, _ in ways), "nvlink" if nvlink else "pcie", unlimited,
            self._stages(flows, ways, scale),
        )  # fmt: skip

    def _stages(
        self,
        flows: Sequence[Flow],
        ways: "Mapping[Pair, _Way]",
        scale: float,
    ) -> tuple[Stage, ...]:
        size = np.array([flow.bytes / scale * UNIT for flow in flows])
        routes = {pair: way.route for pair, way in ways.items()}
        real = self._rows(flows, ways)
        ports = [row for row in real if row.link and self._is_port(row.link)]
        port = stage(ports, size)
        shared = stage(real, size, port)
        known, gpus = self.parameters, self.topology.gpus
        slow = lossy(real, known, gpus, flows)
        slow += [*dense(real, known, gpus, flows, routes), *half_duplex(real, known)]
        efficient = (
            shared if all(map(operator.is_, slow, real)) and len(slow) == len(real) else stage(slow, size, shared)
        )
        limits = windows(known, gpus, flows, routes, {pair: way.trip.us for pair, way in ways.items()})
        return port, shared, efficient, stage([*slow, *limits], size, efficient) if limits else efficient

    def _is_port(self, link: Link) -> bool:
        return NodeKind.GPU in {self.topology.node(link.src).kind, self.topology.node(link.dst).kind}

    def rows(self, flows: Sequence[Flow]) -> list[Row]:
        """Links of known capacity that the flows load, before any loss.

        Raises:
            TopologyError: ranks without a route between them.
        """
        return self._rows(flows, {(f.src, f.dst, f.move): self._pair((f.src, f.dst, f.move)) for f in flows})

    def _rows(self, flows: Sequence[Flow], ways: "Mapping[Pair, _Way]") -> list[Row]:
        rows: dict[int, Row | None] = {}
        for number, flow in enumerate(flows):
            for key, link, coefficient in ways[flow.src, flow.dst, flow.move].loads:
                if key not in rows:
                    rows[key] = self._row(link)
                row = rows[key]
                if row is not None:
                    row.load[number] = coefficient
        return [row for row in rows.values() if row is not None]

    def _row(self, link: Link) -> Row | None:
        known = self._capacity(link)
        if known is not None and not _LEAST_GBPS <= known.value <= _MOST_GBPS:
            words = f"link {link.src} -> {link.dst}: {known.value:g} GB/s"
            raise TopologyError(f"{words}: capacities from {_LEAST_GBPS:g} to {_MOST_GBPS:g} GB/s are predicted")
        name = f"{link.src} -> {link.dst}"
        return Row(name, known.value, known.sd, known.is_prior, {}, link, link.link_class) if known else None

    def _capacity(self, link: Link) -> Parameter | None:
        if id(link) not in self._known:
            self._known[id(link)] = self.parameters.capacity(link)
        return self._known[id(link)]


_COMPLETION = 276 / 280
"""Cost of a byte that is read against one that is written: headers of 20 and 24 bytes per 256."""


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
