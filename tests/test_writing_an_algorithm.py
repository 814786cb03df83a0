"""docs/writing-an-algorithm.md is right: its package is found, and its algorithm runs beside ours."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "writing-an-algorithm.md"
MAX_LINES = 70


def block(language: str) -> str:
    """The page's only block in that language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the page's package in it, as an installer leaves it."""
    folder = tmp_path / "site"
    metadata = folder / "summing_rank-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "summing_rank.py").write_text(block("python"), encoding="utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: summing-rank\nVersion: 1.0\n", encoding="utf-8")
    name, _, target = block("toml").splitlines()[1].partition(" = ")
    points = f"[collbench.algorithms]\n{name} = {target.strip(chr(34))}\n"
    (metadata / "entry_points.txt").write_text(points, encoding="utf-8")
    return folder


def run(site: Path, root: Path, *words: str) -> str:
    """Stdout of a Python that sees the package and this checkout."""
    env = os.environ | {"PYTHONPATH": f"{root}:{site}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=site.parent, env=env, text=True, capture_output=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_is_short() -> None:
    assert len(block("python").splitlines()) <= MAX_LINES


def test_its_traffic_and_support(site: Path, root: Path) -> None:
    """Every message goes to rank 0 and the result to every rank: 2 (n - 1) flows; other collectives are refused."""
    code = """
from collbench.algorithms.base import registry
from collbench.results.records import Call, Collective, Fabric
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine
found = registry()["summing_rank"]
phases = found.traffic(Call(1024, 4), Topology((), ())).phases
machine = Machine(Topology((), ()), Fabric.HOST, 4)
print(sum(len(p.flows) for p in phases), bool(found.support(machine, Call(1024, 4))))
print(bool(found.support(machine, Call(1024, 4, Collective.BARRIER))))
"""
    assert run(site, root, "-W", "error", "-c", code).split() == ["6", "True", "False"]


def test_the_command_of_the_page_runs_it(site: Path, root: Path) -> None:
    """Its cells are verified and have times, like those of ours."""
    words = shlex.split(block("bash"))
    assert words[0] == "collbench"
    rows = json.loads(run(site, root, "-m", *words, "--json", "--budget", "10s"))["rows"]
    ours = sorted((row["bytes"], row["calls"]) for row in rows if row["algorithm"] == "summing_rank")
    assert ours == [(size, calls) for size in (1024, 4096, 16384) for calls in (1, 8)]
    assert {row["status"] for row in rows} == {"ok"}, rows
    assert all(row["p50_us"] > 0 for row in rows)
