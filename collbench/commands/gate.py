"""`collbench gate`: did anything get slower?"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable

    from collbench.gate.verdicts import Outcome, Rules

__all__ = ["add_parser", "run"]


class _Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM came while both sides were launched in turn."""

    def __init__(self, number: int) -> None:
        self.number = number


_EPILOG = """\
SIDE is venv:PATH (another installation), git:REV (a revision of this repository), env:K=V,... (variables), or
cmd:COMMAND (anything that takes the options of collbench sweep). Behind -- stand the options of each launch:

  collbench gate --paired --baseline git:main --candidate env:NCCL_PROTO=LL -- --nproc 2 -b 16K --algorithms host

exit codes: 0 no regression, 1 regression, 2 usage, 3 not comparable or invalid, 4 inconclusive under --strict;
3 is said before 1, and 1 before 4"""


def add_parser(subparsers: "_SubParsersAction[Any]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "gate",
        help="say whether anything got slower, with an exit code",
        description="Compare two sides: measured now in pairs of launches (--paired), or two runs or baseline files.",
        epilog=_EPILOG,
        usage="collbench gate BASE CURRENT [options]\n"
        "       collbench gate --paired --baseline SIDE --candidate SIDE [options] -- SWEEP OPTIONS",
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="BASE CURRENT", help="run folders, baseline files or pytest-benchmark's JSON")
    add("--paired", action="store_true", help="launch both sides now, in turn")
    add("--baseline", metavar="SIDE", help="side that is compared with")
    add("--candidate", metavar="SIDE", help="side that is judged")
    add("--alpha", type=float, default=0.05, metavar="P", help="chance of any false verdict; default 0.05")
    add("--min-effect", type=float, default=0.03, metavar="X", help="least change that counts; default 0.03")
    add("--min-abs", type=float, default=0.3, metavar="US", help="the same in microseconds; default 0.3")
    add(
        "--max-noise", type=float, default=0.10, metavar="X",
        help="spread above which only large changes count; default 0.10",
    )  # fmt: skip
    add("--blocks", default="8,12,16", metavar="LIST", help="pairs at which it looks; default 8,12,16")
    add("--quantile", type=float, default=0.5, metavar="Q", help="of a launch's iterations, paired; default 0.5")
    add("--control", action="append", default=[], metavar="PATTERN", help="cells that the change cannot touch")
    add(
        "--allow-mismatch", action="append", default=[], metavar="KEY", help="hard fingerprint key that may differ",
    )  # fmt: skip
    add("--seed", type=int, metavar="N", help="of the order of the cells; default: drawn, and recorded")
    add("--launch-timeout", default="10m", metavar="TIME", help="longest time of one launch; default 10m")
    add("--out", metavar="FOLDER", help="where launches and gate.json are kept; default reports/gate-DATE-TIME")
    add("--strict", action="store_true", help="exit with 4 where a cell is inconclusive")
    add("--warn-only", action="store_true", help="exit with 0 where a cell regressed")
    add("--json", action="store_true", help="print the verdicts as JSON")
    add("--json-file", type=Path, metavar="FILE", help="write the verdicts as JSON too")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    add("--markdown", type=Path, metavar="FILE", help="append Markdown, such as $GITHUB_STEP_SUMMARY")
    add("--comment", type=Path, metavar="FILE", help="write short Markdown for a comment: the ten worst cells")
    add("--annotations", action="store_true", help="print annotations for GitHub Actions on stderr")
    add("--html", type=Path, metavar="FILE", help="write a page: the run's with all cells as intervals")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge, and write every output that was asked for; gives the exit code.

    Raises:
        UsageError: options that contradict each other.
        InvalidError: a side that cannot be read or launched; then there is no verdict, and JUnit and Markdown say so.
            Or an output that cannot be written; the others are.
    """
    from collbench.errors import CollbenchError, InvalidError
    from collbench.gate.verdicts import GateMode, Outcome
    from collbench.results.problems import warn

    rules = _rules(args)
    _check_call(args)
    try:
        outcome = _paired(args, rules) if args.paired else _stored(args, rules)
    except CollbenchError as error:
        mode = GateMode.PAIRED if args.paired else GateMode.STORED
        warn(_write(args, Outcome(mode, rules, (), (str(error),))))
        raise
    _print(args, outcome)
    failed = _write(args, outcome)
    if failed:
        raise InvalidError("; ".join(failed))
    code = outcome.exit_code(strict=args.strict)
    return 0 if code == 1 and args.warn_only else code


def _rules(args: argparse.Namespace) -> "Rules":
    from collbench.errors import UsageError
    from collbench.gate.verdicts import Rules

    try:
        looks = tuple(int(word) for word in args.blocks.split(","))
    except ValueError:
        raise UsageError(f"--blocks {args.blocks}: expected rising whole numbers such as 8,12,16") from None
    return Rules(
        args.alpha, args.min_effect, args.min_abs, args.max_noise, looks, tuple(args.control),
        tuple(args.allow_mismatch), args.quantile,
    )  # fmt: skip


def _check_call(args: argparse.Namespace) -> None:
    from collbench.errors import UsageError
    from collbench.wording import counted

    for path in (args.json_file, args.junit, args.markdown, args.comment, args.html):
        # said now: the verdicts of an hour of launches must not end in a folder that is not there
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UsageError(f"{path}: {'is a folder' if path.is_dir() else 'there is no such folder'}")
    if args.paired:
        if not args.baseline or not args.candidate:
            raise UsageError("--paired needs --baseline SIDE and --candidate SIDE")
        if args.words and not args.words[0].startswith("-"):
            raise UsageError(f"{args.words[0]!r}: with --paired only options of collbench sweep follow, behind --")
    elif args.baseline or args.candidate:
        raise UsageError("--baseline and --candidate go with --paired; for files: collbench gate BASE CURRENT")
    elif args.quantile != 0.5:  # noqa: PLR2004 - the median, which files keep
        raise UsageError("--quantile goes with --paired: files keep medians")
    elif len(args.words) != 2:  # noqa: PLR2004 - base and current
        raise UsageError(f"{counted(len(args.words), 'path')}: expected BASE and CURRENT, or --paired")


def _stored(args: argparse.Namespace, rules: "Rules") -> "Outcome":
    from collbench.gate.baseline import load_side
    from collbench.gate.judge import judge_stored

    return judge_stored(load_side(args.words[0]), load_side(args.words[1]), rules)


def _paired(args: argparse.Namespace, rules: "Rules") -> "Outcome":
    import signal

    def stop(number: int, _frame: object) -> None:
        for each in signals:  # the launch that runs is ended in order; a second Ctrl-C would leave it behind
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(number)

    out = _out(args)
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, stop) for each in signals]
    try:
        return _launched(args, rules, out)
    except _Stopped as stopped:
        kept = f"launches that ended are kept as runs in {out}; " if any(out.glob("*-*/run.json")) else ""
        again = "begin again, with another --out" if args.out else "begin again"
        _say(f"{signal.Signals(stopped.number).name}: stopped, no verdict; {kept}{again}")
        raise SystemExit(128 + stopped.number) from None
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


def _say(text: str) -> None:
    import sys

    print(f"collbench: {text}", file=sys.stderr, flush=True)


def _launched(args: argparse.Namespace, rules: "Rules", out: Path) -> "Outcome":
    import secrets

    from collbench.gate.kept import GATE
    from collbench.gate.launcher import open_side
    from collbench.gate.pairs import make_plan, run_pairs
    from collbench.results.files import readable_errors, replace_whole
    from collbench.units import parse_duration

    timeout_s = parse_duration(args.launch_timeout)
    baseline, candidate = open_side(args.baseline, out), open_side(args.candidate, out)
    seed = args.seed if args.seed is not None else secrets.randbelow(1 << 31)
    plan = make_plan(baseline, candidate, args.words, out, seed, timeout_s)
    told = f"{len(plan.cells)} cells, about {plan.seconds:.0f} s a block, seed {seed}, kept in {out}"
    _say(told if plan.shuffles else f"{told}; a side is too old to shuffle the order of its cells")
    outcome = run_pairs(plan, rules, out, _say)
    with readable_errors(out, option="--out"):
        replace_whole(out / GATE, lambda file: file.write(_as_json(outcome).encode()))
    return outcome


def _out(args: argparse.Namespace) -> Path:
    import datetime as dt

    from collbench.errors import UsageError
    from collbench.results.files import readable_errors

    out = Path(args.out) if args.out else Path("reports") / f"gate-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: is there already: give a new folder")
    with readable_errors(out, option="--out"):
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
    return out.absolute()


def _as_json(outcome: "Outcome") -> str:
    import json

    return json.dumps(outcome.as_dict(), indent=1, allow_nan=False) + "\n"


def _write(args: argparse.Namespace, outcome: "Outcome") -> list[str]:
    """Write every output that was asked for, each as a whole; gives a sentence for each that could not be."""
    from collbench.gate.junit import junit
    from collbench.gate.markdown import annotations, markdown

    texts: dict[str, Callable[[], str]] = {
        "--json-file": lambda: _as_json(outcome),
        "--junit": lambda: junit(outcome),
        "--html": lambda: _page(args, outcome),
        "--comment": lambda: markdown(outcome, short=True),
        "--markdown": lambda: markdown(outcome),
    }
    failed = [_write_one(args, option, make) for option, make in texts.items()]
    if args.annotations:
        import sys

        for line in annotations(outcome):
            print(line, file=sys.stderr)
    return [told for told in failed if told]


def _write_one(args: argparse.Namespace, option: str, make: "Callable[[], str]") -> str:
    from collbench.errors import CollbenchError
    from collbench.results.files import append_text, readable_errors, refuse_part_of_run, replace_whole

    path: Path | None = getattr(args, option.removeprefix("--").replace("-", "_"))
    if path is None:
        return ""
    try:
        refuse_part_of_run(path)
        text = make()
        with readable_errors(path, option=option):
            if option == "--markdown":
                append_text(path, text)
            else:
                replace_whole(path, lambda file: file.write(text.encode()), private=False)
    except CollbenchError as error:
        return str(error)
    return ""


def _page(args: argparse.Namespace, outcome: "Outcome") -> str:
    """The page of the run that is judged, with the verdicts; of pairs, files and damaged runs the verdicts alone."""
    from collbench.errors import CollbenchError
    from collbench.report import build
    from collbench.report.gate_page import gate_page

    run = Path(args.words[1]) if not args.paired and len(args.words) > 1 else None
    if run is not None and run.is_dir() and outcome.cells:
        try:
            return build(run, outcome, verdict_first=True)
        except CollbenchError:
            pass  # a run without a page of its own; the fault that says why is in the verdicts
    return gate_page(outcome)


def _print(args: argparse.Namespace, outcome: "Outcome") -> None:
    import json

    from collbench.gate.text import text
    from collbench.results.terminal import terminal_width

    if args.json:
        print(json.dumps(outcome.as_dict(), allow_nan=False))
        return
    print(text(outcome, terminal_width()))
