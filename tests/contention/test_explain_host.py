"""Cells on processors: what they take at least by probes, and what is left over, without a link to blame."""

import json

import pytest

from collbench.algorithms.base import registry
from collbench.contention.explain import Verdict
from collbench.contention.explain_host import HostRates, explain_host
from collbench.contention.traffic import Schedule
from collbench.results.probes import Probe
from collbench.results.records import Call, Status
from collbench.topology.graph import Topology

PROBES = (
    Probe("flag", "pair", 0, 1, ((0, 1),), 0, 2.5), Probe("flag", "pair", 0, 2, ((0, 2),), 0, 0.5),
    Probe("bandwidth.store", "all_to_all", value=30.0, unit="GB/s"),
    Probe("bandwidth.store", "solo", 0, 1, ((0, 1),), 1 << 20, 50.0, "GB/s"),
    Probe("bandwidth.load", "solo", 0, 1, ((0, 1),), unit="GB/s", status=Status.HUNG, reason="waited"),
)  # fmt: skip


def schedule(name: str, size: int = 1 << 16) -> Schedule:
    return registry()[name].traffic(Call(size, 8, dtype="float32"), Topology((), ()))


def test_the_best_probe_of_each_kind_counts() -> None:
    """So that what follows is a least time; a probe without a value tells nothing."""
    rates = HostRates.of(PROBES, 8, 2)
    assert rates == HostRates(8, 2, 0.5, 50.0, None)


def test_flags_in_a_row_and_bytes_are_least_times() -> None:
    """A ring of 8 ranks has 14 flags in a row; a one-stage push moves 56 messages."""
    rates = HostRates.of(PROBES, 8, 2)
    assert rates.parts(schedule("host_ring"))["flags"] == pytest.approx(14 * 0.5)
    push = rates.parts(schedule("host_one_stage_push"))
    assert push == pytest.approx({"flags": 0.5, "moving": 56 * 65536 / 50e3})
    assert "moving" not in rates.parts(schedule("host_one_stage_pull")), "loads were not measured"


def test_the_sentence_and_its_record() -> None:
    """Who shares what, the parts, the rest, the tail; no prediction and no link."""
    one = explain_host("host_ring", 65536, schedule("host_ring"), HostRates.of(PROBES, 8, 2), 415.0, 5143.0)
    assert one.verdict is Verdict.NOT_MODELLED
    parts = ("415 us measured, not predicted: 8 ranks take turns on 2 hardware threads", "14 flags in a row 7.00 us")
    for part in (*parts, "turns, waiting", "5143 us"):
        assert part in one.sentence
    assert "->" not in one.sentence
    record = json.loads(json.dumps(one.record, allow_nan=False))
    assert record["predicted_us"] is None
    assert record["rest_us"] + sum(record["parts_us"].values()) == pytest.approx(415.0)
    assert (record["ranks"], record["threads"]) == (8, 2)


def test_a_thread_for_each_rank_takes_no_turns() -> None:
    one = explain_host("host_ring", 65536, schedule("host_ring"), HostRates.of(PROBES, 8, 64), 40.0, 41.0)
    assert "turns" not in one.sentence
    assert "8 ranks have 64 hardware threads" in one.sentence
    assert "One iteration" not in one.sentence


def test_without_probes_it_says_so() -> None:
    """And without a number of threads it names none."""
    one = explain_host("gloo", 1024, schedule("gloo"), HostRates.of((), 8, 0), 20_000.0, 30_000.0)
    assert "no probes" in one.sentence
    assert "hardware threads" not in one.sentence
    assert (one.record["parts_us"], one.record["rest_us"], one.record["threads"]) == ({}, None, None)


def test_what_is_faster_than_its_parts_has_no_rest() -> None:
    """Ranks of a chain run ahead of each other: the parts are those of one call alone."""
    one = explain_host("host_ring", 65536, schedule("host_ring"), HostRates.of(PROBES, 8, 2), 5.0, 6.0)
    assert "which is all of it" in one.sentence
    assert one.record["rest_us"] == 0.0
