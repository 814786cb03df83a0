"""`collbench tune-nccl` as a user runs it, on an algorithm whose settings make it slow, wrong, hanging or crashing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from collbench.cli import main

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tests" / "packages" / "tunable"
WORDS = (
    "--algorithm", "tunable", "--nproc", "2", "-b", "1K", "--modes", "eager", "--calls", "4", "-n", "10", "--timeout",
    "3s", "--set", "COLLBENCH_DEMO_WAIT_US=0,5000", "--set", "COLLBENCH_DEMO_FAULT=hang,crash,wrong",
)  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{PACKAGE}:{ROOT}", "OMP_NUM_THREADS": "1"}


def tune(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "collbench", "tune-nccl", *words], env=environment(), cwd=folder, capture_output=True,
        text=True, timeout=110, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("tune")
    done = tune(*WORDS, "--candidates", "6", "--json", "--budget", "90s", "--out", "found", folder=folder)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome, folder / "found"


def test_the_fastest_setting_wins_with_an_interval(found: tuple[dict[str, Any], Path]) -> None:
    outcome, _ = found
    assert outcome["winner"] == "COLLBENCH_DEMO_WAIT_US=0"
    assert outcome["environment"] == {"COLLBENCH_DEMO_WAIT_US": "0"}
    (final,) = outcome["finals"]
    assert final["pairs"] == 8
    assert final["overall"]["lower"] <= final["overall"]["ratio"] <= final["overall"]["upper"] < 1


def test_whatever_fails_is_out_with_its_reason(found: tuple[dict[str, Any], Path]) -> None:
    outcome, _ = found
    told = {row["candidate"]: (row["status"], row["reason"]) for row in outcome["rows"]}
    assert told["COLLBENCH_DEMO_FAULT=hang"][0] == "hung"
    assert told["COLLBENCH_DEMO_FAULT=crash"] == ("crashed", "rank 1 was ended by SIGKILL")
    assert told["COLLBENCH_DEMO_FAULT=wrong"][0] == "wrong"
    assert told["COLLBENCH_DEMO_WAIT_US=5000"][0] == "ok"


def test_estimates_stand_beside_measured_times(found: tuple[dict[str, Any], Path]) -> None:
    outcome, _ = found
    assert {row["candidate"] for row in outcome["estimates"]} == {"default", "COLLBENCH_DEMO_WAIT_US=0"}
    assert {(row["nccl_estimate_us"], row["chosen"]) for row in outcome["estimates"]} == {(12.5, "Ring/LL")}


def test_everything_is_a_run_that_other_commands_read(found: tuple[dict[str, Any], Path]) -> None:
    """Each candidate is a variant; folders are private and hold no work of a worker any more."""
    from collbench.results.store import RunFolder

    _, path = found
    finals = list(path.glob("final-*"))
    assert len(finals) == 1
    with RunFolder.open(path / "search") as search, RunFolder.open(finals[0]) as final:
        assert {cell.variant for cell in search.run.cells} >= {"default", "COLLBENCH_DEMO_FAULT=wrong"}
        assert len(final.samples()) == 16
        order = [one.cell_id.split("/")[2] == "default" for one in final.samples()]
        assert order[:8] == [True, False, False, True, True, False, False, True]
    assert path.stat().st_mode & 0o777 == 0o700
    assert not list(path.glob("*/.work"))


def test_going_on_measures_only_what_is_missing(found: tuple[dict[str, Any], Path]) -> None:
    outcome, path = found
    before = (path / "search" / "samples.jsonl").read_bytes().count(b"\n")
    done = tune("--resume", str(path), "--json", "--budget", "60s", folder=path.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["winner"] == outcome["winner"]
    # the default is measured anew beside what follows, and nothing follows
    assert (path / "search" / "samples.jsonl").read_bytes().count(b"\n") == before + 1


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_search_that_is_stopped_leaves_no_process_and_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    words = [*WORDS, "--candidates", "3", "--budget", "80s", "--out", "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "collbench", "tune-nccl", *words], env=environment(), cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    samples = tmp_path / "run" / "search" / "samples.jsonl"
    until = time.monotonic() + 60
    while not (samples.exists() and samples.stat().st_size) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == (-9 if number is signal.SIGKILL else 128 + number)
    if number is not signal.SIGKILL:
        assert "go on with --resume" in told
        assert "Traceback" not in told
    assert _no_worker_of(tmp_path)
    done = tune("--resume", "run", "--json", "--budget", "80s", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["winner"] == "COLLBENCH_DEMO_WAIT_US=0"


@pytest.mark.slow
def test_a_hang_is_cut_off_by_the_budget_and_takes_its_turn_behind_the_others(tmp_path: Path) -> None:
    """Its timeout is a minute, the budget 3 s: a few seconds later the call has ended, and the next one goes on."""
    words = [*WORDS[:-6], "--timeout", "60s", "--set", "COLLBENCH_DEMO_FAULT=hang", "--set", "COLLBENCH_DEMO_X=1"]
    begin = time.monotonic()
    done = tune(*words, "--candidates", "3", "--budget", "3s", "--out", "run", folder=tmp_path)
    assert time.monotonic() - begin < 30
    assert done.returncode == 0, done.stderr
    assert "COLLBENCH_DEMO_FAULT=hang, launch 0: cut off by the budget" in done.stderr
    assert "left out by the budget" in done.stdout
    assert "go on with: collbench tune-nccl --resume run" in done.stdout
    assert _no_worker_of(tmp_path)
    again = tune("--resume", "run", "--budget", "3s", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "COLLBENCH_DEMO_X=1, launch 0: " in again.stderr


def _no_worker_of(folder: Path) -> bool:
    """Whether within 10 s no fork server or worker is left that was started in this folder."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        left = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                    left.append(entry)
            except OSError:
                continue
        if not left:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_libraries_are_compared_each_in_workers_of_its_own(tmp_path: Path) -> None:
    """The newer library is faster without any setting: it wins, and the text says what to preload."""
    for version in (22809, 23007):
        source = tmp_path / f"{version}.c"
        source.write_text(f"int ncclGetVersion(int *v) {{ *v = {version}; return 0; }}")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / f"lib{version}.so"), str(source)], check=True)
    words = [*WORDS[:-4], "--set", "COLLBENCH_DEMO_FAULT=wrong", "--nccl", "lib22809.so", "--nccl", "lib23007.so"]
    done = tune(*words, "--candidates", "4", "--budget", "60s", "--out", "run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "winner: 2.30.7, " in done.stdout
    assert "# with NCCL 2.30.7: LD_PRELOAD its lib23007.so" in done.stdout
    assert "2.28.9+COLLBENCH_DEMO_FAULT=wrong  wrong" in done.stdout
    run = json.loads((tmp_path / "run" / "search" / "run.json").read_text())
    assert {cell["variant"] for cell in run["cells"]} >= {"2.28.9", "2.30.7"}


def test_without_a_gpu_it_says_so_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "collbench", "tune-nccl", "--nproc", "2"], cwd=tmp_path, capture_output=True, text=True,
        env=environment() | {"CUDA_VISIBLE_DEVICES": ""}, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.startswith("collbench: nccl_auto: unsupported: ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_default_that_is_wrong_is_nothing_to_compare_with(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "collbench", "tune-nccl", *WORDS[:-2], "--out", "run"], cwd=tmp_path,
        capture_output=True, text=True, env=environment() | {"COLLBENCH_DEMO_FAULT": "wrong"}, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "collbench: tunable: wrong: rank 0" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--algorithm", "nobody"), 2, "--algorithm nobody: not known"),
        (("--set", "NCCL_PROTO"), 2, "expected NAME=VALUE"),
        (("--set", "NCCL_DEBUG=WARN"), 2, "collbench sets it itself"),
        (("--space", "none.toml"), 2, "no such file"),
        (("--space", "none.toml", "--set", "NCCL_PROTO=LL"), 2, "give the one or the other"),
        (("--pairs", "3"), 2, "an interval needs 8"),
        (("--candidates", "1"), 2, "expected 2 to 1000"),
        (("--nproc", "1"), 2, "expected 2 to 16 ranks"),
        (("-n", "1"), 2, "expected 5 to 100,000"),
        (("--calls", "0"), 2, "whole numbers from 1 on"),
        (("--modes", "fast"), 2, "--modes fast: expected eager or graph"),
        (("--budget", "never"), 2, "duration 'never'"),
        (("-b", "x"), 2, "size 'x'"),
        (("--nccl", "none.so"), 2, "no such file"),
        (("--resume", "nowhere"), 2, "no tune.json there"),
        (
            ("--resume", "nowhere", "--set", "NCCL_PROTO=LL,Simple", "--pairs", "8", "--sizes", "1K"),
            2,
            "the search's own options: leave out --set, --sizes, --pairs",
        ),
        (("--resume", "nowhere", "-b1K"), 2, "leave out -b"),
        (("-d", "float8", "--algorithm", "host_ring"), 2, "unknown dtype"),
    ],
)
def test_bad_calls_are_one_line(
    words: tuple[str, ...], code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["tune-nccl", *words]) == code
    seen = capsys.readouterr()
    assert (seen.out, seen.err.count("\n")) == ("", 1)
    assert told in seen.err
    assert not list(tmp_path.iterdir())


def test_damaged_state_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("{", "[]", '{"schema": "collbench/9"}', '{"schema": "collbench/1", "plan": {}}'):
        (tmp_path / "tune.json").write_text(text)
        assert main(["tune-nccl", "--resume", str(tmp_path)]) == 3
        told = capsys.readouterr().err
        assert (told[:11], told.count("\n")) == ("collbench: ", 1)


def test_the_default_space_can_be_printed_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune-nccl", "--print-space"]) == 0
    (tmp_path / "space.toml").write_text(capsys.readouterr().out)
    assert main(["tune-nccl", "--space", str(tmp_path / "space.toml"), "--algorithm", "nobody"]) == 2
    assert "--algorithm nobody" in capsys.readouterr().err
