"""Interval of a cell's median from the medians of its launches."""

import math
from collections.abc import Sequence

__all__ = ["LEAST_LAUNCHES", "NO_INTERVAL", "interval_of_medians"]

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
