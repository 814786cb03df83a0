"""Intervals from launches."""

import numpy as np
import pytest

from collbench.results.intervals import LEAST_LAUNCHES, interval_of_medians, interval_of_ratio


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


def test_a_ratio_needs_five_launches_of_both() -> None:
    five, four = [1.0, 1.1, 0.9, 1.05, 0.95], [1.0, 1.1, 0.9, 1.05]
    assert interval_of_ratio(five, four) is None
    assert interval_of_ratio(four, five) is None
    assert interval_of_ratio([], []) is None
    assert interval_of_ratio([1.0] * 5, [1.0] * 5) is None
    assert interval_of_ratio(five, [*four, 0.0]) is None


def test_the_interval_of_a_ratio_covers_the_truth_in_95_of_100_cases() -> None:
    """Two sides that scatter differently around a ratio of 1.2, 2,000 times."""
    draw = np.random.default_rng(2)
    covered = 0
    for _ in range(2000):
        now, base = 24.0 * np.exp(0.1 * draw.standard_normal(8)), 20.0 * np.exp(0.05 * draw.standard_normal(6))
        found = interval_of_ratio(list(now), list(base))
        assert found is not None
        covered += found[0] <= 1.2 <= found[1]
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_launches_that_all_took_the_same_are_a_side_without_variance(recwarn: pytest.WarningsRecorder) -> None:
    """Then the interval is that of the other side; GPUs at a fixed clock do that, to a hundredth of a microsecond."""
    five = [2.0, 2.2, 1.8, 2.1, 1.9]
    low, high = interval_of_ratio(five, [1.64] * 5) or (0.0, 0.0)
    alone = interval_of_medians(five)
    assert alone is not None
    assert (low * 1.64, high * 1.64) == pytest.approx(alone)
    assert not list(recwarn)
