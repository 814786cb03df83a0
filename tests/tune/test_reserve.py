"""What launches cost, and when a final gets its part of a budget."""

import pytest

from collbench.tune.reserve import LaunchCost, Reserve


def cost(*later: float, first: float = 12.0) -> LaunchCost:
    found = LaunchCost()
    found.note(0, first, is_ok=True)
    for seconds in later:
        found.note(0, seconds, is_ok=True)
    return found


def test_the_start_of_a_fork_server_is_no_launch() -> None:
    known = cost(2.0, 2.2, 1.8)
    assert known.usual_s() == 2.0
    assert known.total_s({0: 10}) == pytest.approx(22.0)
    assert not cost().is_known
    assert (cost().usual_s(), cost().next_s(0), cost().next_s(1)) == (12.0, 0.0, 12.0)


def test_one_slow_launch_is_no_measure() -> None:
    assert cost(2.0, 2.0, 30.0, 2.0).usual_s() == 2.0
    assert cost(*[2.0] * 18, 30.0).next_s(0) == 2.0


def test_a_machine_that_became_slower_is_noticed() -> None:
    assert cost(*[2.0] * 30, *[5.0] * 15).usual_s() == 5.0


def test_failures_say_nothing_but_have_started_the_server() -> None:
    known = LaunchCost()
    known.note(0, 20.0, is_ok=False)
    assert (known.usual_s(), known.next_s(0), known.is_known) == (0.0, 0.0, False)
    known.note(0, 2.0, is_ok=True)
    known.note(0, 20.0, is_ok=False)
    assert (known.usual_s(), known.next_s(0)) == (2.0, 2.0)


def test_each_library_has_a_fork_server_to_start() -> None:
    known = cost(2.0)
    assert (known.next_s(0), known.next_s(1)) == (2.0, 12.0)
    assert known.total_s({0: 1, 1: 1}) == pytest.approx(1.1 * 14)
    known.note(1, 11.0, is_ok=True)
    assert known.next_s(1) == 2.0


def test_a_final_that_fits_is_kept_and_stays_kept() -> None:
    reserve = Reserve(60.0, 60.0, lambda: 5.0)
    assert reserve.until(44.0) == 16.0
    assert reserve.until(50.0) == 10.0


@pytest.mark.parametrize(("now", "final_s"), [(5.0, 46.0), (30.0, 31.0), (0.0, 600.0)])
def test_a_final_that_gets_nothing_has_nothing_kept(now: float, final_s: float) -> None:
    assert Reserve(60.0, 60.0, lambda: now).until(final_s) == 60.0


def test_without_a_finalist_nothing_is_kept() -> None:
    assert Reserve(60.0, 60.0, lambda: 5.0).until(0.0) == 60.0


def test_the_budget_that_is_wanted_has_room() -> None:
    wanted = Reserve(20.0, 20.0, lambda: 7.0).wanted_s(44.0, 7.0)
    assert wanted == 70
    assert Reserve(wanted, wanted, lambda: 7.0).has_room(44.0)
