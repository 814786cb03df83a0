"""Whatever one algorithm does, its own cells get a status with a reason and everybody else's are complete."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tests" / "packages" / "faulty"


def sweep(*words: str, env: Mapping[str, str] | None = None, nproc: int = 3) -> subprocess.CompletedProcess[str]:
    """Run a sweep as a user would, with the package of faulty algorithms installed."""
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{ROOT}", **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "collbench.sweep", "--nproc", str(nproc), *words],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def rows_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Rows of a sweep of one size and one mode by algorithm."""
    return {row["algorithm"]: row for row in json.loads(done.stdout)["rows"]}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One sweep over every fault, with an honest algorithm before and behind."""
    out = tmp_path_factory.mktemp("faults") / "run"
    done = sweep(
        "--algorithms", "faulty,host_ring", "-b", "256", "--calls", "1", "-n", "30", "--timeout", "3s", "--json",
        "--out", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (out / ".work").exists()
    return rows_of(done)


@pytest.mark.parametrize(
    ("algorithm", "status", "reason"),
    [
        ("faulty_right", "ok", ""),
        ("host_ring", "ok", ""),
        ("faulty_killed", "crashed", "rank 2 was ended by SIGKILL"),
        ("faulty_hung", "hung", "no answer from rank 2 in warm-up (rank "),
        ("faulty_segfault", "crashed", "rank 2 was ended by SIGSEGV"),
        ("faulty_nomemory", "out_of_memory", "rank 2: MemoryError: asked for 123456 bytes"),
        ("faulty_raises", "crashed", "illegal memory access was encountered (faulty.py:"),
        # behind a batch, or in an iteration judged alone, whichever the seed brings first
        ("faulty_wrong", "wrong", "rank 0: slot 0 of 1: 1 of 64 elements wrong"),
        ("faulty_otherbits", "wrong", "rank 1 holds other bits than rank 0"),
        ("faulty_silent", "wrong", "64 of 64 elements wrong or unwritten"),
        ("faulty_ignored", "unsupported", "ran Ring/Simple instead"),
        ("faulty_opensbadly", "crashed", "no such library: libmissing.so"),
        ("faulty_remembers", "wrong", "64 of 64 elements wrong or unwritten, first at 0: nan"),
        ("faulty_intermittent", "wrong", "in the timed run, "),
        ("faulty_garbage", "crashed", "rank 2 sent no message of ours: 5 bytes that are no JSON"),
        ("faulty_binary", "crashed", "rank 2 sent no message of ours: 5 bytes that are no JSON"),
        ("faulty_noobject", "crashed", "rank 2 sent no message of ours: list in place of an object"),
        ("faulty_hugeframe", "crashed", "rank 2 sent no message of ours: a frame of 2147483647 bytes"),
        ("faulty_halfframe", "hung", "no answer from rank 2 in warm-up"),
        ("faulty_chatters", "hung", "rank 2 in talking"),
        ("faulty_killsserver", "crashed", " ended with the fork server, which was ended by SIGKILL"),
    ],
)
def test_each_fault_has_its_status(faults: dict[str, dict[str, Any]], algorithm: str, status: str, reason: str) -> None:
    row = faults[algorithm]
    assert row["status"] == status
    assert reason in row["reason"]
    assert (row["p50_us"] is not None) == (status == "ok")


def test_a_cell_that_support_refuses_is_a_row(tmp_path: Path) -> None:
    done = sweep("--algorithms", "faulty_right", "-b", "8192", "--calls", "1", "--json", "--out", str(tmp_path / "run"))
    assert done.returncode == 3
    assert rows_of(done)["faulty_right"]["reason"] == "only up to 4096 bytes"


def test_three_hung_cells_in_a_row_end_the_algorithm_and_not_the_sweep(tmp_path: Path) -> None:
    done = sweep(
        "--algorithms", "faulty_killed,host_tree", "-b", "64", "-e", "1K", "-f", "2", "--calls", "1", "-n", "3",
        "--json", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    rows = [row for row in json.loads(done.stdout)["rows"] if row["algorithm"] == "faulty_killed"]
    assert [row["status"] for row in rows] == ["crashed"] * 3 + ["not_run"] * 2
    assert "3 in a row" in rows[-1]["reason"]
    honest = [row for row in json.loads(done.stdout)["rows"] if row["algorithm"] == "host_tree"]
    assert [row["status"] for row in honest] == ["ok"] * 5
