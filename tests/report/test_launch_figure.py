"""The cost of launching: differences that were put in are told in microseconds."""

from typing import Any

from collbench.report.canvas import COLOURS
from collbench.report.figure import MOST_CURVES
from collbench.report.launch_figure import launch_figure
from collbench.report.svg import Styles
from collbench.results.probes import Probe


def _row(algorithm: str, mode: str, calls: int, us: float, size: int = 1024) -> dict[str, Any]:
    fields = {"variant": "", "epilogue": "", "skew": "", "bytes": size}
    return fields | {"algorithm": algorithm, "mode": mode, "calls": calls, "p50_us": us}


def _four(algorithm: str, base: float, eager: float) -> list[dict[str, Any]]:
    times = {("eager", 1): base + 2 + eager, ("graph", 1): base + 2, ("eager", 122): base + eager, ("graph", 122): base}
    return [_row(algorithm, mode, calls, us) for (mode, calls), us in times.items()]


def _drawn(rows: list[dict[str, Any]], probes: tuple[Probe, ...] = ()) -> Any:
    return launch_figure(rows, probes, Styles(COLOURS))["launch_figure"]


def test_costs_are_told_in_microseconds() -> None:
    drawn = _drawn([*_four("a", 5.0, 4.0), *_four("b", 9.0, 6.0)], (Probe("launch", value=2.29),))

    assert drawn.finding == (
        "Eager over captured, one call alone: +4.00 us (a) to +6.00 us (b); "
        "eager over captured, a call of a chain: +4.00 us (a) to +6.00 us (b); "
        "one call alone over a call of a chain: +2.00 us (a) to +2.00 us (b); "
        "an empty kernel in a graph, by the run's probe: 2.29 us."
    )
    assert drawn.table.lines[0] == ["a", "1K", "11.0", "7.00", "9.00", "5.00", "+4.00", "+4.00"]
    assert drawn.svg.count("<title>") == 8
    assert [key.name for key in drawn.legend] == [
        "one call, eager", "one call, captured", "chain, eager", "chain, captured",
    ]  # fmt: skip


def test_one_mode_alone_compares_cadences_only() -> None:
    drawn = _drawn([_row("a", "eager", 1, 20.0), _row("a", "eager", 8, 30.0)])

    assert drawn.finding == "One call alone over a call of a chain: -10.0 us (a)."
    assert len(drawn.legend) == 2


def test_more_algorithms_than_fit_are_counted() -> None:
    drawn = _drawn([row for i in range(MOST_CURVES + 3) for row in _four(f"a{i}", 5.0 + i, 4.0)])

    assert len(drawn.table.lines) == MOST_CURVES
    assert "3 more stand in the table" in drawn.note


def test_nothing_to_compare_draws_nothing() -> None:
    assert _drawn([_row("a", "eager", 1, 5.0)]) is None
