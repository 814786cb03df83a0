"""The options of a sweep: argparse's on one side, the plan's record on the other."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import InvalidError, UsageError, nearest

if TYPE_CHECKING:
    from collbench.measure.plan import Options
    from collbench.results.records import Collective, Mode

__all__ = ["ALGORITHMS_HELP", "FAMILIES", "add_arguments", "calls_of", "modes_of", "nccl_paths", "options_of"]

FAMILIES = (
    "own", "symm", "nccl", "vllm", "flashinfer", "sglang", "mscclpp", "b12x", "host", "gloo", "coalesced", "expert",
)  # fmt: skip
"""Families of our algorithms, for help texts: the registry itself takes longer to load than a help text may."""

_MOST = 1_000_000
ALGORITHMS_HELP = f"families ({', '.join(FAMILIES)}), names or all, by commas"
_FIXED = (
    "algorithms", "first", "last", "factor", "sizes", "iterations", "warmup", "dtype", "collective", "skew", "epilogue",
    "modes", "calls", "op", "shuffle", "share_gpu", "nccl", "out", "cell",
)  # fmt: skip
"""Options that a run keeps from its beginning; launches may be added."""

_DTYPES = {"float": "float32", "half": "float16", "int": "int32", "bf16": "bfloat16"}
"""nccl-tests' names of dtypes beside our own."""

_DTYPE_HELP = "float32, float16, bfloat16 or int32; default bfloat16, on a host float32"
_SKEW_HELP = "splits of an all_to_all, by commas: even, dispatch[:EXPONENT[:SEED]], combine[...]; default even"
_DTYPE_HELP = "float32, float16, bfloat16 or int32; default float32 on a host, bfloat16 on GPUs"
_COLLECTIVE_HELP = "all_reduce, all_gather, reduce_scatter, all_to_all or barrier; default all_reduce"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sweep's options. nccl-tests' short flags mean what they mean there."""
    add = parser.add_argument
    add(
        "--nproc",
        type=int,
        metavar="N",
        help="ranks to start (default: one per GPU; 8 without a GPU); not under torchrun",
    )
    add("-b", dest="first", metavar="BYTES", help="smallest message (alone: the only one); default 1K")
    add("-e", dest="last", metavar="BYTES", help="largest message; default 1M on a host, 4M on GPUs")
    add("-f", dest="factor", type=int, default=4, metavar="N", help="factor between sizes; default 4")
    add("--sizes", metavar="LIST", help="exactly these message sizes, by commas, instead of -b, -e and -f")
    add("-n", dest="iterations", type=int, metavar="N", help="timed iterations per cell; default: by time")
    add("-w", dest="warmup", type=int, default=2, metavar="N", help="untimed iterations before; default 2")
    add("-d", dest="dtype", default="", metavar="DTYPE", help=_DTYPE_HELP)
    add("--algorithms", default="", metavar="NAMES", help=ALGORITHMS_HELP)
    add("--collective", default="all_reduce", metavar="NAME", help=_COLLECTIVE_HELP)
    add("--skew", default="", metavar="NAMES", help=_SKEW_HELP)
    add("--epilogue", default="", metavar="NAME", help="work behind an all_reduce: residual_rmsnorm; default none")
    add("--modes", default="eager,graph", metavar="MODES", help="eager, graph or both; default both")
    add(
        "--calls", default="1,122", metavar="K", help="calls per sample: 1 is isolated, more are chained; default 1,122"
    )
    add("--op", default="sum", help="reduction; default sum")
    add("--launches", type=int, metavar="N", help="fresh starts of all ranks; 5 give an interval; default 1")
    add("--shuffle", type=int, metavar="SEED", help="measure the cells in an order drawn with this seed")
    add("--cell", action="append", default=[], metavar="ID", help="only this cell of the plan; may be repeated")
    add("--budget", metavar="TIME", help="end within this time, such as 45s or 5m")
    add("--timeout", default="30s", metavar="TIME", help="longest time for one cell before it is hung; default 30s")
    add("--no-probe", action="store_true", help="leave out the short probes (10 s) that the explanation rests on")
    add("--dry-run", action="store_true", help="list the cells and the estimated time, measure nothing")
    add("--share-gpu", action="store_true", help="let several ranks use one GPU, through MPS")
    add("--allow-busy", action="store_true", help="measure although other processes use the GPUs")
    add("--nccl", action="append", default=[], metavar="PATH", help="another libnccl.so.2 for NCCL's rows; repeatable")
    add("--resume", metavar="RUN", help="go on with a run; a larger --launches adds launches to it")
    add("--out", metavar="FOLDER", help="where the run goes; default reports/run-DATE-TIME")
    add("--json", action="store_true", help="print the rows as JSON")


def options_of(args: argparse.Namespace, earlier: Mapping[str, Any] | None = None, measured: int = 1) -> "Options":
    """The plan's record; of a resumed run, its own settings with this call's budget, timeout and launches.

    Launches may be added, or left out down to the `measured` ones.

    Raises:
        UsageError: an option's value is off, or is one that a run keeps.
        InvalidError: the earlier run's settings cannot be read.
    """
    if earlier is None:
        return _parsed(args)
    if given := [args.given[name] for name in _FIXED if name in args.given]:
        raise UsageError(f"--resume goes on with the run's own options: leave out {', '.join(given)}")
    return _resumed(args, earlier, measured)


def _resumed(args: argparse.Namespace, earlier: Mapping[str, Any], measured: int) -> "Options":
    from collbench.measure.plan import Options
    from collbench.results.records import Collective, Mode
    from collbench.units import parse_duration

    try:
        modes = tuple(Mode(m) for m in earlier["modes"])
        changed = {
            "launches": _launches(args.launches, int(earlier["launches"]), measured),
            "collective": Collective(earlier.get("collective", Collective.ALL_REDUCE)),
            "modes": modes, "calls": tuple(int(k) for k in earlier["calls"]),
            "sizes": tuple(int(size) for size in earlier.get("sizes", ())),
            "skews": tuple(map(str, earlier.get("skews", ()))),
            "budget_s": parse_duration(args.budget) if args.budget is not None else None,
            "timeout_s": parse_duration(args.timeout), "allow_busy": args.allow_busy,
            "probe": bool(earlier.get("probe", True)) and _probe(args),
        }  # fmt: skip
        return Options(**{**earlier, **changed})
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidError(f"--resume: the run's settings cannot be read: {error}") from error


def _launches(asked: int | None, planned: int, measured: int) -> int:
    if asked is None:
        return planned
    _check_count("--launches", asked)
    if asked < min(planned, measured):
        raise UsageError(f"--launches {asked}: the run has measured {measured} and keeps them: give as many, or more")
    return asked


def _parsed(args: argparse.Namespace) -> "Options":
    from collbench.measure.plan import Options
    from collbench.units import parse_duration

    modes, calls = modes_of(args.modes), calls_of(args.calls)
    collective = _collective(args)
    _check_counts(args, calls)
    return Options(
        algorithms=args.algorithms, first_bytes=_size("-b", args.first), last_bytes=_size("-e", args.last),
        factor=args.factor, modes=modes, sizes=_sizes(args.sizes), calls=calls, op=args.op,
        dtype=_DTYPES.get(args.dtype, args.dtype),
        launches=1 if args.launches is None else args.launches, iterations=args.iterations or 0,
        warmup=args.warmup, shuffle=args.shuffle,
        budget_s=parse_duration(args.budget) if args.budget is not None else None,
        timeout_s=parse_duration(args.timeout),
        collective=collective, epilogue=args.epilogue, share_gpu=args.share_gpu, allow_busy=args.allow_busy,
        nccl=nccl_paths(args.nccl), skews=_skews(args), probe=_probe(args),
    )  # fmt: skip


def modes_of(text: str) -> "tuple[Mode, ...]":
    """Modes of `--modes`, each once.

    Raises:
        UsageError: a word that is none.
    """
    return tuple(dict.fromkeys(_mode(word.strip()) for word in text.split(",")))


def calls_of(text: str) -> tuple[int, ...]:
    """Numbers of `--calls`, each once.

    Raises:
        UsageError: a word that is no whole number.
    """
    try:
        return tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise UsageError(f"--calls {text}: expected whole numbers by commas, such as 1,122") from None


def _mode(word: str) -> "Mode":
    from collbench.results.records import Mode

    if word not in set(Mode):
        meant = nearest(word, list(Mode))
        told = f"--modes {word}: expected {' or '.join(Mode)}, or both by a comma"
        raise UsageError(f"{told}; did you mean {meant}?" if meant else told)
    return Mode(word)


def _probe(args: argparse.Namespace) -> bool:
    """Not where somebody compares times of cells only: a gate says so to sweeps of any release by a variable."""
    import os

    return not (args.no_probe or os.environ.get("COLLBENCH_NO_PROBE"))


def _check_counts(args: argparse.Namespace, calls: tuple[int, ...]) -> None:
    counts = {"-w": (args.warmup,), "--launches": (args.launches,), "-n": (args.iterations,), "--calls": calls}
    for name, values in counts.items():
        for value in values:
            if value is not None:
                _check_count(name, value)
    if args.op != "sum":
        raise UsageError(f"--op {args.op}: only sum can be verified, and what is not verified is not timed")
    if args.sizes and (args.first or args.last):
        raise UsageError("--sizes lists the sizes: leave out -b and -e")


def _check_count(option: str, value: int) -> None:
    if not 1 <= value <= _MOST:
        raise UsageError(f"{option} {value}: expected a whole number from 1 to {_MOST:,}")


def _sizes(text: str | None) -> tuple[int, ...]:
    found = (_size("--sizes", word.strip()) for word in (text or "").split(","))
    return tuple(size for size in found if size is not None)


def _size(option: str, text: str | None) -> int | None:
    from collbench.units import parse_bytes

    try:
        return parse_bytes(text) if text else None
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error


def nccl_paths(given: Sequence[str]) -> str:
    """Resolved paths of `--nccl`, joined by `:`, as LD_PRELOAD lists libraries.

    Raises:
        UsageError: one is no file, or its name holds what separates paths.
    """
    for path in given:
        if not Path(path).is_file():
            raise UsageError(f"--nccl {path}: no such file; give the path of a libnccl.so.2")
        if set(":; ") & set(str(Path(path).resolve())):
            raise UsageError(f"--nccl {path}: the loader takes no path with blanks or colons: give a link to it")
    return ":".join(dict.fromkeys(str(Path(path).resolve()) for path in given))


def _skews(args: argparse.Namespace) -> tuple[str, ...]:
    from collbench.algorithms.routing import EVEN, Skew
    from collbench.results.records import Collective

    words = [word.strip() for word in args.skew.split(",") if word.strip()]
    names = tuple(dict.fromkeys(Skew.parse(word).name for word in words))
    if any(name != EVEN for name in names) and args.collective != Collective.ALL_TO_ALL:
        raise UsageError(f"--skew {args.skew}: only an all_to_all has splits: give --collective all_to_all")
    return names


def _collective(args: argparse.Namespace) -> "Collective":
    from collbench.algorithms.epilogues import RESIDUAL_RMSNORM
    from collbench.results.records import Collective

    known = [c for c in Collective if c is not Collective.P2P]
    if args.collective not in known:
        raise UsageError(f"--collective {args.collective}: expected one of {', '.join(known)}")
    if args.epilogue not in {"", RESIDUAL_RMSNORM}:
        raise UsageError(f"--epilogue {args.epilogue}: only {RESIDUAL_RMSNORM} is known")
    if args.epilogue and args.collective != Collective.ALL_REDUCE:
        raise UsageError(f"--epilogue {args.epilogue} stands behind an all_reduce, not behind {args.collective}")
    return Collective(args.collective)
