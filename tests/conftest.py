"""Fixtures of every test: speed budgets, snapshots, the repository's root, a command runner."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOTS = Path(__file__).resolve().parent / "snapshots"
REPEATS = 5
_SLOW = pytest.StashKey[list[str]]()


class Budget(Protocol):
    """Type of the `budget` fixture."""

    def __call__(self, seconds: float, clock: Callable[[], float] = ...) -> Callable[[Callable[[], Any]], Any]:
        """Budget in seconds -> what runs a function under it and gives its result."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-snapshots", action="store_true", help="write tests/snapshots anew from what is seen")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SLOW] = []
    # shells start what runs behind `&` or `nohup` with these ignored, and every program of a test would inherit it
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[_SLOW]:
        terminalreporter.write_line(f"budget: {line}", yellow=True)


@pytest.fixture
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture
def over_budget(request: pytest.FixtureRequest) -> list[str]:
    """Lines that the end of the test run shows; a test may take out what it put there on purpose."""
    return request.config.stash[_SLOW]


@pytest.fixture
def budget(request: pytest.FixtureRequest, over_budget: list[str]) -> Budget:
    """`budget(0.15)(function)`: best of five runs; warns above the budget (behind the results), fails above twice it.

    It stops at the first run within the budget, since more runs cannot make the best one worse.
    """

    def within(seconds: float, clock: Callable[[], float] = time.perf_counter) -> Callable[[Callable[[], Any]], Any]:
        def run(function: Callable[[], Any]) -> Any:
            best = float("inf")
            for _ in range(REPEATS):
                start = clock()
                result = function()
                best = min(best, clock() - start)
                if best <= seconds:
                    return result
            line = f"{request.node.nodeid}: best of {REPEATS} took {best:.3g} s, budget {seconds:.3g} s"
            over_budget.append(line)
            assert best <= 2 * seconds, line
            return result

        return run

    return within


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`snapshot("name", text)`: the text equals tests/snapshots/name.txt; `--update-snapshots` writes the file."""

    def check(name: str, text: str) -> None:
        path = SNAPSHOTS / f"{name}.txt"
        text = text.rstrip() + "\n"
        if request.config.getoption("--update-snapshots"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path.name} is missing: look at what --update-snapshots writes, then commit it"
        assert text == path.read_text(encoding="utf-8"), (
            f"{path.name} has changed: other people's scripts read it. If that is meant, run with --update-snapshots "
            "and say so in CHANGELOG.md"
        )

    return check


@pytest.fixture
def on_terminal(tmp_path: Path) -> Callable[..., str]:
    """`on_terminal(80, "topo")`: what the command line prints to a terminal of that many characters."""

    def run(columns: int, *words: str) -> str:
        ours, theirs = pty.openpty()
        env = os.environ | {"COLUMNS": str(columns), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "collbench", *words]
        with subprocess.Popen(command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=theirs) as child:
            os.close(theirs)
            parts = []
            # a read fails once nobody holds the other end any more
            with contextlib.suppress(OSError):
                while part := os.read(ours, 1 << 16):
                    parts.append(part)
            os.close(ours)
            assert child.wait(60) == 0
        return b"".join(parts).decode().replace("\r\n", "\n")

    return run


@pytest.fixture
def collbench(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`collbench("topo", "--json")`: the command line in a process of its own, in an empty folder."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"COLUMNS": "100", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"} | environment
        command = [sys.executable, "-m", "collbench", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run
