"""Degraded states of a fabric: each with its test, threshold, evidence and remedy. Run before anything is fitted.

Thresholds are those of a study of published measurements (docs/model/README.md): states below them cost factors of 3 to
20, which no sharing of links reaches. A state whose test was not run is `untested`, never `absent`.
"""

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collbench.contention.findings import Evidence, Finding, Regime, State
from collbench.results.records import Fabric, Samples, Status
from collbench.topology.graph import LinkKind, NodeKind, Topology, TopologyError
from collbench.topology.pcie import payload_gbps

__all__ = [
    "CANNOT", "COLLAPSE_ROOTS", "NO_LINKS", "ONE_TARGET", "REGIMES", "Evidence", "Finding", "Regime", "State", "detect",
    "entry_skew", "of_cell", "root_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Detector:
    """`worst` gives the ratio that counts and where it was seen, or why nothing was tested."""

    regime: Regime
    worst: Callable[[Evidence], tuple[float, str] | str]
    links: bool = True

    def run(self, evidence: Evidence) -> Finding:
        if self.links and evidence.fabric in {Fabric.HOST, Fabric.SHARED_GPU}:
            return Finding(self.regime, State.UNTESTED, f"{NO_LINKS} on {evidence.fabric}")
        found = self.worst(evidence)
        if isinstance(found, str):
            return Finding(self.regime, State.UNTESTED, found)
        value, where = found
        bad = value > self.regime.threshold if self.regime.above else value < self.regime.threshold
        return Finding(self.regime, State.PRESENT if bad else State.ABSENT, where, value)


def detect(evidence: Evidence) -> list[Finding]:
    """All detectors, in fixed order."""
    return [one.run(evidence) for one in _DETECTORS]


def entry_skew(latency_us: Sequence[Sequence[float]]) -> float:
    """Spread of ranks' times within an iteration as a part of the slowest one's, median over iterations."""
    spreads = [(max(times) - min(times)) / max(times) for times in zip(*latency_us, strict=True) if max(times) > 0]
    return statistics.median(spreads) if spreads else 0.0


NO_LINKS = "ranks share no links"
"""Why nothing is tested on processors and on a shared GPU."""

COLLAPSE_ROOTS = 3
"""Root ports that writes collapse between: one to write from, two to write to at once."""

CANNOT = "it cannot be here"
"""How a finding begins of a state that such a machine cannot show, whatever is measured."""

ONE_TARGET = f"{CANNOT}: it takes writes from below one root port to two others at once"
"""Why a machine with fewer cannot be tested for the collapse of writes, nor show it."""


def _staging(evidence: Evidence) -> tuple[float, str] | str:
    loads, copies = evidence.solo("load"), evidence.solo("copy")
    ratios = [(loads[flow] / copies[flow], flow) for flow in loads.keys() & copies.keys()]
    if not ratios:
        return "no pair of ranks with both a load and a copy alone: run collbench probe"
    ratio, (src, dst) = min(ratios)
    return ratio, f"rank {dst} reads rank {src}: {loads[src, dst]:.1f} GB/s by loads, {copies[src, dst]:.1f} by copies"


def _collapse(evidence: Evidence) -> tuple[float, str] | str:
    found = []
    for mechanism in ("store", "copy"):
        for count in (2, 4):
            name = f"bandwidth.{mechanism}"
            one, two = (evidence.value(name, f"{count}_below_{w}") for w in ("one_root", "two_roots"))
            if one and two:
                found.append((two / one, f"{count} {mechanism} flows: {two:.1f} GB/s to two roots, {one:.1f} to one"))
    if found:
        return min(found)
    roots = {root_of(evidence.topology, rank) for rank in range(len(evidence.topology.gpus))}
    if "" not in roots and 0 < len(roots) < COLLAPSE_ROOTS:
        return f"{ONE_TARGET}, and the GPUs lie below {len(roots)} root port{'s' if len(roots) > 1 else ''}"
    return "no writes from below one root port to two others: run collbench probe"


def root_of(topology: Topology, rank: int) -> str:
    """The root port above a rank's GPU, empty where the topology has none."""
    gpus, sockets = topology.gpus, topology.sockets
    if rank >= len(gpus):
        return ""
    for socket in sockets:
        try:
            route = topology.route(gpus[rank], socket)
        except TopologyError:
            continue
        return next((link.dst for link in route if topology.node(link.dst).kind is NodeKind.ROOT_PORT), "")
    return ""


def _read_fan_in(evidence: Evidence) -> tuple[float, str] | str:
    solo = evidence.solo("load")
    for pattern in ("all_to_all_4", "all_to_all"):
        probe = next(
            (p for p in evidence.probes if p.name == "bandwidth.load" and p.pattern == pattern and p.value), None
        )
        near = [solo[flow] for flow in solo if probe and flow in probe.flows]
        if probe and probe.value and near:
            readers = len({dst for _, dst in probe.flows})
            if readers <= _PAIR:
                return f"{CANNOT}: with {readers} ranks nobody reads from two peers at once"
            if pattern == "all_to_all" and readers > _DENSE_RANKS:
                return f"{readers} ranks without four below one switch: shared links would look the same"
            share = probe.value / readers
            return share / max(near), f"{pattern}: {share:.1f} GB/s into each rank, {max(near):.1f} alone"
    return "no loads between all pairs, or none alone: run collbench probe"


_DENSE_RANKS, _PAIR = 4, 2


def _redirect(evidence: Evidence) -> tuple[float, str] | str:
    where = {gpu: number for number, group in enumerate(evidence.topology.groups) for gpu in group}
    gpus = evidence.topology.gpus
    solo, found = evidence.solo("copy") or evidence.solo("store"), []
    name = "bandwidth.copy" if evidence.solo("copy") else "bandwidth.store"
    for probe in evidence.probes:
        if probe.name != name or probe.pattern != "both_ways" or not probe.value or not probe.flows:
            continue
        a, b = probe.flows[0]
        both = [solo.get((a, b)), solo.get((b, a)) or solo.get((a, b))]
        if max(a, b) < len(gpus) and where.get(gpus[a], -1) == where.get(gpus[b], -2) and all(both):
            alone = sum(one or 0.0 for one in both)
            found.append(
                (probe.value / alone, f"ranks {a} and {b}: {probe.value:.1f} GB/s both ways, {alone:.1f} in turn")
            )
    return min(found) if found else "no two ranks below one switch were measured both ways"


def _downtrained(evidence: Evidence) -> tuple[float, str] | str:
    found = []
    for (src, dst), gbps in evidence.solo("copy").items():
        limit = _limit(evidence.topology, src, dst)
        if limit:
            found.append((gbps / limit[0], f"rank {src} to {dst}: {gbps:.1f} GB/s, {limit[1]} carries {limit[0]:.1f}"))
    found += _under_load(evidence)
    return min(found) if found else "no copy alone, and no link seen under load, of known generation and width"


def _under_load(evidence: Evidence) -> Iterator[tuple[float, str]]:
    """The best state in which each rank's own link was seen in any cell, against what card and slot can do."""
    gpus = evidence.topology.gpus
    links = {link.dst: link for link in evidence.topology.links if link.kind is LinkKind.PCIE and link.dst in gpus}
    for rank, gpu in enumerate(gpus):
        link = links.get(gpu)
        most = payload_gbps(link.generation, link.width) if link else None
        seen = [state for text in evidence.texts.values() if (state := _link_state(text, rank))]
        rates = [(rate, state) for state in seen if (rate := payload_gbps(*state))]
        if link and most and rates:
            rate, (generation, width) = max(rates)
            yield (
                rate / most,
                f"rank {rank}: Gen{generation} x{width} under load, Gen{link.generation} x{link.width} at best",
            )


def _link_state(text: Mapping[str, str], rank: int) -> tuple[int, int] | None:
    """Generation and width that NVML told of a rank's link; what differs from rank 0 stands as `name@rank`."""
    words = [text.get(f"{name}@{rank}", text.get(name, "")) for name in ("pcie_generation_now", "pcie_width_now")]
    return (int(words[0]), int(words[1])) if all(word.isdecimal() for word in words) else None


def _limit(topology: Topology, src: int, dst: int) -> tuple[float, str] | None:
    gpus = topology.gpus
    if max(src, dst) >= len(gpus):
        return None
    try:
        links = topology.route(gpus[src], gpus[dst])
    except TopologyError:
        return None
    if any(link.kind not in {LinkKind.PCIE, LinkKind.SOCKET, LinkKind.MEMORY} for link in links):
        return None
    if any(link.kind is LinkKind.SOCKET for link in links):
        return None  # processors' own links limit such copies, and nobody publishes a formula
    known = [(payload, link.link_class) for link in links if (payload := payload_gbps(link.generation, link.width))]
    return min(known) if known else None


_TRANSPORT = re.compile(r"(\d+)->(\d+) (SHM|NET)[^;]*")


def _transport(evidence: Evidence) -> tuple[float, str] | str:
    told = [text["pairs"] for text in evidence.texts.values() if text.get("pairs")]
    if not told:
        return evidence.lost or "no cell of NCCL in the run has a log: run collbench sweep --algorithms nccl"
    bad = sorted({match[0] for text in told for match in _TRANSPORT.finditer(text)})
    return float(len(bad)), "; ".join(bad[:4]) or f"P2P in {len(told)} cells"


def _skew(evidence: Evidence) -> tuple[float, str] | str:
    """Of half of the cells: one noisy cell among hundreds is no state of the fabric; chains apart from single calls."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    for s in evidence.samples:
        if len(s.latency_us) > 1:
            kind = "chains" if s.calls > 1 else "single calls"
            ratios.setdefault(kind, []).append((entry_skew(s.latency_us), s.cell_id))
    if not ratios:
        return "no samples of several ranks: run collbench sweep"
    middles = {kind: statistics.median(ratio for ratio, _ in some) for kind, some in ratios.items()}
    told = [
        f"the middle one of {len(some)} cells of {kind} has ranks' times {middles[kind]:.0%} apart"
        for kind, some in ratios.items()
    ]
    if len({one.cell_id for one in evidence.samples}) == 1:
        return max(middles.values()), f"this cell's ranks' times are {max(middles.values()):.0%} apart"
    worst, cell_id = max(one for some in ratios.values() for one in some)
    return max(middles.values()), f"{', '.join(told)}, {cell_id} {worst:.0%}"


def of_cell(findings: Sequence[Finding], samples: Sequence[Samples], cell_id: str) -> list[Finding]:
    """The findings of a run for one of its cells: whether ranks came late there, its own samples tell."""
    own = [one for one in samples if one.cell_id == cell_id and len(one.latency_us) > 1]
    return [
        _SKEWED.run(Evidence(samples=own)) if own and one.regime == _SKEWED.regime.name else one for one in findings
    ]


def _wrong(evidence: Evidence) -> tuple[float, str] | str:
    if not evidence.samples:
        return "no samples: run collbench sweep"
    bad = [s for s in evidence.samples if s.status is Status.WRONG]
    return float(len(bad)), "; ".join(f"{s.cell_id}: {s.reason}" for s in bad[:3]) or "every verified cell is right"


def _order(evidence: Evidence) -> tuple[float, str] | str:
    looked = [p for p in evidence.probes if p.name == "litmus_message" and p.value is not None]
    if not looked:
        host = "--host " if evidence.fabric is Fabric.HOST else ""
        return f"no litmus in the run: run collbench probe {host}--litmus"
    bad = [f"rank {p.src} to {p.dst}" for p in looked if p.value]
    return float(len(bad)), ", ".join(bad[:8]) or f"{len(looked)} pairs keep the order"


_SKEWED = _Detector(Regime(
    "entry skew", "spread of the ranks' own times within an iteration, as a part of the slowest one's", 0.2,
    "pin ranks to cores of their own, and trust chains before single calls",
    above=True, command="collbench sweep",
), _skew, links=False)  # fmt: skip

_DETECTORS = (
    _Detector(Regime(
        "staging through system memory", "loads from one peer, against a copy engine between the same ranks", 0.2,
        "set the driver's peer-to-peer option for GPUs without a common switch (ForceP2P), or prefer NCCL there",
    ), _staging),
    _Detector(Regime(
        "posted-write collapse", "writes from below one root port to two others, against the same to one other", 0.5,
        "send to one root port at a time (staged_ring, islands), or update driver, kernel and firmware",
    ), _collapse),
    _Detector(Regime(
        "read fan-in", "loads between all pairs of four ranks, into each of them, against one pair alone", 0.4,
        "prefer algorithms that push",
    ), _read_fan_in),
    _Detector(Regime(
        "ACS redirect", "both directions below one switch at once, against each alone", 0.65,
        "clear ACS redirection on root ports and on the switches' downstream ports",
    ), _redirect),
    _Detector(Regime(
        "downtrained link", "one copy alone, or a link under load, against what generation and width carry", 0.8,
        "look at LnkSta and LnkCap under load (lspci -vv): reseat the card, check riser and BIOS",
    ), _downtrained),
    _Detector(Regime(
        "NCCL on shared memory or the network", "pairs of ranks that NCCL's log puts on SHM or NET", 0.0,
        "NCCL_P2P_LEVEL=SYS where peer access works, or repair peer access",
        above=True, command="collbench sweep --algorithms nccl",
    ), _transport),
    _SKEWED,
    _Detector(Regime(
        "wrong result", "cells whose answers, checked within the timed run, were wrong", 0.0,
        "do not compare times of wrong answers; run collbench probe --litmus", above=True, command="collbench sweep",
    ), _wrong, links=False),
    _Detector(Regime(
        "memory order", "pairs of ranks on which a flag overtakes its data (litmus)", 0.0,
        "kernels that rest on fences cannot be trusted here: use NCCL and report driver and switches",
        above=True, command="collbench probe --litmus",
    ), _order, links=False),
)  # fmt: skip

REGIMES = {detector.regime.name: detector.regime for detector in _DETECTORS}
"""Every degraded state by its name, in the order of the detectors."""
