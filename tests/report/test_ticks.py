"""Marks of logarithmic axes: names of sizes keep apart, and a short axis has enough of them."""

import itertools
import math

import pytest

from collbench.report.ticks import labelled_sizes, log_ticks
from collbench.units import format_bytes

DECODE = (14336, 43008)


@pytest.mark.parametrize("sizes", [
    [1 << i for i in range(10, 23)], [1024, 4096, 14336, 16384, 43008, 65536, 262144, 1 << 20], [1024, 14336, 65536],
    sorted([*(1 << i for i in range(10, 23)), *DECODE]), [7168 * i for i in range(1, 12)], [1000, 10_000], [8, 1 << 30],
    [1024], [1024, 1028, 1032], [1 << i for i in range(3, 31)],
])  # fmt: skip
def test_names_of_sizes_keep_apart_and_the_largest_has_one(sizes: list[int]) -> None:
    """A figure is 460 points wide; a letter takes up to 9.6 of them on a phone."""
    shown = labelled_sizes(sizes, 460)
    scale = 460 / math.log2(sizes[-1] / sizes[0]) if len(sizes) > 1 else 1.0

    assert set(shown) <= set(sizes)
    assert shown[-1] == sizes[-1]
    for a, b in itertools.pairwise(shown):
        assert scale * math.log2(b / a) > 9.6 * (len(format_bytes(a)) + len(format_bytes(b))) / 2


def test_a_token_is_named_where_there_is_room_for_it() -> None:
    assert labelled_sizes([1024, 14336, 65536], 460) == [1024, 14336, 65536]
    assert 14336 not in labelled_sizes([1024, 14336, 16384, 65536, 1 << 20], 460)


@pytest.mark.parametrize(
    ("low", "high"), [(1.36, 9.5), (1.0, 1.3), (95.0, 104.0), (0.5, 400.0), (2.0, 5.0), (0.3, 2e6), (1.0, 1.001)]
)
def test_an_axis_has_at_least_four_marks_inside_of_it_in_order(low: float, high: float) -> None:
    """Twelve curves between 1.7 and 7.6 us had an axis with 2 and 5."""
    marks = log_ticks(low, high)

    assert marks == sorted(marks)
    assert all(low <= mark <= high for mark in marks)
    assert len(marks) >= 4
    assert len({f"{mark:g}" for mark in marks}) == len(marks)


def test_where_there_is_little_room_there_are_fewer() -> None:
    assert len(log_ticks(1.36, 9.5, 3)) < len(log_ticks(1.36, 9.5))
    assert log_ticks(1.36, 9.5) == [1.5, 2.0, 3.0, 5.0, 7.0]
