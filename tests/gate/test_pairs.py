"""Launches in pairs: sides that can be launched, their order, and what becomes of launches that fail, hang or lie."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.errors import CollbenchError, InvalidError, UsageError
from collbench.gate.launcher import open_side
from collbench.gate.pairs import make_plan, run_pairs
from collbench.gate.verdicts import Rules, Verdict

FAKE = '''
"""A sweep that measures nothing: it makes a run folder whose times are as its variables say."""
import json, os, sys, time
from pathlib import Path
from collbench.results.records import Call, Cell, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.testing import host_machine, synthetic_samples

here = Path(__file__).parent
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
with (here / "calls.txt").open("a") as log:
    log.write(json.dumps([os.environ.get("COLLBENCH_SIDE", ""), words]) + "\\n")
if "--help" in words:
    sys.exit(print("--shuffle SEED" + ("" if os.environ.get("COLLBENCH_OLD") else "  --cell ID  --no-probe")))
cells = [Cell(name, Call(65536, 2, dtype="float32"), Mode.EAGER, 1) for name in ("invented_a", "invented_b")]
side = os.environ.get("COLLBENCH_SIDE", "")
if side == "other":
    cells = cells[:1]
if "--cell" in words:
    named = [words[i + 1] for i, word in enumerate(words) if word == "--cell"]
    cells = [cell for cell in cells if cell.cell_id in named]
if "--dry-run" in words:
    print(json.dumps({"seconds": 1, "rows": [cell.row() for cell in cells]}))
    sys.exit(0)
launch = sum(1 for line in (here / "calls.txt").open() if "--out" in line)
if side == "fails" and launch > 3:
    sys.exit("no space left on device")
if side == "hangs":
    time.sleep(600)
machine = host_machine(2)
run = Run("x", "2026", ("x",), "0", machine.fabric, 2, 1, tuple(cells), machine.as_dict(), finished="2026")
with RunFolder.create(value("--out"), run) as folder:
    for i, cell in enumerate(cells):
        first = cell.algorithm == "invented_a"
        us = 50.0 * (1.2 if side == "slow" and first else 1.0)
        us *= 1.3 if side == "wobbles" and first and launch % 8 in (2, 7) else 1.0
        if side == "crashes" and first:
            folder.append(Samples(cell.cell_id, 0, Status.CRASHED, "rank 1 was ended by SIGSEGV"))
        else:
            folder.append(synthetic_samples(cell, us, iterations=40, noise=0.02, seed=2 * launch + i))
'''


@pytest.fixture
def fake(tmp_path: Path, root: Path) -> Callable[[str], str]:
    """`fake("slow")`: a side whose sweep is invented."""
    program = tmp_path / "sweep.py"
    program.write_text(FAKE, encoding="utf-8")
    return lambda name: f"cmd:env COLLBENCH_SIDE={name} PYTHONPATH={root} {sys.executable} {program}"


def calls(folder: Path) -> list[tuple[str, list[str]]]:
    return [tuple(json.loads(line)) for line in (folder / "calls.txt").read_text().splitlines()]


def gate(base: str, candidate: str, out: Path, timeout_s: float = 60.0, looks: tuple[int, ...] = (5,)):  # type: ignore[no-untyped-def]  # noqa: ANN201 - an outcome
    out.mkdir()
    plan = make_plan(open_side(base, out), open_side(candidate, out), ["--nproc", "2"], out, 7, timeout_s)
    return run_pairs(plan, Rules(looks=looks, max_noise=0.2), out)


def test_pairs_are_launched_in_turn_and_the_slower_cell_is_named(fake: Callable[[str], str], tmp_path: Path) -> None:
    """ABBA, one order of the cells for both launches of a block, another one for the next, pinned iterations."""
    outcome = gate(fake("base"), fake("slow"), tmp_path / "out")

    launched = [(side, words) for side, words in calls(tmp_path) if "--out" in words]
    assert [side for side, _ in launched] == ["base", "slow", "slow", "base"] * 2 + ["base", "slow"]
    seeds = [words[words.index("--shuffle") + 1] for _, words in launched]
    assert seeds[0::2] == seeds[1::2]
    assert len(set(seeds)) == 5
    assert all(words[words.index("-n") + 1] == "100" for _, words in launched)
    assert {c.cell_id.split("/")[1]: c.verdict for c in outcome.cells}["invented_a"] is Verdict.REGRESSED
    assert outcome.record["orders"] == ["AB", "BA", "AB", "BA", "AB"]
    assert outcome.record["seed"] == 7
    assert sorted(p.name for p in (tmp_path / "out").glob("*-baseline")) == [f"{i:02d}-baseline" for i in range(5)]


def test_it_stops_at_the_first_look_that_decides(fake: Callable[[str], str], tmp_path: Path) -> None:
    outcome = gate(fake("base"), fake("base"), tmp_path / "out", looks=(5, 30))

    assert outcome.blocks == 5
    assert outcome.verdict is Verdict.OK


@pytest.mark.slow
def test_decided_cells_are_not_measured_again(fake: Callable[[str], str], tmp_path: Path) -> None:
    """The steady cell is OK at the first look; only the other one is launched until the last."""
    outcome = gate(fake("base"), fake("wobbles"), tmp_path / "out", looks=(6, 10))

    steady, wobbly = sorted(outcome.cells, key=lambda cell: len(cell.base_us))
    assert (steady.cell_id.split("/")[1], steady.verdict, steady.look, len(steady.base_us)) == (
        "invented_b", Verdict.OK, 6, 6,
    )  # fmt: skip
    assert (len(wobbly.base_us), len(wobbly.current_us)) == (10, 10)
    assert outcome.record["cells_per_block"] == [2] * 6 + [1] * 4
    named = [words.count("--cell") for _, words in calls(tmp_path) if "--out" in words]
    assert named == [0] * 12 + [1] * 8


@pytest.mark.slow
def test_a_side_that_cannot_leave_cells_out_measures_all(
    fake: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake("wobbles").replace("cmd:env ", "cmd:env COLLBENCH_OLD=1 ")

    outcome = gate(fake("base"), old, tmp_path / "out", looks=(6, 10))

    assert outcome.record["cells_per_block"] == [2] * 10
    launched = [words for _, words in calls(tmp_path) if "--out" in words]
    assert not any("--cell" in words for words in launched)
    assert sum("--no-probe" in words for words in launched) == 10  # of the side that knows it


def test_a_cell_that_crashes_in_the_candidate_is_a_regression(fake: Callable[[str], str], tmp_path: Path) -> None:
    outcome = gate(fake("base"), fake("crashes"), tmp_path / "out")

    assert outcome.exit_code() == 1
    assert outcome.cells[0].reason == "was ok, is crashed: rank 1 was ended by SIGSEGV"


@pytest.mark.parametrize(
    ("side", "error"),
    [
        ("fails", r"launch 02-candidate failed \(code 1\): no space left on device"),
        ("other", "only the baseline has all_reduce/invented_b"),
        ("hangs", "a launch did not end within 2 s"),
    ],
)
def test_a_launch_that_fails_is_one_line(side: str, error: str, fake: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=error):
        gate(fake("base"), fake(side), tmp_path / "out", 2.0 if side == "hangs" else 60.0)


@pytest.mark.parametrize("word", ["--out", "--budget=5s", "--launches", "--json", "--shuffle"])
def test_options_that_the_gate_gives_itself_are_refused(word: str, fake: Callable[[str], str], tmp_path: Path) -> None:
    side = open_side(fake("base"), tmp_path)
    with pytest.raises(UsageError, match="the gate decides that itself"):
        make_plan(side, side, [word, "x"], tmp_path, 0, 10.0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "expected venv:PATH, git:REV"), ("main", "expected venv:PATH"), ("venv:", "expected venv:PATH"),
        ("venv:nowhere", "is not there"), ("env:NCCL_PROTO", "expected K=V"),
        ("env:FOO=1", "both sides would be the same"),
        ("env:NCCL_NVLS_ENABLE=1", "it cannot differ"), ("git:-x", "not the name of a revision"),
        ("git:no-such", "side git:no-such: git rev-parse: no such revision"),
        ("cmd: ", "is empty"), ("cmd:'", "No closing quotation"),
    ],
)  # fmt: skip
def test_a_side_that_is_none_is_refused(
    text: str, error: str, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    with pytest.raises(CollbenchError, match=error):
        open_side(text, tmp_path)


def test_values_of_variables_may_hold_commas(tmp_path: Path) -> None:
    side = open_side("env:NCCL_ALGO=ring,tree,NCCL_PROTO=LL", tmp_path)

    assert side.environment["NCCL_ALGO"] == "ring,tree"
    assert side.environment["NCCL_PROTO"] == "LL"


def test_a_side_gets_its_own_environment_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "x")
    side = open_side("cmd:env", tmp_path)

    code, out = side.launch([], tmp_path / "log", 20.0)

    assert code == 0
    assert "SECRET_OF_MINE" not in out
    assert "OMP_NUM_THREADS=1" in out


def test_a_revision_is_unpacked_and_runs_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of that revision, not the one that the gate runs from."""
    repository = tmp_path / "repository"
    (repository / "collbench").mkdir(parents=True)
    (repository / "collbench" / "__init__.py").write_text("", encoding="utf-8")
    (repository / "collbench" / "sweep.py").write_text("print('the old one')\n", encoding="utf-8")
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "old"]):
        subprocess.run([*git, *words], check=True, timeout=30)
    (repository / "collbench" / "sweep.py").write_text("print('the new one')\n", encoding="utf-8")
    monkeypatch.chdir(repository)

    side = open_side("git:HEAD", tmp_path)

    assert side.launch([], tmp_path / "log", 30.0) == (0, "the old one\n")
    assert side.label.startswith("git:HEAD (")


@pytest.mark.parametrize("place", ["", "src", "python"])
def test_a_revision_whose_package_would_come_from_the_working_tree_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides would be the working tree, and nothing ever slower: an installation for editing, as pip leaves it."""
    repository, site = tmp_path / "repository", tmp_path / "site" / "own-1.0.dist-info"
    (repository / place).mkdir(parents=True)
    (repository / place / "own_kernels.py").write_text("ALGORITHMS = []\n", encoding="utf-8")
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n", encoding="utf-8")
    (site / "entry_points.txt").write_text("[collbench.algorithms]\nown = own_kernels:ALGORITHMS\n", encoding="utf-8")
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "old"]):
        subprocess.run([*git, *words], check=True, timeout=30)
    for folder in (site.parent, repository / place):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(repository)

    if place == "python":
        with pytest.raises(UsageError, match="own_kernels is neither at the revision's top nor in its src/"):
            open_side("git:HEAD", tmp_path)
    else:
        assert (open_side("git:HEAD", tmp_path).folder / "own_kernels.py").is_file()


def test_launches_end_with_a_gate_that_was_killed(tmp_path: Path, root: Path) -> None:
    """SIGKILL of the gate leaves no launch behind."""
    program = tmp_path / "sleeper.py"
    program.write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n", encoding="utf-8")
    code = "import sys; from pathlib import Path; from collbench.gate.launcher import open_side; "
    code += f"open_side('cmd:{sys.executable} {program}', Path('.')).launch([], Path('log'), 60)"
    env = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env) as starter:
        pid = _wait_for(lambda: int((tmp_path / "pid").read_text() or 0))
        starter.send_signal(signal.SIGKILL)

    assert _wait_for(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_for(ask: Callable[[], int]) -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            if found := ask():
                return found
        except (FileNotFoundError, ValueError):
            pass
        time.sleep(0.05)
    return 0
