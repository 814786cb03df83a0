"""docs/ci.md is followed word by word; the workflows keep its rules."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

WORKFLOWS = ("action.yml", ".github/workflows/gate.yml", ".github/workflows/benchmarks.yml", "docs/ci.md")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_file_mode_works_as_it_is_written(root: Path, tmp_path: Path) -> None:
    scripts = tmp_path / "bin"
    scripts.mkdir()
    command = scripts / "collbench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m collbench "$@"\n', encoding="utf-8")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    env = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    folder = tmp_path / "empty"
    folder.mkdir()
    blocks = re.findall(r"^```bash\n(.*?)^```$", (root / "docs" / "ci.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)

    assert len(blocks) == 3
    for block in blocks:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block], cwd=folder, env=env, text=True, capture_output=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert {"junit.xml", "summary.md", "verdict.json", "page.html"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_are_pinned_and_give_little_away(name: str, root: Path) -> None:
    """Actions by commit, no trigger that runs strangers' code with secrets, no input pasted into a script."""
    text = (root / name).read_text("utf-8")

    used = re.findall(r"uses: (\S+)", text)
    assert all(re.search(r"@(?:[0-9a-f]{40}|COMMIT)$", one) for one in used)
    assert "pull_request_target:" not in re.sub(r"#.*", "", text)
    scripts = re.findall(r"run: \|\n((?: {8,}.*\n)+)", text)
    assert not any("${{" in script for script in scripts)
    if name.startswith(".github"):
        assert "permissions:\n  contents: read" in text


BENCHMARK = """
import time

import pytest

@pytest.mark.slow
def test_wait(benchmark):
    benchmark.pedantic(lambda: time.sleep({seconds}), rounds=10)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seconds", "more", "told"),
    [
        (0.03, "", "::error title=collbench%3A REGRESSED"),
        (0.01, "def test_new(benchmark): benchmark(int)", "no verdict"),
    ],
)
def test_our_benchmarks_go_through_the_gate_and_only_warn(
    seconds: float, more: str, told: str, root: Path, tmp_path: Path
) -> None:
    """A benchmark that takes three times as long is named, one that is new is no verdict; the job passes."""
    for side, wait in (("base", 0.01), ("head", seconds)):
        folder = tmp_path / side / "tests" / "benchmarks"
        folder.mkdir(parents=True)
        text = BENCHMARK.format(seconds=wait) + (f"\n@pytest.mark.slow\n{more}\n" if more and side == "head" else "")
        (folder / "test_it.py").write_text(text, encoding="utf-8")
        (tmp_path / side / "pytest.ini").write_text("[pytest]\nmarkers = slow: x\n", encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(root), "PYTHON": sys.executable, "GITHUB_STEP_SUMMARY": str(tmp_path / "md")}

    done = subprocess.run(
        ["bash", root / ".github" / "benchmarks.sh", "base", "head", "out"], cwd=tmp_path, env=env, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert told in done.stdout + done.stderr
    assert len(list((tmp_path / "out" / "head").glob("*.json"))) == 5
    assert "collbench gate" in (tmp_path / "md").read_text()


def test_the_action_runs_one_gate_and_passes_its_exit_code_on(root: Path, tmp_path: Path) -> None:
    """As the composite action calls it, with a base that is not there: INVALID or usage, never a pass."""
    for name in ("summary", "output"):
        (tmp_path / name).touch()
    env = os.environ | {
        "PYTHONPATH": str(root), "PYTHON": sys.executable, "RESULTS": str(tmp_path / "results"), "BASE": "no such",
        "CURRENT": "file", "OPTIONS": "--strict", "SWEEP_OPTIONS": "", "BASELINE_SIDE": "", "CANDIDATE_SIDE": "",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output"),
    }  # fmt: skip

    done = subprocess.run(
        ["bash", root / ".github" / "gate.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "::error title=collbench%3A no verdict::no such: no such run folder or file" in done.stderr
    assert (tmp_path / "output").read_text() == "verdict=INVALID\nexit-code=2\n"
    assert "INVALID" in (tmp_path / "summary").read_text()
    assert (tmp_path / "results" / "junit.xml").exists()
