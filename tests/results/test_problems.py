"""What of a run could not be used is told, and does not drown what else is said."""

import pytest

from collbench.results.problems import warn


@pytest.mark.parametrize("many", [1, 20])
def test_every_problem_is_a_line_once(many: int, capsys: pytest.CaptureFixture[str]) -> None:
    warn([*(f"line {i}" for i in range(many)), "line 0"])
    assert capsys.readouterr().err.splitlines() == [f"collbench: line {i}" for i in range(many)]


def test_of_very_many_the_number_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    warn(f"line {i}" for i in range(5000))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 20
    assert told[-1] == "collbench: 4,981 more problems like these"
