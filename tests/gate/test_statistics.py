"""The statistics are those of scipy and statsmodels, and the levels add up."""

import gc
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from collbench.gate import statistics


def holm_elsewhere(p_values: list[float]) -> np.ndarray:
    """Statsmodels collects garbage in every call: half a second each among the objects of a whole test run."""
    with mock.patch.object(gc, "collect"):
        return np.asarray(multipletests(p_values, method="holm")[1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_holm_is_that_of_statsmodels(p_values: list[float]) -> None:
    expected = holm_elsewhere(p_values)

    np.testing.assert_allclose(statistics.holm(np.array(p_values)), expected, rtol=1e-12, atol=1e-300)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(0, 40))
def test_settled_cells_count_with_p_one(p_values: list[float], settled: int) -> None:
    expected = holm_elsewhere([*p_values, *[1.0] * settled])[: len(p_values)]

    np.testing.assert_allclose(statistics.holm(np.array(p_values), settled), expected, rtol=1e-12, atol=1e-300)


def test_pairs_are_tested_as_scipy_does() -> None:
    ratios = np.random.default_rng(3).normal(0.01, 0.02, (5, 12))

    found = statistics.within_pairs(ratios)

    expected = stats.ttest_1samp(ratios, 0, axis=1, alternative="greater")
    interval = stats.ttest_1samp(ratios, 0, axis=1).confidence_interval(0.95)
    np.testing.assert_allclose(found.p_slower, expected.pvalue)
    np.testing.assert_allclose(found.p_slower + found.p_faster, 1)
    np.testing.assert_allclose((found.low, found.high), (interval.low, interval.high))


@pytest.mark.parametrize("looks", [(8,), (8, 12, 16), (5, 6, 7, 100)])
def test_the_levels_of_all_looks_add_up_to_the_whole(looks: tuple[int, ...]) -> None:
    levels = statistics.spend(looks, 0.05)

    assert math.isclose(sum(levels), 0.05)
    assert min(levels) > 0


def test_equal_medians_are_no_certainty() -> None:
    """Sixteen equal ratios have no spread, but a clock has steps: no division by zero, and no change is seen."""
    found = statistics.within_pairs(np.zeros((1, 16)))

    assert found.p_slower[0] == pytest.approx(0.5)
    assert found.inner_high[0] < 0.001


def test_a_margin_is_the_same_from_either_side_and_grows_for_short_times() -> None:
    a, b = np.array([2.0, 100.0]), np.array([2.2, 103.0])

    margins = statistics.margins(a, b, 0.03, 0.3)

    np.testing.assert_array_equal(margins, statistics.margins(b, a, 0.03, 0.3))
    assert margins[0] > 0.13  # 0.3 us of 2.1
    assert margins[1] == pytest.approx(math.log(1.03))


def test_noise_of_a_side_is_that_of_a_blocks_ratio() -> None:
    logs = np.random.default_rng(0).normal(0, 0.02 / math.sqrt(2), (1, 4000))

    assert statistics.aa_noise(logs)[0] == pytest.approx(0.02, rel=0.05)


def test_blocks_needed_fall_with_the_effect_and_rise_with_the_noise() -> None:
    needed = [statistics.blocks_needed(0.02, ratio, 60) for ratio in (1.03, 1.05, 1.08)]

    assert None not in needed
    assert needed == sorted(needed, key=lambda n: -(n or 0))
    assert statistics.blocks_needed(0.5, 1.001, 60) is None
