"""A measurement is explained, or the test to run is named; never both."""

import json

import pytest

from collbench.algorithms.base import registry
from collbench.contention.explain import Explanation, Verdict, explain
from collbench.contention.parameters import Parameter, priors
from collbench.contention.predict import Model, predict, shared_gpu
from collbench.contention.traffic import Flow, Move, Phase, Schedule
from collbench.results.records import Call
from collbench.topology import catalog
from collbench.topology.graph import Topology

STORY = 43_008


def machine() -> Topology:
    return catalog.load(catalog.find("two-flat-gen5-switches"))


def of(name: str, measured_us: float | None, size: int = STORY) -> Explanation:
    schedule = registry()[name].traffic(Call(size, 8), machine())
    return explain(name, size, schedule, Model(machine()).predict(schedule), measured_us)


def test_a_measurement_near_the_prediction_is_split_into_its_terms() -> None:
    """Every term, the link, its flows, and what it would take without them."""
    one = of("one_stage_pull", 25.0)
    assert one.verdict is Verdict.EXPLAINED
    assert one.sentence.startswith("one_stage_pull, 43,008 B: 24.0 us predicted (measured 25.0, 90 % interval ")
    for part in ("launch 2.20", "synchronisation", "moving a rank's own 294 KiB", "summing", "rests on priors"):
        assert part in one.sentence
    assert "queueing 7.70 (the path switch0 -> root0, shared by 16 flows, carries 50.2 GB/s" in one.sentence
    assert "Without sharing it would take 16.3 us" in one.sentence
    assert one.test is None


def test_the_record_holds_the_numbers_of_the_sentence() -> None:
    record = of("push", 21.0).record
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["unexplained_us"] == pytest.approx(21.0 - record["predicted_us"])
    assert sum(record["terms_us"].values()) == pytest.approx(record["predicted_us"])
    assert record["bottleneck"]["flows"] == 16
    assert record["low_us"] < record["predicted_us"] < record["high_us"]


def test_what_lies_outside_the_interval_is_said_to_be_unexplained() -> None:
    assert "Unexplained: +2.8 us" in of("push", 21.0).sentence
    assert "Unexplained" not in of("push", 18.5).sentence


def test_faster_than_the_interval_is_a_verdict_of_its_own() -> None:
    one = of("push", 10.0)
    assert one.verdict is Verdict.FASTER
    assert "Unexplained: -8" in one.sentence


@pytest.mark.parametrize(("name", "regime"), [
    ("one_stage_pull", "read fan-in"), ("push", "posted-write collapse"), ("nccl_ring_ll", "NCCL on shared memory"),
    ("two_stage_push", "posted-write collapse"), ("staged_ring", "downtrained link"),
])  # fmt: skip
def test_above_twice_the_prediction_the_test_to_run_is_named(name: str, regime: str) -> None:
    """And no term, no link, no sharing: contention does not reach such factors."""
    one = of(name, 200.0)
    assert one.verdict is Verdict.UNEXPLAINED
    assert one.test is not None
    assert one.test.regime.startswith(regime)
    assert one.test.test in one.sentence
    assert "queueing" not in one.sentence
    assert one.record["run_instead"]["regime"] == one.test.regime
    assert not {"terms_us", "bottleneck"} & one.record.keys()


def test_just_below_twice_is_still_explained() -> None:
    total = of("push", None).record["predicted_us"]
    assert of("push", 1.99 * total).verdict is Verdict.EXPLAINED
    assert of("push", 2.01 * total).verdict is Verdict.UNEXPLAINED


def test_one_pair_that_reads_is_tested_for_staging() -> None:
    schedule = Schedule((Phase((Flow(0, 1, 1e4, Move.PULL),), 1),))
    one = explain("pair", 10_000, schedule, predict(schedule, machine()), 900.0)
    assert one.test is not None
    assert one.test.regime == "staging through system memory"


def test_without_a_measurement_it_is_a_prediction() -> None:
    one = of("push", None)
    assert "measured" not in one.sentence
    assert one.record["unexplained_us"] is None


def test_without_a_prediction_nothing_is_blamed() -> None:
    one = explain("host_ring", 1024, Schedule(()), None, 12.0, links=False, reason="ranks wait for time slices")
    assert one.verdict is Verdict.NOT_MODELLED
    assert one.sentence == (
        "host_ring, 1,024 B: 12.0 us measured, not predicted: ranks wait for time slices. No link is blamed."
    )


def test_on_a_shared_gpu_no_link_is_blamed() -> None:
    """Neither where it fits nor where it does not."""
    schedule = registry()["push"].traffic(Call(STORY, 8), machine())
    near, far = (explain("push", STORY, schedule, shared_gpu(schedule, 8), us, links=False) for us in (4.0, 400.0))
    assert "no link is involved" in near.sentence
    assert "->" not in near.sentence + far.sentence
    assert far.test is not None
    assert far.test.regime.startswith("entry skew")


@pytest.mark.parametrize(("window", "either"), [(32_768, False), (64_000, True), (80_000, False)])
def test_where_window_and_links_are_close_both_are_named(window: float, either: bool) -> None:  # noqa: FBT001 - a case
    """A read across the processor: a load moves 43 GB/s, a window of 64,000 bytes 41.6, one of 80,000 does not bind."""
    schedule = Schedule((Phase((Flow(4, 0, 1e6, Move.PULL),), 1),))
    known = priors().replaced({"window.bytes": Parameter(window, 0.1, "probe: here")})
    sentence = explain("pair", 1_000_000, schedule, predict(schedule, machine(), known)).sentence
    assert ("Either the links or the read window" in sentence) == either
