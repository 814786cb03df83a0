"""From probes to observations: what the model says each probe should show, as a function of its parameters."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collbench.contention.launches import KERNEL_ENDS, OWN_READ, READ_ENDS, early_name, ends_name, launch_name
from collbench.contention.parameters import Parameter, Parameters
from collbench.contention.traffic import Flow, Move, Phase
from collbench.contention.wires import Wires
from collbench.results.probes import Probe
from collbench.results.records import Fabric
from collbench.topology.graph import Link, LinkKind, Topology, TopologyError

__all__ = [
    "Bench",
    "Observation",
    "link_groups",
    "observations",
    "shared_names",
    "starting_point",
]

_LEAST_SD = 0.02
_QUARTILES = 1.35  # between the quartiles of a normal distribution, in standard deviations
_REPEATS = 7
_EXACT = Parameter(1.0, 0.0, "copy engines")


_CAPACITIES = ("capacity", "efficiency.socket_duplex")
_STORES = ("efficiency.store", "efficiency.dense_store", "efficiency.dense_nvlink")
_LOADS = ("efficiency.request", "efficiency.load", "efficiency.dense_load", "efficiency.dense_nvlink", "window.")
_MOVED_BY: Mapping[str, tuple[str, ...]] = {
    "bandwidth.copy": (*_CAPACITIES, "efficiency.duplex"),
    "bandwidth.store": (*_CAPACITIES, "efficiency.duplex", *_STORES),
    "bandwidth.load": (*_CAPACITIES, *_LOADS, "latency"),
}


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured value (us or GB/s), the spread of its logarithm, and what the model says."""

    label: str
    value: float
    sd: float
    model: "Callable[[Bench], float]"

    @property
    def moved_by(self) -> tuple[str, ...]:
        """Beginnings of names of the only parameters that can change what the model says; empty: not known."""
        return _MOVED_BY.get(self.label.partition(" ")[0], ())


class Bench:
    """Topology, ranks and one set of parameters: what a model function of an observation is given."""

    def __init__(self, topology: Topology, ranks: int, parameters: Parameters, fabric: Fabric) -> None:
        self.topology, self.ranks, self.parameters, self.fabric = topology, ranks, parameters, fabric

    @cached_property
    def _wires(self) -> Wires:
        return Wires(self.topology, self.parameters, self.ranks)

    @cached_property
    def _engines(self) -> Wires:
        """As copy engines see it: no losses of multiprocessors, no window."""
        names = [name for name in self.parameters.known if name.startswith(("efficiency.store", "efficiency.dense"))]
        return Wires(self.topology, self.parameters.replaced(dict.fromkeys(names, _EXACT)), self.ranks)

    def latency_us(self, src: int, dst: int) -> float:
        """One way of a flag through the wires."""
        gpus = self.topology.gpus
        return math.fsum(self.parameters.latency(link).value for link in self.topology.route(gpus[src], gpus[dst]))

    def gbps(self, flows: Sequence[tuple[int, int]], mechanism: str) -> float:
        """All flows of equal bytes together."""
        move = Move.PULL if mechanism == "load" else Move.PUSH
        wires = self._engines if mechanism == "copy" else self._wires
        cost, largest = wires.cost(Phase(tuple(Flow(a, b, 1e6, move) for a, b in flows)))
        us = cost.stages[-1].us * largest
        return len(flows) * largest / us / 1e3 if us > 0 else math.inf

    def value(self, name: str) -> float:
        """One parameter."""
        return self.parameters[name].value


def observations(probes: Iterable[Probe], topology: Topology, ranks: int, fabric: Fabric) -> list[Observation]:
    """Observations of all ok probes that the model has something to say about.

    Pairs that lie alike in the topology are one observation each: their median, with the spread between them.
    """
    grouped: dict[tuple[str, str, str], list[Probe]] = defaultdict(list)
    for probe in probes:
        if probe.value and not probe.name.startswith("litmus"):
            grouped[probe.name, probe.pattern, _likeness(probe, topology, fabric)].append(probe)
    found = [_observed(members, ranks, fabric) for members in grouped.values()]
    return [one for one in found if one is not None]


def _likeness(probe: Probe, topology: Topology, fabric: Fabric) -> str:
    """Pairs with the same kinds of links between them are alike; what several ranks do together stands alone."""
    if probe.name.startswith("barrier"):
        return str(probe.flows)
    if probe.pattern not in {"pair", "solo"} or fabric is Fabric.SHARED_GPU:
        return probe.pattern
    try:
        links = topology.route(topology.gpus[probe.src], topology.gpus[probe.dst])
    except (IndexError, TopologyError):
        return f"{probe.src}>{probe.dst}"
    return " ".join(_group_of(topology, link) for link in links)


def _observed(members: Sequence[Probe], ranks: int, fabric: Fabric) -> Observation | None:
    first = members[0]
    model = _shared_gpu(first, ranks) if fabric is Fabric.SHARED_GPU else _on_links(first, ranks)
    if model is None:
        return None
    values = [probe.value for probe in members if probe.value]
    between = statistics.stdev([math.log(value) for value in values]) if len(values) > 1 else 0.0
    within = statistics.median(probe.spread for probe in members) / _QUARTILES / math.sqrt(_REPEATS)
    pair = f"{first.src}>{first.dst}" if len(first.flows) == 1 else ""
    label = " ".join(part for part in (first.name, first.pattern, pair) if part)
    return Observation(label, statistics.median(values), max(_LEAST_SD, math.hypot(between, within)), model)


def _on_links(probe: Probe, ranks: int) -> Callable[[Bench], float] | None:
    src, dst = probe.src, probe.dst
    if probe.name.startswith("launch"):
        return _launch(probe, ranks)
    if probe.name in {"barrier", "barrier_fence"}:
        return _barrier(probe, ranks)
    if probe.name == "flag":
        # half of a round trip: the mean of both ways
        return lambda b: b.value("sync.flag") + (b.latency_us(src, dst) + b.latency_us(dst, src)) / 2
    if probe.name == "read_chain":
        return lambda b: b.value(READ_ENDS) + b.latency_us(src, dst) + b.latency_us(dst, src)
    if probe.name.startswith("bandwidth."):
        flows, mechanism = probe.flows, probe.name.partition(".")[2]
        return lambda b: b.gbps(flows, mechanism)
    return None


def _launch(probe: Probe, ranks: int) -> Callable[[Bench], float] | None:
    if probe.name == "launch":
        return lambda b: b.value("launch.graph")
    if probe.name == "launch_early":
        return lambda b: b.value("launch.graph") * b.value(early_name("launch.graph"))
    if probe.name == "launch_eager":
        return lambda b: max(b.value("launch.eager.own"), b.value("launch.graph"))
    if probe.name == "launch_meet":
        met = _barrier(probe, ranks)
        return lambda b: _least(b.value("launch.graph") + b.value(KERNEL_ENDS) + met(b), b)
    if probe.name == "launch_alone":
        barrier = _barrier(probe, ranks)
        return lambda b: b.value("launch.start.graph") + b.value("launch.graph") + barrier(b)
    return None


def _least(call_us: float, bench: Bench) -> float:
    """What a kernel of `launch_meet` takes of the least call, whose epoch it does not have to read."""
    return max(call_us - bench.value(OWN_READ), call_us / 2)


def _barrier(probe: Probe, ranks: int) -> Callable[[Bench], float]:
    pairs = probe.flows or tuple((a, b) for a in range(ranks) for b in range(ranks) if a != b)
    peers = len({rank for pair in pairs for rank in pair}) - 1
    fence = probe.name == "barrier_fence"
    return lambda b: (
        b.value("sync.flag") + b.value("sync.per_peer") * peers + max(b.latency_us(*pair) for pair in pairs)
        + (b.value("sync.fence") if fence else 0.0)
    )  # fmt: skip


def _shared_gpu(probe: Probe, ranks: int) -> Callable[[Bench], float] | None:
    launch = launch_name(ranks)
    plain = {"launch": launch, "flag": "shared_gpu.flag", "read_chain": OWN_READ}  # peers' memory is the own GPU's
    if name := plain.get(probe.name):
        return lambda bench: bench.value(name)
    if probe.name == "launch_early":
        return lambda bench: bench.value(launch) * bench.value(early_name(launch))
    if probe.name in {"barrier", "barrier_fence"}:
        peers = len({rank for pair in probe.flows for rank in pair} or range(ranks)) - 1
        return _shared_barrier(peers, "shared_gpu.fence" if probe.name == "barrier_fence" else "")
    if probe.name == "launch_meet":
        met = _shared_barrier(ranks - 1)
        return lambda b: _least(b.value(launch) + b.value(ends_name(launch)) + met(b), b)
    return None  # of bandwidths too: what the probes move stays in the GPU's L2 cache, and kernels were 4 times slower


def _shared_barrier(peers: int, fence: str = "") -> Callable[[Bench], float]:
    return lambda b: (
        b.value("shared_gpu.flag") + b.value("shared_gpu.per_peer") * peers + (b.value(fence) if fence else 0.0)
    )


def link_groups(topology: Topology) -> dict[str, list[Link]]:
    """Links that are alike, by a name for them: the same class between the same kinds of nodes."""
    found: dict[str, list[Link]] = defaultdict(list)
    for link in topology.links:
        found[_group_of(topology, link)].append(link)
    return dict(found)


def _group_of(topology: Topology, link: Link) -> str:
    """Both directions are one group; a link's number in the topology tells groups of different capacity apart."""
    ends = sorted(str(topology.node(end).kind) for end in (link.src, link.dst))
    known = "" if link.capacity_gbps is None else f" {link.capacity_gbps:g}"
    return f"{link.link_class} {ends[0]}-{ends[1]}{known}"


def starting_point(topology: Topology, fabric: Fabric, known: Parameters) -> Parameters:
    """Parameters with one of each group of links for its capacity and latency, and those that only probes need."""
    added: dict[str, Parameter] = {}
    if fabric is Fabric.SHARED_GPU:
        return known
    for links in link_groups(topology).values():
        capacity, latency = known.capacity(links[0]), known.latency(links[0])
        if capacity is not None and links[0].kind in {LinkKind.PCIE, LinkKind.NVLINK, LinkKind.XGMI}:
            added |= {f"capacity.{link.src}->{link.dst}": _open(capacity) for link in links}
        added |= {f"latency.{link.src}->{link.dst}": _open(latency) for link in links}
    return known.replaced(added)


def _open(parameter: Parameter) -> Parameter:
    """A number of another machine of this kind is a prior here, however well it was measured there."""
    source = parameter.provenance.removeprefix("prior: ")
    return Parameter(parameter.value, max(parameter.sd, 0.10), f"prior: {source}")


def shared_names(topology: Topology, fabric: Fabric) -> Mapping[str, tuple[str, ...]]:
    """Names of parameters that are fitted as one: `capacity of ...` and `latency of ...` of alike links."""
    if fabric is Fabric.SHARED_GPU:
        return {}
    return {
        f"{what} of {group}": tuple(f"{what}.{link.src}->{link.dst}" for link in links)
        for group, links in link_groups(topology).items()
        for what in ("capacity", "latency")
    }
