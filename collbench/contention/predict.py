"""Schedule x topology x parameters -> a prediction whose terms add up.

Terms are telescoping counterfactuals in this fixed order, each the difference that one more effect makes:
launch, sync, path, port, queueing, efficiency, window, reduce, protocol (docs/model/README.md).
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collbench.contention.parameters import Parameter, Parameters, priors
from collbench.contention.traffic import Phase, Schedule
from collbench.contention.wires import STAGES, Cost, Latency, Stage, Wires, most_partners
from collbench.results.records import Mode
from collbench.topology.graph import Topology

__all__ = ["TERMS", "Bottleneck", "Model", "Prediction", "predict", "shared_gpu"]

TERMS = ("launch", "sync", "path", "port", "queueing", "efficiency", "window", "reduce", "protocol")

SELF_ANNOUNCING = frozenset({"data announces itself", "flag in every 8 bytes", "sentinel"})
"""Protocols whose data carry their own flags: no fence, and no flag that flies behind the data."""

NCCL_PROTOCOLS = frozenset({"LL", "LL128", "Simple"})
"""Protocols whose synchronisation is part of NCCL's base and hop."""

DISCREPANCY = 0.04
"""Spread of the logarithm that the model's own structure adds (assumption, as the study of public data proposes)."""

_Z90 = 1.645


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The link that holds the last flow back, how many flows share it, and what it carries meanwhile."""

    link: str
    flows: int
    gbps: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted time of one call. `terms_us` holds every name of `TERMS` in order and sums to `total_us`.

    `prior_share` is the part of the time that rests on priors, `sd` the standard deviation of the time's logarithm.
    """

    total_us: float
    terms_us: Mapping[str, float]
    bottleneck: Bottleneck | None
    prior_share: float
    sd: float
    notes: tuple[str, ...] = ()

    @property
    def interval_us(self) -> tuple[float, float]:
        """Nominal 90 % interval."""
        return self.total_us * math.exp(-_Z90 * self.sd), self.total_us * math.exp(_Z90 * self.sd)

    def row(self) -> dict[str, Any]:
        """The model's fields of a row of `collbench predict --json`."""
        b = self.bottleneck
        return {
            "total_us": self.total_us, "terms_us": dict(self.terms_us),
            "bottleneck": {"link": b.link, "flows": b.flows, "gbps": b.gbps} if b else None,
            "prior_share": self.prior_share,
        }  # fmt: skip


class _Sum:
    """Collects terms, what of them rests on priors, and how far each parameter may move the time."""

    def __init__(self) -> None:
        self.terms = dict.fromkeys(TERMS, 0.0)
        self.prior_us = 0.0
        self.variance = 0.0

    def add(self, term: str, us: float, prior_us: float) -> None:
        self.terms[term] += us
        self.prior_us += prior_us

    def use(self, term: str, us: float, parameter: Parameter) -> None:
        self.add(term, us, us if parameter.is_prior else 0.0)
        self.vary(us, parameter.sd)

    def fly(self, term: str, flight: Latency) -> None:
        self.add(term, flight.us, flight.prior_us)
        self.vary(flight.us, _LATENCY_SD)

    def vary(self, us: float, sd: float) -> None:
        self.variance += (us * sd) ** 2

    def result(self, bottleneck: Bottleneck | None, notes: tuple[str, ...]) -> Prediction:
        total = math.fsum(self.terms.values())
        share = min(1.0, self.prior_us / total) if total else 0.0
        sd = math.hypot(math.sqrt(self.variance) / total, DISCREPANCY) if total else 0.0
        return Prediction(total, self.terms, bottleneck, share, sd, notes)


_LATENCY_SD = 0.2


class Model:
    """A topology with parameters, ready to predict any schedule of `ranks` ranks; rank i is `topology.gpus[i]`.

    Raises:
        TopologyError: fewer GPUs than ranks, or PCIe links that form a cycle.
    """

    def __init__(self, topology: Topology, parameters: Parameters | None = None, ranks: int | None = None) -> None:
        self.parameters = parameters or priors()
        self.ranks = len(topology.gpus) if ranks is None else ranks
        self.wires = Wires(topology, self.parameters, self.ranks)

    def predict(self, schedule: Schedule, mode: Mode = Mode.GRAPH) -> Prediction:
        """Time of one call.

        Raises:
            TopologyError: ranks without a route between them.
            InvalidError: more flows in one phase than the model takes.
        """
        found, known = _Sum(), self.parameters
        launch = known[f"launch.{mode}"]
        found.use("launch", launch.value * schedule.launches, launch)
        worst, unknown = (0.0, Stage()), 0
        for phase in schedule.phases:
            cost, largest = self.wires.cost(phase)
            self._phase(found, schedule, phase, cost, largest)
            unknown = max(unknown, cost.unlimited)
            shared = cost.stages[STAGES.index("shared")]
            worst = max(worst, (shared.us * largest, shared), key=lambda pair: pair[0])
        rate = known["reduce.gbps"]
        if schedule.reduce_bytes:
            found.use("reduce", schedule.reduce_bytes / rate.value / 1e3, rate)
        self._base(found, schedule)
        stage = worst[1]
        notes = (
            (f"{unknown} flows use links of unknown capacity only: moving their bytes takes no time here",)
            if unknown
            else ()
        )
        return found.result(Bottleneck(stage.link, stage.flows, stage.gbps) if stage.link else None, notes)

    def _phase(self, found: _Sum, schedule: Schedule, phase: Phase, cost: Cost, largest: float) -> None:
        if not phase.flows:
            return
        pipelined = phase.steps > 1
        found.fly("path", cost.mean.times(phase.steps) if pipelined else cost.farthest)
        before = Stage()
        for term, stage in zip(("port", "queueing", "efficiency", "window"), cost.stages, strict=True):
            us = (stage.us - before.us) * largest
            found.add(term, us, us if stage.is_prior else 0.0)
            before = stage
        wire = before.us * largest
        found.vary(wire * schedule.wire_factor, before.sd)
        found.add("protocol", wire * (schedule.wire_factor - 1), wire * (schedule.wire_factor - 1) * before.is_prior)
        if schedule.protocol in NCCL_PROTOCOLS:
            hop = self._hop(schedule, phase, cost)
            found.use("protocol", hop.value * phase.steps, hop)
        elif phase.syncs:
            self._sync(found, schedule, phase, cost)

    def _sync(self, found: _Sum, schedule: Schedule, phase: Phase, cost: Cost) -> None:
        known, times = self.parameters, phase.syncs
        flag, fence, per_peer = known["sync.flag"], known["sync.fence"], known["sync.per_peer"]
        found.use("sync", flag.value * times, flag)
        found.use("sync", per_peer.value * times * (1 if phase.steps > 1 else cost.peers), per_peer)
        if schedule.protocol not in SELF_ANNOUNCING:
            found.use("sync", fence.value * times, fence)
            found.fly("sync", (cost.mean if phase.steps > 1 else cost.flag).times(times))

    def _hop(self, schedule: Schedule, phase: Phase, cost: Cost) -> Parameter:
        word = "tree" if phase.label in {"chain", "tree"} else "ring"
        return self.parameters[f"nccl.hop.{word}.{schedule.protocol}.{cost.kind}"]

    def _base(self, found: _Sum, schedule: Schedule) -> None:
        if schedule.protocol in NCCL_PROTOCOLS and any(phase.flows for phase in schedule.phases):
            base = self.parameters[f"nccl.base.{schedule.protocol}"]
            found.use("protocol", base.value, base)


def predict(
    schedule: Schedule,
    topology: Topology,
    parameters: Parameters | None = None,
    *,
    mode: Mode = Mode.GRAPH,
    ranks: int | None = None,
) -> Prediction:
    """Predict one schedule; see `Model`, which is quicker for several.

    Raises:
        TopologyError: fewer GPUs than ranks, ranks without a route, PCIe links that form a cycle.
        InvalidError: more flows in one phase than the model takes.
    """
    return Model(topology, parameters, ranks).predict(schedule, mode)


def _shared_sync(found: _Sum, known: Parameters, protocol: str, phase: Phase) -> None:
    """Synchronisations through one GPU's memory; some protocols have parameters of their own."""
    word = "announced" if protocol in SELF_ANNOUNCING else protocol

    def own(name: str) -> Parameter:
        return known.get(f"shared_gpu.{name}.{word}") or known[f"shared_gpu.{name}"]

    flag, per_peer, fence = own("flag"), own("per_peer"), own("fence")
    peers = 1 if phase.steps > 1 else most_partners((flow.src, flow.dst) for flow in phase.flows)
    found.use("sync", flag.value * phase.syncs, flag)
    found.use("sync", per_peer.value * phase.syncs * peers, per_peer)
    if protocol not in SELF_ANNOUNCING:
        found.use("sync", fence.value * phase.syncs, fence)


def _most_sent(schedule: Schedule) -> float:
    """Bytes that the busiest rank sends."""
    sent = Counter[int]()
    for phase in schedule.phases:
        for flow in phase.flows:
            sent[flow.src] += math.ceil(flow.bytes)
    return max(sent.values(), default=0)


def shared_gpu(schedule: Schedule, ranks: int, parameters: Parameters | None = None) -> Prediction | None:
    """Prediction for one of a chain of calls of `ranks` ranks on one GPU, captured in a graph; no links.

    None where the protocol has no parameters there.
    """
    known = parameters or priors()
    nccl = schedule.protocol in NCCL_PROTOCOLS
    found = _Sum()
    launch = known[f"shared_gpu.launch.{8 if ranks > 4 else 4 if ranks > 2 else 2}"]  # noqa: PLR2004 - as measured
    found.use("launch", launch.value * schedule.launches, launch)
    for phase in (phase for phase in schedule.phases if phase.flows):
        word = "tree" if phase.label in {"chain", "tree"} else "ring"
        hop = known.get(f"shared_gpu.nccl.hop.{word}.{schedule.protocol}") if nccl else None
        if nccl and hop is None:
            return None
        if hop is not None:
            found.use("protocol", hop.value * phase.steps, hop)
        else:
            _shared_sync(found, known, schedule.protocol, phase)
    if nccl:
        base, rate = known[f"nccl.base.{schedule.protocol}"], known[f"shared_gpu.nccl.gbps.{schedule.protocol}"]
        found.use("protocol", base.value, base)
        found.use("protocol", _most_sent(schedule) * schedule.wire_factor / rate.value / 1e3, rate)
    else:
        memory = known["shared_gpu.memory_gbps"]
        moved = sum(flow.bytes for phase in schedule.phases for flow in phase.flows) * schedule.wire_factor
        found.use("reduce", moved / memory.value / 1e3, memory)
    return found.result(None, ())
