"""The model against this run: errors apart by what was known of a cell, beside simple baselines on the same cells."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from collbench.contention.explain import MOST_RATIO
from collbench.contention.scores import ERROR_RULE, error_text
from collbench.report.canvas import CURVES, FLOOR, MUTED, Drawn, Key, Table, glyph, picture
from collbench.report.predicted import Predicted
from collbench.report.svg import Styles
from collbench.report.ticks import log_axis
from collbench.results.summary import clean
from collbench.units import format_bytes, format_us
from collbench.wording import counted

__all__ = ["Errors", "accuracy", "errors", "lines_without"]

_Z90 = 1.645
_MOST_POINTS = 600
_OURS, _NCCL = "one- and two-stage", "NCCL"
_LOOKS = {_OURS: (0, "o"), _NCCL: (3, "s")}
_LEAST_SIZES = 3  # a line through two others


@dataclass(frozen=True, slots=True)
class _Pair:
    """A measured cell with its prediction, the spread of the prediction's logarithm, and its floor."""

    row: Mapping[str, Any]
    predicted_us: float
    sd: float

    @property
    def measured_us(self) -> float:
        return float(self.row["p50_us"])

    @property
    def kind(self) -> str:
        return _NCCL if str(self.row["algorithm"]).startswith("nccl") else _OURS

    @property
    def chained(self) -> bool:
        return int(self.row["calls"]) > 1

    @property
    def mode(self) -> str:
        return f"{self.row['mode']}, {'chained' if self.chained else 'isolated'}"


@dataclass(frozen=True, slots=True)
class Errors:
    """Median and 90 % quantile of |log(predicted / measured)|, the median with its sign, and how many.

    `coverage` is the part of the cells within the nominal 90 % interval, NaN where there is no such interval.
    """

    median: float
    p90: float
    bias: float
    count: int
    coverage: float = math.nan


def errors(predicted: Sequence[float], measured: Sequence[float], sds: Sequence[float] = ()) -> Errors:
    """Of cells with their predictions, in the same order; `sds` are of the predictions' logarithms."""
    logs = np.log(np.array(predicted) / np.array(measured))
    size = np.abs(logs)
    inside = float((size <= _Z90 * np.array(sds)).mean()) if len(sds) else math.nan
    median, p90 = (float(q) for q in np.quantile(size, (0.5, 0.9)))
    return Errors(median, p90, float(np.median(logs)), len(logs), inside)


def accuracy(told: Predicted, rows: Sequence[Mapping[str, Any]], styles: Styles) -> dict[str, Any]:
    """`accuracy` for the template: a figure, a table of errors, or why there is neither."""
    measured = [row for row in rows if row["p50_us"]]
    splits = [("priors, that is other machines", _pairs(told.priors, measured))]
    splits.append((told.origin, _pairs(told.calibrated, measured)))
    kept = [(word, pairs) for word, pairs in splits if pairs]
    if not kept:
        return {
            "accuracy": {
                "empty": told.why_not().replace("split into terms", "predicted"),
                "figure": None,
                "table": None,
            }
        }
    best = kept[-1]
    return {"accuracy": {"empty": "", "figure": _figure(*best, styles), "table": _scores(kept)}}


def _pairs(predictions: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[_Pair]:
    found = [(row, predictions[row["cell_id"]]) for row in rows if row["cell_id"] in predictions]
    return [_Pair(row, one.total_us, one.sd) for row, one in found if one.total_us > 0]


def _scores(splits: Sequence[tuple[str, Sequence[_Pair]]]) -> Table:
    """Never mixed: splits, kinds of algorithms, eager and captured, chains and single calls."""
    columns = [
        ("what was known", False), ("algorithms", False), ("mode", False), ("cells", True), ("model, median", True),
        ("p90", True), ("bias", True), ("within 90 %", True), ("floor, median", True), ("line, median", True),
    ]  # fmt: skip
    lines = []
    for word, pairs in splits:
        for kind in (_OURS, _NCCL):
            for mode in dict.fromkeys(pair.mode for pair in pairs):
                some = [pair for pair in pairs if pair.kind == kind and pair.mode == mode]
                if some:
                    lines.append([word, kind, mode, str(len(some)), *_numbers(some)])
    return Table(f"In this run {ERROR_RULE}", columns, lines)


def _numbers(pairs: Sequence[_Pair]) -> list[str]:
    """Of the model, then of the baselines on those of the same cells that have one."""
    measured = [pair.measured_us for pair in pairs]
    one = errors([pair.predicted_us for pair in pairs], measured, [pair.sd for pair in pairs])
    floors = [(float(pair.row["floor_us"]), pair.measured_us) for pair in pairs if pair.row["floor_us"]]
    lines = lines_without([pair.row for pair in pairs])
    baselines = [error_text(errors(*zip(*some, strict=True)).median) if some else "" for some in (floors, lines)]
    own = [error_text(one.median), error_text(one.p90), error_text(one.bias, signed=True)]
    return [*own, f"{one.coverage:.0%}", *baselines]


def lines_without(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """(predicted, measured) of each row by the line a + b * bytes through the other sizes of its curve.

    A curve's rows differ in bytes only. Least squares of relative errors; what is not above zero is left out.
    """
    curves: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = tuple(str(row[name]) for name in ("algorithm", "variant", "mode", "calls", "dtype", "op", "epilogue"))
        curves.setdefault(key, []).append(row)
    found = []
    for curve in curves.values():
        if len({row["bytes"] for row in curve}) < _LEAST_SIZES:
            continue
        for index, row in enumerate(curve):
            others = [(float(o["bytes"]), float(o["p50_us"])) for i, o in enumerate(curve) if i != index]
            size, time = (np.array(values) for values in zip(*others, strict=True))
            matrix = np.stack([1 / time, size / time], axis=1)
            a, b = np.linalg.lstsq(matrix, np.ones(len(size)), rcond=None)[0]
            value = float(a + b * row["bytes"])
            if value > 0:
                found.append((value, float(row["p50_us"])))
    return found


def _figure(word: str, pairs: Sequence[_Pair], styles: Styles) -> Drawn:
    finding = _finding(word, pairs)
    shown = pairs[:: max(1, math.ceil(len(pairs) / _MOST_POINTS))]
    titles: dict[str, list[str]] = {}
    svg = picture(partial(_paint, shown, titles), (7.4, 4.0), "model-", styles, finding, titles)
    kinds = [kind for kind in _LOOKS if any(pair.kind == kind for pair in shown)]
    keys = [Key(kind, _LOOKS[kind][0], glyph(_LOOKS[kind][1])) for kind in kinds]
    note = f"On the dashed line they agree; in the shaded band they are within a factor of {MOST_RATIO:g}."
    if len(shown) < len(pairs):
        note += f" {len(shown)} of {len(pairs)} cells are drawn."
    columns = [("algorithm", False), ("mode", False), ("worst at", True), ("measured", True), ("predicted", True),
               ("ratio", True)]  # fmt: skip
    table = Table("Each algorithm's worst cell, microseconds per call", columns, _worst(pairs))
    return Drawn(
        "Predicted against measured", finding, svg, table, note, keys, "Kinds of algorithms",
        "measured, microseconds, logarithmic", "predicted, microseconds, logarithmic",
    )  # fmt: skip


def _finding(word: str, pairs: Sequence[_Pair]) -> str:
    """Of chains, which the model is about, and of single calls apart."""
    kinds = [(name, [p for p in pairs if p.chained is chained]) for name, chained in _CADENCES]
    told = [_told(f" {name}" if len({p.chained for p in pairs}) > 1 else "", some) for name, some in kinds if some]
    return f"Known from {word}: {'; '.join(told)}."


_CADENCES = (("chained", True), ("isolated", False))


def _told(name: str, pairs: Sequence[_Pair]) -> str:
    one = errors([p.predicted_us for p in pairs], [p.measured_us for p in pairs])
    beyond = sum(pair.measured_us > MOST_RATIO * pair.predicted_us for pair in pairs)
    cells = counted(one.count, f"{name} cell".strip())
    text = f"the median error of {cells} is {error_text(one.median)}, that of nine in ten below "
    take = "takes" if beyond == 1 else "take"
    return f"{text}{error_text(one.p90)}, and {beyond} {take} more than {MOST_RATIO:g} times as long as predicted"


def _worst(pairs: Sequence[_Pair]) -> list[list[str]]:
    off: Callable[[_Pair], float] = lambda pair: abs(math.log(pair.measured_us / pair.predicted_us))  # noqa: E731
    found: dict[tuple[str, str], _Pair] = {}
    for pair in pairs:
        key = (clean(" ".join(filter(None, (pair.row["algorithm"], pair.row["variant"])))), pair.mode)
        found[key] = max((found.get(key, pair), pair), key=off)
    return [
        [
            name, mode, format_bytes(pair.row["bytes"]), format_us(pair.measured_us), format_us(pair.predicted_us),
            f"{pair.measured_us / pair.predicted_us:.2f}",
        ]
        for (name, mode), pair in found.items()
    ]  # fmt: skip


def _paint(pairs: Sequence[_Pair], titles: dict[str, list[str]], figure: Any) -> None:  # noqa: ANN401 - matplotlib has no types
    axes = figure.add_axes((0.085, 0.09, 0.9, 0.89))
    low = min(min(pair.measured_us, pair.predicted_us) for pair in pairs) / 1.3
    high = max(max(pair.measured_us, pair.predicted_us) for pair in pairs) * 1.3
    ends = np.array([low, high])
    axes.fill_between(ends, ends / MOST_RATIO, ends * MOST_RATIO, color=FLOOR, linewidth=0, zorder=0)
    axes.plot(ends, ends, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    for number, (kind, (colour, marker)) in enumerate(_LOOKS.items()):
        some = [pair for pair in pairs if pair.kind == kind]
        name = f"kind{number}"
        axes.plot(
            [pair.measured_us for pair in some], [pair.predicted_us for pair in some], linestyle="none", marker=marker,
            markersize=4.5, color=CURVES[colour], markeredgewidth=0, alpha=0.75, zorder=2, gid=name,
        )  # fmt: skip
        titles[name] = [_title(pair) for pair in some]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    log_axis(axes, "x")
    log_axis(axes, "y")


def _title(pair: _Pair) -> str:
    row = pair.row
    what = f"{row['algorithm']}, {row['bytes']} bytes, {row['mode']}, {row['calls']} calls"
    return f"{what}: {format_us(pair.measured_us)} us measured, {format_us(pair.predicted_us)} predicted"
