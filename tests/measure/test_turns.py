"""Within a budget as many algorithms as possible come to their launches, in an order that favours none."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.measure.turns import MARGIN, Turn, Work, fitting, needed_s, next_turn

ENDLESS = float("inf")


def work(*seconds: float, launches: int = 5, made: int = 1) -> list[Work]:
    return [Work((f"a{i}", ""), tuple(range(made, launches)), s) for i, s in enumerate(seconds)]


def carried_out(open_work: Sequence[Work], left_s: float, true_s: dict[str, float] | None = None) -> list[Turn]:
    """All turns until none fits. A launch takes what `true_s` says, which is known from then on."""
    turns: list[Turn] = []
    now, todo = 0.0, {one.key: one for one in open_work}
    while (turn := next_turn(list(todo.values()), left_s - now)) is not None:
        one = todo[turn.key]
        took = (true_s or {}).get(one.key[0], one.seconds)
        now += took
        todo[turn.key] = replace(one, launches=one.launches[1:], seconds=took, is_known=True)
        turns.append(turn)
    return turns


def names(turns: Sequence[Turn]) -> list[str]:
    return [f"{turn.key[0]}.{turn.launch}" for turn in turns]


def made(turns: Sequence[Turn]) -> dict[str, int]:
    found: dict[str, int] = {}
    for turn in turns:
        found[turn.key[0]] = found.get(turn.key[0], 0) + 1
    return found


_COSTS = st.lists(st.floats(0.0, 30.0), min_size=1, max_size=9)
_LEFT = st.floats(0.0, 400.0)


@given(_COSTS, _LEFT)
def test_no_turn_begins_that_does_not_fit(costs: list[float], left_s: float) -> None:
    open_work = work(*costs)
    spent = sum(costs[int(turn.key[0][1:])] for turn in carried_out(open_work, left_s))
    assert spent <= left_s + 1e-9


@given(_COSTS, _LEFT)
@settings(max_examples=60)
def test_no_other_set_that_fits_is_larger_and_none_so_large_is_cheaper(costs: list[float], left_s: float) -> None:
    open_work = work(*costs)
    chosen = fitting(open_work, left_s)
    total = sum(one.remaining_s for one in chosen)
    assert total * MARGIN <= left_s or not chosen
    for number in range(1, len(open_work) + 1):
        for other in combinations(open_work, number):
            seconds = sum(one.remaining_s for one in other)
            if number > len(chosen):
                assert seconds * MARGIN > left_s - 1e-9
            elif number == len(chosen):
                assert seconds >= total - 1e-9


@given(_COSTS, _LEFT)
def test_what_fits_at_first_has_all_of_its_launches_at_the_end(costs: list[float], left_s: float) -> None:
    open_work = work(*costs)
    counts = made(carried_out(open_work, left_s))
    assert all(counts[one.key[0]] == 4 for one in fitting(open_work, left_s))


@given(_COSTS, st.integers(2, 6))
def test_where_everything_fits_launches_go_there_and_back(costs: list[float], launches: int) -> None:
    forth = [f"a{i}" for i in range(len(costs))]
    expected = [
        f"{name}.{launch}" for launch in range(1, launches) for name in (forth if launch % 2 == 0 else forth[::-1])
    ]
    enough = 2 * MARGIN * launches * sum(costs)
    assert names(carried_out(work(*costs, launches=launches), ENDLESS)) == expected
    assert names(carried_out(work(*costs, launches=launches), enough)) == expected


@given(_COSTS, _LEFT, st.randoms(use_true_random=False))
def test_whatever_launches_really_take_none_is_made_twice(costs: list[float], left_s: float, random: Random) -> None:
    true_s = {f"a{i}": cost * random.uniform(0.3, 3.0) for i, cost in enumerate(costs)}
    turns = names(carried_out(work(*costs), left_s, true_s))
    assert len(set(turns)) == len(turns)


def test_the_set_goes_there_and_back_without_the_dear_ones() -> None:
    turns = names(carried_out(work(2.0, 19.0, 2.5, launches=4), 20.0))
    assert turns == ["a2.1", "a0.1", "a0.2", "a2.2", "a2.3", "a0.3"]


def test_what_is_left_over_goes_to_the_next_cheapest_in_whole_launches() -> None:
    assert made(carried_out(work(1.0, 10.0, 30.0), 40.0)) == {"a0": 4, "a1": 3}


def test_nobody_has_a_sixth_launch_before_others_have_five() -> None:
    """100 launches are asked for, and three algorithms come to five each; the rest goes to whoever is cheapest."""
    counts = made(carried_out(work(0.1, 0.3, 0.5, 90.0, launches=100), 5.0))
    assert counts["a1"] == counts["a2"] == 4
    assert counts["a0"] > 4
    assert "a3" not in counts


def test_two_h200_libraries_have_intervals_but_for_the_slowest() -> None:
    """About the seconds that a sweep of 31 algorithms printed in its first launch; 240 s are left behind that."""
    quick, vllm, sglang = [2.2] * 17, [5.2] * 3, [19.0] * 5
    counts = made(carried_out(work(*quick, *vllm, *sglang), 240.0))
    assert [counts.get(f"a{i}", 0) for i in range(25)] == [4] * 20 + [1, 0, 0, 0, 0]


def test_where_costs_turn_out_higher_the_dearest_gives_way() -> None:
    """Both seem to fit; at twice the seconds one of them does, and not each of them to a half."""
    counts = made(carried_out(work(3.0, 4.0), 36.0, {"a0": 6.0, "a1": 8.0}))
    assert counts["a0"] == 4
    assert counts["a1"] < 4


def test_who_seemed_dear_and_is_not_joins_the_set() -> None:
    counts = made(carried_out(work(1.0, 20.0), 30.0, {"a1": 2.0}))
    assert counts == {"a0": 4, "a1": 4}


def test_of_equals_who_has_more_launches_comes_first() -> None:
    begun = [Work(("a", ""), (1, 2, 3, 4), 2.0), Work(("b", ""), (3, 4), 4.0), Work(("c", ""), (4,), 2.0)]
    assert [one.key[0] for one in fitting(begun, 12.0)] == ["b", "c"]


def test_what_was_never_launched_is_tried_although_it_is_expected_not_to_fit() -> None:
    (one,) = work(9.0)
    assert next_turn([one], 5.0) is None
    turn = next_turn([replace(one, is_known=False)], 5.0)
    assert turn is not None
    assert turn.planned == ((one.key, 1),)
    assert next_turn([replace(one, is_known=False)], 4.0) is None


def test_planned_are_the_open_launches_of_the_set() -> None:
    turn = next_turn(work(1.0, 50.0, launches=3), 10.0)
    assert turn is not None
    assert turn.planned == ((("a0", ""), 1), (("a0", ""), 2))


@pytest.mark.parametrize(("name", "seconds"), [("a0", 4 * 2.0), ("a1", 4 * 5.0), ("a2", 4 * 14.0)])
def test_needed_is_what_all_cheaper_ones_need_as_well(name: str, seconds: float) -> None:
    open_work = work(2.0, 3.0, 9.0)
    assert needed_s(open_work, (name, "")) == pytest.approx(MARGIN * seconds)
    assert open_work[int(name[1])] in fitting(open_work, needed_s(open_work, (name, "")) + 1e-6)
