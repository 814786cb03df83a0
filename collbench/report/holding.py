"""When a link may be said to hold an algorithm back: where its bytes are a good part of the time."""

from collbench.contention.prediction import Prediction

__all__ = ["LEAST_SHARE", "RULE", "holds_back"]

LEAST_SHARE = 0.25
"""Part of the predicted time from which the link decides; below it, latencies and launches do."""

_TERMS = ("port", "queueing", "efficiency")
RULE = f"where {_TERMS[0]}, {_TERMS[1]} and {_TERMS[2]} are {100 * LEAST_SHARE:.0f} % of the predicted time or more"


def holds_back(prediction: Prediction) -> bool:
    """Whether there is a link that binds, and bytes on it are at least `LEAST_SHARE` of the predicted time."""
    if prediction.bottleneck is None:
        return False
    return sum(prediction.terms_us[term] for term in _TERMS) >= LEAST_SHARE * prediction.total_us
