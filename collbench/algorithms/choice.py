"""What a forecast's answer is: the fastest of what is known to run, what cannot be told from it, and how near they are.

One rule for text, JSON and page: an algorithm of which nobody knows whether it runs on the machine is shown and marked,
and is no answer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collbench.algorithms.predictions import Crossover, Forecast

__all__ = ["NEAR", "Choice", "alike", "choices", "judged", "model_notes", "nearby", "vouched"]

NEAR = 1.05
"""Ratio of times below which two predictions are called near: little more than what the model's own structure adds."""

_STEP = 2 ** (1 / 8)
_NOTES = {"unknown": "no answer, since nobody knows whether it runs here", "does_not_run": "does not run here"}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest row of one size, and those whose intervals overlap with its, by time; same traffic counts once."""

    bytes: int
    best: Row
    overlaps: tuple[Row, ...]


def judged(rows: Iterable[Row], verdicts: Mapping[str, str], reasons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows with the doctor's `verdict`, None where it was not asked; a note says why a row is no answer."""
    found = []
    for row in rows:
        verdict, reason = verdicts.get(row["algorithm"]), reasons.get(row["algorithm"], "")
        note = [": ".join(filter(None, (_NOTES[verdict], reason)))] if verdict in _NOTES else []
        found.append({**row, "verdict": verdict, "notes": [*row["notes"], *note]})
    return found


def model_notes(row: Row) -> list[str]:
    """Notes of a judged row without that of `judged`."""
    return [note for note in row["notes"] if not note.startswith(tuple(_NOTES.values()))]


def vouched(row: Row) -> bool:
    """Whether a row may be an answer: what the doctor says runs; everything where it was not asked."""
    return row["verdict"] in {None, "runs"}


def choices(rows: Sequence[Row]) -> list[Choice]:
    """By size, ascending; none at a size at which no row may be an answer."""
    found, names = [], alike(rows)
    for size in sorted({row["bytes"] for row in rows}):
        sure = [row for row in rows if row["bytes"] == size and vouched(row) and row["algorithm"] in names]
        if sure:
            best, *others = sorted(sure, key=lambda row: (row["total_us"], row["algorithm"]))
            found.append(Choice(size, best, tuple(row for row in others if row["low_us"] <= best["high_us"])))
    return found


def alike(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """By the shortest name of those that take most sizes: others with its predictions at theirs, and its verdict."""
    told: dict[str, set[tuple[object, ...]]] = {}
    for row in rows:
        key = (row["bytes"], round(row["total_us"], 6), str(row["bottleneck"]), row["verdict"])
        told.setdefault(row["algorithm"], set()).add(key)
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(told, key=lambda name: (-len(told[name]), len(name), name)):
        first = next((one for one in found if told[name] <= told[one]), name)
        found[first] = (*found[first], name) if first in found else ()
    return found


def nearby(forecast: Forecast, cross: Crossover, first: int, last: int) -> tuple[int | None, int | None]:
    """Sizes around a crossing at which one of the two is faster by more than `NEAR`.

    None where they are nearer than that down to `first`, or up to `last`.
    """
    known = {algorithm.name: algorithm for algorithm in forecast.algorithms}

    def apart(size: int) -> bool:
        one, other = (forecast.predict(known[name], size).total_us for name in (cross.before, cross.after))
        return max(one, other) > NEAR * min(one, other)

    step = forecast.call(first).itemsize
    low, high = cross.bytes, cross.bytes
    while low > first and not apart(low):
        low = max(first, int(low / _STEP) // step * step)
    while high < last and not apart(high):
        high = min(last, math.ceil(high * _STEP) // step * step)
    return low if apart(low) else None, high if apart(high) else None
