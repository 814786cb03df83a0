"""Every failure is one line on stderr and an exit code; no traceback without --debug."""

import argparse
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench import cli
from collbench.errors import CollbenchError, InvalidError, UsageError
from collbench.parser import Parser

Shell = Callable[..., subprocess.CompletedProcess[str]]
GRPAH = "argument --mode: invalid choice: 'grpah' (choose from graph, eager)"


def parser_that_runs(action: Callable[[argparse.Namespace], int]) -> Callable[[], argparse.ArgumentParser]:
    """A `build_parser` with one command `try`, which does this."""

    def build() -> argparse.ArgumentParser:
        parser = Parser(prog="collbench")
        parser.add_subparsers(dest="command", required=True).add_parser("try").set_defaults(run=action)
        return parser

    return build


def raises(error: BaseException) -> Callable[[argparse.Namespace], int]:
    """A command that fails with this."""

    def run(args: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("size '0': give a size"), 2, "collbench: size '0': give a size\n"),
        (InvalidError("run.json:\n  line 3 \x1b[31mis red"), 3, "collbench: run.json: line 3 [31mis red\n"),
        (CollbenchError("machine in use"), 3, "collbench: machine in use\n"),
        (
            FileNotFoundError(2, "No such file or directory", "a.xml"),
            3,
            "collbench: a.xml: No such file or directory\n",
        ),
        (PermissionError(13, "Permission denied", b"run"), 3, "collbench: run: Permission denied\n"),
        (ZeroDivisionError("no"), 3, "collbench: internal error: ZeroDivisionError: no; --debug shows where\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_and_a_code(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "build_parser", parser_that_runs(raises(error)))
    assert cli.main(["try"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", line)


@pytest.mark.parametrize(("module", "extra"), [("torch.distributed", "sweep"), ("cuda.core", "cuda")])
def test_a_missing_library_names_the_extra(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    monkeypatch.setattr(cli, "build_parser", parser_that_runs(raises(error)))
    assert cli.main(["try"]) == 3
    assert capsys.readouterr().err.endswith(f": pip install 'collbench[{extra}]'\n")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "build_parser", parser_that_runs(raises(InvalidError("broken"))))
    with pytest.raises(InvalidError, match="broken"):
        cli.main(["try", "--debug"])


def test_a_warning_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the path of a source file, which says nothing to the reader."""

    def run(args: argparse.Namespace) -> int:
        warnings.simplefilter("always")
        warnings.warn("algorithms of x left out:\nfaulty", stacklevel=1)
        return 0

    monkeypatch.setattr(cli, "build_parser", parser_that_runs(run))
    assert cli.main(["try"]) == 0
    assert capsys.readouterr().err == "collbench: warning: algorithms of x left out: faulty\n"


@pytest.mark.parametrize("words", [(), ("no-such-command",), ("topo", "--no-such-option"), ("topo", "--forma", "json")])
def test_a_wrong_call_is_one_line_and_code_2(words: tuple[str, ...], collbench: Shell) -> None:
    """No command, an unknown one, an unknown option, an abbreviated one."""
    done = collbench(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("collbench: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("swep", "no command 'swep': did you mean sweep? See collbench --help"),
        ("sweep --nprocs 2", "no option --nprocs: did you mean --nproc? See collbench sweep --help"),
        ("predict --topolgy=x", "no option --topolgy: did you mean --topology? See collbench predict --help"),
        ("topo --svg", "no option --svg: did you mean --format svg? See collbench topo --help"),
        ("topo --xyzzy", "no option --xyzzy; see collbench topo --help"),
        ("sweep -x 3", "no option -x; see collbench sweep --help"),
        ("compare a b c", "unexpected word 'c'; see collbench compare --help"),
        ("predict --mode grpah", f"{GRPAH}: did you mean graph? See collbench predict --help"),
        ("sweep --launches x", "argument --launches: expected a whole number, not 'x'; see collbench sweep --help"),
        ("gate --alpha x", "argument --alpha: expected a number, not 'x'; see collbench gate --help"),
    ],
)
def test_a_wrong_word_names_what_was_meant_and_the_commands_own_help(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(words.split())
    assert (stop.value.code, capsys.readouterr()) == (2, ("", f"collbench: {line}\n"))


def test_what_torchrun_starts_reads_words_alike(capsys: pytest.CaptureFixture[str]) -> None:
    from collbench import sweep

    with pytest.raises(SystemExit):
        sweep.main(["--nprocs", "2"])
    assert capsys.readouterr().err == (
        "collbench: no option --nprocs: did you mean --nproc? See collbench.sweep --help\n"
    )


def test_version(collbench: Shell) -> None:
    done = collbench("--version")
    assert (done.returncode, done.stdout) == (0, "collbench 0.1.0\n")


def test_a_reader_that_goes_away_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`collbench topo | head -1` prints no traceback; the code is a shell's for SIGPIPE."""
    monkeypatch.setattr(cli, "build_parser", parser_that_runs(raises(BrokenPipeError(32, "Broken pipe"))))
    monkeypatch.setattr(cli, "_drop_stdout", lambda: None)
    assert cli.main(["try"]) == 141
    assert capfd.readouterr().err == ""


def test_a_closed_pipe_leaves_stderr_empty(root: Path) -> None:
    """The real thing: stdout's reader is gone before the command writes."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "collbench", "topo", "--json"]
    done = subprocess.run(command, cwd=root, stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("words", ["topo --json", "--help"])
def test_a_stdout_that_is_full_or_closed_is_one_line(words: str, root: Path, tmp_path: Path) -> None:
    full = f"ulimit -f 0; exec {sys.executable} -m collbench {words} > {tmp_path / 'out'}"
    closed = f"exec {sys.executable} -m collbench {words} >&-"
    for shell, reason in ((full, "File too large"), (closed, "it is closed")):
        done = subprocess.run(["bash", "-c", shell], cwd=root, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr.decode()) == (3, f"collbench: stdout cannot be written: {reason}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-", "2> >(exec 0<&-)"])
def test_a_stderr_that_cannot_be_written_keeps_code_and_table(stderr: str, root: Path, tmp_path: Path) -> None:
    """1 would say "regression"; the table is whole, whatever was to be said before it."""
    (tmp_path / "lines.py").write_text(
        "import sys\nfrom collbench import cli\nfrom collbench.streams import forgiving_stderr\n"
        "with forgiving_stderr():\n    [print('note', file=sys.stderr, flush=True) for _ in range(9999)]\n"
        "    print('table')\nsys.exit(cli.main(['topo', '--from', 'nope']))\n",
        encoding="utf-8",
    )
    shell = f"PYTHONPATH={root} exec {sys.executable} {tmp_path / 'lines.py'} {stderr}"
    done = subprocess.run(["bash", "-c", shell], cwd=root, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"table\n", b"")


def test_a_library_that_fails_to_import_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "networkx.py").write_text("raise RuntimeError('shadow')\n", encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "collbench", "topo"]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=60, check=False)
    said = f"networkx ({tmp_path / 'networkx.py'}) cannot be imported: RuntimeError: shadow; --debug shows where"
    assert (done.returncode, done.stderr) == (3, f"collbench: {said}\n")
