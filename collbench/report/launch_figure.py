"""Draws what launching costs: each algorithm eager and captured, alone and in a chain."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from collbench.report.canvas import CURVES, Drawn, Key, Table, glyph, named_rows, picture
from collbench.report.figure import MOST_CURVES
from collbench.report.launching import Four, four_times
from collbench.report.svg import Styles
from collbench.report.ticks import log_axis
from collbench.results.probes import Probe
from collbench.results.records import Mode
from collbench.units import format_bytes, format_us

__all__ = ["launch_figure"]

_LEAST_TIMES = 2
_KINDS = (
    ("one call, eager", Mode.EAGER, False), ("one call, captured", Mode.GRAPH, False),
    ("chain, eager", Mode.EAGER, True), ("chain, captured", Mode.GRAPH, True),
)  # fmt: skip
_LOOKS = {(Mode.EAGER, False): (9, "D"), (Mode.GRAPH, False): (0, "o"), (Mode.EAGER, True): (1, "v"),
          (Mode.GRAPH, True): (3, "s")}  # fmt: skip
"""Colour and marker of each kind."""


def launch_figure(rows: Iterable[Mapping[str, Any]], probes: Sequence[Probe], styles: Styles) -> dict[str, Any]:
    """`launch_figure` for the template: the smallest size of each algorithm; None where there is nothing to compare."""
    found = [four for four in four_times(rows) if len(four.times) >= _LEAST_TIMES]
    smallest = {four.algorithm: four for four in sorted(found, key=lambda four: -four.bytes)}
    shown = sorted(smallest.values(), key=lambda four: (min(four.times.values()), four.algorithm))[:MOST_CURVES]
    if not shown:
        return {"launch_figure": None}
    finding = _finding(shown, probes)
    kinds = [kind for kind in _KINDS if any(four.get(kind[1], chained=kind[2]) for four in shown)]
    titles: dict[str, list[str]] = {}
    size = (7.4, 0.8 + 0.33 * len(shown))
    svg = picture(partial(_paint, shown, titles), size, "launch-", styles, finding, titles)
    keys = [Key(name, _LOOKS[mode, chained][0], glyph(_LOOKS[mode, chained][1])) for name, mode, chained in kinds]
    sizes = {four.bytes for four in shown}
    title = f"At {format_bytes(sizes.pop())}" if len(sizes) == 1 else "At each algorithm's smallest size"
    more = len(smallest) - len(shown)
    note = f"The {MOST_CURVES} fastest; {more} more stand in the table of all sizes." if more else ""
    return {"launch_figure": Drawn(
        title, finding, svg, _table(shown), note, keys, "How a call is launched",
        "microseconds per call, logarithmic",
    )}  # fmt: skip


def _saved(four: Four, *, chained: bool) -> float | None:
    """Microseconds per call that capturing takes away."""
    eager, graph = four.get(Mode.EAGER, chained=chained), four.get(Mode.GRAPH, chained=chained)
    return eager - graph if eager is not None and graph is not None else None


def _finding(shown: Sequence[Four], probes: Sequence[Probe]) -> str:
    parts = []
    for chained, what in ((False, "one call alone"), (True, "a call of a chain")):
        saved = sorted((us, four.algorithm) for four in shown if (us := _saved(four, chained=chained)) is not None)
        if saved:
            (low, first), (high, last) = saved[0], saved[-1]
            span = f"{_signed(low)} us ({first})" + (f" to {_signed(high)} us ({last})" if len(saved) > 1 else "")
            parts.append(f"eager over captured, {what}: {span}")
    alone = [
        (one - many, four.algorithm)
        for four in shown
        for mode in (Mode.GRAPH if four.get(Mode.GRAPH, chained=False) else Mode.EAGER,)
        if (one := four.get(mode, chained=False)) and (many := four.get(mode, chained=True))
    ]
    if alone:
        (low, first), (high, last) = min(alone), max(alone)
        span = f"{_signed(low)} us ({first})" + (f" to {_signed(high)} us ({last})" if len(alone) > 1 else "")
        parts.append(f"one call alone over a call of a chain: {span}")
    probe = next((p.value for p in probes if p.name == "launch" and p.value), None)
    if probe is not None:
        parts.append(f"an empty kernel in a graph, by the run's probe: {format_us(probe)} us")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _paint(shown: Sequence[Four], titles: dict[str, list[str]], figure: Any) -> None:  # noqa: ANN401 - matplotlib has no types
    axes = named_rows(figure, [four.algorithm for four in shown])
    for y, four in enumerate(shown):
        for chained in (False, True):
            _pair(axes, y + (0.17 if chained else -0.17), four, titles, chained=chained)
    axes.set_xscale("log")
    log_axis(axes, "x")


def _pair(axes: Any, y: float, four: Four, titles: dict[str, list[str]], *, chained: bool) -> None:  # noqa: ANN401 - same
    times = [(mode, us) for mode in (Mode.EAGER, Mode.GRAPH) if (us := four.get(mode, chained=chained))]
    if len(times) > 1:
        axes.plot(
            [us for _, us in times], [y, y], color=CURVES[_LOOKS[Mode.GRAPH, chained][0]], linewidth=1.0, zorder=2
        )
    for mode, us in times:
        colour, marker = _LOOKS[mode, chained]
        name = f"time{len(titles)}"
        axes.plot(
            [us], [y], marker=marker, markersize=5.5, color=CURVES[colour], markeredgewidth=0, linestyle="none",
            zorder=3, gid=name,
        )  # fmt: skip
        calls = f"a call of {four.calls}" if chained else "one call"
        titles[name] = [f"{four.algorithm}, {four.bytes} bytes, {mode}, {calls}: {format_us(us)} us"]


def _table(shown: Sequence[Four]) -> Table:
    columns = [("algorithm", False), ("bytes", True), *((name, True) for name, *_ in _KINDS)]
    columns += [("eager over captured, us", True), ("in a chain, us", True)]
    lines = []
    for four in shown:
        times = [four.get(mode, chained=chained) for _, mode, chained in _KINDS]
        saved = [_saved(four, chained=chained) for chained in (False, True)]
        lines.append([
            four.algorithm, format_bytes(four.bytes), *("" if us is None else format_us(us) for us in times),
            *("" if us is None else _signed(us) for us in saved),
        ])  # fmt: skip
    return Table("Microseconds per call by how it is launched", columns, lines)


def _signed(us: float) -> str:
    return f"{'+' if us >= 0 else '-'}{format_us(abs(us))}"
