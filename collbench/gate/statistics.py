"""The gate's statistics on arrays of log ratios: spending of the error rate, t tests, Holm, equivalence, blocks needed.

Distribution functions are scipy's, the power is statsmodels'.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tests", "aa_noise", "blocks_needed", "holm", "margins", "spend", "two_sessions", "within_pairs"]

Array = NDArray[np.float64]

_RESOLUTION = 1e-4
"""Least standard error of a mean log ratio that is believed: clocks have steps, and equal medians are no certainty."""


@dataclass(frozen=True, slots=True)
class Tests:
    """Per cell, shape (cells,): mean and median log ratio, its 95 % interval, one-sided p values, equivalence bounds.

    `inner_low` and `inner_high` are one-sided 95 % bounds on either side: equivalent within a margin if both lie inside
    (two one-sided tests, so a change of exactly the margin passes with 5 % at one look).
    """

    mean: Array
    median: Array
    low: Array
    high: Array
    p_slower: Array
    p_faster: Array
    inner_low: Array
    inner_high: Array


def spend(looks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """Level of each look; they add up to `alpha`, so all looks together stay below it whatever data they share.

    Increments of Lan and DeMets' spending function of Pocock's kind, alpha * ln(1 + (e - 1) t) at information time t =
    blocks / most blocks (Biometrika 70, 1983).
    """
    spent = [alpha * math.log1p((math.e - 1) * look / looks[-1]) for look in looks]
    return tuple(now - before for now, before in zip(spent, [0.0, *spent[:-1]], strict=True))


def within_pairs(ratios: Array) -> Tests:
    """One-sample t tests of log ratios, shape (cells, blocks), against no change."""
    blocks = ratios.shape[1]
    error = ratios.std(axis=1, ddof=1) / math.sqrt(blocks)
    return _student(ratios.mean(axis=1), np.median(ratios, axis=1), error, np.float64(blocks - 1))


def two_sessions(base: list[Array], current: list[Array], session_sd: float, sessions: int) -> Tests:
    """Tests of the difference of mean logs of two occasions; `base[c]`, `current[c]` hold cell c's launches.

    The variance is that of both means and of two occasions with standard deviation `session_sd`. The degrees of freedom
    are those of the `sessions` that it was learnt from: the least well known part decides.
    """
    mean = np.array([c.mean() - b.mean() for b, c in zip(base, current, strict=True)])
    median = np.array([np.median(c) - np.median(b) for b, c in zip(base, current, strict=True)])
    variance = np.array([_of_mean(b) + _of_mean(c) for b, c in zip(base, current, strict=True)])
    return _student(mean, median, np.sqrt(variance + 2 * session_sd**2), np.float64(sessions - 1))


def _of_mean(values: Array) -> float:
    return float(values.var(ddof=1) / values.size) if values.size > 1 else 0.0


def _student(mean: Array, median: Array, error: Array, freedom: np.float64) -> Tests:
    from scipy.special import stdtr, stdtrit

    error = np.maximum(error, _RESOLUTION)
    half = stdtrit(freedom, 0.975) * error
    inner = stdtrit(freedom, 0.95) * error
    t = mean / error
    return Tests(
        mean, median, mean - half, mean + half, stdtr(freedom, -t), stdtr(freedom, t), mean - inner, mean + inner
    )


def holm(p_values: Array, settled: int = 0) -> Array:
    """Familywise p values over all cells by Holm's step-down rule, shape (cells,).

    `settled` cells more belong to the family without being tested again: they count with p = 1, which is never too
    small for a cell that is unchanged, so the familywise error of a look stays below its level.

    As statsmodels' `multipletests(method="holm")`, which a test holds it to; that one collects garbage at every call.
    """
    order = np.argsort(p_values, kind="stable")
    steps = p_values[order] * (settled + np.arange(p_values.size, 0, -1))
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def margins(base_us: Array, current_us: Array, min_effect: float, min_abs_us: float) -> Array:
    """Log of the smallest ratio that counts: `min_effect`, or `min_abs_us` where that is more.

    Seen from the geometric mean g of both sides, a log ratio d is a difference of 2 g sinh(d / 2); so the margin is the
    same whichever side is called the base.
    """
    g = np.sqrt(base_us * current_us)
    return np.asarray(np.maximum(math.log1p(min_effect), 2 * np.arcsinh(min_abs_us / (2 * g))))


def aa_noise(logs: Array) -> Array:
    """Standard deviation of a side against itself from neighbouring launches; shape (cells, launches) -> (cells,)."""
    even = logs.shape[1] // 2 * 2
    differences = logs[:, 1:even:2] - logs[:, 0:even:2]
    return np.asarray(np.sqrt((differences**2).mean(axis=1)))


def blocks_needed(sd: float, ratio: float, cells: int, alpha: float = 0.05, power: float = 0.9) -> int | None:
    """Blocks to find a change by `ratio` in one of `cells` cells with this power; None beyond 1,000.

    `sd` is that of a block's log ratio; the level is Holm's first step at a single look.
    """
    from statsmodels.stats.power import TTestPower

    test: Any = TTestPower()
    effect = math.log(ratio) / max(sd, 1e-6)
    for blocks in range(5, 1001):
        if test.power(effect, blocks, alpha / cells, alternative="larger") >= power:
            return blocks
    return None
