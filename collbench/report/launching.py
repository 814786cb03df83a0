"""Eager against captured, and one call against a chain: what launching costs, by algorithm and size."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collbench.results.records import Mode
from collbench.results.summary import clean
from collbench.units import format_bytes, format_us

__all__ = ["MOST_LINES", "Four", "four_times", "launching"]

MOST_LINES = 60
_ENOUGH = 2


@dataclass(frozen=True, slots=True)
class Four:
    """Medians of one algorithm and size in us per call, None where there is no such cell; `calls` of the chain."""

    algorithm: str
    bytes: int
    calls: int
    times: Mapping[tuple[str, bool], float]

    def get(self, mode: Mode, *, chained: bool) -> float | None:
        """Time in that mode and cadence."""
        return self.times.get((str(mode), chained))


def launching(rows: Iterable[Mapping[str, Any]], crowding: str = "") -> dict[str, Any]:
    """`launching` for the template: findings and lines; None where a run has one mode and one cadence only.

    `crowding` says that ranks took turns on too few hardware threads, which hides the cost of launching.
    """
    found = [four for four in four_times(rows) if len(four.times) >= _ENOUGH]
    if not found:
        return {"launching": None}
    smallest = {four.algorithm: four for four in sorted(found, key=lambda four: -four.bytes)}
    lines = [_line(four) for four in found[:MOST_LINES]]
    findings = _findings(list(smallest.values()))
    if crowding:
        findings.append(f"{crowding}: what differs here is mostly waiting for turns, not the cost of launching.")
    return {"launching": {
        "findings": findings, "lines": lines, "more": max(0, len(found) - MOST_LINES),
    }}  # fmt: skip


def four_times(rows: Iterable[Mapping[str, Any]]) -> list[Four]:
    """By algorithm in the order of the plan, then by size; of several chains the longest."""
    times: dict[tuple[str, int], dict[tuple[str, bool], float]] = {}
    longest: dict[tuple[str, int, str], int] = {}
    for row in rows:
        if row["p50_us"] is None or row["epilogue"] or row["skew"]:
            continue
        name = " ".join(filter(None, (clean(row["algorithm"]), clean(row["variant"]))))
        chained = row["calls"] > 1
        key = (name, row["bytes"], row["mode"])
        if chained and row["calls"] < longest.get(key, 0):
            continue
        longest[key] = max(longest.get(key, 1), row["calls"])
        times.setdefault((name, row["bytes"]), {})[row["mode"], chained] = row["p50_us"]
    return [
        Four(name, size, max(longest.get((name, size, mode), 1) for mode in Mode), some)
        for (name, size), some in times.items()
    ]


def _line(four: Four) -> dict[str, str]:
    eager, graph = four.get(Mode.EAGER, chained=False), four.get(Mode.GRAPH, chained=False)
    eager_k, graph_k = four.get(Mode.EAGER, chained=True), four.get(Mode.GRAPH, chained=True)
    alone, chained = _pair(four)
    return {
        "algorithm": four.algorithm, "bytes": format_bytes(four.bytes), "calls": str(four.calls),
        "eager": _us(eager), "graph": _us(graph), "saved": _ratio(eager, graph), "eager_k": _us(eager_k),
        "graph_k": _us(graph_k), "saved_k": _ratio(eager_k, graph_k), "chain": _ratio(alone, chained),
    }  # fmt: skip


def _pair(four: Four) -> tuple[float | None, float | None]:
    """One call alone and a call of a chain in one mode, captured where both were."""
    for mode in (Mode.GRAPH, Mode.EAGER):
        alone, chained = four.get(mode, chained=False), four.get(mode, chained=True)
        if alone and chained:
            return alone, chained
    return None, None


def _findings(smallest: Sequence[Four]) -> list[str]:
    """Sentences at each algorithm's smallest size: what capturing and what chaining is worth."""
    told = []
    for chained, what in ((False, "one call"), (True, "a call of a chain")):
        both = [(f, f.get(Mode.EAGER, chained=chained), f.get(Mode.GRAPH, chained=chained)) for f in smallest]
        ratios = sorted((e / g, f.algorithm) for f, e, g in both if e and g)
        if ratios:
            told.append(f"At the smallest size {what} takes {_span(ratios)} times as long eager as captured.")
    pairs = [(f, *_pair(f)) for f in smallest]
    ratios = sorted((one / many, f.algorithm) for f, one, many in pairs if one and many)
    if ratios:
        told.append(f"At the smallest size a call alone takes {_span(ratios)} times as long as a call of a chain.")
    return told


def _span(ratios: Sequence[tuple[float, str]]) -> str:
    (low, first), (high, last) = ratios[0], ratios[-1]
    if format_us(low) == format_us(high):
        return format_us(low)
    return f"{format_us(low)} ({first}) to {format_us(high)} ({last})"


def _us(value: float | None) -> str:
    return format_us(value) if value is not None else ""


def _ratio(slow: float | None, fast: float | None) -> str:
    return f"{format_us(slow / fast)}x" if slow and fast else ""
