"""From samples to rows: fold over ranks, quantiles over iterations, and flags."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from collbench.results.records import SCHEMA, Cell, Flag, Run, Samples, Status
from collbench.units import rounded

__all__ = [
    "LEAST_ITERATIONS",
    "MAX_LAUNCH_SPREAD",
    "MAX_TAIL",
    "as_json",
    "clean",
    "fold",
    "is_noisy",
    "printable",
    "rows",
]

MAX_TAIL = 3.0
"""p99 / p50 above which a cell is `noisy`: pinned ranks stay below 2, 8 host ranks on 2 cores were seen at 30."""

MAX_LAUNCH_SPREAD = 0.10
"""Relative difference of launch medians above which a cell is `noisy`: 2 pinned ranks show 1 %, shared cores 15 %."""

LEAST_ITERATIONS = 5
"""Iterations below which a cell is `noisy`: the median of three says little about a busy machine."""

_WORST_FIRST = (
    Status.WRONG, Status.CRASHED, Status.HUNG, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.NOT_RUN, Status.OK,
)  # fmt: skip


def clean(text: str) -> str:
    """Text on one line without control, format (direction, zero width) and surrogate characters."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """The text without control, format and surrogate characters, line breaks among them; spaces stay as they are."""
    return "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co"})


def fold(samples: Samples) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Time of the group in each iteration: the maximum over ranks, microseconds per call, shape (iterations,)."""
    if not samples.latency_us:
        return np.empty(0)
    group: np.ndarray[Any, np.dtype[np.float64]] = np.asarray(samples.latency_us, dtype=np.float64).max(axis=0)
    return group


def rows(
    run: Run,
    samples: Iterable[Samples],
    floors: Mapping[str, float] | None = None,
    predictions: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """One row per planned cell, in the order of the plan, under the names of docs/design.md section 4.

    Several launches of a cell are pooled: quantiles over all their iterations, and the worst status; a cell that is not
    `ok` has no times. `floors` and `predictions` give microseconds by cell_id.
    """
    by_cell: dict[str, list[Samples]] = {}
    for one in samples:
        by_cell.setdefault(one.cell_id, []).append(one)
    return [
        _row(
            run, cell, by_cell.get(cell.cell_id, []),
            (floors or {}).get(cell.cell_id), (predictions or {}).get(cell.cell_id),
        )
        for cell in run.cells
    ]  # fmt: skip


def _row(
    run: Run, cell: Cell, launches: Sequence[Samples], floor_us: float | None, predicted_us: float | None
) -> dict[str, Any]:
    status, reason = _status(run, launches)
    launches = [one for one in launches if one.status is not Status.NOT_RUN] or list(launches)
    made = max(run.launches, len(launches)) if status is Status.NOT_RUN and launches else len(launches)
    folds = [fold(one) for one in launches] if status is Status.OK else []
    pooled = np.concatenate(folds) if folds else np.empty(0)
    p50, p99, least = (float(q) for q in np.quantile(pooled, (0.5, 0.99, 0.0))) if pooled.size else (None, None, None)
    flags = {flag for one in launches for flag in one.flags} if folds else set()
    if p50 is not None and p99 is not None:
        flags |= _judge(folds, p50, p99, floor_us)
    return cell.row() | {
        "status": str(status), "reason": reason, "flags": sorted(str(flag) for flag in flags), "p50_us": p50,
        "p99_us": p99, "min_us": least, "iterations": int(pooled.size), "launches": made,
        "floor_us": floor_us, "predicted_us": predicted_us,
    }  # fmt: skip


def _status(run: Run, launches: Sequence[Samples]) -> tuple[Status, str]:
    if not launches:
        return Status.NOT_RUN, f"{_unrecorded(run)} it"
    ran = [one for one in launches if one.status is not Status.NOT_RUN]
    if ran and len(ran) < max(run.launches, len(launches)):
        # what a budget cut off takes nothing from the launches before
        status, reason = _worst(ran)
        return status, reason or _fewer(run, launches)
    return _worst(launches)


def _worst(launches: Sequence[Samples]) -> tuple[Status, str]:
    worst = min(launches, key=lambda one: _WORST_FIRST.index(one.status))
    if worst.status is Status.OK:
        return Status.OK, ""
    reason = clean(worst.reason) or "no reason was recorded"
    alike = all((one.status, one.reason) == (worst.status, worst.reason) for one in launches)
    return worst.status, reason if alike else f"launch {worst.launch}: {reason}"


def _unrecorded(run: Run) -> str:
    return "the sweep ended without a record of" if run.finished else "the sweep was stopped before"


def _fewer(run: Run, launches: Sequence[Samples]) -> str:
    """Why a cell lacks launches: what the last record of one not run says, or that there is no record of some.

    In a run that has ended, a record of a launch that was not run stands for those without one behind it.
    """
    cut = [one for one in launches if one.status is Status.NOT_RUN]
    planned = max(run.launches, len(launches))
    missing = planned - len(launches)
    if lost := _lost(run, launches, cut, missing):
        return f"{_unrecorded(run)} {lost} of {planned} launches"
    last = cut[-1]
    why = clean(last.reason) or "no reason was recorded"
    alike = all(one.reason == last.reason for one in cut)
    told = why if alike else f"launch {last.launch}: {why}"
    return f"{len(cut) + missing} of {planned} launches were not run: {told}"


def _lost(run: Run, launches: Sequence[Samples], cut: Sequence[Samples], missing: int) -> int:
    """How many of the `missing` launches, which have no record, no record of one that was not run stands for."""
    if not missing or not cut:
        return missing
    if not run.finished:
        return missing + len(cut)
    recorded = {one.launch for one in launches}
    return min(missing, sum(launch not in recorded for launch in range(min(one.launch for one in cut))))


def is_noisy(folds: Sequence[np.ndarray[Any, np.dtype[np.float64]]], p50: float, p99: float) -> bool:
    """Whether a cell with one fold per launch gets the flag: few iterations, a far tail, or launches that differ."""
    medians = [float(np.median(one)) for one in folds]
    few = sum(len(one) for one in folds) < LEAST_ITERATIONS
    return few or p99 > MAX_TAIL * p50 or max(medians) > (1 + MAX_LAUNCH_SPREAD) * min(medians)


def _judge(
    folds: Sequence[np.ndarray[Any, np.dtype[np.float64]]], p50: float, p99: float, floor_us: float | None
) -> set[Flag]:
    flags = set()
    if is_noisy(folds, p50, p99):
        flags.add(Flag.NOISY)
    if floor_us is not None and p50 < floor_us:
        flags.add(Flag.IMPLAUSIBLE)
    return flags


def as_json(table_rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The object that `--json` prints, ready for `json.dumps`."""
    return {"schema": SCHEMA, "kind": "sweep", "rows": [rounded(row) for row in table_rows]}
