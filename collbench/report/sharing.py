"""What links carry alone and together, from the run's own probes, and which degraded states they show."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from collbench.contention.findings import Finding, State
from collbench.measure.probe_plan import pair_class
from collbench.report.canvas import CURVES, MARKERS, Drawn, Key, Table, glyph, named_rows, picture
from collbench.report.predicted import Predicted
from collbench.report.svg import Styles
from collbench.report.ticks import log_axis
from collbench.results.private import public
from collbench.results.probes import SEVERAL, Probe
from collbench.results.records import Fabric
from collbench.topology.graph import Topology

__all__ = ["LEVELS", "MOST_PROBES", "sharing"]

LEVELS = 8
"""Shades of a matrix."""

MOST_PROBES = 400
"""Lines of the table of probes; more are counted."""

_LEAST_PAIRS = 3
_ALIKE = 1.1
_MOST_RANKS = 32
_MECHANISMS = ("copy", "store", "load")
_WORDS = {"copy": "copy engines", "store": "stores of multiprocessors", "load": "loads of multiprocessors"}
_HOST_WORDS = _WORDS | {"store": "stores", "load": "loads"}


@dataclass(frozen=True, slots=True)
class _Together:
    """Several flows at once: GB/s of all, and the sum of what the same flows carry alone, 0 where that is unknown."""

    mechanism: str
    pattern: str
    flows: int
    gbps: float
    alone_gbps: float

    @property
    def part(self) -> float:
        """What is left of it together; 0 where it is unknown."""
        return self.gbps / self.alone_gbps if self.alone_gbps else 0.0


def sharing(told: Predicted, styles: Styles) -> dict[str, Any]:
    """`sharing` and `regimes` for the template, and `warnings_found`: degraded states that are present, a line each.

    Ranks on processors have no links to share: bytes of theirs together are a number of turns, not of contention.
    """
    probes = [probe for probe in told.evidence.probes if probe.value is not None]
    links = told.run.fabric is not Fabric.HOST
    words = _WORDS if told.evidence.topology.gpus else _HOST_WORDS
    together = _together(probes, told.evidence.topology) if links else []
    shown = {
        "links": links,
        "matrices": [one for one in (_alone(probes, words) if links else None, _flags(probes)) if one],
        "figure": _figure(together, words, styles) if together else None,
        "probes": _table(told.evidence.probes[:MOST_PROBES]) if told.evidence.probes else None,
        "more": max(0, len(told.evidence.probes) - MOST_PROBES),
    }
    present = [one for one in told.findings if one.state is State.PRESENT]
    return {
        "sharing": shown, "regimes": _regimes(told.findings), "regimes_finding": _states(told.findings),
        "warnings_found": [public(f"{one.regime}: {one.line}") for one in present],
    }  # fmt: skip


def _alone(probes: Sequence[Probe], words: Mapping[str, str]) -> dict[str, Any] | None:
    """The matrix of single flows by the mechanism with which most pairs were measured."""
    by = {name: _solo(probes, name) for name in _MECHANISMS}
    name = max(_MECHANISMS, key=lambda one: len(by[one]))
    solo = by[name]
    if len(solo) < _LEAST_PAIRS:
        return None
    low, high = min(solo.values()), max(solo.values())
    alike = "about the same, " if high < _ALIKE * low else ""
    finding = f"Alone, {len(solo)} pairs carry {alike}{_gbps(low)} to {_gbps(high)} GB/s, by {words[name]}."
    return _matrix("Each pair alone, GB/s from the row's rank to the column's", finding, solo, "GB/s")


def _solo(probes: Sequence[Probe], mechanism: str) -> dict[tuple[int, int], float]:
    return {
        (p.src, p.dst): p.value
        for p in probes
        if p.name == f"bandwidth.{mechanism}" and p.pattern == "solo" and p.value
    }


def _flags(probes: Sequence[Probe]) -> dict[str, Any] | None:
    flags = {(p.src, p.dst): p.value for p in probes if p.name == "flag" and p.value}
    if len(flags) < _LEAST_PAIRS:
        return None
    low, high = min(flags.values()), max(flags.values())
    far = max(flags, key=lambda pair: flags[pair])
    finding = (
        f"A flag flies {low:.2f} to {high:.2f} us one way; the longest way is between ranks {far[0]} and {far[1]}."
    )
    return _matrix("Flight of a flag, us one way", finding, flags, "us")


def _matrix(title: str, finding: str, values: Mapping[tuple[int, int], float], unit: str) -> dict[str, Any]:
    ranks = sorted({rank for pair in values for rank in pair})[:_MOST_RANKS]
    top = max(values.values())
    lines = []
    for src in ranks:
        cells = []
        for dst in ranks:
            value = values.get((src, dst))
            text = "" if value is None else _gbps(value)
            shade = "" if value is None else f"h{min(LEVELS - 1, int(value / top * LEVELS))}"
            cells.append(
                {"text": text, "shade": shade, "title": f"rank {src} to {dst}: {value:.4g} {unit}" if value else ""}
            )
        lines.append((src, cells))
    return {"title": title, "finding": finding, "ranks": ranks, "lines": lines}


def _together(probes: Sequence[Probe], topology: Topology) -> list[_Together]:
    found = []
    for mechanism in _MECHANISMS:
        solo = _solo(probes, mechanism)
        alike: dict[str, float] = {}
        for pair, value in solo.items():
            alike.setdefault(pair_class(topology, *pair), value)
        for p in probes:
            if p.name == f"bandwidth.{mechanism}" and len(p.flows) > 1 and p.value:
                alone = [solo.get(pair) or alike.get(pair_class(topology, *pair)) for pair in p.flows]
                total = math.fsum(one for one in alone if one) if all(alone) else 0.0
                found.append(_Together(mechanism, public(p.pattern), len(p.flows), p.value, total))
    return found


def _figure(together: Sequence[_Together], words: Mapping[str, str], styles: Styles) -> Drawn:
    patterns = list(dict.fromkeys((one.pattern, one.flows) for one in sorted(together, key=lambda one: one.flows)))
    finding = _finding(together, words)
    titles: dict[str, list[str]] = {}
    size = (7.4, 0.8 + 0.3 * len(patterns))
    svg = picture(
        partial(_paint, together, patterns, titles), size, "share-", styles, f"Alone and together. {finding}", titles
    )
    used = [name for name in _MECHANISMS if any(one.mechanism == name for one in together)]
    keys = [Key(words[name], _MECHANISMS.index(name), glyph(MARKERS[_MECHANISMS.index(name)])) for name in used]
    note = "Filled: all flows at once. Hollow: the sum of what the same flows carry alone; what lies between is lost."
    return Drawn(
        "Flows together", finding, svg, _numbers(together), note, keys, "By what bytes are moved",
        "GB/s of all flows, logarithmic",
    )  # fmt: skip


def _finding(together: Sequence[_Together], words: Mapping[str, str]) -> str:
    """Of the densest pattern that was measured."""
    most = max(together, key=lambda one: (one.flows, -_MECHANISMS.index(one.mechanism)))
    text = f"{most.flows} flows at once ({most.pattern}) carry {_gbps(most.gbps)} GB/s by {words[most.mechanism]}"
    text += f", {_gbps(most.gbps / most.flows)} each"
    if most.part:
        text += f": {_part(most)} of the {_gbps(most.alone_gbps)} GB/s that they carry one at a time"
    return f"{text}."


def _part(one: _Together) -> str:
    return f"{one.part:.0%}" if one.part >= 0.01 else f"{one.part:.1%}"  # noqa: PLR2004 - below, a percent says too little


def _paint(
    together: Sequence[_Together],
    patterns: Sequence[tuple[str, int]],
    titles: dict[str, list[str]],
    figure: Any,  # noqa: ANN401 - matplotlib has no types
) -> None:
    axes = named_rows(figure, [f"{name.replace('_', ' ')} ({flows})" for name, flows in patterns])
    for number, one in enumerate(together):
        which = _MECHANISMS.index(one.mechanism)
        y, colour = patterns.index((one.pattern, one.flows)) + 0.22 * (which - 1), CURVES[which]
        name = f"flows{number}"
        if one.alone_gbps:
            axes.plot([one.gbps, one.alone_gbps], [y, y], color=colour, linewidth=1.0, zorder=2)
            axes.plot(
                [one.alone_gbps], [y], marker=MARKERS[which], markersize=4.5, markerfacecolor="none", color=colour,
                markeredgewidth=0.9, zorder=3, gid=f"{name}alone",
            )  # fmt: skip
            titles[f"{name}alone"] = [
                f"{one.pattern}, {one.mechanism}: {_gbps(one.alone_gbps)} GB/s one at a time, summed"
            ]
        axes.plot(
            [one.gbps], [y], marker=MARKERS[which], markersize=5.5, color=colour, linestyle="none", zorder=4, gid=name
        )
        titles[name] = [f"{one.pattern}, {one.mechanism}: {_gbps(one.gbps)} GB/s together"]
    axes.set_xscale("log")
    log_axis(axes, "x")


def _numbers(together: Sequence[_Together]) -> Table:
    columns = [
        ("pattern", False), ("by", False), ("flows", True), ("GB/s together", True), ("GB/s each", True),
        ("GB/s alone, summed", True), ("what is left", True),
    ]  # fmt: skip
    lines = [
        [
            one.pattern, one.mechanism, str(one.flows), _gbps(one.gbps), _gbps(one.gbps / one.flows),
            _gbps(one.alone_gbps) if one.alone_gbps else "", _part(one) if one.part else "",
        ]
        for one in together
    ]  # fmt: skip
    return Table("Flows together against the same flows one at a time", columns, lines)


def _table(probes: Sequence[Probe]) -> Table:
    columns = [
        ("probe", False), ("pattern", False), ("src", True), ("dst", True), ("flows", True), ("bytes", True),
        ("value", True), ("unit", False), ("spread", True), ("status", False),
    ]  # fmt: skip
    lines = [
        [
            public(p.name), public(p.pattern), *("" if rank == SEVERAL else str(rank) for rank in (p.src, p.dst)),
            str(len(p.flows) or ""), str(p.bytes or ""), "" if p.value is None else f"{p.value:.4g}", public(p.unit),
            f"{p.spread:.0%}", public(f"{p.status}: {p.reason}" if p.reason else str(p.status)),
        ]
        for p in probes
    ]  # fmt: skip
    return Table("Every probe; spread: between the quartiles, as a part of the median", columns, lines)


def _regimes(findings: Sequence[Finding]) -> Table:
    columns = [
        ("state", False), ("seen", False), ("test", False), ("threshold", False), ("value", True), ("evidence", False),
        ("what to do", False),
    ]  # fmt: skip
    order = {State.PRESENT: 0, State.ABSENT: 1, State.UNTESTED: 2}
    lines = [
        [
            one.regime, str(one.state), one.of.test, one.of.flag, "" if one.value is None else f"{one.value:.2g}",
            public(one.evidence), one.remedy,
        ]
        for one in sorted(findings, key=lambda one: order[one.state])
    ]  # fmt: skip
    return Table("Degraded states of the fabric", columns, lines)


def _states(findings: Sequence[Finding]) -> str:
    by = {state: [one.regime for one in findings if one.state is state] for state in State}
    present = by[State.PRESENT]
    parts = [f"Degraded states found: {', '.join(present)}" if present else "No degraded state was found"]
    parts += [f"tested and absent: {', '.join(by[State.ABSENT])}"] if by[State.ABSENT] else []
    parts += [f"{len(by[State.UNTESTED])} could not be tested in this run"] if by[State.UNTESTED] else []
    return f"{'; '.join(parts)}."


def _gbps(value: float) -> str:
    """Three digits, no exponent: `0.653`, `56.0`, `3018`."""
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{max(0, digits)}f}"
