"""`--resume RUN --launches N` adds launches; whatever goes wrong, the run stays readable and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import InvalidError
from collbench.gate.sides import side_of_run
from collbench.interop.markdown import Source, markdown
from collbench.report.page import build
from collbench.results.records import Resumed, Status
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.testing import synthetic_run

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("--nproc", "2", "--algorithms", "host_ring,host_tree", "--sizes", "64,1K", "--calls", "1", "-n", "9")


def start(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "collbench.sweep", *words, "--no-probe"], env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def sweep(*words: str) -> "subprocess.CompletedProcess[str]":
    process = start(*words)
    out, err = process.communicate(timeout=90)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one launch."""
    run = tmp_path_factory.mktemp("once") / "run"
    done = sweep(*WORDS, "--out", str(run))
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture
def run(once: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / "run"
    copy.mkdir(mode=0o700)
    for file in once.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def record(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_bytes())
    return found


def test_launches_are_added_and_every_reader_sees_them(run: Path) -> None:
    before = (run / "samples.jsonl").read_bytes()
    done = sweep("--resume", str(run), "--launches", "5", "--json")
    assert done.returncode == 0, done.stderr
    assert {(row["status"], row["launches"], row["reason"]) for row in json.loads(done.stdout)["rows"]} == {
        ("ok", 5, "")
    }
    assert (run / "samples.jsonl").read_bytes().startswith(before)
    folder = RunFolder.open(run)
    assert len(folder.samples()) == 4 * 5
    assert len({(one.cell_id, one.launch) for one in folder.samples()}) == 4 * 5
    assert folder.problems() == []
    assert (folder.run.launches, folder.run.settings["launches"]) == (5, 5)
    assert [one.command[-4:-1] for one in folder.run.resumed] == [("--launches", "5", "--json")]
    (run / "samples.jsonl").unlink()
    assert len(RunFolder.open(run).samples()) == 4 * 5
    side = side_of_run(run)
    assert (side.launches, side.problems) == (5, ())
    told = markdown([Source(folder.run, folder.samples())])
    assert "--resume run --launches 5 --json --no-probe\n```" in told
    assert "from the medians of 5 launches" in told
    shown = build(run)
    assert "\ncollbench sweep --resume run --launches 5 --json --no-probe\n" in shown
    assert ", gone on with " in shown


def test_fewer_launches_are_refused_and_as_many_are_nothing(run: Path) -> None:
    assert sweep("--resume", str(run), "--launches", "2").returncode == 0
    before = (run / "run.json").read_bytes()
    for number, told in (
        ("1", "the run has measured 2 and keeps them: give as many, or more"),
        ("0", "expected a whole number from 1"),
    ):
        done = sweep("--resume", str(run), "--launches", number)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"collbench: --launches {number}: {told}")
    too_many = sweep("--resume", str(run), "--launches", "100000")
    assert too_many.returncode == 2
    assert "a run holds at most" in too_many.stderr
    assert (run / "run.json").read_bytes() == before
    samples = (run / "samples.jsonl").read_bytes()
    assert sweep("--resume", str(run), "--launches", "2").returncode == 0
    assert (run / "samples.jsonl").read_bytes() == samples
    assert record(run)["finished"]
    assert len(record(run)["resumed"]) == 1


def test_a_run_that_another_process_writes_is_left_alone(run: Path) -> None:
    before = (run / "run.json").read_bytes()
    with RunFolder.open(run, write=True):
        done = sweep("--resume", str(run), "--launches", "5")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert f"process {os.getpid()} writes to this run" in done.stderr
    assert (run / "run.json").read_bytes() == before


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_the_old_launches_and_says_what_is_missing(run: Path) -> None:
    before = (run / "samples.jsonl").read_bytes()
    process = start("--resume", str(run), "--launches", "20")
    end = time.monotonic() + 60
    while (run / "samples.jsonl").stat().st_size <= len(before) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    assert (run / "samples.jsonl").read_bytes().startswith(before)
    folder = RunFolder.open(run)
    assert (folder.run.launches, folder.run.finished) == (20, "")
    found = rows(folder.run, folder.samples())
    assert {row["status"] for row in found} == {"ok"}
    for row in found:
        assert row["reason"] == f"the sweep was stopped before {20 - row['launches']} of 20 launches"
    assert "the run was not finished" in side_of_run(run).problems
    done = sweep("--resume", str(run), "--json")
    assert done.returncode == 0, done.stderr
    assert {(row["launches"], row["reason"]) for row in json.loads(done.stdout)["rows"]} == {(20, "")}
    after = RunFolder.open(run)
    assert len({(one.cell_id, one.launch) for one in after.samples()}) == len(after.samples())
    assert after.problems() == []


def test_what_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is replaced whole: a crash before that leaves the old one."""
    made = synthetic_run(tmp_path / "run", launches=2).path
    before = (made / "run.json").read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with RunFolder.open(made, write=True) as folder:
        monkeypatch.setattr("pathlib.Path.replace", fail)
        with pytest.raises(InvalidError, match="the disk is full"):
            folder.go_on(Resumed("2026-01-02T00:00:00+00:00", ("collbench", "sweep")), 5)
    monkeypatch.undo()
    assert (made / "run.json").read_bytes() == before
    assert sorted(path.name for path in made.iterdir() if "tmp" in path.name) == []
    assert RunFolder.open(made).run.launches == 2


def test_a_run_that_was_raised_meanwhile_is_not_lowered(tmp_path: Path) -> None:
    made = synthetic_run(tmp_path / "run", launches=2).path
    by = Resumed("2026-01-02T00:00:00+00:00", ("collbench", "sweep"))
    with RunFolder.open(made, write=True) as folder:
        folder.go_on(by, 5)
        with pytest.raises(InvalidError, match="raised its launches to 5 meanwhile"):
            folder.go_on(by, 2)
    with pytest.raises(InvalidError, match="opened for reading"):
        RunFolder.open(made).go_on(by, 6)
    assert RunFolder.open(made).run.launches == 5


def test_damaged_runs(run: Path) -> None:
    samples = run / "samples.jsonl"
    (run / "samples.parquet").unlink()
    samples.write_bytes(samples.read_bytes()[:-20])
    done = sweep("--resume", str(run), "--launches", "2")
    assert done.returncode == 0
    assert "samples.jsonl line 4" in done.stderr
    folder = RunFolder.open(run)
    assert len(folder.samples()) == 4 * 2
    text = (run / "run.json").read_text()
    for damaged in (text[:-9], text.replace('"launches": 2', '"launches": "2"'), text.replace('"at"', '"to"')):
        (run / "run.json").write_text(damaged)
        done = sweep("--resume", str(run), "--launches", "5")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
        assert (run / "run.json").read_text() == damaged


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"version": "0.0.1"}, "the run was made with collbench 0.0.1, this is "),
        ({"machine": {"fingerprint": {"hard": {"torch": "1.0"}}}}, "torch was 1.0 and is "),
    ],
)
def test_launches_of_other_software_are_not_added(run: Path, changed: dict[str, Any], told: str) -> None:
    (run / "run.json").write_text(json.dumps(record(run) | changed))
    done = sweep("--resume", str(run), "--launches", "5")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert f"--resume: {told}" in done.stderr
    assert "start a new run" in done.stderr
    assert record(run)["launches"] == 1


def test_launches_that_no_budget_holds_are_one_line_of_each_cell(run: Path) -> None:
    """However many they are, and however often the run is resumed."""
    words = ("--resume", str(run), "--launches", "20000", "--budget", "1s", "--json")
    done = sweep(*words)
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["rows"]:
        assert row["reason"].startswith(f"{20_000 - row['launches']} of 20000 launches were not run: the budget of 1 s")
    given_up = [one for one in RunFolder.open(run).samples() if one.status is Status.NOT_RUN]
    assert 4 <= len(given_up) <= 8
    before = (run / "samples.jsonl").read_bytes().count(b"not_run")
    measured = len(RunFolder.open(run).samples()) - len(given_up)
    for budget in ("1ms", "1ms", "2ms"):
        done = sweep(*words[:4], "--budget", budget)
        assert done.returncode == 0, done.stderr
    folder = RunFolder.open(run)
    assert (run / "samples.jsonl").read_bytes().count(b"not_run") <= before + 2 * 4
    assert sum(one.status is Status.OK for one in folder.samples()) == measured
    assert {"the budget of 0.002 s" in row["reason"] for row in rows(folder.run, folder.samples())} == {True}


def test_launches_are_lowered_to_those_that_were_measured(run: Path) -> None:
    """After a number mistyped; nothing that was measured is lost."""
    assert sweep("--resume", str(run), "--launches", "20000", "--budget", "1s").returncode == 0
    held = RunFolder.open(run)
    measured = held.measured_launches
    ok = [one for one in held.samples() if one.status is Status.OK]
    assert 1 <= measured < 20_000
    before = (run / "run.json").read_bytes()
    if measured > 1:
        done = sweep("--resume", str(run), "--launches", str(measured - 1))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"the run has measured {measured} and keeps them" in done.stderr
        assert (run / "run.json").read_bytes() == before
    seen = sweep("--resume", str(run), "--launches", str(measured), "--dry-run")
    assert (seen.returncode, f"cells x {measured} launches" in seen.stderr) == (0, True), seen.stderr
    assert (run / "run.json").read_bytes() == before
    done = sweep("--resume", str(run), "--launches", str(measured), "--json")
    assert done.returncode == 0, done.stderr
    found = {(row["status"], row["launches"], row["reason"]) for row in json.loads(done.stdout)["rows"]}
    assert found == {("ok", measured, "")}
    folder = RunFolder.open(run)
    assert (folder.run.launches, folder.run.settings["launches"], folder.problems()) == (measured, measured, [])
    assert record(run)["finished"]
    kept = {(one.cell_id, one.launch): one for one in folder.samples()}
    assert [kept[one.cell_id, one.launch] for one in ok] == ok


def test_launches_that_another_call_measured_meanwhile_are_kept(tmp_path: Path) -> None:
    made = synthetic_run(tmp_path / "run", launches=3).path
    by = Resumed("2026-01-02T00:00:00+00:00", ("collbench", "sweep"))
    with RunFolder.open(made, write=True) as folder:
        folder.go_on(by, 9)
        with pytest.raises(InvalidError, match="3 launches were measured by now: call again"):
            folder.go_on(by, 2, known=9)
        with pytest.raises(InvalidError, match="raised its launches to 9 meanwhile"):
            folder.go_on(by, 4, known=8)
        folder.go_on(by, 4, known=9)
    assert RunFolder.open(made).run.launches == 4


@pytest.mark.parametrize("words", [(), ("--launches", "5"), ("--launches", "5", "--dry-run")])
def test_a_run_without_a_plan_is_left_alone(run: Path, words: tuple[str, ...]) -> None:
    (run / "run.json").write_text(json.dumps(record(run) | {"cells": []}))
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    done = sweep("--resume", str(run), *words)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"collbench: {run}: the run plans no cell: start a new run\n"
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before
