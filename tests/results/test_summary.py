"""Rows and tables: the group's time, honest statuses, and text that is safe to show."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.results.records import Call, Cell, Fabric, Flag, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.results.summary import as_json, clean, fold, rows
from collbench.testing import synthetic_run, synthetic_samples

CELL = Cell("ring", Call(1024, 2), Mode.EAGER, 1)
RUN = Run("id", "2026-01-01", (), "0", Fabric.HOST, 2, 1, (CELL,))


def _ok(*ranks: tuple[float, ...], launch: int = 0) -> Samples:
    return Samples(CELL.cell_id, launch, Status.OK, latency_us=ranks)


def test_fold_is_the_slowest_rank_of_each_iteration() -> None:
    """If the straggler alternates, every rank's own median is fast, and the group's is not."""
    folded = fold(_ok((1.0, 9.0, 1.0, 9.0), (9.0, 1.0, 9.0, 1.0)))

    assert folded.tolist() == [9.0, 9.0, 9.0, 9.0]
    assert fold(Samples("c", 0, Status.HUNG, "x")).size == 0


@settings(deadline=None)
@given(st.permutations(range(4)))
def test_fold_does_not_care_which_rank_is_which(order: list[int]) -> None:
    ranks = np.random.default_rng(1).uniform(1, 9, (4, 20))
    same = fold(_ok(*map(tuple, ranks.tolist())))

    assert (fold(_ok(*map(tuple, ranks[order].tolist()))) == same).all()


def test_a_row_has_the_documented_keys() -> None:
    (row,) = rows(
        RUN, [_ok((1.0, 2.0, 3.0, 2.0, 2.0), (2.0, 1.0, 4.0, 1.0, 1.0))], {CELL.cell_id: 0.5}, {CELL.cell_id: 1.5}
    )

    assert list(row)[:2] == ["cell_id", "collective"]
    assert list(row)[-10:] == [
        "status", "reason", "flags", "p50_us", "p99_us", "min_us", "iterations", "launches", "floor_us", "predicted_us",
    ]  # fmt: skip
    assert (row["p50_us"], row["min_us"], row["iterations"], row["launches"]) == (2.0, 2.0, 5, 1)
    assert (row["floor_us"], row["predicted_us"], row["flags"], row["reason"]) == (0.5, 1.5, [], "")


def test_the_truth_of_a_synthetic_run_is_found(tmp_path: Path) -> None:
    """p50 of the fold lies at the known median: within 3 % at 5 % noise and 400 iterations."""
    made = synthetic_run(tmp_path / "run", iterations=400, sizes=(1024, 65536))
    found = {row["cell_id"]: row["p50_us"] for row in rows(made.run, RunFolder.open(made.path).samples())}

    assert found == pytest.approx(made.truth_us, rel=0.03)


def test_flags_name_noise_and_what_cannot_be() -> None:
    steady, tail = (5.0,) * 100, (5.0,) * 97 + (50.0,) * 3

    assert rows(RUN, [_ok(steady, steady)])[0]["flags"] == []
    assert rows(RUN, [_ok(tail, steady)])[0]["flags"] == ["noisy"]
    assert rows(RUN, [_ok(steady, steady)], {CELL.cell_id: 6.0})[0]["flags"] == ["implausible"]
    apart = [_ok(steady, steady), _ok((5.6,) * 100, steady, launch=1)]
    assert rows(RUN, apart)[0]["flags"] == ["noisy"]
    near = [_ok(steady, steady), _ok((5.4,) * 100, steady, launch=1)]
    assert rows(RUN, near)[0]["flags"] == []
    hot = Samples(CELL.cell_id, 0, Status.OK, flags=(Flag.THROTTLED,), latency_us=(steady, steady))
    assert rows(RUN, [hot])[0]["flags"] == ["throttled"]


def test_launches_are_pooled() -> None:
    (row,) = rows(RUN, [_ok((1.0,), (2.0,)), _ok((4.0, 3.0), (4.0, 3.0), launch=1)])

    assert (row["p50_us"], row["min_us"], row["iterations"], row["launches"]) == (3.0, 2.0, 3, 2)


def test_a_record_of_a_launch_that_was_not_run_stands_for_those_behind_it() -> None:
    """Unless the run was stopped, or a launch before it has no record either."""
    ended = replace(RUN, launches=20_000, finished="2026-01-02")
    cut = Samples(CELL.cell_id, 2, Status.NOT_RUN, "the budget of 1 s was used up")
    made = [_ok((1.0,), (2.0,), launch=launch) for launch in (0, 1)]
    (row,) = rows(ended, [*made, cut])
    assert (row["status"], row["launches"]) == ("ok", 2)
    assert row["reason"] == "19998 of 20000 launches were not run: the budget of 1 s was used up"
    (row,) = rows(ended, [made[0], cut])
    assert row["reason"] == "the sweep ended without a record of 1 of 20000 launches"
    (row,) = rows(ended, made)
    assert row["reason"] == "the sweep ended without a record of 19998 of 20000 launches"
    (row,) = rows(replace(ended, finished=""), [*made, cut])
    assert row["reason"] == "the sweep was stopped before 19998 of 20000 launches"
    (row,) = rows(ended, [cut])
    assert (row["status"], row["launches"], row["reason"]) == ("not_run", 20_000, "the budget of 1 s was used up")


@pytest.mark.parametrize("status", [s for s in Status if s not in {Status.OK, Status.NOT_RUN}])
def test_one_bad_launch_takes_the_times_away(status: Status) -> None:
    """A wrong cell has no time, and the reason says which launch it was."""
    (row,) = rows(RUN, [_ok((1.0,), (1.0,)), Samples(CELL.cell_id, 1, status, "because")])

    assert (row["status"], row["reason"]) == (str(status), "launch 1: because")
    assert (row["p50_us"], row["p99_us"], row["min_us"], row["iterations"], row["flags"]) == (None, None, None, 0, [])


def test_a_wrong_answer_outweighs_every_other_status() -> None:
    found = [Samples(CELL.cell_id, i, s, str(s)) for i, s in enumerate(Status) if s is not Status.OK]

    assert rows(RUN, found)[0]["status"] == "wrong"


def test_a_planned_cell_is_never_missing() -> None:
    (row,) = rows(RUN, [])

    assert (row["status"], row["reason"], row["p50_us"]) == ("not_run", "the sweep was stopped before it", None)


def test_text_loses_controls_and_direction_marks() -> None:
    assert clean("a\x1b[31mred\x00\n\tb\u202ec\u200bd") == "a[31mred bcd"


@settings(deadline=None)
@given(st.text())
def test_clean_text_is_printable_on_one_line(text: str) -> None:
    assert (
        clean(text) == ""
        or clean(text).replace("\u3000", " ").isprintable()
        or all(ord(c) > 127 for c in clean(text) if not c.isprintable())
    )
    assert len(clean(text).splitlines()) <= 1


def test_the_reason_is_cleaned() -> None:
    (row,) = rows(RUN, [Samples(CELL.cell_id, 0, Status.CRASHED, "signal 11\n\x1b]0;title\x07")])

    assert row["reason"] == "signal 11 ]0;title"


def test_json_is_one_object_with_finite_numbers() -> None:
    data = json.loads(json.dumps(as_json(rows(RUN, [synthetic_samples(CELL, 5.0)])), allow_nan=False))

    assert list(data) == ["schema", "kind", "rows"]
    assert (data["schema"], data["kind"], data["rows"][0]["cell_id"]) == ("collbench/1", "sweep", CELL.cell_id)
