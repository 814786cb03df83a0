"""What a sweep prints: its plan, its rows, and what a reader should know before the time is spent."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collbench.errors import InvalidError

if TYPE_CHECKING:
    from collbench.measure.agenda import Agenda
    from collbench.measure.expected import Expected
    from collbench.measure.plan import Options, Plan
    from collbench.results.records import Run
    from collbench.results.store import RunFolder
    from collbench.topology.machine import Machine

__all__ = ["crowding", "print_plan", "print_rows"]


def print_plan(
    plan: "Plan", machine: "Machine", options: "Options", agenda: "Agenda", expected: "Expected", *, as_json: bool
) -> int:
    """The plan's cells with what cannot run on stdout, their number and time, and what a budget holds, on stderr.

    Gives the exit code.
    """
    import json

    from collbench.measure.shortfall import outlook
    from collbench.results.records import SCHEMA

    able = {(a.name, a.variant): a for a in plan.algorithms}
    rows = []
    for cell in plan.cells:
        support = able[cell.algorithm, cell.variant].support(machine, cell.call)
        rows.append({**cell.row(), "runs": bool(support), "reason": support.reason})
    if as_json:
        counts = {"launches": options.launches, "algorithms": len(expected.work), "complete": expected.complete}
        told = {"seconds": round(expected.seconds, 1), "budget_s": options.budget_s, "expected": counts}
        print(json.dumps({"schema": SCHEMA, "kind": "plan", **told, "rows": rows}))
        return 0
    _print_cells(rows)
    done = len(rows) * options.launches - agenda.ledger.left
    print(
        f"{_number(len(rows), 'cell')} x {_number(options.launches, 'launch', 'es')}, "
        f"{f'{done:,} of {done + agenda.ledger.left:,} measured, ' if done else ''}about {expected.seconds:.0f} s",
        file=sys.stderr,
    )
    if options.budget_s is not None and expected.work:
        print(outlook(expected.work, options.launches, options.budget_s), file=sys.stderr)
    return 0


def _number(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{'' if count == 1 else plural}"


def _print_cells(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line per cell; on a terminal what cannot run once per algorithm and reason."""
    from collbench.results.table import reasons
    from collbench.results.terminal import terminal_width, wrapped

    width = terminal_width()
    for row in rows:
        if width is None or row["runs"]:
            print(row["cell_id"] + ("" if row["runs"] else f"  unsupported: {row['reason']}"))
    if width is not None:
        lost = reasons([{**row, "status": "unsupported"} for row in rows], lambda row: not row["runs"])
        print("\n".join(wrapped(text, width, 2) for text in lost), end="\n" if lost else "")


def print_rows(folder: "RunFolder", *, as_json: bool) -> int:
    """The run's rows on stdout, its folder on stderr; gives the exit code."""
    import json

    from collbench.algorithms.cell_predictions import predictions_of
    from collbench.algorithms.floors import floors_of
    from collbench.contention.calibrate import read_parameters
    from collbench.results.summary import as_json as rows_as_json
    from collbench.results.summary import rows
    from collbench.results.table import table
    from collbench.results.terminal import terminal_width

    evidence: dict[tuple[str, int], dict[str, str]] = {}
    with contextlib.suppress(InvalidError):  # rows tell times, not what ran
        evidence = folder.evidence()
    predicted = predictions_of(folder.run, read_parameters(folder.path), evidence)
    found = rows(folder.run, folder.samples(), floors_of(folder.run), predicted)
    print(json.dumps(rows_as_json(found)) if as_json else table(found, terminal_width()))
    print(f"run: {folder.path}", file=sys.stderr)
    if not any(row["status"] == "ok" for row in found):
        reasons = sorted({f"{row['status']}: {row['reason']}" for row in found})
        print(f"collbench: no cell is ok: {'; '.join(reasons[:3])}", file=sys.stderr)
        return InvalidError.exit_code
    return 0


def crowding(run: "Run") -> list[str]:
    """Warns of ranks that will take turns, before the time is spent: fewer ranks are the reader's choice."""
    from collbench.results.crowding import hardware_threads, turns

    if not (text := turns(run)):
        return []
    enough = max(1, hardware_threads(run.machine))
    advice = f"--nproc {enough} gives each rank a thread, and " if enough > 1 else ""
    told = f"{text.replace('took', 'take')}: times are mostly waiting"
    return [f"{told}, and launches of one algorithm can differ ten-fold; {advice}--launches 5 shows by how much"]
