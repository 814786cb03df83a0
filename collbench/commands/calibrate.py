"""`collbench calibrate`: the model's parameters from the probes of a run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.contention.calibrate import Calibration
    from collbench.results.probes import Probe
    from collbench.topology.machine import Machine

__all__ = ["add_parser", "run"]


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "calibrate",
        help="fit the model's parameters to the probes of a run",
        description="Fit the model's parameters to the probes of a run, with intervals, and say what they cannot tell.",
        epilog="Degraded states of the fabric are tested first: what they touch is left out. The result is written to\n"
        "parameters.json in the run folder.",
    )
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="run folder that collbench probe wrote")
    parser.add_argument(
        "--from", dest="origin", type=Path, metavar="FILE",
        help="take the output of p2pBandwidthLatencyTest or nvbandwidth (text or -j) instead of the run's own probes",
    )  # fmt: skip
    parser.add_argument(
        "--topology", default="", metavar="NAME", help="with --from: machine file of where it ran; RUN is made"
    )
    parser.add_argument("--json", action="store_true", help="print the parameters as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: no such run folder, or one without probes; options that do not fit.
        InvalidError: probes that nothing can be learnt from, or a folder that cannot be written.
    """
    import json

    from collbench.contention.calibrate import calibrate, write_parameters
    from collbench.errors import UsageError
    from collbench.results.store import RunFolder
    from collbench.topology.machine import Machine

    if args.topology:
        if args.origin is None:
            raise UsageError("--topology says where the output of --from comes from: give --from FILE")
        _make_run(args.run_folder, args.origin, args.topology)
    with RunFolder.open(args.run_folder) as folder:
        ours = folder.run
    machine = Machine.from_dict(ours.machine)
    own = args.origin is None or args.topology
    probes = _own(args.run_folder) if own else _foreign(args.origin, machine)
    found = calibrate(probes, machine.topology, machine.ranks, ours.fabric)
    data = write_parameters(args.run_folder, found)
    print(json.dumps(data, indent=1, allow_nan=False) if args.json else _table(found))
    return 0


def _own(folder: Path) -> "list[Probe]":
    from collbench.results.probes import read_probes
    from collbench.results.problems import warn

    probes, problems = read_probes(folder)
    warn(problems)
    return probes


def _foreign(origin: Path, machine: "Machine") -> "list[Probe]":
    """Probes of another tool's output among the machine's ranks."""
    from collbench.interop.fit import refuse_other_machine
    from collbench.interop.pair_probes import read
    from collbench.results.problems import warn

    found = read(origin, machine.topology)
    warn(refuse_other_machine(origin, found, machine.topology))
    warn(f"{found.tool}: left out: {text}" for text in found.left_out)
    return [probe for probe in found.probes if all(max(flow) < machine.ranks for flow in probe.flows)]


def _make_run(folder: Path, origin: Path, name: str) -> None:
    """A run folder with the probes of another tool's output, taken on the machine of that name."""
    import datetime as dt
    import os

    from collbench import __version__
    from collbench.results.probes import append_probe
    from collbench.results.records import Run
    from collbench.results.store import RunFolder
    from collbench.topology import catalog
    from collbench.topology.discover import fabric_of
    from collbench.topology.machine import Machine

    topology = catalog.load(catalog.find(name))
    ranks = len(topology.gpus)
    machine = Machine(topology, fabric_of(topology, ranks=ranks), ranks)
    probes = _foreign(origin, machine)
    now = dt.datetime.now(dt.UTC)
    run = Run(
        f"{now:%Y%m%dT%H%M%S}-{os.urandom(4).hex()}", now.isoformat(timespec="seconds"),
        ("collbench", "calibrate", "--from", origin.name, "--topology", topology.name), __version__, machine.fabric,
        ranks, 1, (), machine.as_dict(), {"tool": "another tool's output"},
    )  # fmt: skip
    with RunFolder.create(folder, run) as made:
        for probe in probes:
            append_probe(folder, probe)
        made.finish()


def _table(found: "Calibration") -> str:
    from collbench.contention.regimes import State

    head = ["parameter", "value", "90 % low", "high", "prior", "prior sd", "identified"]
    body = [
        [
            one.name, *(f"{v:.4g}" for v in (one.value, one.low, one.high, one.prior)), f"{one.prior_sd:.0%}",
            "yes" if one.identified else "no",
        ]
        for one in found.fitted
    ]  # fmt: skip
    width = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, width, strict=True)))
        for line in [head, *body]
    ]
    lines += [f"{found.observations} observations"]
    if found.unseen:
        words = ("nccl.*" if one.name.startswith("nccl.") else one.name for one in found.unseen)
        names = ", ".join(dict.fromkeys(words))
        lines += [f"not identifiable, since no probe shows it, and at its prior: {names}"]
    lines += [f"not told apart: {a} and {b} (correlation {r:+.2f})" for a, b, r in found.inseparable]
    lines += [
        f"missed: {label}: {value:.4g} measured, {model:.4g} by the model" for label, value, model in found.misfit
    ]
    lines += [f"left out: {count} probes: {regime}" for regime, count in found.left_out.items()]
    lines += [f"regime: {r.regime}: {r.evidence}. {r.remedy}." for r in found.regimes if r.state is State.PRESENT]
    return "\n".join(lines)
