"""Bad input gets one clear line, exit code 2 or 3, and nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.results.records import Status
from collbench.results.store import RunFolder

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--algorithms", "host_ring", "-b", "256", "--calls", "1", "-n", "3")


def sweep(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "collbench.sweep", *words], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (
            ("--algorithms", "nccl_rign"),
            2,
            "unknown algorithm 'nccl_rign': did you mean nccl_ring_ll? Families: b12x",
        ),
        (("--algorithms", "expert"), 2, "expert has no all_reduce: give --collective all_to_all"),
        (("--collective", "barrier", "--algorithms", "push"), 2, "push has no barrier: give --collective all_reduce"),
        (("--algorithms", ","), 2, "no algorithm named"),
        (("-b", "0"), 2, "-b: size '0'"),
        (("-b", "1e30"), 2, "larger than 1 TiB"),
        (("-b", "1K", "-e", "512"), 2, "largest size 512 is below the smallest"),
        (("-b", "many"), 2, "expected a number of bytes"),
        (("-b", "1023"), 2, "no whole number of float32 elements"),
        (("-b", "1", "-e", "1T", "-f", "1"), 2, "expected a number of bytes"),
        (("-f", "1"), 2, "factor 1"),
        (("-n", "0"), 2, "-n 0: expected a whole number from 1 to 1,000,000"),
        (("--calls", "99999999"), 2, "from 1 to 1,000,000"),
        (("--op", "max"), 2, "--op max: only sum can be verified"),
        (("--sizes", "1K", "-b", "1K"), 2, "leave out -b and -e"),
        (("--sizes", "1K,nought"), 2, "--sizes: size 'nought'"),
        (("--share-gpu",), 2, "there is no NVIDIA GPU here"),
        (("--collective", "gossip"), 2, "--collective gossip: expected one of"),
        (("-d", "float65"), 2, "unknown dtype 'float65'"),
        (("--nproc", "17"), 2, "world size 17"),
        (("--nproc", "0"), 2, "world size 0"),
        (("--modes", "lazy"), 2, "--modes lazy: expected eager or graph, or both by a comma"),
        (("--modes", "grpah"), 2, "did you mean graph?"),
        (("--calls", "abc"), 2, "--calls abc: expected whole numbers by commas, such as 1,122"),
        (("--calls", "0"), 2, "--calls 0"),
        (("--launches", "-1"), 2, "--launches -1"),
        (("--launches", "1000000"), 2, "cells x 1,000,000 launches: a run holds at most 200,000 of them"),
        (("--budget", "soon"), 2, "duration 'soon'"),
        (("--budget", ""), 2, "duration ''"),
        (("--nccl", "/no/such/libnccl.so"), 2, "no such file"),
        (("--resume", "/no/such/run"), 2, "/no/such/run"),
    ],
)
def test_one_line_and_the_right_code(words: tuple[str, ...], code: int, text: str) -> None:
    done = sweep("--nproc", "2", *words) if "--nproc" not in words else sweep(*words)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert text in done.stderr


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert sweep("--nproc", "2", *QUICK, "--out", str(run)).returncode == 0
    before = (run / "samples.jsonl").read_bytes()
    done = sweep("--nproc", "2", *QUICK, "--out", str(run))
    assert done.returncode == 2
    assert "--resume" in done.stderr
    assert (run / "samples.jsonl").read_bytes() == before


def test_resuming_with_other_cells_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert sweep("--nproc", "2", *QUICK, "--out", str(run)).returncode == 0
    words = ("--algorithms", "host_tree", "-b", "1K", "--sizes=2K", "-w3", "--modes", "eager,graph", "--out", "x")
    done = sweep("--resume", str(run), "--launches", "9", *words)
    assert done.returncode == 2
    told = "leave out --algorithms, -b, --sizes, -w, --modes, --out"
    assert done.stderr == f"collbench: --resume goes on with the run's own options: {told}\n"
    assert RunFolder.open(run).run.launches == 1


def test_resuming_a_damaged_run_says_what_was_lost(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert sweep("--nproc", "2", *QUICK, "--out", str(run)).returncode == 0
    (run / "samples.parquet").unlink()
    samples = run / "samples.jsonl"
    samples.write_bytes(samples.read_bytes()[:-20])
    done = sweep("--resume", str(run))
    assert done.returncode == 0
    assert any(line.startswith("collbench: ") and "samples.jsonl" in line for line in done.stderr.splitlines())
    assert "host_ring: 1 ok" in done.stderr


def test_resuming_measures_what_a_budget_cut_off(tmp_path: Path) -> None:
    """Cells without their turn get it; the line that said so counts no longer, and nobody complains of two."""
    run = tmp_path / "run"
    many = ("--algorithms", "host_ring", "-b", "256", "-e", "64K", "--calls", "1,122", "-n", "200")
    cut = sweep("--nproc", "2", *many, "--budget", "0.2s", "--no-probe", "--out", str(run))
    assert "not_run" in cut.stderr
    done = sweep("--resume", str(run), "--budget", "60s")
    assert done.returncode == 0, done.stderr
    assert "not_run" not in done.stdout
    folder = RunFolder.open(run)
    assert {samples.status for samples in folder.samples()} == {Status.OK}
    assert len(folder.samples()) == len(folder.run.cells)
    assert folder.problems() == []
    (run / "samples.jsonl").unlink()
    assert {samples.status for samples in RunFolder.open(run).samples()} == {Status.OK}


def test_resuming_with_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert sweep("--nproc", "2", *QUICK, "--out", str(run)).returncode == 0
    done = sweep("--nproc", "3", "--resume", str(run))
    assert done.returncode == 3
    assert "2 on host" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self/attr").exists(), reason="root writes everywhere here")
def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file, not a folder")
    done = sweep("--nproc", "2", *QUICK, "--out", str(blocked / "run"))
    assert done.returncode in {2, 3}
    assert len(done.stderr.splitlines()) == 1


def test_an_empty_machine_of_cells_is_exit_3(tmp_path: Path) -> None:
    """A sweep without one ok cell is not fine."""
    done = sweep("--nproc", "2", "--algorithms", "nccl_auto", "-b", "256", "--out", str(tmp_path / "run"))
    assert done.returncode == 3
    assert "no cell is ok: unsupported" in done.stderr
