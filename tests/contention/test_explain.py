"""A measurement is explained, or the test to run is named; never both."""

import json
from dataclasses import replace

import pytest

from collbench.algorithms.base import registry
from collbench.contention.explain import Explanation, Verdict, explain, suspects
from collbench.contention.parameters import Parameter, priors
from collbench.contention.predict import Model, predict, shared_gpu
from collbench.contention.regimes import REGIMES, Finding, State
from collbench.contention.traffic import Flow, Move, Phase, Schedule
from collbench.results.records import Call, Mode
from collbench.topology import catalog
from collbench.topology.graph import Topology
from collbench.units import format_us

STORY = 43_008


def machine() -> Topology:
    return catalog.load(catalog.find("two-flat-gen5-switches"))


def of(name: str, measured_us: float | None, size: int = STORY) -> Explanation:
    schedule = registry()[name].traffic(Call(size, 8), machine())
    return explain(name, size, schedule, Model(machine()).predict(schedule), measured_us)


def test_a_measurement_near_the_prediction_is_split_into_its_terms() -> None:
    """Every term, the link, its flows, and what it would take without them."""
    total = of("one_stage_pull", None).record["predicted_us"]
    one = of("one_stage_pull", 1.04 * total)
    assert one.verdict is Verdict.EXPLAINED
    head = (
        f"one_stage_pull, 43,008 B: {format_us(total)} us predicted (measured {format_us(1.04 * total)}, 90 % interval "
    )
    assert one.sentence.startswith(head)
    for part in ("launch 2.20", "synchronisation", "moving a rank's own 294 KiB", "rests on priors"):
        assert part in one.sentence
    queueing = one.record["terms_us"]["queueing"]
    assert f"queueing {format_us(queueing)} (the path switch0 -> root0, shared by 16 flows, carries " in one.sentence
    assert f"Without sharing it would take {format_us(total - queueing)} us" in one.sentence
    assert one.test is None


def test_the_record_holds_the_numbers_of_the_sentence() -> None:
    record = of("push", 21.0).record
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["unexplained_us"] == pytest.approx(21.0 - record["predicted_us"])
    assert sum(record["terms_us"].values()) == pytest.approx(record["predicted_us"])
    assert record["bottleneck"]["flows"] == 16
    assert record["low_us"] < record["predicted_us"] < record["high_us"]


def test_what_lies_outside_the_interval_is_said_to_be_unexplained() -> None:
    total = of("push", None).record["predicted_us"]
    assert f"Unexplained: {0.5 * total:+.1f} us" in of("push", 1.5 * total).sentence
    assert "Unexplained" not in of("push", 1.01 * total).sentence


def test_faster_than_the_interval_is_a_verdict_of_its_own() -> None:
    total = of("push", None).record["predicted_us"]
    one = of("push", 0.5 * total)
    assert one.verdict is Verdict.FASTER
    assert f"Unexplained: {-0.5 * total:+.1f} us" in one.sentence


def explain_push(measured_us: float, *findings: Finding) -> Explanation:
    schedule = registry()["push"].traffic(Call(STORY, 8), machine())
    return explain("push", STORY, schedule, Model(machine()).predict(schedule), measured_us, findings=findings)


@pytest.mark.parametrize(("name", "regime"), [
    ("one_stage_pull", "read fan-in"), ("push", "posted-write collapse"), ("nccl_ring_ll", "NCCL on shared memory"),
    ("two_stage_push", "posted-write collapse"), ("staged_ring", "downtrained link"),
])  # fmt: skip
def test_above_twice_the_prediction_the_test_to_run_is_named(name: str, regime: str) -> None:
    """And no term, no link, no sharing: contention does not reach such factors."""
    one = of(name, 200.0)
    assert one.verdict is Verdict.UNEXPLAINED
    assert one.test is not None
    assert one.test.name.startswith(regime)
    assert one.test.test in one.sentence
    assert "queueing" not in one.sentence
    assert one.record["run_instead"]["regime"] == one.test.name
    assert not {"terms_us", "bottleneck"} & one.record.keys()


def finding(name: str, state: State, value: float) -> Finding:
    return Finding(REGIMES[name], state, "ranks 0 and 1: some figures", value)


def test_a_state_that_the_run_shows_is_named_with_its_remedy() -> None:
    """Test, threshold, evidence and remedy; and nothing is left to run."""
    sick = finding("posted-write collapse", State.PRESENT, 0.07)
    one = explain_push(200.0, sick, finding("ACS redirect", State.ABSENT, 0.97))
    assert (one.verdict, one.test, one.found) == (Verdict.UNEXPLAINED, None, sick)
    for part in ("This run shows posted-write collapse", "some figures", "0.07", "ratio below 0.5", sick.remedy[1:]):
        assert part in one.sentence
    assert (one.record["found"]["regime"], one.record["run_instead"]) == ("posted-write collapse", None)


def test_a_state_that_was_excluded_is_not_tested_again() -> None:
    """The next one that fits is named; where all were tested, that is said instead of a guess."""
    well = finding("posted-write collapse", State.ABSENT, 0.98)
    one = explain_push(200.0, well)
    assert one.test is not None
    assert one.test.name == "ACS redirect"
    assert "shows no posted-write collapse that would do. Test for ACS redirect" in one.sentence
    names = ("posted-write collapse", "ACS redirect", "downtrained link", "entry skew")
    done = explain_push(200.0, *(finding(name, State.ABSENT, 1.0) for name in names))
    assert done.test is None
    assert "No other state is known that fits" in done.sentence


def test_a_state_that_was_not_tested_excludes_nothing() -> None:
    one = explain_push(200.0, Finding(REGIMES["posted-write collapse"], State.UNTESTED, "needs three root ports"))
    assert one.test is not None
    assert one.test.name == "posted-write collapse"
    assert one.record["run_instead"]["command"] == "collbench probe"


def test_every_suspect_is_a_state_that_is_detected() -> None:
    for name in ("push", "one_stage_pull", "nccl_ring_ll", "staged_ring"):
        schedule = registry()[name].traffic(Call(STORY, 8), machine())
        fitting = suspects(schedule, "switch0 -> root0")
        assert len(set(fitting)) == len(fitting) > 1
        assert fitting[-1].name == "entry skew"
    assert [one.name for one in suspects(Schedule(()), "", links=False)] == ["entry skew"]


def test_without_pcie_no_state_of_pcie_is_suspected() -> None:
    schedule = registry()["one_stage_pull"].traffic(Call(STORY, 8), machine())
    assert [one.name for one in suspects(schedule, "gpu0 -> nvswitch0", pcie=False)] == ["entry skew"]


def test_a_single_call_is_no_sign_of_a_degraded_state() -> None:
    """It holds the start of a launch; only what the run itself shows is named."""
    schedule = registry()["push"].traffic(Call(STORY, 8), machine())
    prediction = Model(machine()).predict(schedule)
    far, near = (explain("push", STORY, schedule, prediction, us, alone=True) for us in (200.0, 30.0))
    assert (far.verdict, far.test, far.record["run_instead"]) == (Verdict.UNEXPLAINED, None, None)
    assert "It is a single call: its start and the ranks' arrival differ" in far.sentence
    assert "us, a single call: its start" in near.sentence
    sick = finding("posted-write collapse", State.PRESENT, 0.07)
    named = explain("push", STORY, schedule, prediction, 200.0, alone=True, findings=(sick,))
    assert "This run shows posted-write collapse" in named.sentence


def test_of_a_call_alone_it_is_said_what_its_start_takes() -> None:
    schedule = Schedule(registry()["push"].traffic(Call(STORY, 8), machine()).phases, launcher="own")
    model = Model(machine())
    graph, eager = (
        explain("push", STORY, schedule, model.predict(schedule, mode, chained=False), 30.0, alone=True)
        for mode in (Mode.GRAPH, Mode.EAGER)
    )
    assert "launch 6.70 (4.50 of it the start of a call alone)" in graph.sentence
    assert "launch 17.8 (11.0 of it the start of a call alone)" in eager.sentence
    assert "start of a call" not in explain("push", STORY, schedule, model.predict(schedule), 30.0).sentence


def test_work_fused_behind_a_sum_is_named() -> None:
    schedule = registry()["push"].traffic(Call(STORY, 8), machine())
    fused = replace(schedule, epilogue=True)
    told = [explain("push", STORY, one, Model(machine()).predict(one), 30.0).sentence for one in (schedule, fused)]
    shared = shared_gpu(fused, 8)
    assert shared is not None
    told.append(explain("push", STORY, fused, shared, shared.total_us).sentence)
    assert ["fused behind" in sentence for sentence in told] == [False, True, True]
    assert "summing 2.14 (2.00 of it what is fused behind)" in told[1]
    assert "(4.50 of it what is fused behind)" in told[2]


def test_the_time_of_the_host_is_no_failure_of_the_model() -> None:
    """Seen on two H200: chains of NCCL from Python take 24 us a call, captured 6; no probe tells the host's share."""
    schedule = registry()["nccl_ring_ll"].traffic(Call(STORY, 8), machine())
    prediction = Model(machine()).predict(schedule)
    quiet = [finding(name, State.ABSENT, 0.0) for name in ("NCCL on shared memory or the network", "entry skew")]
    one, other = (
        explain("nccl_ring_ll", STORY, schedule, prediction, 500.0, pcie=False, eager=eager, findings=quiet)
        for eager in (True, False)
    )
    assert one.sentence.endswith("which takes one host far longer than another: see captured chains.")
    assert other.sentence.endswith("else the model fails.")


@pytest.mark.parametrize(("apart", "named"), [(0.24, False), (0.8, True)])
def test_ranks_that_come_late_cost_what_they_are_late_by(apart: float, named: bool) -> None:  # noqa: FBT001 - a case
    """Four times the prediction with ranks 24 % apart is three times without: that is not where the time went."""
    schedule = registry()["push"].traffic(Call(STORY, 8), machine())
    prediction = shared_gpu(schedule, 8)
    assert prediction is not None
    late = finding("entry skew", State.PRESENT, apart)
    one = explain("push", STORY, schedule, prediction, 4 * prediction.total_us, links=False, findings=(late,))
    assert ("This run shows entry skew" in one.sentence) == named
    assert ("no entry skew that would do" in one.sentence) == (not named)


def test_just_below_twice_is_still_explained() -> None:
    total = of("push", None).record["predicted_us"]
    assert of("push", 1.99 * total).verdict is Verdict.EXPLAINED
    assert of("push", 2.01 * total).verdict is Verdict.UNEXPLAINED


def test_one_pair_that_reads_is_tested_for_staging() -> None:
    schedule = Schedule((Phase((Flow(0, 1, 1e4, Move.PULL),), 1),))
    one = explain("pair", 10_000, schedule, predict(schedule, machine()), 900.0)
    assert one.test is not None
    assert one.test.name == "staging through system memory"


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


@pytest.mark.parametrize("links", [True, False])
def test_an_early_launch_is_told(links: bool) -> None:  # noqa: FBT001 - a case
    """Of a chain, whose launches overlap; terms add up as ever."""
    late = registry()["push"].traffic(Call(STORY, 8), machine())
    told = "Its launch overlaps the call before it: programmatic dependent launch."
    for schedule in (late, replace(late, early=True)):
        found = predict(schedule, machine()) if links else shared_gpu(schedule, 8)
        assert found is not None
        one = explain("push", STORY, schedule, found, found.total_us, links=links)
        assert (told in one.sentence) == schedule.early
        assert sum(one.record["terms_us"].values()) == pytest.approx(one.record["predicted_us"])
        alone = explain("push", STORY, schedule, predict(schedule, machine(), chained=False), None, alone=True)
        assert told not in alone.sentence
        assert (one.asides != ()) == (alone.asides != ())


def test_on_a_shared_gpu_no_link_is_blamed() -> None:
    """Neither where it fits nor where it does not."""
    schedule = registry()["push"].traffic(Call(STORY, 8), machine())
    near, far = (explain("push", STORY, schedule, shared_gpu(schedule, 8), us, links=False) for us in (4.0, 400.0))
    assert "no link is involved" in near.sentence
    assert "->" not in near.sentence + far.sentence
    assert far.test is not None
    assert far.test.name == "entry skew"


@pytest.mark.parametrize(("window", "either"), [(32_768, False), (64_000, True), (80_000, False)])
def test_where_window_and_links_are_close_both_are_named(window: float, either: bool) -> None:  # noqa: FBT001 - a case
    """A read across the processor: a load moves 43 GB/s, a window of 64,000 bytes 41.6, one of 80,000 does not bind."""
    schedule = Schedule((Phase((Flow(4, 0, 1e6, Move.PULL),), 1),))
    known = priors().replaced({"window.bytes": Parameter(window, 0.1, "probe: here")})
    sentence = explain("pair", 1_000_000, schedule, predict(schedule, machine(), known)).sentence
    assert ("Either the links or the read window" in sentence) == either
