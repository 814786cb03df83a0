"""The command line: finds the commands, runs one, and turns every error into one line and an exit code."""

import argparse
import contextlib
import importlib
import os
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TextIO

from collbench import __version__, commands
from collbench.errors import CollbenchError, InvalidError, one_line
from collbench.parser import Parser
from collbench.streams import forgiving_stderr

__all__ = ["build_parser", "main"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell reports SIGINT: 128 + 2."""
BROKEN_PIPE = 141
"""Exit code when the reader of stdout went away, as a shell reports SIGPIPE: 128 + 13; 0 could hide a regression."""

_EXTRAS = {"torch": "sweep", "cuda": "cuda"}


class _Command(Protocol):
    """What a module of `collbench.commands` offers."""

    def add_parser(self, subparsers: "argparse._SubParsersAction[Any]") -> object:
        """Add the command's parser under the command's name."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command; gives the exit code."""


class _StdoutError(InvalidError):
    """What was to be printed could not be."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"stdout cannot be written: {reason}")


class _Stdout:
    """A stdout whose own errors can be told from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _stdout_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with _stdout_errors():
            self._stream.flush()


@contextlib.contextmanager
def _stdout_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _StdoutError(error.strerror or str(error)) from error


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command that exists; a parsed call carries the command's function as `run`."""
    parser = Parser(prog="collbench", description=importlib.import_module("collbench").__doc__)
    parser.add_argument("--version", action="version", version=f"collbench {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands", dest="command", required=True)
    for name in sorted(module.name for module in pkgutil.iter_modules(commands.__path__)):
        command: _Command = importlib.import_module(f"{commands.__name__}.{name}")
        known = set(subparsers.choices)
        command.add_parser(subparsers)
        for added in set(subparsers.choices) - known:
            subparsers.choices[added].set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code of docs/design.md section 4.

    Raises:
        SystemExit: from argparse, code 0 behind `--help` and `--version`, 2 where the call cannot be read.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with forgiving_stderr(), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(words)


def _run(words: list[str]) -> int:
    try:
        code = _command(words)
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if "--debug" in words:
            raise
        sys.stderr.write(f"collbench: {one_line(_explain(error))}\n")
        if isinstance(error, _StdoutError) and sys.stdout is not None:
            _drop_stdout()
        return error.exit_code if isinstance(error, CollbenchError) else InvalidError.exit_code
    return code


def _command(words: list[str]) -> int:
    if sys.stdout is None:
        raise _StdoutError("it is closed")
    with contextlib.redirect_stdout(_Stdout(sys.stdout)):
        try:
            args = build_parser().parse_args(words)
            code = int(args.run(args))
        except SystemExit:  # --help and --version
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return code


def _explain(error: Exception) -> str:
    if isinstance(error, CollbenchError):
        return str(error)
    if isinstance(error, ImportError) and error.name and (extra := _EXTRAS.get(error.name.partition(".")[0])):
        return f"this needs {error.name}, which cannot be imported ({error}): pip install 'collbench[{extra}]'"
    if module := _failed_import(error):
        return f"{module} cannot be imported: {type(error).__name__}: {error}; --debug shows where"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return f"internal error: {type(error).__name__}: {error}; --debug shows where"


def _failed_import(error: Exception) -> str:
    """Name and file of the library, not ours, whose code at module level raised the error; empty where none did."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "<module>" and name.partition(".")[0] not in {"collbench", "__main__"}:
            return f"{name} ({frame.f_code.co_filename})"
    return ""


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
    line: str | None = None,
) -> None:  # fmt: skip
    del category, filename, lineno, line
    (file or sys.stderr).write(f"collbench: warning: {one_line(str(message))}\n")


def _drop_stdout() -> None:
    """Point stdout at nothing, so that Python's own flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
