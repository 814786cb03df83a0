"""A sweep that is stopped, however hard, leaves a readable run, no process and no shared memory, and can be resumed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("--algorithms", "host", "-b", "256", "-e", "4K", "--calls", "1,4", "-n", "20", "--timeout", "10s")


def start(*words: str) -> subprocess.Popen[str]:
    """Start a sweep of two ranks in a session of its own, marked by a variable that its descendants inherit."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLLBENCH_TEST_MARK": "interrupts"}
    return subprocess.Popen(
        [sys.executable, "-m", "collbench.sweep", *words], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def descendants_alive() -> list[int]:
    """Processes that carry the mark, apart from this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if b"COLLBENCH_TEST_MARK=interrupts" in environment and state != "Z":
            found.append(int(folder.name))
    return found


def wait_until_all_gone() -> None:
    """Deaths by PR_SET_PDEATHSIG follow within milliseconds, on a busy machine within seconds."""
    end = time.monotonic() + 10
    while descendants_alive() and time.monotonic() < end:
        time.sleep(0.05)
    assert descendants_alive() == []


def wait_for_lines(run: Path, count: int) -> None:
    """Wait until the run holds that many lines."""
    samples, end = run / "samples.jsonl", time.monotonic() + 60
    while time.monotonic() < end:
        if samples.exists() and samples.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    raise AssertionError("the sweep wrote nothing")


def cells_of(run: Path) -> list[str]:
    """Ids of the lines of a run, sorted."""
    return sorted(json.loads(line)["cell_id"] for line in (run / "samples.jsonl").read_text().splitlines())


def resume(run: Path) -> subprocess.CompletedProcess[str]:
    """Go on with a run."""
    process = start("--resume", str(run), "--json")
    out, err = process.communicate(timeout=90)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_in_three_seconds_with_a_run_that_can_be_resumed(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    process = start("--nproc", "2", *WORDS, "--out", str(run))
    wait_for_lines(run, 2)
    begin = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - begin < 3
    assert process.returncode == 128 + number
    assert err.splitlines()[-1].startswith(f"collbench: {number.name}: stopped; what was measured is kept")
    wait_until_all_gone()
    before = cells_of(run)
    done = resume(run)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 5 * 3 * 2
    assert {row["status"] for row in rows} == {"ok"}
    assert set(before) < set(cells_of(run))
    assert len(set(cells_of(run))) == len(cells_of(run))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_at_ten_random_moments_resumes_to_the_same_cells(tmp_path: Path) -> None:
    """Nothing is measured twice, nothing is lost, no process and nothing in /dev/shm is left."""
    shared_before = {path.name for path in Path("/dev/shm").iterdir()}
    expected: list[str] | None = None
    rng = random.Random(7)
    for turn in range(10):
        run = tmp_path / f"run{turn}"
        process = start("--nproc", "2", *WORDS, "--out", str(run))
        time.sleep(rng.uniform(0.3, 4.0))
        process.kill()
        process.communicate()
        wait_until_all_gone()
        if not (run / "run.json").exists():
            continue
        done = resume(run)
        assert done.returncode == 0, done.stderr
        expected = expected or sorted(row["cell_id"] for row in json.loads(done.stdout)["rows"])
        assert cells_of(run) == expected
        assert not (run / ".work").exists()
    assert expected is not None
    assert {path.name for path in Path("/dev/shm").iterdir()} <= shared_before
