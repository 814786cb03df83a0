"""`collbench baseline`: keeps the times of a run in one small file that is meant to be committed."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: "_SubParsersAction[Any]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "baseline",
        help="keep a run's times in one file for collbench gate",
        description="Keep the times of a run in one file: sorted, one line per cell, without names of the machine.",
        epilog="save RUN --to FILE writes a new file, update RUN --to FILE shows what changes and replaces it, "
        "show FILE lists it.",
    )
    parser.add_argument("action", choices=("save", "show", "update"), help="what to do")
    parser.add_argument(
        "source", metavar="RUN|FILE", help="run folder, folder of pytest-benchmark JSON; show: the file"
    )
    parser.add_argument("--to", type=Path, metavar="FILE", help="baseline file to write")
    parser.add_argument("--dry-run", action="store_true", help="of update: show the changes, write nothing")
    parser.add_argument("--json", action="store_true", help="of show: print the file's content as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: no file named, one that is there already (save) or is not (update).
        InvalidError: a run that no gate could pass, a file that is damaged.
    """
    from collbench.errors import UsageError

    if args.action == "show":
        return _show(args)
    if args.to is None:
        raise UsageError(f"baseline {args.action}: name the file with --to FILE")
    return _save(args) if args.action == "save" else _update(args)


def _save(args: argparse.Namespace) -> int:
    from collbench.errors import UsageError
    from collbench.gate.baseline import dump, load_side, refuse_invalid
    from collbench.wording import counted

    if args.to.exists():
        raise UsageError(f"{args.to} is there already: collbench baseline update shows what would change")
    side = load_side(args.source)
    refuse_invalid(side)
    _replace(args.to, dump(side))
    print(f"{args.to}: {len(side.cells)} cells, {counted(side.launches, 'launch', 'es')}")
    return 0


def _update(args: argparse.Namespace) -> int:
    from collbench.gate.baseline import changes, dump, load_side, read, refuse_invalid

    old, new = read(args.to), load_side(args.source)
    refuse_invalid(new)
    for line in changes(old, new) or ["nothing changes"]:
        print(line)
    if old.spread is not None and old.hard != new.hard:
        print("! between_session_sd is left out: it was learnt with another fingerprint")
    if not args.dry_run:
        _replace(args.to, dump(new, old.spread if old.hard == new.hard else None))
    return 0


def _show(args: argparse.Namespace) -> int:
    import statistics

    from collbench.gate.baseline import dump, read
    from collbench.units import format_us
    from collbench.wording import counted

    side = read(args.source)
    if args.json:
        print(dump(side), end="")
        return 0
    print(f"{side.name}: {len(side.cells)} cells, {counted(side.launches, 'launch', 'es')}, {side.origin['created']}")
    spread = side.spread
    told = "none: collbench calibrate-gate learns it" if spread is None else f"{spread.sd:.4f}, {spread.sessions} runs"
    print(f"between_session_sd: {told}")
    for key, value in sorted(side.hard.items()):
        if value:
            print(f"{key}: {value}")
    print("us: median of the launches' medians")
    for cell_id, cell in side.cells.items():
        middle = format_us(statistics.median(cell.medians_us)) if cell.medians_us else str(cell.status)
        print(f"{middle:>11}  {cell_id}")
    return 0


def _replace(path: Path, text: str) -> None:
    from collbench.results.files import readable_errors, refuse_part_of_run, replace_whole

    refuse_part_of_run(path)
    with readable_errors(path, option="--to"):
        replace_whole(path, lambda file: file.write(text.encode()))
        path.chmod(0o644)  # a file to be committed, with nothing private in it
