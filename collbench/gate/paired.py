"""The ratio of two things measured side by side, launch by launch, with an interval that knows only launches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.wording import counted

__all__ = ["LEAST_LAUNCHES", "Ratio", "paired_ratio"]

LEAST_LAUNCHES = 8
"""Fewest launches of each side: with fewer, the t quantile (2.36 with 8) makes an interval of little use."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Candidate over baseline: below 1 the candidate takes less time. `lower` and `upper` are its interval's ends."""

    ratio: float
    lower: float
    upper: float
    launches: int


def paired_ratio(baseline: Sequence[float], candidate: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Geometric mean of candidate/baseline over pairs of launches, with Student's t interval on the log ratios.

    Element k of each side is one launch's time (the median of the group's maxima, in any unit); both were made next to
    each other, in the order A B B A A B B A ..., so that a drift of the machine cancels within two pairs and what it
    leaves stands in the spread. Swapping the sides gives the reciprocal. With an even number of launches drift that is
    linear in time cancels exactly in the ratio.

    Raises:
        UsageError: fewer than 8 launches, sides of different lengths, a time that is not positive and finite, or a
            confidence outside 0 to 1.
    """
    _check(baseline, candidate, confidence)
    logs = [math.log(new / old) for old, new in zip(baseline, candidate, strict=True)]
    launches, mean = len(logs), math.fsum(logs) / len(logs)
    variance = math.fsum((value - mean) ** 2 for value in logs) / (launches - 1)
    half = _quantile(launches - 1, confidence) * math.sqrt(variance / launches)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), launches)


def _quantile(freedom: int, confidence: float) -> float:
    from scipy import special

    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def _check(baseline: Sequence[float], candidate: Sequence[float], confidence: float) -> None:
    if len(baseline) != len(candidate):
        many = counted(len(baseline), "launch", "es")
        raise UsageError(f"{many} of the baseline and {len(candidate)} of the candidate: launches come in pairs")
    if len(baseline) < LEAST_LAUNCHES:
        raise UsageError(f"{counted(len(baseline), 'pair')} of launches: a ratio needs at least {LEAST_LAUNCHES}")
    if not 0 < confidence < 1:
        raise UsageError(f"confidence {confidence:g}: expected a number between 0 and 1, such as 0.95")
    for side, times in (("baseline", baseline), ("candidate", candidate)):
        for k, time in enumerate(times):
            if not (math.isfinite(time) and time > 0):
                raise UsageError(f"launch {k} of the {side} took {time}: a time is a positive number")
