"""What the doctor says of the machine of a run: warnings, remedies, and systems that were not measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from collbench.doctor import rows as doctor_rows
from collbench.doctor.findings import machine_warnings
from collbench.doctor.past import as_recorded
from collbench.errors import CollbenchError
from collbench.results.private import public
from collbench.results.records import Run, Status

__all__ = ["compatibility"]

_WORDS = {"runs": "would run", "does_not_run": "would not run", "unknown": "unknown"}


def compatibility(run: Run, failures: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """`warnings`, `failures` with a remedy each, and `unmeasured`, for the template; nothing without a machine."""
    try:
        machine = as_recorded(run)
        rows = {row["algorithm"]: row for row in doctor_rows(machine)}
    except (CollbenchError, AttributeError, KeyError, TypeError, ValueError):
        return {"warnings": [], "failures": [{**one, "remedy": ""} for one in failures], "unmeasured": []}
    others = [row for row in rows.values() if not row["measurable"]] if machine.topology.gpus else []
    return {
        "warnings": [public(one.line) for one in machine_warnings(machine)],
        "failures": _once([{**one, "remedy": _remedy(one, rows)} for one in failures]),
        "unmeasured": [_other(row) for row in others],
    }  # fmt: skip


def _once(failures: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """What would give cells more time is said beside the first that had none, not beside each algorithm."""
    said: set[tuple[str, str]] = set()
    found = []
    for one in failures:
        key = (one["reason"], one["remedy"])
        again = one["status"] == Status.NOT_RUN and key in said
        said.add(key)
        found.append(one | {"remedy": "the same"} if again and one["remedy"] else one)
    return found


def _remedy(failure: Mapping[str, str], rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The doctor's, where it knows the algorithm not to run for this very reason; more time for what had none."""
    if failure["status"] == Status.NOT_RUN and failure["reason"].startswith("the budget of "):
        return "collbench sweep --resume RUN goes on; or a larger --budget, or fewer --algorithms or --sizes"
    row = rows.get(failure["algorithm"].partition(" ")[0], {})
    same = row.get("verdict") == "does_not_run" and public(str(row.get("reason"))) == failure["reason"]
    return public(str(row["remedy"])) if same else ""


def _other(row: Mapping[str, Any]) -> dict[str, str]:
    return {"verdict": _WORDS[row["verdict"]]} | {
        name: public(str(row[name])) for name in ("algorithm", "reason", "remedy", "source")
    }
