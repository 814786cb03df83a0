"""Curves of a forecast, as the page draws those of a run; which of them may be an answer, the doctor says."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from collbench.algorithms.choice import alike, choices, judged, vouched
from collbench.algorithms.predictions import Forecast
from collbench.contention.predict import Prediction
from collbench.doctor.forecasts import Diagnosis
from collbench.report.answer import Lead, leads
from collbench.report.gain import DECODE_BYTES
from collbench.report.series import Panel, Point, Series, Spread
from collbench.units import format_bytes

__all__ = ["STEP_BYTES", "Cast", "cast", "headline", "nearest"]

STEP_BYTES = (14_336, 43_008)
"""One token and three tokens of a large model: the page explains these sizes and always has them."""

_CADENCE = "predicted"
_NO_TIE = 1.0
"""Predictions have no noise: the first is the first, and headline, table and crossings name the same."""


@dataclass(frozen=True, slots=True)
class Cast:
    """What is predicted: `every` curve, the `answer` among those that run for sure, and predictions by cell_id.

    Algorithms that put the same on the wires are one curve under the shortest of their names; `alike` has the others
    by that one. `unsure` are those that the doctor cannot vouch for; where it can vouch for none, all of them are in
    `answer` and `vouched` is False. `rows` are those of `collbench predict --json`.
    """

    every: Panel
    answer: Panel
    predictions: Mapping[str, Prediction]
    alike: Mapping[str, tuple[str, ...]]
    unsure: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]
    vouched: bool


def cast(forecast: Forecast, sizes: Sequence[int], doctor: Diagnosis) -> Cast:
    """Curves at these sizes; what the doctor was not asked about may run."""
    rows = judged(forecast.rows(sizes), doctor.verdicts, doctor.reasons)
    kept = [row for row in rows if row["verdict"] != "does_not_run"] or rows
    groups = alike(kept)
    curves = [_series(name, some, number) for number, (name, some) in enumerate(_ordered(kept, groups))]
    unsure = {row["algorithm"] for row in kept if not vouched(row)}
    every = Panel(str(forecast.mode), _CADENCE, (1,), {}, tuple(curves), tie=_NO_TIE)
    sure = tuple(one for one in curves if one.name not in unsure)
    known = {algorithm.name: algorithm for algorithm in forecast.algorithms}
    predictions = {
        point.cell_id: forecast.predict(known[one.name], point.bytes) for one in curves for point in one.points
    }
    answer = replace(every, series=sure or every.series)
    others = {name: some for name, some in groups.items() if some}
    return Cast(every, answer, predictions, others, tuple(sorted(unsure)), rows, bool(sure))


def headline(made: Cast) -> str:
    """Who is the fastest where, as in the table, and at how many sizes the model does not tell it from others.

    Predictions have no noise, so nobody is tied.
    """
    return f"{_fastest(made)}.{_apart(made)}"


def _apart(made: Cast) -> str:
    """What the order rests on, where intervals overlap with that of the fastest."""
    found = choices(made.rows)
    near = sum(bool(one.overlaps) for one in found)
    if not near:
        return ""
    where = (
        ""
        if len(found) == 1
        else f" at all {near} sizes"
        if near == len(found)
        else f" at {near} of {len(found)} sizes"
    )
    return f" Predicted; intervals overlap{where}: measure before you choose."


def _fastest(made: Cast) -> str:
    unknown = any(row["verdict"] == "unknown" for row in made.rows)
    if_they_run = "if they run there, which nobody knows, " if unknown else "though none of them runs there, "
    if_they_run *= not made.vouched
    spans = [(name, [lead.bytes for lead in some]) for name, some in groupby(leads(made.answer), key=_leader)]
    if len(spans) == 1:
        ((name, sizes),) = spans
        return f"{if_they_run}{name} is fastest {'at every size' if len(sizes) > 1 else _span(sizes, first=True)}"
    told = [f"{name}{' is fastest' * (not i)} {_span(sizes, first=not i)}" for i, (name, sizes) in enumerate(spans)]
    return f"{if_they_run}{', '.join(told)}"


def _leader(lead: Lead) -> str:
    return lead.best.name


def _span(sizes: Sequence[int], *, first: bool) -> str:
    low, high = format_bytes(sizes[0]), format_bytes(sizes[-1])
    if low == high:
        return f"at {low}"
    return f"up to {high}" if first else f"from {low} to {high}"


def nearest(sizes: Sequence[int], size: int = DECODE_BYTES) -> int:
    """The size nearest to that one, by ratio."""
    return min(sizes, key=lambda one: abs(math.log(one / size)))


_Rows = list[Mapping[str, Any]]


def _of(rows: Sequence[Mapping[str, Any]]) -> dict[str, _Rows]:
    found: dict[str, _Rows] = {}
    for row in rows:
        found.setdefault(row["algorithm"], []).append(row)
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
