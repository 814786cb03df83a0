"""Intervals of a cell's median, and of the ratio of two, from the medians of their launches."""

import math
import warnings
from collections.abc import Sequence

__all__ = ["LEAST_LAUNCHES", "NO_INTERVAL", "interval_of_medians", "interval_of_ratio"]

LEAST_LAUNCHES = 5
"""Launches below which no interval is given (docs/vocabulary.md): a launch is the unit of statistics."""

NO_INTERVAL = "no interval: one launch"


def interval_of_medians(medians: Sequence[float]) -> tuple[float, float] | None:
    """Student's t on the logarithms of the launches' medians, 95 %; None below `LEAST_LAUNCHES`."""
    if len(medians) < LEAST_LAUNCHES or min(medians) <= 0:
        return None
    import numpy as np
    from scipy.stats import t

    logs = np.log(medians)
    half = float(t.ppf(0.975, len(logs) - 1)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(float(logs.mean()) - half), math.exp(float(logs.mean()) + half)


def interval_of_ratio(medians: Sequence[float], base: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of medians over those of a base: Welch's t on the logarithms.

    None where either has fewer than `LEAST_LAUNCHES`, or where neither varies at all.
    """
    if min(len(medians), len(base)) < LEAST_LAUNCHES or min(*medians, *base) <= 0:
        return None
    import numpy as np

    logs = np.log(medians), np.log(base)
    if max(float(one.std()) for one in logs) == 0.0:
        return None
    from scipy.stats import ttest_ind

    with warnings.catch_warnings():
        # launches of a side that all took the same make scipy doubt its variance, and none is what it has
        warnings.filterwarnings("ignore", "Precision loss occurred", RuntimeWarning)
        span = ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    return math.exp(float(span.low)), math.exp(float(span.high))
