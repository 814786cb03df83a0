"""Errors in words that mean something at every size."""

import math

import pytest

from collbench.contention.scores import error_text


@pytest.mark.parametrize(
    ("error", "digits", "signed", "text"),
    [
        (0.134, 1, False, "13.4%"), (0.05, 0, True, "+5%"), (-0.05, 0, True, "-5%"), (math.log(3.6), 1, False, "x3.6"),
        (-math.log(119), 1, True, "/119"), (1.0, 0, True, "x2.7"), (-0.999, 0, True, "-100%"),
    ],
)  # fmt: skip
def test_a_percentage_below_one_and_a_factor_above(error: float, digits: int, *, signed: bool, text: str) -> None:
    assert error_text(error, digits, signed=signed) == text
