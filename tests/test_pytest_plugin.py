"""The fixture in a user's tests: it measures, skips, fails, and writes what the gate reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

from collbench.gate.baseline import load_side

TESTS = """
def test_ring(collective_benchmark):
    row = collective_benchmark("host_ring", bytes=4096, ranks=2, iterations=20)
    assert row["status"] == "ok"
    assert row["iterations"] == 20
    collective_benchmark("host_tree", bytes=4096, ranks=2, iterations=20)

def test_more_options(collective_benchmark):
    row = collective_benchmark("host_ring", bytes=4096, ranks=2, iterations=20, options=["-d", "int32"])
    assert row["dtype"] == "int32"

def test_too_large(collective_benchmark):
    collective_benchmark("host_ring", bytes=1 << 30, ranks=2)

def test_no_such(collective_benchmark):
    collective_benchmark("host_rung", bytes=4096, ranks=2)
"""


def test_cells_are_benchmarks_in_a_users_tests(tmp_path: Path, root: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS, encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [
        sys.executable, "-m", "pytest", "-q", "-rA", "-p", "collbench.pytest_plugin", "-p", "no:cacheprovider",
        "--collbench-json", "out.json", "test_mine.py",
    ]  # fmt: skip

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)

    assert "1 failed, 2 passed, 1 skipped" in done.stdout, done.stdout
    assert "host algorithms take whole elements up to 8 MiB" in done.stdout
    assert "unknown algorithm 'host_rung'" in done.stdout
    names = [one["fullname"] for one in json.loads((tmp_path / "out.json").read_text())["benchmarks"]]
    assert names == ["test_mine.py::test_ring", "test_mine.py::test_ring#2", "test_mine.py::test_more_options"]
    assert list(load_side(tmp_path / "out.json").cells) == names


def run_pytest(tmp_path: Path, root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "collbench.pytest_plugin", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path, root: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS, encoding="utf-8")

    done = run_pytest(tmp_path, root, "--collbench-json", "no/such/out.json")

    assert done.returncode == 4
    assert "--collbench-json no/such/out.json: there is no such folder" in done.stderr


def test_cells_are_not_measured_beside_each_other(tmp_path: Path, root: Path) -> None:
    """A process of pytest-xdist is told by what it puts into the configuration."""
    (tmp_path / "conftest.py").write_text("def pytest_configure(config): config.workerinput = {}\n", encoding="utf-8")
    (tmp_path / "test_mine.py").write_text(
        "def test_ring(collective_benchmark): collective_benchmark('host_ring', bytes=4096, ranks=2)\n",
        encoding="utf-8",
    )

    done = run_pytest(tmp_path, root)

    assert "a cell is measured alone: run these tests without pytest-xdist" in done.stdout
