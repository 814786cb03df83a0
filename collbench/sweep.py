"""`python -m collbench.sweep`: what torchrun starts. Its ranks only supervise; workers measure (docs/design.md)."""

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from collbench.errors import CollbenchError, InvalidError, UsageError
from collbench.parser import Parser
from collbench.sweep_options import add_arguments, options_of

if TYPE_CHECKING:
    from collbench.algorithms.base import Algorithm
    from collbench.measure.plan import Options, Plan
    from collbench.measure.team import Place
    from collbench.results.records import Run
    from collbench.results.store import RunFolder
    from collbench.topology.machine import Machine

__all__ = ["main", "run"]

MAX_RANKS_PER_HOST = 16
_MOST_RECORDS = 200_000
"""Each takes about a kilobyte of a run, and two of memory."""


class _Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM came; `kept` says what becomes of the measurements."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        self.kept = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of `python -m collbench.sweep`; gives the exit code (docs/design.md section 4)."""
    parser = Parser(prog="collbench.sweep", description="Measure collectives on this machine.")
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except CollbenchError as error:
        if "debug" in args:
            raise
        print(f"collbench: {error}", file=sys.stderr)
        return error.exit_code


def run(args: argparse.Namespace) -> int:
    """Carry the sweep out; gives the exit code."""
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and "LOCAL_RANK" in os.environ
    if under_torchrun and os.environ["LOCAL_RANK"] != "0":
        # one supervisor per host; torchrun goes on until all of its ranks have ended
        return 0
    _die_politely(with_parent=under_torchrun)
    try:
        return _sweep(args, under_torchrun=under_torchrun)
    except _Stopped as stopped:
        print(f"collbench: {stopped.signal.name}: stopped{stopped.kept}", file=sys.stderr)
        return 128 + stopped.signal


def _sweep(args: argparse.Namespace, *, under_torchrun: bool) -> int:
    from collbench.measure.team import Place, follow

    earlier, measured = _earlier_run(args.resume, args.launches)
    options = options_of(args, {**earlier.settings, "launches": earlier.launches} if earlier else None, measured)
    place = Place.from_torchrun(os.environ) if under_torchrun else None
    if place is not None and place.node > 0:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="collbench-") as folder:
            follow(place, Path(folder))
        return 0
    if earlier is not None and args.nproc is None and place is None:
        args.nproc = earlier.world_size
    machine, algorithms, place = _prepare(args, options, place)
    from collbench.measure.plan import make_plan
    from collbench.measure.probe_sweep import probe_seconds
    from collbench.measure.selection import only

    plan = make_plan(options, machine, algorithms, probe_seconds(options, machine))
    if earlier is not None:
        _check_same(earlier, machine, plan)
    plan = only(plan, args.cell if earlier is None else [cell.cell_id for cell in earlier.cells])
    if len(plan.cells) * options.launches > _MOST_RECORDS:
        told = f"{len(plan.cells):,} cells x {options.launches:,} launches"
        raise UsageError(f"{told}: a run holds at most {_MOST_RECORDS:,} of them; fewer --launches or cells")
    if args.dry_run:
        return _foresee(args, options, machine, plan)
    return _measure(args, options, machine, plan, place, earlier.launches if earlier else None)


def _earlier_run(path: str | None, launches: int | None) -> "tuple[Run | None, int]":
    """The run to go on with, and how many of its launches have to stay where fewer than it has are asked for."""
    from collbench.results.store import RunFolder

    if path is None:
        return None, 1
    with RunFolder.open(Path(path)) as folder:
        if not folder.run.cells:
            raise InvalidError(f"{path}: the run plans no cell: start a new run")
        fewer = launches is not None and launches < folder.run.launches
        return folder.run, folder.measured_launches if fewer else folder.run.launches


def _check_same(earlier: "Run", machine: "Machine", plan: "Plan") -> None:
    """A resumed run must end with the cells that it began with, measured by the same software on the same machine."""
    if earlier.world_size != machine.ranks or earlier.fabric != machine.fabric:
        here, there = f"{machine.ranks} ranks on {machine.fabric}", f"{earlier.world_size} on {earlier.fabric}"
        raise InvalidError(f"--resume: the run has {there}, this would be {here}: start a new run")
    if changed := _changed(earlier, machine):
        raise InvalidError(f"--resume: {changed}: its launches would not be alike: start a new run")
    if not {c.cell_id for c in earlier.cells} <= {c.cell_id for c in plan.cells}:
        raise InvalidError("--resume: this release would measure other cells than the run began with: start a new run")


def _changed(earlier: "Run", machine: "Machine") -> str:
    """What of the machine or the software is no longer as the run knew it; empty where nothing is, or nobody knows."""
    from collbench import __version__

    if earlier.version != __version__:
        return f"the run was made with collbench {earlier.version}, this is {__version__}"
    prints = earlier.machine.get("fingerprint")
    hard = prints.get("hard") if isinstance(prints, Mapping) else None
    for name, now in machine.fingerprint["hard"].items():
        before = hard.get(name, now) if isinstance(hard, Mapping) else now
        if before != now:
            return f"{name} was {before or 'unknown'} and is {now or 'unknown'} now"
    return ""


def _prepare(
    args: argparse.Namespace, options: "Options", place: "Place | None"
) -> "tuple[Machine, list[Algorithm], Place]":
    """Look at the machine and choose what to measure on it."""
    from collbench.algorithms.base import registry, select
    from collbench.measure.placement import gpu_count, refuse_too_many
    from collbench.measure.team import Place
    from collbench.results.records import Fabric
    from collbench.topology.discover import machine as discover_machine

    known, gpus = registry(), gpu_count()
    fitting = _of_collective(known, options.collective)
    chosen = select(options.algorithms or _default_words(fitting, gpus), known, options.collective)
    if place is None:
        ranks = args.nproc if args.nproc is not None else (gpus if gpus > 1 else 8)
        place = Place(ranks=ranks, local_ranks=ranks)
    elif args.nproc is not None:
        raise UsageError("--nproc starts ranks itself: leave it out under torchrun")
    if not 1 <= place.local_ranks <= MAX_RANKS_PER_HOST:
        raise UsageError(f"world size {place.ranks}: expected 1 to {MAX_RANKS_PER_HOST} ranks on a host")
    if options.share_gpu and not gpus:
        raise UsageError("--share-gpu: there is no NVIDIA GPU here (NVML and CUDA_VISIBLE_DEVICES show none)")
    uses_gpu = gpus > 0 and any(a.device == "cuda" for a in chosen)
    if uses_gpu:
        refuse_too_many(place.local_ranks, gpus, share=options.share_gpu)
        _refuse_busy(options)
    shared = uses_gpu and place.local_ranks > gpus
    machine = discover_machine(ranks=place.ranks, hosts=place.nodes, share_gpu=shared)
    if options.nccl:
        from collbench.measure.library import of_libraries

        machine, chosen = of_libraries(options.nccl.split(":"), machine, chosen)
    if not uses_gpu:
        # ranks on the CPU share the host, whatever cards it has
        machine = dataclasses.replace(machine, fabric=Fabric.NETWORK if place.nodes > 1 else Fabric.HOST)
    return machine, chosen, place


def _refuse_busy(options: "Options") -> None:
    from collbench.measure.shared_gpu import busy_gpus

    busy = "" if options.allow_busy else busy_gpus()
    if busy:
        raise InvalidError(f"{busy}: end those processes, or measure anyway with --allow-busy")


def _of_collective(known: "Mapping[str, Algorithm]", collective: str) -> "dict[str, Algorithm]":
    found = {name: algorithm for name, algorithm in known.items() if algorithm.collective == collective}
    if not found:
        raise UsageError(f"--collective {collective}: no algorithm is known for it")
    return found


def _default_words(known: "Mapping[str, Algorithm]", gpus: int) -> str:
    """Those that fit the machine and need no other model; where there are none, all, so that their rows say why."""
    device = "cuda" if gpus else "cpu"
    fitting = [name for name, algorithm in known.items() if algorithm.device == device and algorithm.batch == 1]
    return ",".join(fitting or known)


def _foresee(args: argparse.Namespace, options: "Options", machine: "Machine", plan: "Plan") -> int:
    """Say what a sweep would do, without measuring anything."""
    from collbench.measure.agenda import Agenda
    from collbench.measure.expected import expect
    from collbench.measure.probe_sweep import probe_seconds
    from collbench.results.store import RunFolder
    from collbench.sweep_output import print_plan

    agenda = Agenda(plan, options.launches)
    if args.resume:
        with RunFolder.open(Path(args.resume)) as folder:
            agenda = Agenda.of(plan, options.launches, folder)
    expected = expect(agenda, plan, options.budget_s, probe_seconds(options, machine))
    return print_plan(plan, machine, options, agenda, expected, as_json=args.json)


def _measure(
    args: argparse.Namespace, options: "Options", machine: "Machine", plan: "Plan", place: "Place", known: int | None
) -> int:
    """Measure the plan; `known` are the launches of the run that is gone on with."""
    from collbench.measure.probe_sweep import probe_seconds, take_probes
    from collbench.measure.progress import Progress
    from collbench.measure.supervise import Supervisor
    from collbench.results.problems import warn
    from collbench.results.records import Status
    from collbench.sweep_output import crowding, print_rows

    folder = _open_folder(args, options, machine, plan, known)
    told = folder.problems()
    warn([*told, *crowding(folder.run)])
    held = sum(one.status is not Status.NOT_RUN for one in folder.samples())
    progress = Progress(len(plan.cells) * options.launches - held)
    try:
        with folder:
            seconds = probe_seconds(options, machine)
            supervisor = Supervisor(options, machine, plan, folder, place, progress, seconds)
            supervisor.run()
            take_probes(folder.path, machine, 0.0 if supervisor.sick else seconds, progress.say)
            folder.finish()
            warn(text for text in folder.problems() if text not in told)
    except _Stopped as stopped:
        stopped.kept = f"; what was measured is kept, go on with --resume {folder.path}"
        raise
    finally:
        progress.close()
    return print_rows(folder, as_json=args.json)


def _open_folder(
    args: argparse.Namespace, options: "Options", machine: "Machine", plan: "Plan", known: int | None
) -> "RunFolder":
    import datetime as dt

    from collbench import __version__
    from collbench.results.records import Resumed, Run
    from collbench.results.store import RunFolder

    now = dt.datetime.now(dt.UTC)
    if args.resume:
        folder = RunFolder.open(Path(args.resume), write=True)
        try:
            folder.go_on(Resumed(now.isoformat(timespec="seconds"), _command()), options.launches, known)
        except BaseException:
            folder.close()
            raise
        return folder
    path = Path(args.out) if args.out else Path("reports") / f"run-{now:%Y%m%d-%H%M%S}"
    run = Run(
        run_id=f"{now:%Y%m%dT%H%M%S}-{os.urandom(4).hex()}", created=now.isoformat(timespec="seconds"),
        command=_command(), version=__version__, fabric=machine.fabric, world_size=machine.ranks,
        launches=options.launches, cells=plan.cells, machine=machine.as_dict(), settings=options.as_dict(),
        environment={f"{a.name} {a.variant}".strip(): dict(a.environment(machine)) for a in plan.algorithms},
    )  # fmt: skip
    return RunFolder.create(path, run)


def _command() -> tuple[str, ...]:
    """The call as a reader would repeat it; paths of this machine are cut to their last part."""
    return ("collbench", "sweep", *(Path(a).name if a.startswith("/") else a for a in sys.argv[1:] if a != "sweep"))


def _die_politely(*, with_parent: bool) -> None:
    """SIGINT and SIGTERM end the sweep in order; so does the end of torchrun, even by SIGKILL."""

    def stop(number: int, _frame: object) -> NoReturn:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(number)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    if with_parent:
        from collbench.measure.channel import die_with_parent

        die_with_parent(os.getppid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
