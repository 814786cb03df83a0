"""The command line: finds the commands, runs one, and turns every error into one line and an exit code."""

import argparse
import importlib
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, TextIO

from collbench import __version__, commands
from collbench.errors import CollbenchError, InvalidError

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


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Prints `-b, --begin SIZE` on every Python; before 3.13 argparse repeats the metavar behind each name."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        return f"{names} {self._format_args(action, self._get_default_metavar_for_optional(action))}"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, takes no abbreviations (a new option would break them), knows `--debug`."""

    def __init__(self, **settings: object) -> None:
        settings = {"formatter_class": _Formatter, "allow_abbrev": False} | settings
        super().__init__(**settings)  # type: ignore[arg-type]  # add_parser() passes on whatever argparse takes
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"collbench: {_one_line(message)}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command that exists; a parsed call carries the command's function as `run`."""
    parser = _Parser(prog="collbench", description=importlib.import_module("collbench").__doc__)
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
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(words)


def _run(words: list[str]) -> int:
    try:
        args = build_parser().parse_args(words)
        code = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if "--debug" in words:
            raise
        sys.stderr.write(f"collbench: {_one_line(_explain(error))}\n")
        return error.exit_code if isinstance(error, CollbenchError) else InvalidError.exit_code
    return code


def _explain(error: Exception) -> str:
    if isinstance(error, CollbenchError):
        return str(error)
    if isinstance(error, ImportError) and error.name and (extra := _EXTRAS.get(error.name.partition(".")[0])):
        return f"this needs {error.name}, which cannot be imported ({error}): pip install 'collbench[{extra}]'"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return f"internal error: {type(error).__name__}: {error}; --debug shows where"


def _one_line(text: str) -> str:
    """Text without line breaks and control characters: it may quote a file that somebody else wrote."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
    line: str | None = None,
) -> None:  # fmt: skip
    del category, filename, lineno, line
    (file or sys.stderr).write(f"collbench: warning: {_one_line(str(message))}\n")


def _drop_stdout() -> None:
    """Point stdout at nothing, so that Python's own flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
