"""Intervals from launches."""

import numpy as np
import pytest

from collbench.results.intervals import LEAST_LAUNCHES, interval_of_medians


def test_fewer_than_five_launches_give_none() -> None:
    assert interval_of_medians([1.0] * (LEAST_LAUNCHES - 1)) is None
    assert interval_of_medians([]) is None
    assert interval_of_medians([1.0, 1.0, 1.0, 1.0, 0.0]) is None


def test_the_interval_covers_the_truth_in_95_of_100_cases() -> None:
    """Medians that scatter log-normally around 20 us, 2,000 times."""
    draw = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        found = interval_of_medians(list(20.0 * np.exp(0.1 * draw.standard_normal(6))))
        assert found is not None
        covered += found[0] <= 20.0 <= found[1]
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)
