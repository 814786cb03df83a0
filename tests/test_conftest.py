"""The fixtures themselves."""

from collections.abc import Callable, Iterator

import pytest


def ticks(*durations: float) -> Callable[[], float]:
    """A clock that shows runs of these durations, one after the other."""

    def times() -> Iterator[float]:
        now = 0.0
        for duration in durations:
            yield now
            now += duration
            yield now

    return iter(times()).__next__


def test_budget_takes_the_best_run(budget: Callable[..., Callable[..., int]]) -> None:
    """Four slow runs and a fast one are within the budget; no run follows the fast one."""
    calls: list[int] = []

    def work() -> int:
        calls.append(1)
        return 7

    assert budget(1.0, ticks(9, 9, 0.9, 9))(work) == 7
    assert len(calls) == 3


def test_budget_warns_above_and_fails_at_twice(
    budget: Callable[..., Callable[..., int]], over_budget: list[str]
) -> None:
    """1.5 times the budget is a line behind the results; 2.5 times fails with what was seen."""
    budget(1.0, ticks(9, 9, 9, 9, 1.5))(lambda: 0)
    assert "took 1.5 s, budget 1 s" in over_budget.pop()
    with pytest.raises(AssertionError, match=r"took 2\.5 s, budget 1 s"):
        budget(1.0, ticks(9, 9, 9, 9, 2.5))(lambda: 0)
    over_budget.pop()


def test_snapshot_fails_on_a_change(
    snapshot: Callable[[str, str], None], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that differs from the file, and a file that is missing, both fail."""
    monkeypatch.setattr(request.config.option, "update_snapshots", False)
    with pytest.raises(AssertionError, match="has changed"):
        snapshot("cell_id", "something else")
    with pytest.raises(AssertionError, match="is missing"):
        snapshot("no such snapshot", "anything")
