"""docs/ci.md is followed word by word; the workflows keep its rules."""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from collbench.gate.baseline import dump
from collbench.gate.judge import judge_paired
from collbench.gate.junit import junit
from collbench.gate.markdown import annotations, markdown
from collbench.gate.names import headline
from collbench.gate.sides import CellData, SessionSpread, Side, side_of_run
from collbench.gate.verdicts import Outcome, Rules
from collbench.results.records import Call, Cell, Mode, Status
from collbench.testing import synthetic_run

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


Steps = Callable[..., tuple[subprocess.CompletedProcess[str], dict[str, str]]]


@pytest.fixture
def steps(root: Path, tmp_path: Path) -> Steps:
    """`steps("action.yml", base="x")` runs the file's own shell steps as a runner would; gives the process and outputs.

    Expressions are replaced by the inputs' values and defaults. What prepares the runner (actions, pip) is left out.
    """

    def run(name: str, **inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
        parsed = yaml.safe_load((root / name).read_text("utf-8"))
        # YAML 1.1 reads the key `on` as true
        declared = parsed["inputs"] if "inputs" in parsed else parsed[True]["workflow_call"]["inputs"]
        values = {key: str(one.get("default", "")) for key, one in declared.items()} | inputs
        assert set(values) == set(declared)
        known = {f"inputs.{key}": value for key, value in values.items()} | {"github.action_path": str(root)}
        (step,) = [s for s in (parsed.get("runs") or parsed["jobs"]["gate"])["steps"] if "run" in s]
        env = {key: re.sub(r"\$\{\{ (\S+) \}\}", lambda m: known[m[1]], text) for key, text in step["env"].items()}
        script = tmp_path / "step.sh"
        script.write_text(re.sub(r"(?m)^python -m pip .*$", "", step["run"]), encoding="utf-8")
        files = {name: tmp_path / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        for path in files.values():
            path.write_text("", encoding="utf-8")
        paths = {name: str(path) for name, path in files.items()} | {"RUNNER_TEMP": str(tmp_path)}
        paths |= {"PYTHONPATH": str(root), "PATH": f"{_python(tmp_path)}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script], cwd=tmp_path,
            env=os.environ | paths | env, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        told = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        return done, told

    return run


def _python(folder: Path) -> Path:
    """A folder in which `python` is the one that runs the tests."""
    scripts = folder / "bin"
    scripts.mkdir(exist_ok=True)
    (scripts / "python").unlink(missing_ok=True)
    (scripts / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    (scripts / "python").chmod(0o755)
    return scripts


def _run(path: Path, us: float, seed: int = 0) -> str:
    return synthetic_run(
        path, costs={"host_ring": (us, 0.1)}, sizes=(65536,), calls=(1,), launches=6, iterations=20, seed=seed
    ).path.name


@pytest.mark.parametrize("file", ["action.yml", ".github/workflows/gate.yml"])
@pytest.mark.parametrize(("us", "code"), [(46.0, 0), (92.0, 1)])
def test_steps_judge_files_and_pass_the_exit_code_on(
    file: str, us: float, code: int, steps: Steps, tmp_path: Path
) -> None:
    """The step's own text, with a base that knows its spread; options over two lines are all taken."""
    base, now = side_of_run(tmp_path / _run(tmp_path / "base", 46.0)), _run(tmp_path / "now", us, seed=1)
    (tmp_path / "base.json").write_text(dump(base, SessionSpread(0.005, 10)), encoding="utf-8")
    options = "--strict\n--json-file verdict-too.json\n"
    more = {"python": sys.executable} if file == "action.yml" else {}

    done, told = steps(file, base="base.json", current=now, options=options, **more)

    assert done.returncode == code, done.stdout + done.stderr
    assert ("::error title=collbench%3A REGRESSED" in done.stderr) == bool(code)
    assert (tmp_path / "verdict-too.json").exists()
    assert "collbench gate: " in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert {"junit.xml", "page.html"} <= {path.name for path in (tmp_path / "collbench-gate").iterdir()}
    if file == "action.yml":
        assert told["exit-code"] == str(code)


def test_the_action_with_a_file_that_is_not_there_is_never_a_pass(steps: Steps, tmp_path: Path) -> None:
    done, told = steps("action.yml", base="no such", current="file", python=sys.executable, options="--strict")

    assert done.returncode == 2
    assert "::error title=collbench%3A no verdict::no such: no such run folder or file" in done.stderr
    assert told == {"verdict": "INVALID", "exit-code": "2"}
    assert "INVALID" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert (tmp_path / "collbench-gate" / "junit.xml").exists()


def test_the_action_without_sides_says_what_to_give(steps: Steps) -> None:
    done, told = steps("action.yml", base="only.json")

    assert (done.returncode, told) == (2, {"verdict": "INVALID", "exit-code": "2"})
    assert done.stdout.startswith("::error title=collbench::give base and current")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_action_launches_pairs(steps: Steps, tmp_path: Path) -> None:
    """Real launches of two CPU ranks: the machine may be busy, so any verdict will do; none may be missing."""
    done, told = steps(
        "action.yml", **{"baseline-side": "env:OMP_NUM_THREADS=1", "candidate-side": "env:OMP_NUM_THREADS=1"},
        **{"sweep-options": "--nproc 2 --algorithms host_ring\n--sizes 16K --modes eager --calls 1 -n 50"},
        options="--blocks 5 --max-noise 0.9", python=sys.executable,
    )  # fmt: skip

    assert told["verdict"] in {"OK", "INCONCLUSIVE", "REGRESSED", "IMPROVED"}, done.stdout + done.stderr
    assert told["exit-code"] == str(done.returncode) == str(int(told["verdict"] == "REGRESSED"))
    assert len(list((tmp_path / "collbench-gate" / "launches").glob("*-candidate"))) == 5


def _example() -> Outcome:
    """Invented launches of 45 cells, block log ratios with an sd of 2 %, in which one cell is 8 % slower."""
    draw = np.random.default_rng(8)
    sizes = (1024, 2048, 4096, 8192, 14336, 16384, 32768, 43008, 65536)
    times = {"push": 5.9, "push_flags": 5.6, "one_stage_pull": 4.7, "two_stage_pull": 7.7, "islands": 6.0}
    sides = []
    for slower in (1.0, 1.08):
        cells = {}
        for name, us in times.items():
            for size in sizes:
                cell = Cell(name, Call(size, 8), Mode.GRAPH, 122)
                effect = slower if (name, size) == ("push_flags", 14336) else 1.0
                launches = (us + size / 40_000) * effect * np.exp(draw.normal(0, 0.02 / np.sqrt(2), 8))
                cells[cell.cell_id] = CellData(Status.OK, "", tuple(launches.tolist()), (200,) * 8)
        sides.append(Side("invented", cells, 8))
    base, current = sides
    return judge_paired(base, current, Rules())


def test_the_example_is_what_the_gate_says(root: Path) -> None:
    """Annotation, headline and the first row of the summary stand in the text word by word."""
    text = (root / "docs" / "ci.md").read_text("utf-8")
    outcome = _example()

    (annotation,) = annotations(outcome)
    summary = markdown(outcome).splitlines()
    row = next(line for line in summary if line.startswith("| REGRESSED"))
    (failed,) = re.findall(r'<failure message="([^"]*)"', junit(outcome))
    for line in (annotation, headline(outcome), row, summary[0], failed.replace("&gt;", ">")):
        assert line in text, line
