"""Eager against captured, one call against a chain."""

from typing import Any

from collbench.report.launching import MOST_LINES, launching


def row(mode: str, calls: int, us: float | None, **other: Any) -> dict[str, Any]:
    """A row of the table, as far as the section reads it."""
    fields = {"algorithm": "a", "variant": "", "bytes": 1024, "epilogue": "", "skew": ""}
    return fields | {"mode": mode, "calls": calls, "p50_us": us} | other


def test_ratios_are_of_medians() -> None:
    """Eager over captured, alone and in a chain, and one call over a call of a chain in the captured mode."""
    rows = [row("eager", 1, 12.0), row("graph", 1, 6.0), row("eager", 122, 9.0), row("graph", 122, 3.0)]
    found = launching(rows)["launching"]
    (line,) = found["lines"]
    assert (line["saved"], line["saved_k"], line["chain"], line["calls"]) == ("2.00x", "3.00x", "2.00x", "122")
    assert found["findings"] == [
        "At the smallest size one call takes 2.00 times as long eager as captured.",
        "At the smallest size a call of a chain takes 3.00 times as long eager as captured.",
        "At the smallest size a call alone takes 2.00 times as long as a call of a chain.",
    ]


def test_modes_are_never_mixed() -> None:
    """A captured call alone is not set against an eager chain."""
    rows = [row("graph", 1, 6.0), row("eager", 122, 9.0)]
    (line,) = launching(rows)["launching"]["lines"]
    assert (line["chain"], line["saved"]) == ("", "")


def test_of_several_chains_the_longest_counts_whatever_the_order() -> None:
    chains = [row("graph", 8, 5.0), row("graph", 122, 3.0)]
    for some in (chains, chains[::-1]):
        (line,) = launching([row("graph", 1, 6.0), *some])["launching"]["lines"]
        assert (line["graph_k"], line["calls"]) == ("3.00", "122")


def test_extremes_are_named_at_each_algorithms_smallest_size() -> None:
    rows = [
        row("eager", 1, 2.0),
        row("graph", 1, 1.0),
        row("eager", 1, 9.0, bytes=4096),
        row("graph", 1, 1.0, bytes=4096),
    ]
    rows += [row("eager", 1, 6.0, algorithm="b"), row("graph", 1, 2.0, algorithm="b")]
    told = launching(rows)["launching"]["findings"]
    assert told == ["At the smallest size one call takes 2.00 (a) to 3.00 (b) times as long eager as captured."]


def test_turns_are_not_called_launch_cost() -> None:
    rows = [row("eager", 1, 2.0), row("eager", 122, 9.0)]
    *_, last = launching(rows, "8 ranks took turns on 2 hardware threads")["launching"]["findings"]
    assert last.startswith("8 ranks took turns on 2 hardware threads: what differs here is mostly waiting for turns")


def test_nothing_to_compare_is_no_section() -> None:
    """One mode and cadence, cells without a time, fused and skewed calls."""
    assert launching([row("eager", 1, 2.0)]) == {"launching": None}
    assert launching([row("eager", 1, None), row("graph", 1, None)]) == {"launching": None}
    odd = [row("eager", 1, 2.0), row("graph", 1, 1.0, epilogue="rmsnorm"), row("graph", 1, 1.0, skew="zipf")]
    assert launching(odd) == {"launching": None}


def test_more_lines_than_fit_are_counted() -> None:
    rows = [row(mode, 1, 2.0, bytes=2 * i) for i in range(1, MOST_LINES + 4) for mode in ("eager", "graph")]
    found = launching(rows)["launching"]
    assert (len(found["lines"]), found["more"]) == (MOST_LINES, 3)
