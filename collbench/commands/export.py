"""`collbench export`: a run in another tool's format."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]

_FORMATS = ("csv", "bmf", "gab", "openmetrics", "pytest-benchmark", "nccl-tests")


def add_parser(subparsers: "_SubParsersAction[Any]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "export",
        help="write a run in another tool's format",
        description="Write a run in another tool's format: a table, or what dashboards and CI services read.",
        epilog="bmf is Bencher's metric format, gab github-action-benchmark's customSmallerIsBetter.",
    )
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="run folder that a sweep wrote")
    parser.add_argument("--format", required=True, choices=_FORMATS, metavar="FORMAT", help=", ".join(_FORMATS))
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to a file instead of stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write it; gives the exit code.

    Raises:
        UsageError: no such run folder.
        InvalidError: a run that cannot be read, or a file that cannot be written.
    """
    from collbench.algorithms.floors import floors_of
    from collbench.interop.exports import export
    from collbench.results.files import readable_errors, replace_whole
    from collbench.results.problems import warn
    from collbench.results.store import RunFolder

    with RunFolder.open(args.run_folder) as folder:
        text = export(folder.run, folder.samples(), args.format, floors_of(folder.run))
        warn(folder.problems())
    if args.out is None:
        print(text, end="")
        return 0
    with readable_errors(args.out, option="--out"):
        replace_whole(args.out, lambda file: file.write(text.encode()))
    return 0
