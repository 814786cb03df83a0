"""Launches go there and back over the algorithms, so that any two of them are paired A B B A."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("budget", [(), ("--budget", "60s", "--no-probe")])
def test_every_second_launch_takes_the_algorithms_backwards(budget: tuple[str, ...], tmp_path: Path) -> None:
    """Also within a budget that holds everything."""
    run = tmp_path / "run"
    words = ("--algorithms", "host_ring,host_tree", "-b", "256", "--calls", "1", "-n", "3", "--launches", "3")
    done = subprocess.run(
        [sys.executable, "-m", "collbench.sweep", "--nproc", "2", *words, *budget, "--out", str(run)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    told = [(line["launch"], line["cell_id"].split("/")[1]) for line in lines]
    a, b = "host_ring", "host_tree"
    assert told == [(0, a), (0, b), (1, b), (1, a), (2, a), (2, b)]
