"""`collbench compare`: two runs side by side, without a verdict."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: "_SubParsersAction[Any]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare",
        help="show two runs side by side",
        description="Show two runs or baseline files side by side: medians, their ratio, and what else differs.",
        epilog="It describes. Whether a difference is real is the question of collbench gate.",
    )
    parser.add_argument("base", metavar="RUN", help="run folder or file that is compared with")
    parser.add_argument("current", metavar="RUN", help="run folder or file that is shown beside it")
    parser.add_argument(
        "--only", action="append", default=[], metavar="FIELD=VALUE,...",
        help="cells with one of these values, such as algorithm=push,auto or bytes=1K; may be given for several fields",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print it; gives the exit code.

    Raises:
        UsageError: no such run folder or file, or no cell that was asked for.
        InvalidError: one that cannot be read.
    """
    import json
    from dataclasses import replace

    from collbench.gate.baseline import load_side
    from collbench.gate.comparison import compare, differences, table
    from collbench.gate.enqueued import enqueued_differences
    from collbench.interop.chosen import chosen_ids, parse_only
    from collbench.results.records import SCHEMA
    from collbench.results.terminal import terminal_width, wrapped
    from collbench.units import rounded

    only = parse_only(args.only)
    base, current = load_side(args.base), load_side(args.current)
    kept = frozenset(chosen_ids(dict.fromkeys([*base.cells, *current.cells]), only))
    base, current = (
        replace(side, cells={cell_id: cell for cell_id, cell in side.cells.items() if cell_id in kept})
        for side in (base, current)
    )
    rows, differ = compare(base, current), differences(base, current)
    both = [row["cell_id"] for row in rows if row["ratio"] is not None]
    differ += enqueued_differences(args.base, args.current, both)
    if args.json:
        print(
            json.dumps(
                {"schema": SCHEMA, "kind": "compare", "differences": differ, "rows": rounded(rows)}, allow_nan=False
            )
        )
        return 0
    width = terminal_width()
    for line in differ:
        print(wrapped(f"differs: {line}", width, 2))
    print(table(rows, width))
    return 0
