"""Paired ratios: right coverage, symmetric, and no number from data that cannot carry one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.gate.paired import LEAST_LAUNCHES, paired_ratio

TIMES = st.lists(
    st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=LEAST_LAUNCHES, max_size=30
)  # fmt: skip


def simulated(rng: np.random.Generator, launches: int, ratio: float) -> tuple[list[float], list[float]]:
    """Times in ABBA order under a drift of 2 % per pair, 3 % noise per launch, and a common wander of the pair."""
    order = np.arange(2 * launches).reshape(launches, 2)
    order[1::2] = order[1::2, ::-1]
    noise = rng.normal(0, 0.03, (launches, 2)) + rng.normal(0, 0.1, (launches, 1))
    times = 5.0 * np.exp(0.01 * order + noise) * np.array([1.0, ratio])
    return times[:, 0].tolist(), times[:, 1].tolist()


@pytest.mark.parametrize("launches", [8, 16])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_coverage_is_what_is_promised(launches: int, confidence: float) -> None:
    """Of 3000 simulated comparisons, the interval holds the true ratio in the promised share (within 4 sd of it)."""
    rng = np.random.default_rng(launches)
    held = 0
    for _ in range(3000):
        found = paired_ratio(*simulated(rng, launches, 1.04), confidence=confidence)
        held += found.lower <= 1.04 <= found.upper
    # ABBA leaves a drift of alternating sign in the pairs, which widens the interval a little and never narrows it
    slack = 4 * math.sqrt(confidence * (1 - confidence) / 3000)
    assert confidence - slack <= held / 3000 <= confidence + slack + 0.02


def test_a_linear_drift_cancels() -> None:
    """In ABBA order with an even number of launches the ratio is exact, whatever drifts linearly in the log."""
    drift = [math.exp(0.05 * k) for k in range(16)]
    a = [drift[2 * k + (k % 2)] for k in range(8)]
    b = [1.1 * drift[2 * k + (1 - k % 2)] for k in range(8)]
    assert paired_ratio(a, b).ratio == pytest.approx(1.1)


@given(TIMES)
def test_swapping_the_sides_gives_the_reciprocal(pairs: list[tuple[float, float]]) -> None:
    """Nothing but the direction depends on which side is the baseline."""
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    one, other = paired_ratio(a, b), paired_ratio(b, a)
    assert one.ratio == pytest.approx(1 / other.ratio)
    assert one.lower == pytest.approx(1 / other.upper)
    assert one.upper == pytest.approx(1 / other.lower)
    assert one.lower <= one.ratio <= one.upper
    assert one.launches == len(pairs)


def test_against_a_table() -> None:
    """Log ratios 0, 1, ..., 7: mean 3.5, standard error sqrt(6)/sqrt(8), t(0.975, 7) = 2.364624 of any table."""
    found = paired_ratio([1.0] * 8, [math.exp(k) for k in range(8)])
    assert math.log(found.ratio) == pytest.approx(3.5)
    assert math.log(found.upper) == pytest.approx(3.5 + 2.364624 * math.sqrt(6 / 8), rel=1e-6)


@pytest.mark.parametrize(
    ("baseline", "candidate", "confidence", "words"),
    [
        ([1.0] * 7, [1.0] * 7, 0.95, "needs at least 8"),
        ([1.0] * 8, [1.0] * 9, 0.95, "come in pairs"),
        ([1.0] * 7 + [0.0], [1.0] * 8, 0.95, "launch 7 of the baseline took 0.0"),
        ([1.0] * 8, [math.nan] + [1.0] * 7, 0.95, "launch 0 of the candidate took nan"),
        ([1.0] * 8, [math.inf] + [1.0] * 7, 0.95, "launch 0 of the candidate took inf"),
        ([1.0] * 8, [1.0] * 8, 1.0, "confidence 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    baseline: list[float], candidate: list[float], confidence: float, words: str
) -> None:
    """The error says which launch of which side."""
    with pytest.raises(UsageError, match=words):
        paired_ratio(baseline, candidate, confidence)
