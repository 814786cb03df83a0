"""The verdicts of a gate: as a section of a run's page, and as a page of their own."""

from pathlib import Path
from typing import Any

from collbench.errors import CollbenchError
from collbench.gate.kept import GATE, read_outcome
from collbench.gate.names import headline
from collbench.gate.reasons import change_note, faults, not_compared, reasons, with_numbers, worst
from collbench.gate.verdicts import Outcome
from collbench.report.forest import ROW, WIDTH, axis, lines

__all__ = ["gate_page", "gate_section"]

_MOST_ROWS = 500
_MOST_REASONS = 10
"""With more, each stands in its cell's row."""


def gate_page(outcome: Outcome) -> str:
    """One HTML page that fetches nothing; names and reasons stay text whatever they hold."""
    from collbench.report.page import render

    return render("gate.html", {"gate": _context(outcome), "outcome": outcome})


def gate_section(folder: Path, run_id: str, outcome: Outcome | None = None) -> dict[str, Any]:
    """What a run's page shows of a gate: `gate` is None where no gate looked at the run.

    Without an `outcome` it is read from `gate.json` in the run folder, or from the one beside it that pairs of launches
    leave, if that one names this run. `gate_problem` says what keeps a file from being shown.
    """
    try:
        found = outcome or _found(folder, run_id)
    except CollbenchError as error:
        told = str(error)
        for path in (folder / GATE, folder.absolute().parent / GATE):
            told = told.replace(str(path), GATE)  # the page tells no paths, but which file it is
        return {"gate": None, "gate_problem": told}
    return {"gate": _context(found) if found is not None else None, "gate_problem": ""}


def _found(folder: Path, run_id: str) -> Outcome | None:
    own, beside = folder / GATE, folder.absolute().parent / GATE
    if own.exists():
        return read_outcome(own)
    found = read_outcome(beside) if beside.is_file() else None
    runs = found.record.get("runs") if found is not None else None
    return found if isinstance(runs, list) and run_id in runs else None


def _context(outcome: Outcome) -> dict[str, Any]:
    from collbench.results.private import public

    listed = with_numbers(outcome)
    shown, told = listed[:_MOST_ROWS], reasons(outcome)
    paired = outcome.mode == "paired"
    drawn = lines(outcome, shown)
    beyond = any(one["arrow"] or one["ends"] for one in drawn)
    return {
        "headline": headline(outcome), "verdict": str(outcome.verdict), "worst": worst(outcome),
        "note": change_note(outcome), "lines": drawn, "beyond": beyond, "width": WIDTH, "row": ROW, "axis": axis(shown),
        "reasons": told if len(told) <= _MOST_REASONS else [], "reason_column": len(told) > _MOST_REASONS,
        "rest": len(listed) - len(shown), "unlisted": len(outcome.cells) - len(listed),
        "effect": outcome.rules.min_effect * 100, "least_us": outcome.rules.min_abs_us,
        "unit": "blocks" if paired else "launches",
        "faults": faults(outcome), "notes": outcome.notes, "not_compared": not_compared(outcome),
        "rules": {k: _flat(v) for k, v in outcome.rules.as_dict().items()},
        "record": {k: public(_flat(v)) for k, v in outcome.record.items() if k not in {"orders", "runs", "launches"}},
    }  # fmt: skip


def _flat(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
