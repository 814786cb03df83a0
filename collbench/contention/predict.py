"""Schedule x topology x parameters -> a prediction whose terms add up.

Terms are telescoping counterfactuals in this fixed order, each the difference that one more effect makes:
launch, sync, path, port, queueing, efficiency, window, reduce, protocol (docs/model/README.md).
"""

import math
from collections import Counter
from collections.abc import Iterable

from collbench.contention import launches
from collbench.contention.launches import CALL, OWN, READ_ENDS, STARTS, launch_name, use_ends, use_own_reads, use_stores
from collbench.contention.parameters import Parameter, Parameters, priors
from collbench.contention.prediction import TERMS, Bottleneck, Part, Prediction, Terms
from collbench.contention.traffic import Flow, Move, Phase, Schedule
from collbench.contention.wires import STAGES, Cost, Stage, Wires, most_partners
from collbench.results.records import Mode
from collbench.topology.graph import LinkKind, Topology

__all__ = [
    "NCCL_PROTOCOLS", "SELF_ANNOUNCING", "TERMS", "Bottleneck", "Model", "Prediction", "predict", "shared_gpu",
]  # fmt: skip

SELF_ANNOUNCING = frozenset({"data announces itself", "flag in every 8 bytes", "sentinel"})
"""Protocols whose data carry their own flags: no fence, and no flag that flies behind the data."""

NCCL_PROTOCOLS = frozenset({"LL", "LL128", "Simple", "SymmetricLL", "Symmetric"})
"""Protocols whose synchronisation is part of NCCL's base and hop; the last two are of kernels on symmetric memory."""

BARRIERS = "barriers"
"""Flags of kernels that have data of their own on their way when they wait for their writes."""

SIGNAL_PADS = "signal pads"
"""Flags of torch's symmetric memory: set by compare-and-swap at the peer, whose answer a rank waits for."""


class Model:
    """A topology with parameters, ready to predict any schedule of `ranks` ranks; rank i is `topology.gpus[i]`.

    Raises:
        TopologyError: fewer GPUs than ranks, or PCIe links that form a cycle.
    """

    def __init__(self, topology: Topology, parameters: Parameters | None = None, ranks: int | None = None) -> None:
        self.parameters = parameters or priors()
        self.ranks = len(topology.gpus) if ranks is None else ranks
        self.wires = Wires(topology, self.parameters, self.ranks)
        self.nvlink = max((link.generation for link in topology.links if link.kind is LinkKind.NVLINK), default=0)

    def predict(self, schedule: Schedule, mode: Mode = Mode.GRAPH, *, chained: bool = True) -> Prediction:
        """Time of one call: of a chain of calls, or `chained=False` of one alone.

        Raises:
            TopologyError: ranks without a route between them.
            InvalidError: more flows in one phase than the model takes.
        """
        found = Terms()
        worst, unknown, moving, cost = (0.0, Stage()), 0, 0.0, Cost()
        for phase in schedule.phases:
            cost, largest = self.wires.cost(phase)
            moving += self._phase(found, schedule, phase, cost, largest)
            unknown = max(unknown, cost.unlimited)
            shared = cost.stages[STAGES.index("shared")]
            worst = max(worst, (shared.us * largest, shared), key=lambda pair: pair[0])
        self._reduce(found, schedule, moving)
        self._base(found, schedule, cost.kind)
        self._launch(found, schedule, mode, chained=chained)
        stage = worst[1]
        notes = (
            (f"{unknown} flows use links of unknown capacity only: moving their bytes takes no time here",)
            if unknown
            else ()
        )
        return found.result(Bottleneck(stage.link, stage.flows, stage.gbps) if stage.link else None, notes)

    def _launch(self, found: Terms, schedule: Schedule, mode: Mode, *, chained: bool) -> None:
        """Launches of a captured graph, or of the host: in a chain it launches the next call while this one runs.

        A chain of eager calls takes as long as the slower of the two, the host or the GPU. A call alone has a start of
        its own besides; an eager one only where it is known who launched it. There is no call before it that its launch
        could overlap.
        """
        host = self._host(schedule)
        if mode is Mode.EAGER and not chained:
            for name, us in host.items():
                found.use("launch", us, name, self.parameters[name])
            self._start(found, STARTS[1] if schedule.launcher else "")
            return
        launches.use_launches(found, self.parameters, "launch.graph", schedule, chained=chained)
        use_ends(found, self.parameters, "launch.graph", schedule)
        use_own_reads(found, self.parameters, schedule.own_reads)
        if mode is Mode.GRAPH:
            self._start(found, "" if chained else STARTS[0])
            return
        host_us = math.fsum(host.values())
        waiting = host_us - found.total_us
        if waiting > 0:
            found.add("launch", waiting, 0.0)
            found.prior_us = math.fsum(us for name, us in host.items() if self.parameters[name].is_prior)
            found.parts = {name: Part(us, self.parameters[name].sd) for name, us in host.items()}

    def _start(self, found: Terms, name: str) -> None:
        """What a call alone takes beyond one of a chain; nothing without a name."""
        if name:
            found.use("launch", self.parameters[name].value, name, self.parameters[name])

    def _host(self, schedule: Schedule) -> dict[str, float]:
        """The host's time for one eager call by parameter: its launcher's where there is one, else that of any.

        That of `torch` is per call, however many kernels its operator launches; to launches of ours comes what the
        runner takes around one.
        """
        name = f"launch.eager.{schedule.launcher}"
        if not schedule.launcher or self.parameters.get(name) is None:
            name = "launch.eager"
        each = self.parameters[name].value * (1 if schedule.launcher == "torch" else schedule.launches)
        around = {CALL: self.parameters[CALL].value} if name == OWN else {}
        return {name: each, **around}

    def _reduce(self, found: Terms, schedule: Schedule, moving_us: float) -> None:
        """Reading what is summed.

        What is read over the wires, or flows through a pipeline, is summed as it arrives: only a rank that sums more
        slowly than its wires deliver takes longer. What was pushed is read again.
        """
        rate = self.parameters["reduce.gbps"]
        us = schedule.reduce_bytes / rate.value / 1e3
        first = next((phase for phase in schedule.phases if phase.flows), None)
        if first is not None and (first.steps > 1 or first.flows[0].move is not Move.PUSH):
            us -= moving_us
        if us > 0:
            found.use("reduce", us, "reduce.gbps", rate)

    def _phase(self, found: Terms, schedule: Schedule, phase: Phase, cost: Cost, largest: float) -> float:
        """Path, wires and synchronisation of one phase; gives what its wires take."""
        if not phase.flows:
            return 0.0
        pipelined = phase.steps > 1
        found.fly("path", cost.mean.times(phase.steps) if pipelined else cost.farthest.times(phase.turns))
        if phase.flows[0].move is Move.PULL and schedule.protocol not in NCCL_PROTOCOLS:
            ends = self.parameters[READ_ENDS]
            found.use("path", ends.value * phase.steps * phase.turns, READ_ENDS, ends)
        before = Stage()
        for term, stage in zip(("port", "queueing", "efficiency", "window"), cost.stages, strict=True):
            us = (stage.us - before.us) * largest
            found.add(term, us, us if stage.is_prior else 0.0)
            before = stage
        wire = self._wire(found, schedule, phase, cost, largest)
        if schedule.protocol not in NCCL_PROTOCOLS and phase.syncs:
            self._sync(found, schedule, phase, cost)
        elif schedule.protocol in NCCL_PROTOCOLS and pipelined:
            name = self._hop(schedule, phase, cost)
            hop = self.parameters[name]
            found.use("protocol", hop.value * phase.steps, name, hop)
        return wire

    def _wire(self, found: Terms, schedule: Schedule, phase: Phase, cost: Cost, largest: float) -> float:
        """What a protocol's bytes take beyond the payload's, which the terms before have; gives the whole."""
        stage = cost.stages[-1]
        payload = stage.us * largest
        wire = payload * schedule.wire_factor
        name = f"nccl.gbps.{schedule.protocol}.nvlink{self.nvlink}"
        limit = self.parameters.get(name) if cost.kind == "nvlink" else None
        slow = _most_sent(phase.flows) / limit.value / 1e3 if limit else 0.0
        if limit and slow > wire:
            found.add("protocol", slow - payload, slow - payload if limit.is_prior else 0.0)
            found.vary(name, slow, limit.sd)
            return slow
        found.add("protocol", wire - payload, (wire - payload) * stage.is_prior)
        if wire:
            found.vary(f"wire {stage.basis}", wire, stage.sd)
        return wire

    def _sync(self, found: Terms, schedule: Schedule, phase: Phase, cost: Cost) -> None:
        known, times = self.parameters, phase.syncs
        flag, fence, per_peer = known["sync.flag"], known["sync.fence"], known["sync.per_peer"]
        found.use("sync", flag.value * times, "sync.flag", flag)
        peers = 1 if phase.steps > 1 else cost.peers
        found.use("sync", per_peer.value * times * peers, "sync.per_peer", per_peer)
        use_stores(found, known, phase)
        if schedule.protocol in SELF_ANNOUNCING:
            return
        flight = (cost.mean if phase.steps > 1 else cost.flag).times(times)
        found.use("sync", fence.value * _fences(schedule, phase), "sync.fence", fence)
        found.fly("sync", flight)
        if schedule.protocol == SIGNAL_PADS:
            ends = known[READ_ENDS]
            found.fly("sync", flight)
            found.use("sync", ends.value * times, READ_ENDS, ends)

    def _hop(self, schedule: Schedule, phase: Phase, cost: Cost) -> str:
        word = "tree" if phase.label in {"chain", "tree"} else "ring"
        return f"nccl.hop.{word}.{schedule.protocol}.{cost.kind}"

    def _base(self, found: Terms, schedule: Schedule, kind: str) -> None:
        name = f"nccl.base.{schedule.protocol}"
        names = (f"{name}.{kind}{self.nvlink}", f"{name}.{kind}", name)
        if schedule.protocol in NCCL_PROTOCOLS and any(phase.flows for phase in schedule.phases):
            name = next(one for one in names if self.parameters.get(one) or one == names[-1])
            base = self.parameters[name]
            found.use("protocol", base.value, name, base)


def predict(
    schedule: Schedule,
    topology: Topology,
    parameters: Parameters | None = None,
    *,
    mode: Mode = Mode.GRAPH,
    ranks: int | None = None,
    chained: bool = True,
) -> Prediction:
    """Predict one schedule; see `Model`, which is quicker for several.

    Raises:
        TopologyError: fewer GPUs than ranks, ranks without a route, PCIe links that form a cycle.
        InvalidError: more flows in one phase than the model takes.
    """
    return Model(topology, parameters, ranks).predict(schedule, mode, chained=chained)


def _fences(schedule: Schedule, phase: Phase) -> int:
    """Synchronisations of a phase before which a rank waits for its own writes."""
    return 0 if schedule.protocol in SELF_ANNOUNCING else phase.syncs if phase.fences is None else phase.fences


def _shared_sync(found: Terms, known: Parameters, schedule: Schedule, phase: Phase, ranks: int) -> None:
    """Synchronisations through one GPU's memory; some protocols have parameters of their own."""
    word = "announced" if schedule.protocol in SELF_ANNOUNCING else schedule.protocol

    def own(name: str) -> tuple[str, Parameter]:
        names = [f"shared_gpu.{name}.{word}", f"shared_gpu.{name}"]
        return next((one, known[one]) for one in names if known.get(one))

    flag, per_peer = own("flag"), own("per_peer")
    fence = launches.fence_name(ranks, behind_data=schedule.protocol == BARRIERS)
    peers = 1 if phase.steps > 1 else most_partners((flow.src, flow.dst) for flow in phase.flows)
    found.use("sync", flag[1].value * phase.syncs, *flag)
    found.use("sync", per_peer[1].value * phase.syncs * peers, *per_peer)
    fences = _fences(schedule, phase)
    if fences:
        found.use("sync", known[fence].value * fences, fence, known[fence])
    use_stores(found, known, phase)


def _most_sent(flows: Iterable[Flow]) -> float:
    """Bytes that the busiest rank sends."""
    sent = Counter[int]()
    for flow in flows:
        sent[flow.src] += math.ceil(flow.bytes)
    return max(sent.values(), default=0)


def shared_gpu(schedule: Schedule, ranks: int, parameters: Parameters | None = None) -> Prediction | None:
    """Prediction for one of a chain of calls of `ranks` ranks on one GPU, captured in a graph; no links.

    None where the protocol has no parameters there.
    """
    known = parameters or priors()
    nccl = schedule.protocol in NCCL_PROTOCOLS
    found = Terms()

    def use(term: str, name: str, cost: float) -> None:
        """`cost` times a parameter; a rate divides."""
        parameter = known[name]
        us = cost / parameter.value / 1e3 if "gbps" in name else cost * parameter.value
        found.use(term, us, name, parameter)

    launches.use_launches(found, known, launch_name(ranks), schedule)
    if not nccl:  # its hops there were measured with them
        use_ends(found, known, launch_name(ranks), schedule)
    for phase in (phase for phase in schedule.phases if phase.flows):
        word = "tree" if phase.label in {"chain", "tree"} else "ring"
        hop = f"shared_gpu.nccl.hop.{word}.{schedule.protocol}"
        if nccl and known.get(hop) is None:
            return None
        if nccl:
            use("protocol", hop, phase.steps)
        else:
            _shared_sync(found, known, schedule, phase, ranks)
            use_own_reads(found, known, phase.turns - 1)  # the first is within the ends of its kernel
    use_own_reads(found, known, schedule.own_reads)
    if nccl:
        use("protocol", f"nccl.base.{schedule.protocol}", 1)
        every = [flow for phase in schedule.phases for flow in phase.flows]
        use("protocol", f"shared_gpu.nccl.gbps.{schedule.protocol}", _most_sent(every) * schedule.wire_factor)
    else:
        moved = sum(flow.bytes for phase in schedule.phases for flow in phase.flows) * schedule.wire_factor
        use("reduce", "shared_gpu.memory_gbps", moved)
    return found.result(None, ())
