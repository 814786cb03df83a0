"""A budget is kept, shared fairly, and what it cuts off takes nothing from what was measured."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.measure.budget import Budget
from collbench.results.records import Call, Cell, Fabric, Mode, Run, Samples, Status
from collbench.results.summary import rows

ROOT = Path(__file__).resolve().parents[2]


def sweep(run: Path, *words: str, **variables: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "collbench.sweep", "--nproc", "2", *words, "--json", "--out", str(run)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests' / 'packages' / 'faulty'}:{ROOT}", **variables},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


@pytest.mark.slow
def test_a_slow_algorithm_leaves_their_share_to_those_behind_it(tmp_path: Path) -> None:
    """Each of the slow one's calls takes 0.2 s: its ten cells alone would take 12 s."""
    begin = time.monotonic()
    words = ("--algorithms", "faulty_slow,host_ring", "--sizes", "64,72,80,88,96,104,112,120,128,136", "--calls", "1")
    found = sweep(tmp_path / "run", *words, "--budget", "8s")
    assert time.monotonic() - begin < 14
    status = {
        name: [row["status"] for row in found if row["algorithm"] == name] for name in ("faulty_slow", "host_ring")
    }
    assert status["host_ring"] == ["ok"] * 10
    assert "ok" in status["faulty_slow"]
    assert "not_run" in status["faulty_slow"]


@pytest.mark.slow
def test_an_algorithm_that_took_long_to_open_is_not_opened_twice(tmp_path: Path) -> None:
    """Its share of the budget ends while it opens; as long again is cheaper than another opening."""
    words = ("--algorithms", "faulty_late,faulty_right,faulty_slow", "--sizes", "64,72,80,88", "--calls", "1")
    found = sweep(tmp_path / "run", *words, "--no-probe", "--budget", "7s")
    assert [row["status"] for row in found if row["algorithm"] == "faulty_late"] == ["ok"] * 4


def test_workers_that_never_come_up_take_no_more_than_the_budget(tmp_path: Path) -> None:
    """Their deadline is minutes; what is left of a budget is less."""
    begin = time.monotonic()
    words = ("--algorithms", "host_ring,host_tree", "-b", "64", "--calls", "1", "--no-probe", "--budget", "3s")
    found = sweep(tmp_path / "run", *words, COLLBENCH_FAULTY_IMPORT="hangs")
    assert time.monotonic() - begin < 20
    assert [row["status"] for row in found] == ["not_run", "not_run"]
    assert found[0]["reason"] == "the budget of 3 s was used up while its workers started"


@pytest.mark.slow
def test_a_cell_that_does_not_end_takes_no_more_than_the_budget(tmp_path: Path) -> None:
    """Its own deadline is half a minute, and that of a library's opening minutes; what is left of a budget is less."""
    begin = time.monotonic()
    words = ("--algorithms", "faulty_hung,host_ring", "-b", "64", "--calls", "1", "--no-probe", "--budget", "5s")
    found = sweep(tmp_path / "run", *words, "--timeout", "30s")
    assert time.monotonic() - begin < 20
    told = {row["algorithm"]: (row["status"], row["reason"]) for row in found}
    assert told == {
        "host_ring": ("ok", ""),
        "faulty_hung": ("not_run", "the budget of 5 s was used up while it was opened and measured"),
    }


@pytest.mark.slow
def test_a_slow_starter_does_not_cost_the_others_their_intervals(tmp_path: Path) -> None:
    """It takes three seconds to open in each launch: what its launches would take is what all of the others need."""
    words = ("--algorithms", "faulty_late,host_ring,host_tree", "-b", "64", "--calls", "1", "-n", "9", "--no-probe")
    found = sweep(tmp_path / "run", *words, "--launches", "5", "--budget", "6.5s")
    assert {row["algorithm"]: (row["status"], row["launches"]) for row in found} == {
        "host_ring": ("ok", 5), "host_tree": ("ok", 5), "faulty_late": ("ok", 1),
    }  # fmt: skip
    (slow,) = (row for row in found if row["algorithm"] == "faulty_late")
    assert slow["reason"].startswith("4 of 5 launches were not run: the budget of 6 s held 5 launches of 2 of 3 ")
    # of its one launch as much is taken off as the others' first ones were dearer than theirs behind them
    taken = re.search(r"; this one takes ([\d.]+) s a launch: --resume RUN --budget ", slow["reason"])
    assert taken is not None
    assert 1.5 < float(taken[1]) < 4.5


def resume(run: Path, budget: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "collbench.sweep", "--resume", str(run), "--budget", budget, "--json"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests' / 'packages' / 'faulty'}:{ROOT}"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_resumed_run_finishes_what_needs_the_fewest_seconds_and_begins_nothing_that_does_not_fit(
    tmp_path: Path,
) -> None:
    """What launches take is known from the run's evidence."""
    run = tmp_path / "run"
    words = ("--algorithms", "faulty_late,host_ring,host_tree", "-b", "64", "--calls", "1", "-n", "9", "--no-probe")
    sweep(run, *words, "--launches", "5", "--budget", "4s")
    done = resume(run, "9s")
    launches = {row["algorithm"]: row["launches"] for row in json.loads(done.stdout)["rows"]}
    assert (launches["host_ring"], launches["host_tree"]) == (5, 5), done.stderr
    assert 2 <= launches["faulty_late"] < 5
    assert "held 5 launches of 2 of 3 algorithms; fewer of faulty_late (3." in done.stderr
    again = resume(run, "2s")
    assert "\nfaulty_late: " not in f"\n{again.stderr}"
    assert "the budget of 2 s held 5 launches of 2 of 3 algorithms" in again.stderr


def test_launches_that_a_budget_cut_off_do_not_hide_the_others() -> None:
    cell = Cell("a", Call(64, 2), Mode.EAGER, 1)
    run = Run("r", "", (), "", Fabric.HOST, 2, 2, (cell,))
    measured = Samples(cell.cell_id, 0, Status.OK, calls=1, latency_us=((1.0,) * 9, (2.0,) * 9))
    cut = Samples(cell.cell_id, 1, Status.NOT_RUN, "the budget of 4 s was used up")
    (row,) = rows(run, [measured, cut])
    assert (row["status"], row["p50_us"], row["launches"]) == ("ok", 2.0, 1)
    assert row["reason"] == "1 of 2 launches were not run: the budget of 4 s was used up"
    other = replace(cut, launch=2, reason="the budget of 4 s was used up while it was opened")
    (row,) = rows(run, [measured, cut, other])
    assert row["reason"] == "2 of 3 launches were not run: launch 2: the budget of 4 s was used up while it was opened"
    (row,) = rows(run, [measured, replace(cut, reason="")])
    assert row["reason"] == "1 of 2 launches were not run: no reason was recorded"


def test_three_iterations_are_noisy() -> None:
    cell = Cell("a", Call(64, 2), Mode.EAGER, 1)
    run = Run("r", "", (), "", Fabric.HOST, 2, 1, (cell,))
    (row,) = rows(run, [Samples(cell.cell_id, 0, Status.OK, calls=1, latency_us=((1.0,) * 3, (1.0,) * 3))])
    assert row["flags"] == ["noisy"]


def test_a_budget_of_less_than_a_second_is_not_one_of_none() -> None:
    assert Budget(0.001).used_up() == "the budget of 0.001 s was used up"
    assert Budget(365.4).used_up("it ran") == "the budget of 365 s was used up while it ran"
