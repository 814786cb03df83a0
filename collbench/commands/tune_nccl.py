"""`collbench tune-nccl`: the settings with which NCCL is fastest here, at the sizes that are asked for."""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.algorithms.base import Algorithm
    from collbench.measure.plan import Options
    from collbench.topology.machine import Machine
    from collbench.tune.tune_plan import TunePlan

__all__ = ["add_parser", "run"]

_SIZES = (14336, 43008)
"""One token and a verify step of three tokens of a model with 7,168 hidden elements of 2 bytes."""

_EPILOG = """\
Every candidate is verified as in a sweep; what hangs, crashes or gives wrong sums is left out and named. The best one
is then launched in pairs with the default, and its gain is printed with an interval:

  collbench tune-nccl --nproc 8 --budget 10m
  collbench tune-nccl --set NCCL_PROTO=LL,Simple --set NCCL_MAX_CTAS=1,2,4 -b 43008
  collbench tune-nccl --nccl old/libnccl.so.2 --nccl new/libnccl.so.2

exit codes: 0 searched, whether or not something is faster; 2 usage; 3 it cannot run here, or the default is wrong"""

_FIXED = (
    "nproc", "algorithm", "space", "set", "sizes", "dtype", "iterations", "modes", "calls", "nccl", "candidates",
    "pairs", "seed", "timeout", "share_gpu", "out",
)  # fmt: skip
"""Options that a search keeps from its beginning."""


def add_parser(subparsers: "_SubParsersAction[Any]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "tune-nccl",
        help="search NCCL's settings for this machine, and print the fastest to paste",
        description="Search NCCL's environment variables within a time budget, each candidate verified.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("--nproc", type=int, metavar="N", help="ranks to start (default: one per GPU; 8 without a GPU)")
    add("--algorithm", default="", metavar="NAME", help="what is tuned; default nccl_auto")
    add("--space", type=Path, metavar="FILE", help="TOML with [variables] NAME = [values] and [[never]] tables")
    add("--set", action="append", default=[], metavar="NAME=V,V", help="a variable to search; repeatable; no --space")
    add("--print-space", action="store_true", help="print the space that is searched by default, as TOML")
    add("-b", "--sizes", dest="sizes", metavar="LIST", help="message size, or several by commas; default 14336,43008")
    add("-d", dest="dtype", default="", metavar="DTYPE", help="float32, float16, bfloat16 or int32")
    add("-n", dest="iterations", type=int, default=100, metavar="N", help="timed iterations per cell; default 100")
    add("--modes", default="graph", metavar="MODES", help="eager, graph or both by a comma; default graph")
    add("--calls", default="122", metavar="K", help="calls per sample; default 122")
    add("--nccl", action="append", default=[], metavar="PATH", help="a libnccl.so.2 to search on; repeatable")
    add("--candidates", type=int, default=60, metavar="N", help="most combinations that are tried; default 60")
    add("--pairs", type=int, default=8, metavar="N", help="pairs of launches of the final, 8 or more; default 8")
    add("--seed", type=int, default=0, metavar="N", help="of the combinations that are drawn; default 0")
    add("--budget", default="10m", metavar="TIME", help="end within this time; default 10m")
    add("--timeout", default="20s", metavar="TIME", help="longest time for one cell before it is hung; default 20s")
    add("--share-gpu", action="store_true", help="let several ranks use one GPU, through MPS")
    add("--allow-busy", action="store_true", help="measure although other processes use the GPUs")
    add("--resume", type=Path, metavar="FOLDER", help="go on with a search, with this call's budget")
    add("--out", metavar="FOLDER", help="where it is kept; default reports/tune-DATE-TIME")
    add("--json", action="store_true", help="print the outcome as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search, print what was found; gives the exit code.

    Raises:
        UsageError: options that are off.
        InvalidError: the algorithm does not run here, or the default gives no right result.
    """
    import json
    import signal
    import sys

    from collbench.gate.paired import paired_ratio
    from collbench.tune.tune_plan import read_plan
    from collbench.tune.tuning import tune
    from collbench.units import parse_duration

    if args.print_space:
        from collbench.tune.space import default_space_text

        print(default_space_text(), end="")
        return 0
    budget_s = parse_duration(args.budget)
    if args.resume:
        _refuse_other_options(args)
    plan = read_plan(args.resume) if args.resume else _plan(args)
    workplace, folder = _workplace(args, plan), args.resume or _out(args)

    def say(text: str) -> None:
        print(f"collbench: {text}", file=sys.stderr, flush=True)

    def stop(number: int, _frame: object) -> None:
        say(f"{signal.Signals(number).name}: stopped; what was measured is kept, go on with --resume {folder}")
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        outcome = tune(plan, workplace, folder, budget_s, paired_ratio, say)
    finally:
        workplace.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    print(json.dumps(outcome.as_dict(), allow_nan=False) if args.json else outcome.text())
    say(f"kept in {folder}")
    return 0


def _refuse_other_options(args: argparse.Namespace) -> None:
    from collbench.errors import UsageError

    if given := [args.given[name] for name in _FIXED if name in args.given]:
        raise UsageError(f"--resume goes on with the search's own options: leave out {', '.join(given)}")


def _plan(args: argparse.Namespace) -> "TunePlan":
    from collbench.errors import UsageError
    from collbench.gate.paired import LEAST_LAUNCHES
    from collbench.sweep_options import nccl_paths
    from collbench.tune.tune_plan import TunePlan

    if args.nproc is not None and not 2 <= args.nproc <= 16:  # noqa: PLR2004 - a rank and its peer; ranks of a host
        raise UsageError(f"--nproc {args.nproc}: expected 2 to 16 ranks")
    if not LEAST_LAUNCHES <= args.pairs <= 1000:  # noqa: PLR2004 - more is a typing error
        raise UsageError(f"--pairs {args.pairs}: an interval needs {LEAST_LAUNCHES} to 1000 pairs")
    if not 2 <= args.candidates <= 1000:  # noqa: PLR2004 - the default and another
        raise UsageError(f"--candidates {args.candidates}: expected 2 to 1000")
    if not 5 <= args.iterations <= 100_000:  # noqa: PLR2004 - fewer are noise
        raise UsageError(f"-n {args.iterations}: expected 5 to 100,000 iterations")
    libraries = tuple(filter(None, nccl_paths(args.nccl).split(":")))
    ranks = args.nproc or _default_ranks()
    return TunePlan(
        args.algorithm or "nccl_auto", _space(args), args.candidates, args.seed, args.pairs, ranks,
        _options(args).as_dict(), libraries,
    )  # fmt: skip


def _space(args: argparse.Namespace) -> Any:  # noqa: ANN401 - a Space, imported lazily
    from collbench.errors import UsageError
    from collbench.topology.toml_table import parse_toml
    from collbench.tune.space import Space, default_space_text, parse_set, read_space

    if args.space and args.set:
        raise UsageError("--space and --set: give the one or the other")
    if args.set:
        return parse_set(args.set)
    if args.space:
        return read_space(args.space)
    return Space.from_dict(parse_toml(default_space_text()), "the default space")


def _options(args: argparse.Namespace) -> "Options":
    from collbench.errors import UsageError
    from collbench.measure.plan import Options
    from collbench.sweep_options import calls_of, modes_of
    from collbench.units import parse_bytes, parse_duration

    modes, calls = modes_of(args.modes), calls_of(args.calls)
    if min(calls) < 1:
        raise UsageError(f"--calls {args.calls}: expected whole numbers from 1 on")
    sizes = tuple(parse_bytes(word.strip()) for word in args.sizes.split(",")) if args.sizes else _SIZES
    return Options(
        sizes=sizes, modes=modes, calls=calls, dtype=args.dtype, iterations=args.iterations,
        timeout_s=parse_duration(args.timeout), share_gpu=args.share_gpu, allow_busy=args.allow_busy,
    )  # fmt: skip


def _default_ranks() -> int:
    from collbench.measure.placement import gpu_count

    gpus = gpu_count()
    return gpus if gpus > 1 else 8


def _workplace(args: argparse.Namespace, plan: "TunePlan") -> Any:  # noqa: ANN401 - a Workplace, imported lazily
    """Look at the machine, and refuse what cannot run on it before anything is started."""
    from collbench.errors import InvalidError
    from collbench.measure.library import nccl_facts
    from collbench.measure.plan import make_plan
    from collbench.measure.team import Place
    from collbench.tune.trials import Workplace
    from collbench.tune.tune_plan import options_of

    algorithm, options = _algorithm(plan.algorithm), options_of(plan)
    options = dataclasses.replace(options, allow_busy=args.allow_busy or options.allow_busy)
    machine = _machine(algorithm, options, plan.ranks)
    libraries = [(path, nccl_facts(path)) for path in plan.libraries]
    workplace = Workplace(algorithm, machine, libraries, options, Place(ranks=plan.ranks, local_ranks=plan.ranks))
    default = workplace.variant(plan.candidates([facts["nccl"] for _, facts in libraries])[0])
    for cell in make_plan(options, machine, [default]).cells:
        support = default.support(machine, cell.call)
        if not support:
            remedy = f": {support.remedy}" if support.remedy else ""
            raise InvalidError(f"{plan.algorithm}: unsupported: {support.reason}{remedy}")
    return workplace


def _algorithm(name: str) -> "Algorithm":
    from collbench.algorithms.base import registry
    from collbench.errors import UsageError

    known = registry()
    if name not in known:
        raise UsageError(f"--algorithm {name}: not known; collbench doctor lists all")
    return known[name]


def _machine(algorithm: "Algorithm", options: "Options", ranks: int) -> "Machine":
    from collbench.errors import InvalidError
    from collbench.measure.placement import gpu_count, refuse_too_many
    from collbench.measure.shared_gpu import busy_gpus
    from collbench.results.records import Fabric
    from collbench.topology.discover import machine as discover_machine

    gpus = gpu_count()
    uses_gpu = gpus > 0 and algorithm.device == "cuda"
    if uses_gpu:
        refuse_too_many(ranks, gpus, share=options.share_gpu)
        busy = "" if options.allow_busy else busy_gpus()
        if busy:
            raise InvalidError(f"{busy}: end those processes, or measure anyway with --allow-busy")
    machine = discover_machine(ranks=ranks, hosts=1, share_gpu=uses_gpu and ranks > gpus)
    return machine if uses_gpu else dataclasses.replace(machine, fabric=Fabric.HOST)


def _out(args: argparse.Namespace) -> Path:
    import datetime as dt

    from collbench.errors import UsageError

    out = Path(args.out) if args.out else Path("reports") / f"tune-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: is there already: give a new folder, or --resume {out}")
    return out
