"""`collbench gate` and its neighbours as a user calls them: exit codes, files, one line for every error."""

import errno
import functools
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml

from collbench.cli import main
from collbench.gate.baseline import dump, read
from collbench.gate.sides import SessionSpread
from collbench.testing import host_machine, synthetic_run

Shell = Callable[..., subprocess.CompletedProcess[str]]
COSTS = {"host_ring": (46.0, 0.12), "host_tree": (24.0, 0.30)}


def a_run(path: Path, slower: float = 1.0, **settings: Any) -> str:
    """A run folder of 4 cells and 6 launches, in which host_ring takes this part of its time."""
    us, kib = COSTS["host_ring"]
    costs = COSTS | {"host_ring": (us * slower, kib * slower)}
    known: dict[str, Any] = {"costs": costs, "sizes": (1024, 65536), "calls": (1,), "launches": 6, "iterations": 20}
    return str(synthetic_run(path, **(known | settings)).path)


@pytest.fixture
def baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A baseline file with a spread of 0.5 % from ten occasions."""
    path = tmp_path / "baseline.json"
    assert main(["baseline", "save", a_run(tmp_path / "base"), "--to", str(path)]) == 0
    path.write_text(dump(read(path), SessionSpread(0.005, 10)), encoding="utf-8")
    capsys.readouterr()
    return str(path)


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.5, 1), (0.6, 0)])
def test_a_stored_baseline_gives_the_exit_code(
    slower: float, code: int, baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "now", slower, seed=1)

    assert main(["gate", baseline, run]) == code

    slow = [line for line in capsys.readouterr().out.splitlines() if line.startswith("REGRESSED ")]
    assert [line.split()[1] for line in slow] == ["host_ring"] * (2 if code else 0)


def test_every_file_is_written_and_agrees(baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "now", 1.5, seed=1)
    files = {name: tmp_path / f"out.{name}" for name in ("json", "xml", "md", "html", "short")}

    code = main([
        "gate", baseline, run, "--json", "--json-file", str(files["json"]), "--junit", str(files["xml"]), "--markdown",
        str(files["md"]), "--html", str(files["html"]), "--annotations", "--comment",
        str(files["short"]),
    ])  # fmt: skip

    out, err = capsys.readouterr()
    assert code == 1
    assert json.loads(out) == json.loads(files["json"].read_text())
    assert JUnitXml.fromstring(files["xml"].read_bytes()).failures == 2
    assert "### collbench gate: REGRESSED" in files["md"].read_text()
    assert files["short"].read_text() == files["md"].read_text()  # four cells are short
    assert err.count("::error title=collbench%3A REGRESSED host_ring") == 2
    page = files["html"].read_text()
    assert page.count('class="band"') == 4
    assert "Fastest per size" in page  # of the run that is judged, with all that a run's page has


def test_of_two_files_the_page_has_the_verdicts_alone(baseline: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    assert main(["gate", baseline, baseline, "--html", str(page)]) == 0

    assert page.read_text().count('class="band"') == 4
    assert "Fastest per size" not in page.read_text()


def test_verdicts_that_were_kept_become_a_section_of_the_runs_page(
    baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, verdicts = Path(a_run(tmp_path / "now", 1.5, seed=1)), tmp_path / "verdict.json"
    assert main(["gate", baseline, str(run), "--json-file", str(verdicts)]) == 1

    assert main(["report", str(run)]) == 0
    assert "Did anything get slower?" not in (run / "report.html").read_text()
    assert main(["report", str(run), "--gate", str(verdicts)]) == 0
    assert "Did anything get slower?" in (run / "report.html").read_text()
    verdicts.write_text("[", encoding="utf-8")
    capsys.readouterr()
    assert main(["report", str(run), "--gate", str(verdicts)]) == 3
    assert capsys.readouterr().err.startswith(f"collbench: {verdicts}: not JSON")


def test_warn_only_prints_and_passes_but_never_hides_an_invalid_comparison(
    baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, other = a_run(tmp_path / "slow", 1.5), a_run(tmp_path / "other", sizes=(1024,))

    assert main(["gate", baseline, slow, "--warn-only"]) == 0
    assert "REGRESSED" in capsys.readouterr().out
    assert main(["gate", baseline, other, "--warn-only"]) == 3


def test_two_run_folders_without_a_spread_are_inconclusive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gate", a_run(tmp_path / "a"), a_run(tmp_path / "b", 2.0)]

    assert (main(words), main([*words, "--strict"])) == (0, 4)
    assert "no between_session_sd in the base" in capsys.readouterr().out


def test_another_machine_is_invalid_and_the_files_say_so(
    baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "now", machine=host_machine(8, p2p="ok"))
    junit = tmp_path / "out.xml"

    assert main(["gate", baseline, run, "--junit", str(junit), "--annotations"]) == 3

    out, err = capsys.readouterr()
    assert "fault: p2p differs: none in the base, ok now; --allow-mismatch p2p" in out
    assert err.startswith("::error title=collbench%3A no verdict::p2p differs")
    assert JUnitXml.fromstring(junit.read_bytes()).errors == 5
    assert main(["gate", baseline, run, "--allow-mismatch", "p2p"]) == 0


def test_a_damaged_file_is_one_line_and_still_reaches_junit(baseline: str, tmp_path: Path, collbench: Shell) -> None:
    path = Path(baseline)
    path.write_text(path.read_text()[:-30], encoding="utf-8")

    done = collbench("gate", baseline, a_run(tmp_path / "now"), "--junit", "out.xml", "--markdown", "out.md")

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith(f"collbench: {baseline}: not JSON")
    assert JUnitXml.fromfile(str(tmp_path / "out.xml")).errors == 1
    assert "INVALID" in (tmp_path / "out.md").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("gate",), ("gate", "one"), ("gate", "--paired"), ("gate", "a", "b", "--baseline", "env:A=1"),
        ("gate", "--paired", "--baseline", "x", "--candidate", "y"), ("gate", "no", "such"),
        ("gate", "a", "b", "--blocks", "3"), ("gate", "a", "b", "--blocks", "x"), ("gate", "a", "b", "--alpha", "2"),
        ("gate", "a", "b", "--allow-mismatch", "fabric"),
        ("gate", "a", "b", "--junit", "no/such/folder.xml"), ("gate", "a", "b", "--html", "."),
        ("gate", "a", "b", "--quantile", "0.25"), ("baseline", "save", "no-run"), ("baseline", "forget", "x"),
        ("calibrate-gate", "no-run"), ("export", "no-run", "--format", "bmf"), ("export", "no-run", "--format", "xml"),
        ("compare", "no-run", "no-run"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_code_2_and_one_line(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(list(words))
    except SystemExit as stop:
        code = int(str(stop.code))

    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_baseline_is_saved_shown_updated_and_nothing_private_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b.json"
    old, new = a_run(tmp_path / "old"), a_run(tmp_path / "new", 1.5)

    assert main(["baseline", "save", old, "--to", str(path)]) == 0
    assert main(["baseline", "save", old, "--to", str(path)]) == 2
    before = path.read_text()
    assert main(["baseline", "update", new, "--to", str(path), "--dry-run"]) == 0
    assert path.read_text() == before
    assert main(["baseline", "update", new, "--to", str(path)]) == 0
    assert "host_ring" in capsys.readouterr().out
    assert path.read_text() != before
    assert str(tmp_path) not in path.read_text()
    assert main(["baseline", "show", str(path)]) == 0
    assert "between_session_sd: none" in capsys.readouterr().out


def test_an_invalid_run_cannot_become_the_baseline(baseline: str, tmp_path: Path) -> None:
    before = Path(baseline).read_text()

    assert main(["baseline", "update", a_run(tmp_path / "cut", finish=False), "--to", baseline]) == 3
    assert Path(baseline).read_text() == before


def test_calibration_puts_the_spread_into_the_baseline(
    baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    from collbench.gate.sides import side_of_run

    files = []
    for i in range(5):
        side = side_of_run(a_run(tmp_path / f"day{i}", seed=i))
        path = tmp_path / f"day{i}.json"
        path.write_text(dump(replace(side, origin={"run_id": f"day{i}"})), encoding="utf-8")
        files.append(str(path))

    assert main(["calibrate-gate", *files, "--into", baseline]) == 0

    spread = read(baseline).spread
    assert spread is not None
    assert (spread.sessions, spread.sd < 0.02) == (5, True)
    assert "  5 %: " in capsys.readouterr().out


def test_two_runs_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", a_run(tmp_path / "a"), a_run(tmp_path / "b", 1.5, machine=host_machine(8, kernel="7"))]

    assert main(words) == 0
    out = capsys.readouterr().out
    assert "differs: kernel: none, 7" in out
    assert "+50." in out or "+49." in out
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], len(data["rows"])) == ("compare", 4)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("gate", "BASE", "BASE", "--html", "no.html"), "--html"),
        (("gate", "BASE", "BASE", "--junit", "no.xml"), "--junit"),
        (("gate", "BASE", "BASE", "--markdown", "no.md"), "--markdown"),
        (("baseline", "save", "RUN", "--to", "no.json"), "--to"),
        (("export", "RUN", "--format", "gab", "--out", "no.json"), "--out"),
        (("predict", "--topology", "two-flat-gen5-switches", "-b", "1K", "--html", "no.html"), "--html"),
    ],
)
def test_a_place_that_cannot_be_written_is_said_with_the_calls_own_option(
    words: tuple[str, ...], option: str, baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    known = {"BASE": baseline, "RUN": a_run(tmp_path / "run")}
    monkeypatch.chdir(tmp_path)
    for module in (io, os):  # pathlib's, and that of files which are replaced whole
        real = module.open
        monkeypatch.setattr(module, "open", functools.partial(_denied, real))

    assert main([known.get(word, word) for word in words]) == 3

    name = words[words.index(option) + 1]
    said = f"collbench: {name}: cannot be written (Permission denied): choose another place with {option}\n"
    assert capsys.readouterr().err == said


def _denied(real: Callable[..., Any], path: object, *rest: Any, **more: Any) -> Any:
    """The function that opens a file, which files called `no` may not be."""
    if Path(str(path)).name.lstrip(".").startswith("no."):
        raise PermissionError(errno.EACCES, "Permission denied")
    return real(path, *rest, **more)


def test_an_output_without_room_stays_what_it_was_and_the_others_are_written(
    baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is larger than the limit on files, the JSON is not; nothing is left beside them."""
    folder = tmp_path / "out"
    folder.mkdir()
    page, good = folder / "page.html", folder / "verdicts.json"
    page.write_text("good", encoding="utf-8")
    page.chmod(0o664)
    words = [
        "gate",
        baseline,
        baseline,
        "--html",
        str(page),
        "--json-file",
        str(good),
        "--junit",
        str(folder / "x.xml"),
    ]

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, before[1]))
    try:
        code = main(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    told = "the disk is full, or the file is at its size limit: free some space"
    assert (code, capsys.readouterr().err) == (3, f"collbench: {page}: {told}\n")
    assert page.read_text(encoding="utf-8") == "good"
    assert json.loads(good.read_text(encoding="utf-8"))["kind"] == "gate"
    assert sorted(path.name for path in folder.iterdir()) == ["page.html", "verdicts.json", "x.xml"]
    assert main(words) == 0
    assert (page.read_text(encoding="utf-8") != "good", page.stat().st_mode & 0o777) == (True, 0o664)


def test_export_writes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run")

    assert main(["export", run, "--format", "gab", "--out", str(tmp_path / "gab.json")]) == 0
    assert main(["export", run, "--format", "gab"]) == 0
    assert capsys.readouterr().out == (tmp_path / "gab.json").read_text()


SIDE = """#!/bin/sh
case "$*" in
  *--help*) ;;
  *--dry-run*) echo '{"rows": [{"cell_id": "x"}]}' ;;
  *) echo $$ >started; exec sleep 60 ;;
esac
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_gate_that_is_stopped_says_so_in_one_line_and_leaves_no_launch(
    number: signal.Signals, root: Path, tmp_path: Path
) -> None:
    side, started = tmp_path / "side", tmp_path / "started"
    side.write_text(SIDE, encoding="utf-8")
    side.chmod(0o755)
    words = [f"--baseline=cmd:{side}", f"--candidate=cmd:{side}", "--out", "new"]
    with subprocess.Popen(
        [sys.executable, "-m", "collbench", "gate", "--paired", *words], cwd=tmp_path, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(root)},
    ) as gate:  # fmt: skip
        limit = time.monotonic() + 60
        while not (started.exists() and started.read_text()) and time.monotonic() < limit:
            time.sleep(0.05)
        gate.send_signal(number)
        _, err = gate.communicate(timeout=60)

    said = f"collbench: {number.name}: stopped, no verdict; begin again, with another --out\n"
    assert (gate.returncode, err.splitlines(keepends=True)[1:]) == (128 + number, [said])
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demonstration_on_two_cpu_ranks(root: Path) -> None:
    """`run.sh gate-demo`'s two gates on real launches: a pass, and the slowed algorithm named alone."""
    done = subprocess.run(
        ["bash", "run.sh", "gate-demo"], cwd=root, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
