"""`collbench export`: a run in another tool's format, or as tables for people."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.interop.markdown import Source

__all__ = ["add_parser", "run"]

_FORMATS = ("csv", "bmf", "gab", "openmetrics", "pytest-benchmark", "nccl-tests", "markdown")


def add_parser(subparsers: "_SubParsersAction[Any]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "export",
        help="write a run in another tool's format, or as tables in Markdown",
        description="Write a run in another tool's format: a table, or what dashboards and CI services read.",
        epilog="bmf is Bencher's metric format, gab github-action-benchmark's customSmallerIsBetter. markdown is for "
        "pull requests and issues: a table per mode and number of calls, with intervals from 5 launches on; of several "
        "runs, which must be of one machine, each row says of which sweep it is.",
    )
    parser.add_argument("run_folders", metavar="RUN", type=Path, nargs="+", help="run folder that a sweep wrote")
    parser.add_argument("--format", required=True, choices=_FORMATS, metavar="FORMAT", help=", ".join(_FORMATS))
    parser.add_argument(
        "--only", action="append", default=[], metavar="FIELD=VALUE,...",
        help="cells with one of these values, such as mode=graph or bytes=1K,64K; may be given for several fields",
    )  # fmt: skip
    parser.add_argument("--kernels", action="store_true", help="markdown: a last column with what a call enqueued")
    parser.add_argument("--no-head", action="store_true", help="markdown: without machine, versions, date and command")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to a file instead of stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write it; gives the exit code.

    Raises:
        UsageError: no such run folder, options that do not go together, no cell that was asked for, or `--out` is a
            run's own file.
        InvalidError: a run that cannot be read, runs of two machines, or a file that cannot be written.
    """
    from collbench.results.files import readable_errors, refuse_part_of_run, replace_whole

    if args.out is not None:
        refuse_part_of_run(args.out)
    text = _text(args)
    if args.out is None:
        print(text, end="")
        return 0
    with readable_errors(args.out, option="--out"):
        replace_whole(args.out, lambda file: file.write(text.encode()))
    return 0


def _text(args: argparse.Namespace) -> str:
    from collbench.interop.chosen import parse_only
    from collbench.interop.exports import export
    from collbench.interop.markdown import markdown

    for option, given in (
        ("--kernels", args.kernels),
        ("--no-head", args.no_head),
        ("several runs", args.run_folders[1:]),
    ):
        if given and args.format != "markdown":
            raise UsageError(f"{option}: with --format markdown only")
    only = parse_only(args.only)
    sources = [_read(path, only, with_evidence=args.kernels) for path in args.run_folders]
    if args.format == "markdown":
        return markdown(sources, with_head=not args.no_head, with_kernels=args.kernels)
    (one,) = sources
    return export(one.run, one.samples, args.format, one.floors)


def _read(path: Path, only: dict[str, frozenset[str]], *, with_evidence: bool) -> "Source":
    from collbench.algorithms.floors import floors_of
    from collbench.interop.chosen import chosen
    from collbench.interop.markdown import Source
    from collbench.results.problems import warn
    from collbench.results.store import RunFolder

    with RunFolder.open(path) as folder:
        run, samples = chosen(folder.run, folder.samples(), only)
        evidence = folder.evidence() if with_evidence else {}
        warn([*folder.problems(), *filter(None, [folder.lost_evidence() if with_evidence else ""])])
    return Source(run, samples, evidence, floors_of(run))
