"""`collbench calibrate`: the model's parameters from the probes of a run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.contention.calibrate import Calibration

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
    parser.add_argument("--json", action="store_true", help="print the parameters as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: no such run folder, or one without probes.
        InvalidError: probes that nothing can be learnt from, or a folder that cannot be written.
    """
    import json
    import sys

    from collbench.contention.calibrate import calibrate, write_parameters
    from collbench.results.probes import read_probes
    from collbench.results.store import RunFolder
    from collbench.topology.machine import Machine

    with RunFolder.open(args.run_folder) as folder:
        ours = folder.run
    probes, problems = read_probes(args.run_folder)
    for problem in problems:
        print(f"collbench: {problem}", file=sys.stderr)
    machine = Machine.from_dict(ours.machine)
    found = calibrate(probes, machine.topology, machine.ranks, ours.fabric)
    data = write_parameters(args.run_folder, found)
    print(json.dumps(data, indent=1, allow_nan=False) if args.json else _table(found))
    return 0


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
    lines += [f"not told apart: {a} and {b} (correlation {r:+.2f})" for a, b, r in found.inseparable]
    lines += [
        f"missed: {label}: {value:.4g} measured, {model:.4g} by the model" for label, value, model in found.misfit
    ]
    lines += [f"left out: {count} probes: {regime}" for regime, count in found.left_out.items()]
    lines += [f"regime: {r.regime}: {r.evidence}. {r.remedy}." for r in found.regimes if r.state is State.PRESENT]
    return "\n".join(lines)
