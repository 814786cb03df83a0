"""What a budget is expected to hold is what the sweep's own turns would hold if launches took what is expected."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.algorithms.base import registry
from collbench.measure.agenda import Agenda
from collbench.measure.expected import Expected, expect
from collbench.measure.plan import Options, Plan, make_plan
from collbench.measure.shortfall import outlook
from collbench.measure.turns import Work, next_turn
from collbench.results.records import Cell, Samples, Status
from collbench.testing import host_machine, synthetic_samples

NAMES = ("host_one_stage_pull", "host_one_stage_push", "host_two_stage", "host_ring", "host_tree")


def plan_of(*seconds: float, launches: int = 5, once_s: float = 0.0) -> Plan:
    """A cell for each algorithm, whose launches take these seconds."""
    known = registry()
    chosen = [known[name] for name in NAMES[: len(seconds)]]
    plan = make_plan(Options(sizes=(1024,), calls=(1,), launches=launches), host_machine(2), chosen)
    launch_s = {(name, ""): s for name, s in zip(NAMES, seconds, strict=False)}
    return replace(plan, launch_s=launch_s, once_s=once_s)


def foreseen(budget_s: float | None, *seconds: float, launches: int = 5, once_s: float = 0.0) -> Expected:
    plan = plan_of(*seconds, launches=launches, once_s=once_s)
    return expect(Agenda(plan, launches), plan, budget_s)


def complete(found: Expected) -> list[str]:
    return [one.key[0] for one in found.work if not one.launches]


def test_without_a_budget_everything_is_held() -> None:
    found = foreseen(None, 1.0, 2.0, 3.0, once_s=4.0)
    assert found.complete == 3
    assert found.seconds == pytest.approx(5 * 6.0 + 4.0)


@pytest.mark.parametrize("launches", [1, 2, 5, 7])
def test_without_a_budget_one_algorithm_alone_is_held(launches: int) -> None:
    found = foreseen(None, 1.0, launches=launches)
    assert found.complete == 1
    assert found.seconds == pytest.approx(launches)
    plan = plan_of(1.0)
    begun = Agenda(plan, launches, [synthetic_samples(plan.cells[0], 10.0)])
    assert expect(begun, plan, None).seconds == pytest.approx(launches - 1)


def test_within_one_the_cheapest_have_their_launches() -> None:
    # first launches 24 s; of what is left, four of the first take 4 s, with the second's 12 s, with the third's 92 s
    assert complete(foreseen(24.0 + 4.5, 1.0, 2.0, 20.0)) == [NAMES[0]]
    assert complete(foreseen(24.0 + 14.0, 1.0, 2.0, 20.0)) == list(NAMES[:2])
    assert complete(foreseen(24.0 + 102.0, 1.0, 2.0, 20.0)) == list(NAMES[:3])
    assert complete(foreseen(24.0 + 14.0, 1.0, 2.0, 20.0, once_s=5.0)) == [NAMES[0]]


def test_first_launches_that_do_not_fit_leave_no_interval() -> None:
    found = foreseen(20.0, 1.0, 2.0, 20.0)
    assert (found.complete, found.seconds) == (0, 20.0)
    assert complete(foreseen(20.0, 1.0, 2.0, 20.0, launches=1)) == list(NAMES[:2])


@settings(max_examples=200, deadline=None)
@given(
    seconds=st.lists(st.floats(0.01, 30.0), min_size=1, max_size=5), launches=st.integers(1, 12),
    budget_s=st.floats(0.5, 400.0),
)  # fmt: skip
def test_many_launches_at_once_end_as_one_after_the_other_does(
    seconds: list[float], launches: int, budget_s: float
) -> None:
    """The sweep asks who is next before every launch."""
    found = foreseen(budget_s, *seconds, launches=launches)
    assert found.seconds <= budget_s * (1 + 1e-9)
    first_s = sum(seconds)
    if first_s > budget_s / 1.25:  # shares may cut first launches there
        return
    left_s = budget_s - first_s
    work = {(name, ""): Work((name, ""), tuple(range(1, launches)), s) for name, s in zip(NAMES, seconds, strict=False)}
    while left_s > 0 and (turn := next_turn(list(work.values()), left_s)):
        one = work[turn.key]
        left_s -= one.seconds
        work[turn.key] = replace(one, launches=one.launches[1:])
    alone = {key for key, one in work.items() if not one.launches}
    assert {one.key for one in found.work if not one.launches} == alone
    assert found.seconds == pytest.approx(budget_s - left_s)


def test_a_run_that_goes_on_is_foreseen_from_what_its_launches_took() -> None:
    plan = plan_of(1.0, 1.0)
    a, b = plan.cells
    held = [synthetic_samples(a, 10.0), synthetic_samples(b, 10.0), _cut(a)]
    evidence = {(a.cell_id, 0): {"took": "8.000 s"}, (b.cell_id, 0): {"took": "2.000 s"}}
    agenda = Agenda(plan, 5, held, evidence)
    assert agenda.ledger.left == 2 * 4
    found = expect(agenda, plan, 12.0)
    assert complete(found) == [NAMES[1]]
    assert {one.key[0]: (len(one.launches), one.seconds) for one in found.work} == {
        NAMES[0]: (4, 8.0),
        NAMES[1]: (0, 2.0),
    }
    assert expect(Agenda(plan, 1, held, evidence), replace(plan, once_s=9.0), None).seconds == 0.0


def _cut(cell: Cell) -> Samples:
    return Samples(cell.cell_id, 1, Status.NOT_RUN, "the budget of 4 s was used up", calls=cell.calls)


def test_a_plan_of_ten_thousand_launches_is_foreseen_at_once(
    budget: Callable[[float], Callable[..., Expected]],
) -> None:
    found = budget(0.5)(lambda: foreseen(9000.0, 0.5, 1.0, 1.5, 2.0, 2.5, launches=10_000))
    assert found.complete == 1


def test_the_line_says_that_nothing_was_measured() -> None:
    found = foreseen(24.0 + 4.5, 1.0, 2.0, 20.0)
    assert outlook(found.work, 5, 28.5) == (
        "expected, not measured: the budget of 28 s holds 5 launches of 1 of 3 algorithms; "
        f"fewer of {NAMES[1]} (2.0 s a launch), {NAMES[2]} (20 s a launch)"
    )
    many = foreseen(21.0 + 13.5, 1.0, 20.0, launches=20)
    assert outlook(many.work, 20, 34.5).startswith(
        "expected, not measured: the budget of 34 s holds 20 launches of no algorithm, "
        "5 (enough for an interval) of 1; "
    )
    assert outlook(foreseen(0.9, 0.1, launches=1).work, 1, 0.9) == (
        "expected, not measured: the budget of 0.9 s holds 1 launch of the only algorithm"
    )


def test_a_dry_run_says_what_its_budget_holds(collbench: Callable[..., CompletedProcess[str]], tmp_path: Path) -> None:
    words = ("sweep", "--dry-run", "--nproc", "2", "--algorithms", "host", "-b", "1K", "--launches", "5", "--no-probe")
    lines = collbench(*words, "--budget", "60s").stderr.splitlines()
    assert lines[0].startswith("10 cells x 5 launches, about ")
    assert lines[1:] == ["expected, not measured: the budget of 60 s holds 5 launches of all 5 algorithms"]
    assert len(collbench(*words).stderr.splitlines()) == 1
    data = json.loads(collbench(*words, "--budget", "1s", "--json").stdout)
    assert data["expected"] == {"launches": 5, "algorithms": 5, "complete": 0}
    assert (data["budget_s"], data["seconds"]) == (1.0, 1.0)
    lost = collbench("sweep", "--dry-run", "--nproc", "2", "--algorithms", "nccl_auto", "-b", "1K", "--budget", "9s")
    assert lost.stderr == "4 cells x 1 launch, about 0 s\n"
    assert not list(tmp_path.iterdir())
