"""`collbench advise`: what each algorithm makes of a model step, from a run or from a topology alone."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Mapping

    from collbench.algorithms.predictions import Forecast
    from collbench.topology.graph import Topology
    from collbench.workload import Advice, ModelTimes, RunTimes, Workload

__all__ = ["add_parser", "run"]

_LAUNCHES = 5


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "advise",
        help="which algorithm to use for a model step, what it is worth, and the settings to paste",
        description="Say what each algorithm makes of a model step: time per step, tokens per second, break-even of\n"
        "speculation, what batching, fusing and rewiring save, and settings that select the winner.",
        epilog="Times come from RUN where one is given, else from the model on --topology; the answer says which.\n"
        "A workload is a name or a TOML file (docs/workloads.md).",
    )
    add = parser.add_argument
    add("run_folder", nargs="?", metavar="RUN", type=Path, help="run folder that a sweep wrote")
    add("--topology", metavar="FILE", help="instead of a run: a machine file, what topo --json wrote, or a name")
    add("--workload", metavar="NAME", default="moe-61-decode", help="name or .toml file; default moe-61-decode")
    add("--list", action="store_true", help="list the workloads that come with collbench")
    add("--compare", metavar="FILE", help="a topology to rewire to: what it would save (by the model on both)")
    add("--nproc", type=int, metavar="N", help="ranks on --topology; default one per GPU")
    add(
        "--only", action="append", default=[], metavar="FIELD=VALUE,...",
        help="of a run: cells with one of these values, such as algorithm=push,auto; several are joined by and",
    )  # fmt: skip
    add("--json", action="store_true", help="print the advice as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: options that contradict each other or name nothing.
        InvalidError: a run, topology or workload that cannot be used.
    """
    from collbench.errors import UsageError
    from collbench.workload import advise, find, load

    if args.list:
        return _list()
    if (args.run_folder is None) == (args.topology is None):
        raise UsageError("advise: give a run folder, or --topology FILE for the model")
    if args.run_folder is not None and args.nproc:
        raise UsageError("--nproc goes with --topology: a run has its ranks")
    if args.run_folder is None and args.only:
        raise UsageError("--only goes with a run folder: a topology has no cells")
    _refuse_machine(args.run_folder)
    path = find(args.workload)
    workload = load(path)
    baseline = load(find(workload.speculation.baseline, path.parent)) if workload.speculation else None
    times, topology, states = _times(args)
    advice = advise(workload, times, baseline, topology=topology, states=states)
    wired = rewired = None
    if args.compare:
        ranks = args.nproc if args.run_folder is None else times.ranks
        rewired = advise(workload, _model(_topology(args.compare), ranks), baseline)
        wired = advice if args.run_folder is None else advise(workload, _model(topology, ranks), baseline)
    if args.json:
        _print_json(advice, wired, rewired)
    else:
        _print_text(workload, advice)
        _print_rewired(wired, rewired, args.compare or "")
        _print_settings(advice)
        _print_rest(advice)
    return 0


def _refuse_machine(path: Path | None) -> None:
    from collbench.errors import UsageError
    from collbench.report.launches import refuse_folder_of_runs
    from collbench.topology import catalog

    if path is not None:
        refuse_folder_of_runs(path, "advise")
    if path is not None and not path.is_dir() and (path.is_file() or path.name in catalog.names()):
        raise UsageError(f"{path} is no run folder: did you mean --topology {path}?")


def _list() -> int:
    from collbench.workload import find, load, names

    width = max(map(len, names()))
    for name in names():
        print(f"{name:<{width}}  {load(find(name)).summary}")
    return 0


def _times(args: argparse.Namespace) -> "tuple[RunTimes | ModelTimes, Topology | None, tuple[str, ...]]":
    """Times, the topology that the ranks are on, and what is known of degraded states of its fabric."""
    from collbench.contention.findings import Evidence
    from collbench.contention.regimes import detect
    from collbench.interop.chosen import chosen, parse_only
    from collbench.results.problems import warn
    from collbench.results.store import RunFolder
    from collbench.workload import ModelTimes, RunTimes
    from collbench.workload.states import cautions

    if args.run_folder is None:
        topology = _topology(args.topology)
        times = ModelTimes(topology, args.nproc, _verdicts)
        states = cautions(detect(Evidence(topology=topology, fabric=times.fabric)))
        return times, topology, (*times.notes, *states)
    with RunFolder.open(args.run_folder) as folder:
        evidence = Evidence.of_run(folder)
        warn([*folder.problems(), *evidence.problems])
        measured = RunTimes(*chosen(folder.run, folder.samples(), parse_only(args.only)))
        return measured, evidence.topology, (*measured.notes, *cautions(detect(evidence)))


def _model(topology: "Topology | None", ranks: int | None) -> "ModelTimes":
    from collbench.errors import InvalidError
    from collbench.workload import ModelTimes

    if topology is None or not topology.gpus:
        raise InvalidError("--compare: the run's machine has no GPUs whose wiring could be another")
    return ModelTimes(topology, ranks, _verdicts)


def _verdicts(forecast: "Forecast") -> "Mapping[str, str]":
    """The doctor's: what it does not say runs there is no advice."""
    from collbench.doctor.forecasts import diagnose

    return diagnose(forecast).verdicts


def _topology(name: str) -> "Topology":
    from collbench.topology import catalog

    return catalog.read(name)


def _print_json(advice: "Advice", wired: "Advice | None", rewired: "Advice | None") -> None:
    import json

    from collbench.results.records import SCHEMA
    from collbench.units import rounded

    data: dict[str, Any] = {"schema": SCHEMA, "kind": "advice", **advice.as_dict()}
    data["wired"] = wired.as_dict() if wired and wired is not advice else None
    data["rewired"] = rewired.as_dict() if rewired else None
    print(json.dumps(rounded(data), indent=1, ensure_ascii=False, allow_nan=False))


def _print_text(workload: "Workload", advice: "Advice") -> None:
    from collbench.workload.short import short

    origin = "measured" if advice.source == "run" else "predicted by the model; nothing was measured"
    print(f"{workload.name}: {workload.summary}")
    print(f"{advice.ranks} ranks, fabric {advice.fabric}, times {origin}")
    if advice.epilogue:
        print(f"All-reduces with {advice.epilogue} fused behind them (epilogue), whose time is in theirs.")
    if advice.source == "run":
        intervals = advice.launches >= _LAUNCHES
        print("Intervals: 95 %, from launches." if intervals else _no_interval(advice.launches))
    else:
        print("Intervals: the model's nominal 90 %.")
    _wrap(short(advice))
    for batch in advice.batches:
        print()
        _print_steps(advice, batch)
    _print_same(advice)
    _print_worth(advice)


def _print_rest(advice: "Advice") -> None:
    for text in (*advice.cautions, *advice.missing):
        _wrap(f"{text}.")
    if advice.sizes and (advice.missing or any(step.how for step in advice.steps)):
        sizes, fused = ",".join(map(str, advice.sizes)), f" --epilogue {advice.epilogue}" if advice.epilogue else ""
        _wrap(
            f"To measure the sizes of these calls themselves: collbench sweep{fused} --sizes {sizes} "
            f"--launches {_LAUNCHES}"
        )


def _no_interval(launches: int) -> str:
    from collbench.results.intervals import NO_INTERVAL

    return f"{NO_INTERVAL}." if launches == 1 else f"no interval: {launches} launches, {_LAUNCHES} are needed."


def _print_steps(advice: "Advice", batch: int) -> None:
    from collbench.results.terminal import terminal_width
    from collbench.workload import tables

    print(f"batch {batch}")
    print("\n".join(tables.steps(advice, batch, terminal_width())))
    for how in dict.fromkeys(step.how for step in advice.steps if step.batch == batch and step.how):
        print(f"times {how}")


def _print_same(advice: "Advice") -> None:
    """Names behind the + of the tables, which only a terminal gets."""
    from collbench.results.terminal import terminal_width
    from collbench.workload import tables

    if terminal_width() is None:
        return
    found = {batch: tables.alike([s for s in advice.steps if s.batch == batch]) for batch in advice.batches}
    several = dict.fromkeys(tuple(names) for rows in found.values() for names in rows.values() if len(names) > 1)
    if several:
        print()
    for first, *others in several:
        _wrap(f"{first} +{len(others)}: the same figures for {', '.join(others)}.")


def _print_worth(advice: "Advice") -> None:
    from collbench.workload import tables
    from collbench.workload.short import usual

    print()
    default = usual(advice.steps)
    for batch in advice.batches:
        steps = [step for step in advice.steps if step.batch == batch]
        best, slow = steps[0], next((s for s in steps if default and s.algorithm == default.algorithm), None)
        if slow is not None and slow is not best:
            _wrap(
                f"Batch {batch}: {best.algorithm} instead of {slow.algorithm} saves "
                f"{(slow.step_us - best.step_us) / 1e3:.2f} ms per step, {tables.gain(best.step_us, slow.step_us)} "
                "tokens/s."
            )
    for line in (*tables.fused(advice, _width()), *tables.joined(advice, _LAUNCHES, _width())):
        print(line)
    _print_break_even(advice)


def _print_break_even(advice: "Advice") -> None:
    from collbench.units import format_us
    from collbench.workload.short import usual

    default = usual(advice.steps)
    told = {advice.steps[0].algorithm, default.algorithm if default else ""}
    for point in (point for point in advice.break_even if point.algorithm in told):
        pays = "it does" if point.pays else "it does not"
        room = f"less than {format_us(point.us)} us" if point.us > 0 else "less than nothing: it never pays"
        _wrap(
            f"Speculation pays if an all-reduce of {point.bytes} bytes costs {room} at {point.accepted_tokens:g} "
            f"accepted tokens: {pays} with {point.algorithm}, which takes {format_us(point.now_us)} us."
        )


def _print_rewired(wired: "Advice | None", rewired: "Advice | None", other: str) -> None:
    from collbench.workload.tables import gain

    if wired is None or rewired is None:
        return
    for batch in (batch for batch in wired.batches if batch in rewired.batches):
        before, after = wired.best(batch), rewired.best(batch)
        _wrap(
            f"Batch {batch}, by the model on both: rewired as {other}, the best is {after.algorithm} at "
            f"{after.step_us / 1e3:.2f} ms per step instead of {before.algorithm} at {before.step_us / 1e3:.2f}, "
            f"{gain(after.step_us, before.step_us)} tokens/s."
        )


def _print_settings(advice: "Advice") -> None:
    from collbench.workload import tables

    print()
    if not advice.choices:
        _wrap(f"There is nothing that a server could be told here: {tables.no_servers(advice)}.")
        return
    sizes = ", ".join(map(str, advice.steps[0].call_us))
    print(f"What servers are best told, at {sizes} bytes:")
    for choice in advice.choices:
        _wrap(f"{choice.text}.", 2)
        for one in choice.settings:
            note = f"   # {one.note}" if one.note and not one.algorithm else ""
            _wrap(f"    {one.text}   ({one.where} {one.release}){note}", 6)


def _width() -> int:
    import shutil

    return max(60, shutil.get_terminal_size((120, 24)).columns)


def _wrap(text: str, indent: int = 2) -> None:
    from collbench.results.terminal import wrapped

    print(wrapped(text, _width(), indent))
