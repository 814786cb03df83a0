"""`collbench predict`: how long every algorithm takes on a topology, and why."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.sweep_options import ALGORITHMS_HELP

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.algorithms.predictions import Forecast
    from collbench.contention.parameters import Parameters
    from collbench.doctor.forecasts import Diagnosis
    from collbench.topology.graph import Topology

__all__ = ["add_parser", "run"]

_FIRST, _LAST, _FACTOR, _FINE = "1K", "4M", 4, 2
_ITEM_BYTES = 2


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "predict",
        help="predict every algorithm on a topology, term by term, with the link that binds",
        description="Predict how long an all-reduce takes on a topology, without a GPU: every algorithm at every size.",
        epilog="FILE is a machine file, what collbench topo --json wrote, or the name of a machine of ours.\n"
        "Terms are microseconds and add up to total_us; prior is the part that rests on assumptions.\n"
        "low_us and high_us are the model's nominal 90 % interval; where they overlap it does not tell who is faster.\n"
        "Marks: * fastest of what the doctor says runs there, ? unknown whether it runs, x does not run.\n"
        "A terminal gets the columns that fit it, a pipe all of them.",
    )
    add = parser.add_argument
    add("machine", nargs="?", metavar="FILE", help="the machine")
    add("--topology", metavar="FILE", help="the same")
    add("--compare", nargs="+", metavar="FILE", help="two machines side by side, or one beside FILE")
    add("-b", dest="first", metavar="BYTES", help=f"smallest message (alone: the only one); default {_FIRST}")
    add("-e", dest="last", metavar="BYTES", help=f"largest message; default {_LAST}")
    add("-f", dest="factor", type=int, metavar="N", help=f"factor between sizes; default {_FACTOR}, of a page {_FINE}")
    add("--nproc", type=int, metavar="N", help="ranks; default one per GPU")
    add("--algorithms", default="all", metavar="NAMES", help=ALGORITHMS_HELP)
    add("--mode", choices=("graph", "eager"), default="graph", help="captured in a CUDA graph or launched each time")
    add("--parameters", metavar="RUN", help="run folder that collbench calibrate wrote to, on this machine")
    add("--json", action="store_true", help="print the rows as JSON")
    add("--html", metavar="PAGE", help="write a page that opens offline, and print its path")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: options that contradict each other or name nothing.
        InvalidError: a file that cannot be read or makes no sense, or a page that cannot be written.
    """
    from collbench.algorithms.choice import judged
    from collbench.doctor.forecasts import diagnose
    from collbench.errors import UsageError

    if args.html and (args.compare or args.json):
        raise UsageError("--html: a page is of one machine, and instead of --json")
    names, sizes = _machines(args), _sizes(args)
    forecasts = [_forecast(name, args) for name in names]
    _tell_apart(forecasts, names)
    doctors = [diagnose(forecast) for forecast in forecasts]
    rows = [
        judged(forecast.rows(sizes), doctor.verdicts, doctor.reasons)
        for forecast, doctor in zip(forecasts, doctors, strict=True)
    ]
    if not all(rows):
        raise UsageError(f"no algorithm takes {sizes[0]} to {sizes[-1]} bytes: use a multiple of 16 bytes")
    if args.html:
        _write_page(forecasts[0], sizes, args.html)
    elif args.json:
        _print_json(forecasts, rows, sizes)
    else:
        _print_text(forecasts, doctors, rows, sizes)
    return 0


def _machines(args: argparse.Namespace) -> list[str]:
    from collbench.errors import UsageError

    names = [name for name in (args.machine, args.topology) if name] + (args.compare or [])
    expected = 2 if args.compare else 1
    if len(names) != expected:
        said = "no machine" if not names else f"{len(names)} machine(s)"
        raise UsageError(f"predict with {said}: give a machine file, or --compare with two files in all")
    return names


def _sizes(args: argparse.Namespace) -> list[int]:
    from collbench.errors import UsageError
    from collbench.measure.plan import sizes
    from collbench.units import parse_bytes

    first = parse_bytes(args.first or _FIRST)
    last = parse_bytes(args.last) if args.last else first if args.first else parse_bytes(_LAST)
    if first % _ITEM_BYTES:
        raise UsageError(f"{first} bytes: predictions are for bfloat16, {_ITEM_BYTES} bytes each: give a multiple")
    return sizes(first, last, (_FINE if args.html else _FACTOR) if args.factor is None else args.factor)


def _forecast(name: str, args: argparse.Namespace) -> "Forecast":
    from collbench.algorithms.base import registry, select
    from collbench.algorithms.predictions import Forecast
    from collbench.errors import UsageError
    from collbench.results.records import Mode

    chosen = select(args.algorithms, registry())
    topology = _read(name)
    known = _parameters(args, topology)
    forecast = Forecast(topology, ranks=args.nproc, mode=Mode(args.mode), algorithms=chosen, parameters=known)
    if not forecast.algorithms:
        why = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in forecast.reasons(chosen).items())
        raise UsageError(f"--algorithms {args.algorithms}: none can be predicted on {name} ({why})")
    return forecast


def _tell_apart(forecasts: "Sequence[Forecast]", files: Sequence[str]) -> None:
    """An edited copy of a machine file has the same name: call both by their files."""
    from dataclasses import replace

    if len(forecasts) == 2 and len({one.topology.name for one in forecasts}) == 1:  # noqa: PLR2004 - both sides
        for forecast, file in zip(forecasts, files, strict=True):
            forecast.topology = replace(forecast.topology, name=f"{forecast.topology.name} ({file})")


def _parameters(args: argparse.Namespace, topology: "Topology") -> "Parameters | None":
    """Calibrated parameters; says on stderr if they are another machine's."""
    if not args.parameters:
        return None
    from collbench.contention.parameter_file import read_parameters
    from collbench.results.foreign import refuse_unfit_parameters
    from collbench.results.problems import warn
    from collbench.results.reading import RUN

    folder = Path(args.parameters)
    if (folder / RUN).exists():
        refuse_unfit_parameters(folder)
    found = read_parameters(folder, needed=True)
    assert found is not None  # noqa: S101 - needed
    links = {f"capacity.{link.src}->{link.dst}" for link in topology.links}
    foreign = [name for name in found.known if name.startswith("capacity.") and "->" in name and name not in links]
    if foreign:
        warn([f"{args.parameters}: {len(foreign)} of its links are not in {topology.name}: their numbers are not used"])
    return found


def _read(name: str) -> "Topology":
    from collbench.topology import catalog

    return catalog.read(name)


def _write_page(forecast: "Forecast", sizes: Sequence[int], name: str) -> None:
    import sys

    from collbench.errors import UsageError
    from collbench.report.forecast_page import forecast_page
    from collbench.results.files import readable_errors, refuse_part_of_run, replace_whole

    out = Path(name)
    if out.is_dir():
        raise UsageError(f"{out} is a folder: name a file with --html")
    refuse_part_of_run(out)
    page = forecast_page(forecast, sizes, ("collbench", *sys.argv[1:])).encode()
    with readable_errors(out, option="--html"):
        replace_whole(out, lambda file: file.write(page))
    print(out)


def _print_json(
    forecasts: "Sequence[Forecast]", rows: "Sequence[Sequence[Mapping[str, Any]]]", sizes: list[int]
) -> None:
    import json
    from dataclasses import asdict

    from collbench.algorithms.choice import alike, choices, vouched
    from collbench.results.records import SCHEMA

    crossings, fastest = [], []
    for forecast, part in zip(forecasts, rows, strict=True):
        name, answers = forecast.topology.name, {row["algorithm"] for row in part if vouched(row)} & {*alike(part)}
        crossings += [{"topology": name, **asdict(one)} for one in forecast.crossovers(sizes[0], sizes[-1], answers)]
        fastest += [
            {"topology": name, "bytes": one.bytes, "algorithm": one.best["algorithm"],
             "overlaps": [row["algorithm"] for row in one.overlaps]}
            for one in choices(part)
        ]  # fmt: skip
    left_out = {one.topology.name: one.left_out for one in forecasts}
    data = {"schema": SCHEMA, "kind": "predict", "rows": [row for part in rows for row in part], "fastest": fastest}
    print(json.dumps(data | {"crossovers": crossings, "left_out": left_out}, indent=1, allow_nan=False))


def _print_text(
    forecasts: "Sequence[Forecast]", doctors: "Sequence[Diagnosis]", rows: "Sequence[Sequence[Mapping[str, Any]]]",
    sizes: list[int],
) -> None:  # fmt: skip
    from collbench.report.comparison_text import Side, comparison_text
    from collbench.report.forecast_text import forecast_text
    from collbench.results.terminal import terminal_width

    width = terminal_width()
    if len(forecasts) == 1:
        lines = forecast_text(forecasts[0], rows[0], sizes, doctors[0], width)
    else:
        sides = [Side(*one) for one in zip("AB", forecasts, rows, doctors, strict=True)]
        lines = comparison_text(sides, sizes, width)
    print("\n".join(lines))
