"""The command line's face: help texts, their speed, errors in one line."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.cli import build_parser

Shell = Callable[..., subprocess.CompletedProcess[str]]
START_S = 0.15


def command_names() -> list[str]:
    """Names of all commands, as the parser knows them."""
    actions = build_parser()._actions
    return sorted(next(a for a in actions if isinstance(a, argparse._SubParsersAction)).choices)


def test_help_is_quick(budget: Callable[..., Callable[..., object]], root: Path) -> None:
    """`collbench --help` answers before anyone notices."""
    command = [sys.executable, "-m", "collbench", "--help"]
    budget(START_S)(lambda: subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL, timeout=60))


@pytest.mark.parametrize("name", ["", *command_names()])
def test_help_text(
    name: str, snapshot: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options are a promise to other people's scripts: a change shows in review."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args([*([name] if name else []), "--help"])
    assert stop.value.code == 0
    snapshot(f"help-{name or 'collbench'}", capsys.readouterr().out)


def test_snapshots_name_commands_that_exist(root: Path) -> None:
    """A command that goes away takes its snapshot with it."""
    kept = {path.stem.removeprefix("help-") for path in (root / "tests" / "snapshots").glob("help-*.txt")}
    assert kept == {"collbench", *command_names()}


def test_readme_lists_every_command(root: Path) -> None:
    table = [line for line in (root / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    listed = [line.split("`")[1].split()[0] for line in table]
    assert [name for name in command_names() if name not in listed] == []
