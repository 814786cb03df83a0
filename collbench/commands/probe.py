"""`collbench probe`: the microbenchmarks that the model's parameters come from."""

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.results.probes import Probe
    from collbench.results.store import RunFolder
    from collbench.topology.machine import Machine

__all__ = ["add_parser", "run"]

_MOST_RANKS = 16
_NO_LITMUS = (
    "--litmus tests in which order GPUs see each other's stores, and there is no NVIDIA GPU here: run it where the "
    "GPUs are; --host --litmus tests processors, on which only the host algorithms rest"
)
_HOST_NOTE = (
    "Ranks on processors: flags and copies go through caches and memory of this host. They bound the host algorithms "
    "and say nothing of GPUs or links; the model has no parameters for them, so there is nothing to calibrate."
)


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "probe",
        help="measure launch, flags, reads and bandwidth between every two ranks, alone and together",
        description="Measure what the model is made of: launch, barrier, flag flight, dependent reads, and bandwidth\n"
        "by loads, stores and copy engines, alone and together. Without a GPU: between ranks on processors.",
        epilog="Results go to probes.jsonl of a run folder, which collbench calibrate reads.",
    )
    add = parser.add_argument
    add("--nproc", type=int, metavar="N", help="ranks to start (default: one per GPU; 8 without a GPU)")
    add("--share-gpu", action="store_true", help="let several ranks use one GPU, through MPS")
    add("--allow-busy", action="store_true", help="measure although other processes use the GPUs")
    add("--host", action="store_true", help="ranks on processors, whatever GPUs there are")
    add("--litmus", action="store_true", help="test memory ordering instead: message passing, torn 16-byte stores")
    add("--budget", default="60s", metavar="TIME", help="end within about this time; default 60s")
    add("--out", metavar="RUN", help="where the run goes; default reports/probe-DATE-TIME")
    add("--json", action="store_true", help="print the records as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code: 0 if every probe ended, or 3 if none did or a litmus was violated.

    Raises:
        UsageError: a number of ranks that does not fit.
        InvalidError: the GPUs are in use, the folder cannot be written.
    """
    # workers and the MPS daemon are ended in order; what was measured is in the folder
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _measure(args)
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure(args: argparse.Namespace) -> int:
    from collbench.measure.probe_plan import plan_probes
    from collbench.measure.probes import Prober
    from collbench.results.probes import append_probe
    from collbench.units import parse_duration

    budget = parse_duration(args.budget)
    machine, device = _machine(args)
    tasks = plan_probes(machine.ranks, machine.topology, device, litmus=args.litmus)
    found: list[Probe] = []
    with _folder(args, machine) as folder, Prober(machine, device, folder.path) as prober, _progress(len(tasks)) as bar:
        for probe in prober.run(tasks, budget, lambda task: bar.set_postfix_str(task.name, refresh=False)):
            append_probe(folder.path, probe)
            found.append(probe)
            bar.update()
        folder.finish()
    return _print(found, folder.path, machine, as_json=args.json)


def _machine(args: argparse.Namespace) -> "tuple[Machine, str]":
    import dataclasses

    from collbench.errors import InvalidError, UsageError
    from collbench.measure.placement import gpu_count, refuse_too_many
    from collbench.measure.shared_gpu import busy_gpus
    from collbench.results.records import Fabric
    from collbench.topology.discover import machine as discover_machine

    gpus = 0 if args.host else gpu_count()
    ranks = args.nproc if args.nproc is not None else (gpus if gpus > 1 else 8)
    if not 2 <= ranks <= _MOST_RANKS:  # noqa: PLR2004 - one rank has no peer
        raise UsageError(f"--nproc {ranks}: expected 2 to {_MOST_RANKS} ranks")
    if args.share_gpu and not gpus:
        raise UsageError("--share-gpu: there is no NVIDIA GPU here (NVML and CUDA_VISIBLE_DEVICES show none)")
    if args.litmus and not gpus and not args.host:
        raise UsageError(_NO_LITMUS)
    if gpus:
        refuse_too_many(ranks, gpus, share=args.share_gpu)
        busy = "" if args.allow_busy else busy_gpus()
        if busy:
            raise InvalidError(f"{busy}: end those processes, or measure anyway with --allow-busy")
    machine = discover_machine(ranks=ranks, hosts=1, share_gpu=ranks > gpus > 0)
    if not gpus:
        machine = dataclasses.replace(machine, fabric=Fabric.HOST, share_gpu=False)
    return machine, "cuda" if gpus else "cpu"


def _folder(args: argparse.Namespace, machine: "Machine") -> "RunFolder":
    import datetime as dt
    import os

    from collbench import __version__
    from collbench.results.records import Run
    from collbench.results.store import RunFolder

    now = dt.datetime.now(dt.UTC)
    words = ["collbench", "probe", "--nproc", str(machine.ranks), *["--litmus"] * args.litmus]
    run = Run(
        run_id=f"{now:%Y%m%dT%H%M%S}-{os.urandom(4).hex()}", created=now.isoformat(timespec="seconds"),
        command=(*words, *["--share-gpu"] * machine.share_gpu), version=__version__, fabric=machine.fabric,
        world_size=machine.ranks, launches=1, cells=(), machine=machine.as_dict(), settings={"litmus": args.litmus},
    )  # fmt: skip
    return RunFolder.create(Path(args.out) if args.out else Path("reports") / f"probe-{now:%Y%m%d-%H%M%S}", run)


def _turns(machine: "Machine") -> str:
    threads = machine.facts.get("threads", "")
    if not threads.isdecimal() or int(threads) >= machine.ranks:
        return ""
    return (
        f" {machine.ranks} ranks share {threads} hardware threads: a flag between two ranks of one thread takes a turn."
    )


def _progress(count: int):  # type: ignore[no-untyped-def]  # noqa: ANN202 - tqdm's own generic type
    import sys

    from tqdm import tqdm

    return tqdm(total=count, unit="probe", leave=False, disable=not sys.stderr.isatty())


def _print(found: "list[Probe]", path: Path, machine: "Machine", *, as_json: bool) -> int:
    import sys

    from collbench.contention.findings import told
    from collbench.contention.regimes import Evidence, detect
    from collbench.results.probes import probe_rows
    from collbench.results.records import SCHEMA, Fabric, Status

    regimes = detect(Evidence(found, machine.topology, machine.fabric))
    if as_json:
        import json

        data = {"schema": SCHEMA, "kind": "probe", "fabric": str(machine.fabric), "rows": [p.row() for p in found]}
        print(json.dumps(data | {"regimes": [r.row() for r in regimes]}, indent=1, allow_nan=False))
    else:
        print(probe_rows(found))
        if machine.fabric is Fabric.HOST and not found[0].name.startswith("litmus"):
            print(f"\n{_HOST_NOTE}{_turns(machine)}")
        elif machine.fabric is not Fabric.HOST:
            print()
            for head, text in told(one for one in regimes if one.of.command.startswith("collbench probe")):
                print(f"{head:<8}  {text}")
    print(f"run: {path}", file=sys.stderr)
    bad = [p for p in found if p.name == "litmus_message" and p.value]
    if bad:
        print(f"collbench: message passing was violated on {len(bad)} pairs: results of kernels that rest on it cannot "
              "be trusted here", file=sys.stderr)  # fmt: skip
    none = not any(p.status is Status.OK for p in found)
    if none:
        print(f"collbench: no probe ended: {found[0].status}: {found[0].reason}", file=sys.stderr)
    return 3 if bad or none else 0
