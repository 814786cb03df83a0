"""`collbench calibrate-gate`: how noisy this machine is, and how many blocks a gate needs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: "_SubParsersAction[Any]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "calibrate-gate",
        help="learn from unchanged runs what a gate can see here",
        description="Learn the spread between launches and between occasions from at least 5 unchanged runs.",
        epilog="Make the runs on different occasions (hours, reboots): collbench sweep --launches 8 -n 100 --out day1",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders or baseline files, unchanged but for time")
    parser.add_argument("--into", type=Path, metavar="FILE", help="baseline file that keeps between_session_sd")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Learn, print, and keep it where asked to; gives the exit code.

    Raises:
        UsageError: fewer than five runs, or one of them twice.
        InvalidError: runs that are not of one machine and one plan.
    """
    import json
    import sys

    from collbench.errors import InvalidError
    from collbench.gate.baseline import dump, load_side, read
    from collbench.gate.calibration import calibrate
    from collbench.results.files import readable_errors, replace_whole

    sides = [load_side(path) for path in args.runs]
    found = calibrate(sides)
    if args.into is not None:
        side = read(args.into)
        if side.hard != sides[0].hard:
            raise InvalidError(f"{args.into}: has another fingerprint than the runs: update it first")
        text = dump(side, found.spread).encode()
        with readable_errors(args.into, option="--into"):
            replace_whole(args.into, lambda file: file.write(text))
            args.into.chmod(0o644)
    if found.spread.caution:
        print(f"collbench: {found.spread.caution}", file=sys.stderr)
    data = found.as_dict()
    if args.json:
        print(json.dumps(data, allow_nan=False))
        return 0
    print(f"{data['cells']} cells, {data['sessions']} runs")
    if not found.launch_sd:
        print(f"between occasions: sd {data['between_session_sd']:.4f}; one launch a run tells no more")
        return 0
    print(f"a block's log ratio: sd {data['block_sd_median']:.4f} (median cell), {data['block_sd_worst']:.4f} (worst)")
    print(f"between occasions:   sd {data['between_session_sd']:.4f}")
    print("blocks to find a slow-down of one cell with a power of 90 %:")
    for row in data["rows"]:
        blocks = [row[key] or "more than 1000" for key in ("blocks_median_cell", "blocks_worst_cell")]
        print(f"  {(row['ratio'] - 1) * 100:.0f} %: {blocks[0]} (median cell), {blocks[1]} (worst)")
    return 0
