"""`collbench nccl-tests`: measure with nccl-tests' programs, or read what they printed."""

import argparse
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.interop.nccl_tests.binary import Binary
    from collbench.interop.nccl_tests.running import Request
    from collbench.interop.nccl_tests.table import Invocation
    from collbench.results.records import Collective

__all__ = ["add_parser", "run"]


class _Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP came."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


def add_parser(subparsers: "_SubParsersAction[Any]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "nccl-tests",
        help="measure with nccl-tests' programs, or read what they printed",
        description="Run a program of nccl-tests into a run folder, or read what one printed (--parse).",
        epilog="Options of nccl-tests follow behind --: collbench nccl-tests -b 1K -e 1M -- -R 2 -G 10.\n"
        "Without MPI one process drives all GPUs (-g N). With --launcher 'mpirun -np 8', or started by mpirun itself,\n"
        "one process drives one GPU; that needs a program built with MPI=1. docs/nccl-tests.md says what is kept.",
    )
    _add_sources(parser.add_argument)
    _add_measuring(parser.add_argument)
    parser.add_argument("extra", nargs="*", metavar="-- EXTRA", help="options of nccl-tests, behind --")
    parser.set_defaults(run=run)


def _add_sources(add: Callable[..., object]) -> None:
    add(
        "--parse",
        metavar="FILE",
        help="read a printed table or a -J file (- is stdin); --out keeps it as a run",
    )
    add("--collective", default="", metavar="NAME", help="all_reduce (default), all_gather, reduce_scatter, "
        "all_to_all, p2p (sendrecv); with --parse: what the file does not say")  # fmt: skip
    add("--binary", default="", metavar="PATH", help="the program, or the folder of the programs (default: "
        "COLLBENCH_NCCL_TESTS, PATH, usual build folders)")  # fmt: skip
    add("--nproc", type=int, metavar="N", help="GPUs (default: all; under torchrun those of its ranks)")
    add("--launcher", default="", metavar="WORDS", help="what starts one process per GPU, such as 'mpirun -np 8'")


def _add_measuring(add: Callable[..., object]) -> None:
    add("-b", dest="first", metavar="BYTES", help="smallest message (alone: the only one); default 1K")
    add("-e", dest="last", metavar="BYTES", help="largest message; default 4M")
    add("-f", dest="factor", type=int, default=4, metavar="N", help="factor between sizes; default 4")
    add("-n", dest="iterations", type=int, metavar="N", help="timed iterations; default 20")
    add("-w", dest="warmup", type=int, metavar="N", help="untimed iterations before; default that of nccl-tests")
    add("-d", dest="dtype", default="bfloat16", metavar="DTYPE", help="element type; default bfloat16")
    add("--op", default="", help="reduction; default sum")
    add("--launches", type=int, default=1, metavar="N", help="fresh starts; 5 give an interval; default 1")
    add("--timeout", default="10m", metavar="TIME", help="longest time for one launch before it is hung; default 10m")
    add("--fabric", default="", metavar="NAME", help="what the ranks share, where it cannot be seen: pcie, nvlink, ...")
    add("--topology", default="", metavar="NAME", help="with --parse: the machine file of where it ran")
    add("--allow-busy", action="store_true", help="measure although other processes use the GPUs")
    add("--dry-run", action="store_true", help="print the command line, measure nothing")
    add("--out", metavar="FOLDER", help="run folder; default reports/nccl-tests-DATE-TIME, with --parse none")
    add("--json", action="store_true", help="print the rows as JSON")


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: an option's value is off, or there is no such program.
        InvalidError: output that cannot be read, a program that does not start, busy GPUs.
    """
    if args.parse is not None:
        return _parse(args)
    try:
        with _orderly():
            return _measure(args)
    except _Stopped as stopped:
        _say(f"{stopped.signal.name}: stopped; launches that had ended are kept")
        return 128 + stopped.signal


@contextlib.contextmanager
def _orderly() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program that runs, as Ctrl-C does."""

    def stop(number: int, _frame: object) -> NoReturn:
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parse(args: argparse.Namespace) -> int:
    import json

    from collbench.errors import UsageError
    from collbench.interop.nccl_tests.cells import with_said
    from collbench.interop.nccl_tests.options import program_named
    from collbench.interop.nccl_tests.printing import as_json, table
    from collbench.interop.nccl_tests.reading import read
    from collbench.results.terminal import terminal_width
    from collbench.units import rounded

    if args.extra or args.launcher or args.dry_run:
        raise UsageError("--parse reads a file and starts nothing: leave out --launcher, --dry-run and what follows --")
    program = program_named(args.collective)[0] if args.collective else ""
    found = [with_said(one, program=program, ranks=args.nproc or 0) for one in read(args.parse)]
    for one in found:
        for text in (*one.problems, *one.failures):
            _say(text)
    if args.out:
        _keep(args, found)
    print(
        json.dumps(rounded(as_json(found)), indent=1, allow_nan=False) if args.json else table(found, terminal_width())
    )
    return 0


def _keep(args: argparse.Namespace, found: "list[Invocation]") -> None:
    from collbench.interop.nccl_tests.cells import measured
    from collbench.interop.nccl_tests.place import fabric_named, there
    from collbench.interop.nccl_tests.recording import record

    kept = measured(found)
    machine = there(found, kept.world_size, args.topology, fabric_named(args.fabric))
    name = "-" if args.parse == "-" else Path(args.parse).name
    folder = record(Path(args.out), kept, machine, ("collbench", "nccl-tests", "--parse", name))
    if "gpus_listed" in machine.facts:
        _say(f"the output lists {machine.facts['gpus_listed']} GPUs: the others are taken for GPUs like them; "
             "--topology says what the machine is")  # fmt: skip
    for text in kept.left_out:
        _say(f"left out: {text}")
    _say(f"run: {folder.path}", plain=True)


def _measure(args: argparse.Namespace) -> int:
    from collbench.interop.nccl_tests.binary import ask
    from collbench.interop.nccl_tests.options import check_mpi, program_named, request_of
    from collbench.interop.nccl_tests.running import command_of, environment_of, mpi_rank
    from collbench.units import parse_duration

    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        return 0  # one process drives all of torchrun's GPUs; the others have nothing to do
    program, collective = program_named(args.collective or "all_reduce")
    rank, deadline_s = mpi_rank(), parse_duration(args.timeout)
    request = request_of(args, program, rank)
    several = bool(request.launcher) or rank is not None
    environment = environment_of(launcher=several)
    binary = ask(program, args.binary, environment, mpi=several)
    check_mpi(binary, request, several=several)
    if args.dry_run:
        import shlex

        print(shlex.join(command_of(binary, request, "RESULT.json")))
        return 0
    if rank:
        return _follow(args, binary, request, environment, deadline_s)
    return _launches(args, collective, binary, request, environment, deadline_s)


def _follow(
    args: argparse.Namespace, binary: "Binary", request: "Request", environment: Mapping[str, str], deadline_s: float
) -> int:
    """A process of mpirun but the first: it takes part, and rank 0 tells what came out."""
    from collbench.interop.nccl_tests.running import launch

    for _ in range(args.launches):
        launch(binary, request, environment, deadline_s)
    return 0


def _launches(
    args: argparse.Namespace, collective: "Collective", binary: "Binary", request: "Request",
    environment: Mapping[str, str], deadline_s: float,
) -> int:  # fmt: skip
    import datetime as dt

    from collbench.interop.nccl_tests.place import fabric_named, here
    from collbench.interop.nccl_tests.recording import Recorder
    from collbench.interop.nccl_tests.running import launch

    _refuse_busy(args)
    machine = here(request.ranks, fabric_named(args.fabric))
    path = Path(args.out) if args.out else Path("reports") / f"nccl-tests-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
    _say(f"{binary.path} ({binary.origin})", plain=True)
    words = ("collbench", "nccl-tests", *_given_words(args))
    with Recorder(path, request, collective, machine, args.launches, words, environment) as recorder:
        for number in range(args.launches):
            done = launch(binary, request, environment, deadline_s)
            _say(f"launch {number + 1} of {args.launches}: {done.seconds:.1f} s", plain=True)
            recorder.add(number, done)
        folder = recorder.finish()
        for text in dict.fromkeys(recorder.notes):
            _say(text)
        return _print(folder, as_json=args.json)


def _given_words(args: argparse.Namespace) -> list[str]:
    """The call as a reader would repeat it, without this machine's paths."""
    words = ["-b", args.first or "1K", "-e", args.last or args.first or "4M", "-f", str(args.factor), "-d", args.dtype]
    words += ["--collective", args.collective] if args.collective else []
    words += ["-n", str(args.iterations)] if args.iterations else []
    # its other words may name hosts
    words += ["--launcher", Path(args.launcher.split()[0]).name] if args.launcher.split() else []
    words += ["--launches", str(args.launches)]
    return [*words, *(["--", *args.extra] if args.extra else [])]


def _refuse_busy(args: argparse.Namespace) -> None:
    from collbench.errors import InvalidError
    from collbench.measure.shared_gpu import busy_gpus

    busy = "" if args.allow_busy else busy_gpus()
    if busy:
        raise InvalidError(f"{busy}: end those processes, or measure anyway with --allow-busy")


def _print(folder: Any, *, as_json: bool) -> int:  # noqa: ANN401 - a RunFolder, imported where it is used
    import json

    from collbench.errors import InvalidError
    from collbench.results.summary import as_json as rows_as_json
    from collbench.results.summary import rows
    from collbench.results.table import table
    from collbench.results.terminal import terminal_width

    found = rows(folder.run, folder.samples())
    print(json.dumps(rows_as_json(found)) if as_json else table(found, terminal_width()))
    _say(f"run: {folder.path}", plain=True)
    if any(row["status"] == "ok" for row in found):
        return 0
    reasons = dict.fromkeys(f"{row['status']}: {row['reason']}" for row in found)
    _say(f"no cell is ok: {'; '.join(list(reasons)[:3])}")
    return InvalidError.exit_code


def _say(text: str, *, plain: bool = False) -> None:
    import sys

    from collbench.results.summary import clean

    sys.stderr.write(f"{'' if plain else 'collbench: '}{clean(text)}\n")
