"""`collbench validate`: how far the model is off on published measurements."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Sequence

    from collbench.contention.scores import Score
    from collbench.contention.validate import Outcome

__all__ = ["add_parser", "run"]

_PROBLEMS = 20
_WORDS = ("table", "known", "sizes", "model")
_HEAD = (*_WORDS, "median", "p90", "bias", "n", "systems", "in 90 %", "half width")


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "validate",
        help="compare the model with tables of published measurements",
        description="Predict every row of published tables that the model has a topology for, and print the errors,\n"
        "apart by what was known of a row, beside simple baselines on the same rows.",
        epilog="Errors are |log(predicted / measured)|, 10% is a factor of 1.105; from 100% on the factor is\n"
        "printed: x3.6, and as a bias /3.6 where so much too little was predicted.\n"
        "in 90 %: rows inside the nominal 90 % interval; half width: half of its width, the median.",
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
    from collbench.units import rounded

    rows = [score.row() for score in outcome.scores]
    ranking = {name: value if value == value else None for name, value in outcome.ranking.items()}  # noqa: PLR0124 - NaN
    data = {"schema": SCHEMA, "kind": "validate", "rows": rows, "ranking": ranking, "left_out": dict(outcome.left_out)}
    print(json.dumps(rounded(data), indent=1, allow_nan=False))


def _print(outcome: "Outcome", rows: int, *, by_size: bool) -> None:
    from collbench.contention.scores import ERROR_RULE
    from collbench.results.terminal import terminal_width, wrapped

    width = terminal_width()
    shown = [score for score in outcome.scores if by_size or score.regime == "all"]
    print("\n".join(_table(shown) if width is None else _grouped(shown, by_size=by_size)))
    print(f"\n{wrapped(ERROR_RULE, width)}")
    r = outcome.ranking
    if r:
        text = (
            f"fastest of at least three algorithms: picked {r['fastest_picked']:.0%} of {r['groups']:.0f} sizes on "
            f"{r['systems']:.0f} systems, regret median {r['median_regret']:.0%}, mean {r['mean_regret']:.0%}, "
            f"Kendall's tau {r['mean_tau']:.2f}; nothing fitted"
        )
        print(f"\n{wrapped(text, width)}")
    spread = f"a spread of {outcome.between_machines:.2f} makes 90 % intervals of what rests on priors hold 90 %"
    print(f"\n{wrapped(f'between machines: {spread}', width)}")
    print(f"\nleft out: {sum(outcome.left_out.values())} of {rows} rows")
    for reason, count in outcome.left_out.items():
        print(wrapped(f"{count:5d}  {reason}", width, 7))


def _table(scores: "Sequence[Score]") -> list[str]:
    """One line per score with all of it, for scripts."""
    from collbench.results.table import grid

    cells = [_cells(score) for score in scores]
    return grid({name: [line[i] for line in cells] for i, name in enumerate(_HEAD)}, lambda name: name not in _WORDS)


def _grouped(scores: "Sequence[Score]", *, by_size: bool) -> list[str]:
    """For people: what was predicted and what was known stand above the lines that share them."""
    head, *lines = _table(scores)
    at = head.index("sizes" if by_size else "model")
    found = [head[at:]]
    last = None
    for score, line in zip(scores, lines, strict=True):
        if (score.table, score.split) != last:
            last = score.table, score.split
            found += ["", f"{score.table}; {score.split}:"]
        found.append(line[at:])
    return found


def _cells(score: "Score") -> list[str]:
    from collbench.contention.scores import error_text

    errors = [error_text(score.median, 1), error_text(score.p90, 1), error_text(score.bias, 1, signed=True)]
    coverage = "-" if score.coverage is None else f"{score.coverage:.0%}"
    width = "-" if score.width is None else error_text(score.width)
    words = [score.table, score.split, score.regime, score.model]
    return [*words, *errors, str(score.n), str(score.systems), coverage, width]
