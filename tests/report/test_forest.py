"""Marks of a forest plot's axis do not run into each other, whatever the changes are."""

import itertools

import pytest

from collbench.gate.verdicts import CellVerdict, Verdict
from collbench.report.forest import WIDTH, axis


@pytest.mark.parametrize("low_high", [(0.999, 1.001), (0.9, 1.1), (0.7, 1.02), (0.98, 1.9), (0.01, 50.0)])
def test_marks_lie_inside_in_order_and_apart(low_high: tuple[float, float]) -> None:
    cell = CellVerdict("a", Verdict.OK, "", 1.0, 1.0, 1.0, *low_high)

    marks = axis([cell])

    places = [place for place, _ in marks]
    assert (WIDTH / 2, "0") in marks
    assert len(marks) >= 3
    assert min(b - a for a, b in itertools.pairwise(places)) >= 40
    assert 15 <= places[0] < places[-1] <= WIDTH - 15
