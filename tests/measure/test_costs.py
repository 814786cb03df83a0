"""A launch's cost is learnt without what is paid once."""

import pytest

from collbench.measure.costs import TOOK, Costs, took_s

A, B, C = ("a", ""), ("b", ""), ("c", "")


def costs(**kin: str) -> Costs:
    return Costs({A: 4, B: 4, C: 4}, {A: 6.0, B: 7.0}, {(name, ""): shared for name, shared in kin.items()})


def test_before_any_launch_it_is_what_was_expected_or_nothing() -> None:
    found = costs()
    assert [found.of(key) for key in (A, B, C)] == [6.0, 7.0, 0.0]
    assert not found.is_known(A)


def test_one_launch_is_believed_and_several_without_the_first() -> None:
    found = costs()
    found.learn(A, 0, 9.0, 4)
    assert (found.is_known(A), found.of(A)) == (True, 9.0)
    for launch, seconds in enumerate((2.0, 40.0, 3.0), start=1):
        found.learn(A, launch, seconds, 4)
    assert found.of(A) == 3.0


def test_the_first_of_its_kin_compiled_for_all_of_them() -> None:
    found = costs(a="library", b="library")
    found.learn(A, 0, 84.0, 4)
    assert found.of(A) == 84.0
    found.learn(B, 0, 25.0, 4)
    found.learn(C, 0, 2.0, 4)
    assert [found.of(key) for key in (A, B, C)] == [25.0, 25.0, 2.0]
    found.learn(A, 1, 27.0, 4)
    assert found.of(A) == 27.0


def test_a_single_launch_falls_as_others_fell() -> None:
    """Whoever opens a sweep pays for its start, and would never seem to fit a second time."""
    found = costs()
    found.learn(A, 0, 12.0, 4)
    found.learn(B, 0, 10.0, 4)
    assert (found.of(A), found.of(B)) == (12.0, 10.0)
    for launch in (1, 2):
        found.learn(B, launch, 4.0, 4)
    assert [found.of(A), found.of(B)] == pytest.approx([4.8, 4.0])
    found.learn(C, 0, 5.0, 4)
    assert found.of(C) == 2.0
    found.learn(A, 1, 6.0, 4)
    assert found.of(A) == 6.0


def test_nothing_falls_by_growth_or_by_what_others_had_paid_for() -> None:
    found = costs(a="library", b="library")
    found.learn(A, 0, 20.0, 4)
    found.learn(B, 0, 4.0, 4)
    found.learn(B, 1, 1.0, 4)
    found.learn(C, 0, 3.0, 4)
    assert (found.of(A), found.of(C)) == (4.0, 3.0)
    found.learn(A, 1, 30.0, 4)
    assert found.of(C) == 3.0


def test_who_was_not_launched_takes_what_its_kin_take() -> None:
    found = costs(a="library", b="library")
    found.learn(A, 0, 3.0, 4)
    assert (found.is_known(B), found.of(B)) == (True, 3.0)
    assert not found.is_known(C)


def test_a_launch_in_two_parts_is_one_and_a_cut_one_is_completed_in_thought() -> None:
    found = costs()
    found.learn(A, 0, 4.0, 2)
    assert found.of(A) == 8.0
    found.learn(A, 0, 3.0, 2)
    assert found.of(A) == 7.0


def test_a_cell_of_four_says_nothing_of_the_launch() -> None:
    found = costs()
    found.learn(A, 3, 5.0, 1)
    found.learn(B, 0, 5.0, 0)
    assert not found.is_known(A)
    assert (found.of(A), found.of(B)) == (6.0, 7.0)


def test_a_cells_evidence_has_its_seconds() -> None:
    assert took_s({TOOK: "10.81 s"}) == 10.81
    strange = ("", "10 us", "1e99 s", "nan s", "-1.0 s", "99999999.0 s", "\u0663.\u0665 s")
    assert [took_s({TOOK: text}) for text in strange] == [0.0] * 7
    assert took_s({}) == 0.0
