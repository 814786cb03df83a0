"""Curves of a forecast, as the page draws those of a run; which of them may be an answer, the doctor says."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collbench.algorithms.predictions import Forecast
from collbench.contention.predict import Prediction
from collbench.report.gain import DECODE_BYTES
from collbench.report.series import Panel, Point, Series, Spread

__all__ = ["STEP_BYTES", "Cast", "cast", "nearest"]

STEP_BYTES = (14_336, 43_008)
"""One token and three tokens of a large model: the page explains these sizes and always has them."""

_CADENCE = "predicted"


@dataclass(frozen=True, slots=True)
class Cast:
    """What is predicted: `every` curve, the `answer` among those that run for sure, and predictions by cell_id.

    Algorithms that put the same on the wires are one curve under the shortest of their names; `alike` has the others
    by that one. `unsure` are those that the doctor cannot vouch for; `rows` are those of `collbench predict --json`.
    """

    every: Panel
    answer: Panel
    predictions: Mapping[str, Prediction]
    alike: Mapping[str, tuple[str, ...]]
    unsure: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]


def cast(forecast: Forecast, sizes: Sequence[int], verdicts: Mapping[str, str]) -> Cast:
    """Curves at these sizes; `verdicts` are the doctor's by algorithm, and what it was not asked about may run."""
    rows = forecast.rows(sizes)
    kept = [row for row in rows if verdicts.get(row["algorithm"]) != "does_not_run"]
    groups = _alike(kept, verdicts)
    curves = [_series(name, some, number) for number, (name, some) in enumerate(_ordered(kept, groups))]
    unsure = {name for name in {row["algorithm"] for row in kept} if verdicts.get(name, "runs") != "runs"}
    every = Panel(str(forecast.mode), _CADENCE, (1,), {}, tuple(curves))
    sure = tuple(one for one in curves if one.name not in unsure)
    known = {algorithm.name: algorithm for algorithm in forecast.algorithms}
    predictions = {
        point.cell_id: forecast.predict(known[one.name], point.bytes) for one in curves for point in one.points
    }
    answer = replace(every, series=sure or every.series)
    return Cast(every, answer, predictions, {k: v for k, v in groups.items() if v}, tuple(sorted(unsure)), rows)


def nearest(sizes: Sequence[int], size: int = DECODE_BYTES) -> int:
    """The size nearest to that one, by ratio."""
    return min(sizes, key=lambda one: abs(math.log(one / size)))


_Rows = list[Mapping[str, Any]]


def _of(rows: Sequence[Mapping[str, Any]]) -> dict[str, _Rows]:
    found: dict[str, _Rows] = {}
    for row in rows:
        found.setdefault(row["algorithm"], []).append(row)
    return found


def _alike(rows: Sequence[Mapping[str, Any]], verdicts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """By the shortest name of those that take most sizes: others with its predictions at theirs, and its verdict."""
    told = {
        name: {(row["bytes"], round(row["total_us"], 6), str(row["bottleneck"])) for row in some}
        for name, some in _of(rows).items()
    }
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(told, key=lambda name: (-len(told[name]), len(name), name)):
        sure = verdicts.get(name, "runs") == "runs"
        like = (one for one in found if told[name] <= told[one] and sure == (verdicts.get(one, "runs") == "runs"))
        first = next(like, name)
        found[first] = (*found[first], name) if first in found else ()
    return found


def _ordered(rows: Sequence[Mapping[str, Any]], names: Collection[str]) -> list[tuple[str, _Rows]]:
    """Fastest first at the size nearest to a decode step's that each of them takes."""

    def key(item: tuple[str, _Rows]) -> tuple[float, str]:
        size = nearest([row["bytes"] for row in item[1]])
        return next(row["total_us"] for row in item[1] if row["bytes"] == size), item[0]

    return sorted(((name, some) for name, some in _of(rows).items() if name in names), key=key)


def _series(name: str, rows: Sequence[Mapping[str, Any]], number: int) -> Series:
    points = tuple(
        Point(
            row["bytes"], row["total_us"], Spread(row["low_us"], row["high_us"]), row["floor_us"], None, (),
            cell_id=f"{name}/{row['bytes']}",
        )
        for row in sorted(rows, key=lambda row: int(row["bytes"]))
    )  # fmt: skip
    return Series(name, "", (1,), number, points)
