"""A part of a plan keeps the conditions of the whole."""

import pytest

from collbench.algorithms.base import registry
from collbench.errors import UsageError
from collbench.measure.estimates import start_s
from collbench.measure.plan import Options, Plan, key_of, make_plan
from collbench.measure.selection import only
from collbench.testing import host_machine


@pytest.fixture
def plan() -> Plan:
    known = registry()
    options = Options(sizes=(1024, 4096), shuffle=3)
    return make_plan(options, host_machine(2), [known["host_ring"], known["host_tree"]])


def test_no_name_means_the_whole_plan(plan: Plan) -> None:
    assert only(plan, []) is plan


def test_cells_keep_their_order_and_their_slots(plan: Plan) -> None:
    """The isolated cell rotates through as many slots as beside its chained neighbour."""
    wanted = [c for c in plan.cells if c.algorithm == "host_tree" and c.calls == 1]

    part = only(plan, [c.cell_id for c in reversed(wanted)])

    assert list(part.cells) == wanted
    assert [a.name for a in part.algorithms] == ["host_tree"]
    assert part.slots_of(wanted[0]) == plan.slots_of(wanted[0]) > 1
    assert part.seconds == pytest.approx(plan.seconds * len(wanted) / len(plan.cells))


def test_a_launch_of_half_of_the_cells_takes_the_start_and_half_of_the_rest(plan: Plan) -> None:
    one, other = plan.algorithms
    half = only(plan, [c.cell_id for c in plan.cells_of(one) + plan.cells_of(other)[:2]])
    assert half.launch_s[key_of(one)] == pytest.approx(plan.launch_s[key_of(one)])
    start = start_s(other, 2)
    assert half.launch_s[key_of(other)] - start == pytest.approx((plan.launch_s[key_of(other)] - start) / 2)


def test_a_cell_that_is_not_planned_is_refused(plan: Plan) -> None:
    with pytest.raises(UsageError, match="--cell nothing: not in the plan; --dry-run lists its cells"):
        only(plan, ["nothing", plan.cells[0].cell_id])
