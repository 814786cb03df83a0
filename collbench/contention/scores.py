"""Scores: how far a model is off on rows of one split."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["ERROR_RULE", "Z90", "Score", "error_text", "spread_between", "summed"]

Z90 = 1.645
"""Half width of a 90 % interval in standard deviations."""

ERROR_RULE = (
    "errors are |log(predicted / measured)|, 10 % is a factor of 1.105; from 100 % on the factor itself stands there: "
    "x3.6, and as a bias /3.6 where so much too little was predicted"
)
"""What `error_text` prints, for readers."""

_WHOLE = 10.0  # a factor from here on has no decimals
_MOST_SPREAD, _HALVINGS = 4.0, 40


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one model on one split: median and 90 % quantile of |log(predicted / measured)|, its median, n.

    `coverage` is the part of the rows inside their nominal 90 % intervals, `width` the median of half their width, a
    logarithm as errors are.
    """

    table: str
    split: str
    regime: str
    model: str
    median: float
    p90: float
    bias: float
    n: int
    systems: int
    coverage: float | None = None
    width: float | None = None

    def row(self) -> dict[str, Any]:
        """JSON form."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def summed(
    table: str,
    split: str,
    regime: str,
    model: str,
    errors: Sequence[float],
    systems: int,
    spreads: Sequence[float] = (),
) -> Score:
    """Score of errors, logarithms of predicted over measured; `spreads` is what each prediction says of itself."""
    size = np.abs(np.array(errors))
    median, p90 = (float(np.quantile(size, q)) for q in (0.5, 0.9))
    coverage = width = None
    if len(spreads):
        half = Z90 * np.array(spreads)
        coverage, width = float((size <= half).mean()), float(np.median(half))
    bias = statistics.median(errors)
    return Score(table, split, regime, model, median, p90, bias, len(errors), systems, coverage, width)


def spread_between(systems: Sequence[Sequence[tuple[float, float, float]]], hold: float = 0.90) -> float:
    """Spread between machines that, beside what each prediction says of itself, holds 90 % of the errors.

    `systems` has one sequence of (error, own spread, share of priors) each; every system weighs the same, however many
    rows it has. The spread counts in proportion to the share of priors.
    """
    if not any(systems):
        return 0.0
    weight = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in systems if rows])
    error, own, share = np.concatenate([np.array(rows, float) for rows in systems if rows]).T

    def held(spread: float) -> float:
        inside = np.abs(error) <= Z90 * np.hypot(own, spread * share)
        return float(weight[inside].sum() / weight.sum())

    low, high = 0.0, _MOST_SPREAD
    if held(low) >= hold:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if held(middle) >= hold else (middle, high)
    return high


def error_text(error: float, digits: int = 0, *, signed: bool = False) -> str:
    """A logarithm as people read it: `13.4%`; from 100 % on the factor, `x3.6`, or `/3.6` of what is too small.

    A percentage of -478 says nothing: a time cannot be less than nothing.
    """
    if abs(error) < 1:
        return f"{error:+.{digits}%}" if signed else f"{error:.{digits}%}"
    factor = math.exp(abs(error))
    shown = f"{factor:.1f}" if factor < _WHOLE else f"{factor:.0f}"
    return f"/{shown}" if error < 0 else f"x{shown}"
