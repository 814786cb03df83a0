"""`collbench explain`: why the cells of a run took as long as they did."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Iterator, Mapping, Sequence

    from collbench.contention.explain import Explanation
    from collbench.contention.findings import Evidence, Finding
    from collbench.contention.parameters import Parameters
    from collbench.results.records import Cell, Fabric, Run

__all__ = ["add_parser", "run"]


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "explain",
        help="say why the cells of a run took as long as they did",
        description="Split times into launch, synchronisation, wires, queueing on a named link, and protocol.",
        epilog="Above twice the prediction nothing is explained: a degraded state of the fabric that the run shows is\n"
        "named, else the test for one. Ranks on processors are not predicted: their least time by probes is told.",
    )
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="run folder that a sweep wrote")
    parser.add_argument("cell", metavar="CELL", nargs="?", default="", help="cell_id, or a part of it (default: all)")
    parser.add_argument("--parameters", metavar="RUN", type=Path, help="run folder that collbench calibrate wrote to")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    parser.set_defaults(run=run)


_NO_PARAMETERS = "the model has no parameters for it here"


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: no such run folder or cell.
        InvalidError: no run, a run that cannot be read, or one without an `ok` cell; parameters of another fabric.
    """
    from collbench.contention.findings import Evidence
    from collbench.contention.regimes import detect
    from collbench.errors import InvalidError, UsageError
    from collbench.results.problems import warn
    from collbench.results.store import RunFolder
    from collbench.results.summary import rows

    with RunFolder.open(args.run_folder) as folder:
        found = rows(folder.run, folder.samples())
        ours, evidence = folder.run, Evidence.of_run(folder)
        warn([*folder.problems(), *evidence.problems])
    if not found:
        raise InvalidError(
            f"{args.run_folder}: holds no cells, as runs of collbench probe: collbench doctor {args.run_folder} tests "
            "its probes for degraded states"
        )
    chosen = [row for row in found if row["cell_id"] == args.cell] or [r for r in found if args.cell in r["cell_id"]]
    if not chosen:
        raise UsageError(f"{args.run_folder}: no cell of {len(found)} is or contains {args.cell!r}")
    measured = [row for row in chosen if row["p50_us"] is not None]
    if not measured:
        raise InvalidError(f"{args.run_folder}: none of {len(chosen)} cells was measured: there is nothing to explain")
    findings = detect(evidence)
    told = list(_explanations(ours, measured, _parameters(args, ours), evidence, findings))
    _print(told, findings, as_json=args.json)
    return 0


def _parameters(args: argparse.Namespace, ours: "Run") -> "Parameters | None":
    """Those that were asked for; else the run's own, where it has any."""
    from collbench.contention.calibrate import read_parameters
    from collbench.results.foreign import refuse_unfit_parameters

    if args.parameters is not None:
        refuse_unfit_parameters(args.parameters, ours)
    return read_parameters(args.parameters or args.run_folder, needed=args.parameters is not None)


def _explanations(
    ours: "Run",
    rows: list[dict[str, Any]],
    parameters: "Parameters | None",
    evidence: "Evidence",
    findings: "Sequence[Finding]",
) -> "Iterator[tuple[Cell, Explanation]]":
    from collbench.algorithms.base import registry
    from collbench.algorithms.cell_predictions import predictor
    from collbench.contention.explain import explain
    from collbench.contention.explain_host import HostRates, explain_host
    from collbench.contention.regimes import of_cell
    from collbench.contention.traffic import Schedule
    from collbench.results.crowding import hardware_threads
    from collbench.results.records import Fabric, Mode

    predict, known, topology = predictor(ours, parameters, evidence.texts), registry(), evidence.topology
    cells: Mapping[str, Cell] = {cell.cell_id: cell for cell in ours.cells}
    links = ours.fabric not in {Fabric.HOST, Fabric.SHARED_GPU}
    rates = HostRates.of(evidence.probes, ours.world_size, hardware_threads(ours.machine))
    for row in rows:
        cell = cells[row["cell_id"]]
        name, size = cell.algorithm, cell.call.bytes
        algorithm, prediction = known.get(name), predict(cell)
        schedule = algorithm.traffic(cell.call, topology) if algorithm else Schedule(())
        if ours.fabric is Fabric.HOST:
            yield cell, explain_host(name, size, schedule, rates, row["p50_us"], row["p99_us"])
            continue
        own, reason = of_cell(findings, evidence.samples, cell.cell_id), _reason(ours.fabric, cell)
        yield (
            cell,
            explain(
                name,
                size,
                schedule,
                prediction,
                row["p50_us"],
                links=links,
                pcie=ours.fabric is not Fabric.NVLINK,
                alone=cell.calls == 1,
                eager=cell.mode is Mode.EAGER,
                reason=reason,
                findings=own,
            ),
        )


def _reason(fabric: "Fabric", cell: "Cell") -> str:
    """Why nothing is predicted of a cell, where nothing is."""
    from collbench.algorithms.predictions import CHOOSING
    from collbench.results.records import Fabric, Mode

    if cell.algorithm in CHOOSING:
        return "it chooses among others, whose own rows are explained"
    if fabric is Fabric.SHARED_GPU and (cell.mode is not Mode.GRAPH or cell.calls == 1):
        return "on a shared GPU the model knows captured chains only"
    return _NO_PARAMETERS


def _print(found: "list[tuple[Cell, Explanation]]", findings: "Sequence[Finding]", *, as_json: bool) -> None:
    if as_json:
        import json

        from collbench.results.records import SCHEMA
        from collbench.units import rounded

        rows = [{"cell_id": cell.cell_id, **one.record} for cell, one in found]
        data = {"schema": SCHEMA, "kind": "explain", "rows": rows, "regimes": [one.row() for one in findings]}
        print(json.dumps(rounded(data), indent=1, allow_nan=False))
        return
    from collbench.contention.findings import told
    from collbench.results.terminal import terminal_width, wrapped

    width = terminal_width()
    for lines in _paragraphs(found, width):
        print(lines)
    print("\nDegraded states, by this run's own probes, logs and samples:")
    for head, text in told(findings):
        print(wrapped(f"{head:<8}  {text}", width, 10))


def _paragraphs(found: "list[tuple[Cell, Explanation]]", width: int | None) -> "Iterator[str]":
    """A sentence for each cell, but one table for cells of which the same holds; what holds of several is said once."""
    from collbench.results.terminal import wrapped

    alike: dict[str, list[tuple[Cell, Explanation]]] = {}
    for cell, one in found:
        alike.setdefault(one.common, []).append((cell, one))
    differ = _differing([cell for cell, _ in found])
    for common, some in alike.items():
        if common and len(some) > 1:
            yield (
                f"{wrapped(common, width)} Microseconds:"
                if width is None
                else wrapped(f"{common} Microseconds:", width)
            )
            yield from _table(some, differ, width)
            continue
        yield from _sentences(some, differ, width)


def _sentences(some: "list[tuple[Cell, Explanation]]", differ: "Sequence[str]", width: int | None) -> "Iterator[str]":
    from collbench.contention.explain import said_once
    from collbench.results.terminal import wrapped

    shared, sentences = said_once([one for _, one in some])
    if shared:
        yield wrapped(" ".join(shared), width)
    told, several = _said_below(sentences)
    heads = [_head(cell, differ) for cell, _ in some]
    once = width is not None and len(heads) > 1 and len(set(heads)) == 1
    if once:
        yield wrapped(f"All cells: {heads[0]}.", width)
    for head, sentence in zip(heads, told, strict=True):
        yield wrapped(sentence if once else f"[{head}] {sentence}", width, 2)
    for text, rows in several.items():
        yield wrapped(f"Of {_cells([some[row][0] for row in rows], [cell for cell, _ in some])}: {text}", width, 2)


def _said_below(sentences: "Sequence[str]") -> "tuple[list[str], dict[str, list[int]]]":
    """Each paragraph without those of its sentences that other paragraphs have too, and which rows have these."""
    import re

    parts = [re.split(r"(?<=\.) (?=[A-Z])", sentence) for sentence in sentences]
    rows: dict[str, list[int]] = {}
    for row, (_, *more) in enumerate(parts):
        for text in dict.fromkeys(more):
            rows.setdefault(text, []).append(row)
    several = {text: found for text, found in rows.items() if len(found) > 1}
    return [" ".join(text for text in (first, *more) if text not in several) for first, *more in parts], several


def _cells(some: "Sequence[Cell]", every: "Sequence[Cell]") -> str:
    """Names of algorithms, with how many of their cells where it is not all of them."""
    from collections import Counter

    have, of = Counter(cell.algorithm for cell in some), Counter(cell.algorithm for cell in every)
    return ", ".join(name if count == of[name] else f"{name} ({count} of {of[name]})" for name, count in have.items())


_TOLD_APART = ("collective", "variant", "op", "dtype", "world_size", "place", "buffers", "epilogue", "skew")
"""Fields of a cell beside algorithm, bytes, mode and calls, which are always told."""


def _differing(cells: "Sequence[Cell]") -> list[str]:
    """Fields in which these cells differ, that no row would tell otherwise."""
    rows = [cell.row() for cell in cells]
    return [name for name in _TOLD_APART if len({str(row[name]) for row in rows}) > 1]


def _head(cell: "Cell", differ: "Sequence[str]") -> str:
    calls = "1 call" if cell.calls == 1 else f"{cell.calls} calls"
    row = cell.row()
    more = (f"{row[name]} of place".replace("in of", "in") if name == "place" else f"{name} {row[name] or 'none'}"
            for name in differ)  # fmt: skip
    return ", ".join((str(cell.mode), calls, *more))


def _table(some: "list[tuple[Cell, Explanation]]", differ: "Sequence[str]", width: int | None) -> "list[str]":
    """What is known of cells that nothing is predicted of; on a terminal no mode that all share."""
    from collbench.results.table import grid
    from collbench.units import format_us

    words = {"algorithm": [cell.algorithm for cell, _ in some], "mode": [str(cell.mode) for cell, _ in some]}
    if width is not None and len(set(words["mode"])) == 1:
        del words["mode"]
    for name in differ:
        words[name] = [str(cell.row()[name]) or "-" for cell, _ in some]
    numbers = {"bytes": [str(cell.call.bytes) for cell, _ in some], "calls": [str(cell.calls) for cell, _ in some]}
    times: dict[str, list[str]] = {}
    for _, one in some:
        parts = one.record.get("parts_us") or {}
        values = {"measured": one.record["measured_us"], "flags": parts.get("flags"), "moving": parts.get("moving")}
        values |= {"rest": one.record.get("rest_us"), "p99": one.record.get("p99_us")}
        for name, value in values.items():
            times.setdefault(name, []).append(format_us(value))
    known = {name: texts for name, texts in times.items() if set(texts) != {"-"}}
    return grid({**words, **numbers, **known}, lambda name: name not in words)
