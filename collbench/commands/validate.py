"""`collbench validate`: how far the model is off on published measurements."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.contention.scores import Score
    from collbench.contention.validate import Outcome

__all__ = ["add_parser", "run"]

_PROBLEMS = 20
_WORDS = 4
"""Columns of the table that hold words."""


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "validate",
        help="compare the model with tables of published measurements",
        description="Predict every row of published tables that the model has a topology for, and print the errors,\n"
        "apart by what was known of a row, beside simple baselines on the same rows.",
        epilog="Errors are |log(predicted / measured)|, 10% is a factor of 1.105.",
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        type=Path,
        help="folder with public_latency.csv, public_bandwidth.csv; default: those that come with collbench",
    )
    parser.add_argument("--by-size", action="store_true", help="also below 16 KiB, to 256 KiB, and above")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: the folder holds neither table, or the package came without them.
        InvalidError: no row is of use.
    """
    from collbench.contention.published import folder, read
    from collbench.contention.validate import validate
    from collbench.results.problems import warn

    latency, bandwidth, problems = read(args.folder or folder())
    outcome = validate(latency, bandwidth)
    warn(problems[:_PROBLEMS])
    if len(problems) > _PROBLEMS:
        warn([f"{len(problems) - _PROBLEMS} more rows left out for such reasons"])
    if args.json:
        _print_json(outcome)
    else:
        _print(outcome, len(latency) + len(bandwidth), by_size=args.by_size)
    return 0


def _print_json(outcome: "Outcome") -> None:
    import json

    from collbench.results.records import SCHEMA

    rows = [score.row() for score in outcome.scores]
    ranking = {name: value if value == value else None for name, value in outcome.ranking.items()}  # noqa: PLR0124 - NaN
    data = {"schema": SCHEMA, "kind": "validate", "rows": rows, "ranking": ranking, "left_out": dict(outcome.left_out)}
    print(json.dumps(data, indent=1, allow_nan=False))


def _print(outcome: "Outcome", rows: int, *, by_size: bool) -> None:
    shown = [score for score in outcome.scores if by_size or score.regime == "all"]
    head = ["table", "known", "sizes", "model", "median", "p90", "bias", "n", "systems", "in 90 %"]
    lines = [head, *(_cells(score) for score in shown)]
    width = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        cells = (c.ljust(w) if i < _WORDS else c.rjust(w) for i, (c, w) in enumerate(zip(line, width, strict=True)))
        print("  ".join(cells).rstrip())
    r = outcome.ranking
    if r:
        print(
            f"\nfastest of at least three algorithms: picked {r['fastest_picked']:.0%} of {r['groups']:.0f} sizes on "
            f"{r['systems']:.0f} systems, regret median {r['median_regret']:.0%}, mean {r['mean_regret']:.0%}, "
            f"Kendall's tau {r['mean_tau']:.2f}; nothing fitted"
        )
    spread = outcome.between_machines
    print(f"\nbetween machines: a spread of {spread:.2f} makes 90 % intervals of what rests on priors hold 90 %")
    print(f"\nleft out: {sum(outcome.left_out.values())} of {rows} rows")
    for reason, count in outcome.left_out.items():
        print(f"{count:5d}  {reason}")


def _cells(score: "Score") -> list[str]:
    coverage = "-" if score.coverage is None else f"{score.coverage:.0%}"
    numbers = [
        f"{score.median:.1%}",
        f"{score.p90:.1%}",
        f"{score.bias:+.1%}",
        str(score.n),
        str(score.systems),
        coverage,
    ]
    return [score.table, score.split, score.regime, score.model, *numbers]
