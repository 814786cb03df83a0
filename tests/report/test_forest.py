"""Marks of a forest plot's axis do not run into each other, whatever the changes are."""

import itertools
import re

import pytest

from collbench.gate.verdicts import CellVerdict, GateMode, Outcome, Rules, Verdict
from collbench.report.forest import WIDTH, axis, lines


@pytest.mark.parametrize("low_high", [(0.999, 1.001), (0.9, 1.1), (0.7, 1.02), (0.98, 1.9), (0.01, 50.0)])
def test_marks_lie_inside_in_order_and_apart(low_high: tuple[float, float]) -> None:
    cell = CellVerdict("a", Verdict.OK, "", 1.0, 1.0, 1.0, *low_high)

    marks = axis([cell])

    places = [place for place, _ in marks]
    assert (WIDTH / 2, "0") in marks
    assert len(marks) >= 3
    assert min(b - a for a, b in itertools.pairwise(places)) >= 40
    assert 15 <= places[0] < places[-1] <= WIDTH - 15


@pytest.mark.parametrize(
    ("ratio", "low", "high", "arrow", "ends"),
    [
        (20.12, 15.0, 27.0, ">", ""), (0.05, 0.04, 0.06, "<", ""), (1.3, 0.8, 2.6, "", ">"), (1.0, 0.3, 3.0, "", "<>"),
        (1.02, 0.98, 1.06, "", ""),
    ],
)  # fmt: skip
def test_what_lies_beyond_the_axis_is_an_arrow(ratio: float, low: float, high: float, arrow: str, ends: str) -> None:
    """A change of +1912 % stood as a dot beside +80 %, as if it were there."""
    cell = CellVerdict("a", Verdict.OK, "", 1.0, ratio, ratio, low, high)
    (row,) = lines(Outcome(GateMode.STORED, Rules(), (cell,)), [cell])

    assert _points(row["arrow"]) == arrow
    assert "".join(_points(f"M{part}") for part in row["ends"].split("M")[1:]) == ends


def _points(outline: str) -> str:
    """Which way the middle one of three corners points."""
    corners = [float(corner.split()[0]) for corner in re.split("[ML]", outline)[1:]]
    return "" if not corners else ">" if corners[1] > corners[0] else "<"
