"""Libraries that misbehave cost their own cells a status with a reason; the sweep goes on, and nothing is left."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from collbench.measure import leftovers

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tests" / "packages" / "libraries"

pytest.importorskip("torch")


def children(mark: str) -> set[int]:
    """Processes that have the mark of the sweep in their environment."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in words and int(process.name) != os.getpid():
            found.add(int(process.name))
    return found


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One sweep over all faults; what it left is looked for as soon as it ends."""
    folder, mark = tmp_path_factory.mktemp("libraries"), uuid.uuid4().hex
    before = leftovers.snapshot()
    done = subprocess.run(
        [sys.executable, "-m", "collbench.sweep", "--nproc", "3", "--algorithms", "library,host_ring", "-b", "1024",
         "--calls", "1", "-n", "3", "--timeout", "6s", "--no-probe", "--json", "--out", str(folder / "run")],
        env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{ROOT}", "COLLBENCH_FAKE_PID": str(folder / "pid"),
             "COLLBENCH_MARK": mark},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows: dict[str, dict[str, Any]] = {row["algorithm"]: row for row in json.loads(done.stdout)["rows"]}
    left = {name for name, _ in leftovers.snapshot() - before if mark in name}
    return {
        **rows,
        "left": {"shared": left, "processes": children(mark), "compilers": (folder / "pid").read_text().split()},
    }


@pytest.mark.parametrize(
    ("algorithm", "status", "reason"),
    [
        ("library_right", "ok", ""),
        ("host_ring", "ok", ""),
        ("library_rubbish", "ok", ""),
        ("library_broken", "unsupported", "FlashInfer: ImportError: No module named 'cutlass'"),
        ("library_cuda", "unsupported", "libcudart.so.12: cannot open shared object file"),
        ("library_dies", "unsupported", "std::bad_alloc"),
        ("library_old", "unsupported", "create_allreduce_fusion_workspace() takes no world_size"),
        ("library_endless", "unsupported", "importing and compiling it did not end within 3 s"),
        ("library_silent", "wrong", "256 of 256 elements wrong or unwritten"),
        ("library_without_nvlink", "wrong", "256 of 256 elements wrong or unwritten"),
        ("library_preloaded_right", "ok", ""),
        ("library_preloaded_thread", "ok", ""),
        ("library_preloaded_endless", "unsupported", "importing and compiling it did not end within 3 s"),
        ("library_preloaded_dies", "unsupported", "std::bad_alloc"),
        ("library_leaves", "ok", ""),
        ("library_leaves_and_hangs", "hung", "no answer from rank"),
    ],
)
def test_each_fault_has_its_status(swept: dict[str, dict[str, Any]], algorithm: str, status: str, reason: str) -> None:
    row = swept[algorithm]
    assert (row["status"], reason in row["reason"]) == (status, True), row["reason"]
    assert (row["p50_us"] is not None) == (status == "ok")


def test_a_library_is_imported_once_for_all_launches(tmp_path: Path) -> None:
    """Its seconds stand in the evidence of every launch; what is unfit is told once, and measured all the same."""
    done = subprocess.run(
        [sys.executable, "-m", "collbench.sweep", "--nproc", "2", "--algorithms",
         "library_preloaded_right,library_preloaded_thread", "-b", "1024", "--calls", "1", "-n", "3", "--launches", "3",
         "--no-probe", "--json", "--out", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{ROOT}"}, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [row["status"] for row in json.loads(done.stdout)["rows"]] == ["ok", "ok"]
    assert done.stderr.count("flashinfer.comm is imported by each worker by itself: it leaves threads running") == 1
    told = [json.loads(line) for line in (tmp_path / "run" / "evidence.jsonl").read_text().splitlines()]
    preloaded = [each["evidence"] for each in told if "preloaded" in each["evidence"]]
    assert len(preloaded) == len(told) / 2 == 3
    assert len({each["preloaded"] for each in preloaded}) == 1
    assert all(each["imported"].endswith(" s in the fork server") for each in preloaded)
    others = [each["evidence"] for each in told if "preloaded" not in each["evidence"]]
    assert all(each["not preloaded"].startswith("flashinfer.comm: it leaves threads") for each in others)
    assert all(each["imported"].endswith(" s") for each in others)


def test_a_hang_behind_the_opening_has_the_usual_limit(swept: dict[str, dict[str, Any]]) -> None:
    """The time for compiling is not added to a cell whose library is open already."""
    assert "within 6 s" in swept["library_leaves_and_hangs"]["reason"]


def test_nothing_is_left(swept: dict[str, dict[str, Any]]) -> None:
    """No process of the sweep, no compiler, nothing in /dev/shm."""
    assert swept["left"]["shared"] == set()
    assert swept["left"]["processes"] == set()
    assert len(swept["left"]["compilers"]) == 2
    assert not any(Path(f"/proc/{compiler}").exists() for compiler in swept["left"]["compilers"])


def test_shared_memory_of_others_stays(tmp_path: Path) -> None:
    """Files that were there, that somebody has open, or that no worker was seen to hold."""
    (tmp_path / "before").write_bytes(b"0")
    before = leftovers.snapshot(tmp_path)
    for name in ("left", "weights.bin", "open"):
        (tmp_path / name).write_bytes(b"0")
    (tmp_path / "link").symlink_to(tmp_path / "weights.bin")
    with (tmp_path / "open").open("rb"):
        assert leftovers.held_by([os.getpid()], tmp_path) == {"open"}
        assert leftovers.remove(before, {"before", "left", "open", "link", "gone"}, tmp_path) == ["left"]
    assert {path.name for path in tmp_path.iterdir()} == {"before", "weights.bin", "open", "link"}
    assert leftovers.remove(before, {"left"}, tmp_path / "missing") == []
    assert leftovers.held_by([2**22 + 1], tmp_path) == set()
