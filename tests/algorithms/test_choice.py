"""The answer of a forecast: the fastest of what runs, whose intervals overlap with its, and how near two are."""

from typing import Any

import pytest

from collbench.algorithms import choice
from collbench.algorithms.base import registry
from collbench.algorithms.predictions import Forecast
from collbench.topology import catalog


def row(name: str, us: float, *, size: int = 1024, low: float = 0.0, verdict: str | None = "runs") -> dict[str, Any]:
    return {
        "algorithm": name, "bytes": size, "total_us": us, "low_us": low or us / 2, "high_us": us * 2, "notes": [],
        "bottleneck": None, "verdict": verdict,
    }  # fmt: skip


def test_what_may_not_run_is_no_answer_and_no_rival() -> None:
    rows = [row("quick", 1.0, verdict="unknown"), row("old", 2.0, verdict="does_not_run"), row("sure", 3.0)]
    (one,) = choice.choices([*rows, row("next", 4.0), row("far", 40.0)])
    assert one.best["algorithm"] == "sure"
    assert [other["algorithm"] for other in one.overlaps] == ["next"]


def test_where_nothing_is_vouched_for_there_is_no_choice() -> None:
    assert choice.choices([row("quick", 1.0, verdict="unknown")]) == []


def test_where_the_doctor_was_not_asked_everything_may_be_an_answer() -> None:
    (one,) = choice.choices([row("quick", 1.0, verdict=None), row("slow", 9.0, verdict=None)])
    assert (one.best["algorithm"], one.overlaps) == ("quick", ())


def test_touching_intervals_overlap() -> None:
    (one,) = choice.choices([row("a", 1.0), row("b", 5.0, low=2.0), row("c", 5.5, low=2.01)])
    assert [other["algorithm"] for other in one.overlaps] == ["b"]


def test_same_traffic_counts_once_but_not_across_verdicts() -> None:
    """The shortest name stands for the others; one that may not run does not hide one that does."""
    rows = [row("long_name", 1.0), row("name", 1.0), row("n", 1.0, verdict="unknown")]
    assert choice.alike(rows) == {"n": (), "name": ("long_name",)}
    (one,) = choice.choices(rows)
    assert (one.best["algorithm"], one.overlaps) == ("name", ())


def test_a_judged_row_says_why_it_is_no_answer_and_keeps_its_own_notes() -> None:
    rows = [{**row("a", 1.0), "notes": ["mine"]}, row("b", 1.0), row("c", 1.0)]
    a, b, c = choice.judged(rows, {"a": "unknown", "b": "runs"}, {"a": "it depends on P2P", "b": "never shown"})
    assert a["notes"] == ["mine", "no answer, since nobody knows whether it runs here: it depends on P2P"]
    assert choice.model_notes(a) == ["mine"]
    assert (b["verdict"], b["notes"], c["verdict"], c["notes"]) == ("runs", [], None, [])
    assert rows[0]["notes"] == ["mine"]


def test_near_a_crossing_two_predictions_are_within_five_percent_and_apart_at_the_ends() -> None:
    forecast = Forecast(catalog.load(catalog.find("two-flat-gen5-switches")))
    known = registry()
    first, last = 1024, 1 << 22
    found = forecast.crossovers(first, last, {"push", "nccl_ring_ll", "nccl_ring_simple"})
    assert [one.after for one in found] == ["nccl_ring_ll", "nccl_ring_simple"]
    for cross in found:
        low, high = choice.nearby(forecast, cross, first, last)
        assert low is not None
        assert high is not None
        assert low < cross.bytes < high

        def ratio(size: int, names: tuple[str, str] = (cross.before, cross.after)) -> float:
            one, other = (forecast.predict(known[name], size).total_us for name in names)
            return max(one, other) / min(one, other)

        assert ratio(cross.bytes) < 1.01
        assert min(ratio(low), ratio(high)) > choice.NEAR
        assert max(ratio(low), ratio(high)) < 1.2


def test_crossings_end_where_nothing_is_apart() -> None:
    forecast = Forecast(catalog.load(catalog.find("two-flat-gen5-switches")))
    (cross, *_) = forecast.crossovers(1024, 1 << 20, {"push", "nccl_ring_ll"})
    assert choice.nearby(forecast, cross, cross.bytes - 16, cross.bytes + 16) == (None, None)


def test_only_those_named_cross() -> None:
    forecast = Forecast(catalog.load(catalog.find("two-flat-gen5-switches")))
    assert forecast.crossovers(1024, 1 << 20, {"push"}) == []
    assert forecast.crossovers(1024, 1 << 20, set()) == []


@pytest.mark.parametrize("name", ["direct-4x4090-no-p2p", "two-flat-gen5-switches"])
def test_crossings_lead_from_choice_to_choice(name: str) -> None:
    """What is the fastest at the ends of the range begins and ends the chain of crossings."""
    forecast = Forecast(catalog.load(catalog.find(name)))
    rows = choice.judged(forecast.rows([1024, 1 << 22]), {}, {})
    small, large = choice.choices(rows)
    found = forecast.crossovers(1024, 1 << 22, set(choice.alike(rows)))
    assert (found[0].before, found[-1].after) == (small.best["algorithm"], large.best["algorithm"])
