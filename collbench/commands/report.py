"""`collbench report`: a run as one HTML page that opens offline."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: "_SubParsersAction[Any]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "report",
        help="write a run as one HTML page",
        description="Write a run as one HTML page that opens offline, and print its path.",
        epilog="Verdicts in RUN/gate.json, or beside it for the launches of collbench gate --paired, become a section.",
    )
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="run folder that a sweep wrote")
    parser.add_argument("--out", metavar="FILE", type=Path, help="page to write (default: RUN/report.html)")
    parser.add_argument("--gate", metavar="FILE", type=Path, help="what collbench gate --json-file wrote, as a section")
    parser.add_argument("--parameters", metavar="RUN", type=Path, help="run folder that collbench calibrate wrote to")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page and print its path; gives the exit code.

    Raises:
        UsageError: no such run folder, or `--out` is a folder or a run's own file.
        InvalidError: a run that cannot be read or has no samples, or a page that cannot be written.
    """
    from collbench.contention.findings import Evidence
    from collbench.errors import UsageError
    from collbench.gate.kept import GATE, read_outcome
    from collbench.report import build
    from collbench.results.files import readable_errors, refuse_part_of_run, refuse_special, replace_whole
    from collbench.results.foreign import refuse_unfit_parameters
    from collbench.results.problems import warn
    from collbench.results.store import RunFolder

    out: Path = args.out or args.run_folder / "report.html"
    if out.is_dir():
        raise UsageError(f"{out} is a folder: name a file with --out")
    refuse_part_of_run(out)
    outcome = None if args.gate is None else read_outcome(args.gate)
    if args.parameters is not None:
        with RunFolder.open(args.run_folder) as folder:
            refuse_unfit_parameters(args.parameters, folder.run)
    for kept in (args.run_folder / GATE, args.run_folder.parent / GATE):
        refuse_special(kept)
    page = build(args.run_folder, outcome, parameters=args.parameters).encode()
    with RunFolder.open(args.run_folder) as folder:
        warn([*folder.problems(), *Evidence.of_run(folder).problems])

    def write(file: BinaryIO) -> None:
        file.write(page)

    with readable_errors(out, option="--out"):
        replace_whole(out, write)
    print(out)
    return 0
