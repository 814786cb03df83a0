"""A part of a plan: the same cells under the same conditions, and no others."""

from collections.abc import Sequence
from dataclasses import replace

from collbench.errors import UsageError
from collbench.measure.plan import Plan

__all__ = ["only"]


def only(plan: Plan, cell_ids: Sequence[str]) -> Plan:
    """The plan without all other cells; as it is where no cell is named.

    Order and slots stay those of the whole plan: a cell must not become faster because its buffers rotate through less
    memory than beside its neighbours.

    Raises:
        UsageError: a cell that is not in the plan.
    """
    if not cell_ids:
        return plan
    wanted = set(cell_ids)
    cells = tuple(cell for cell in plan.cells if cell.cell_id in wanted)
    if unknown := sorted(wanted - {cell.cell_id for cell in cells}):
        raise UsageError(f"--cell {unknown[0]}: not in the plan; --dry-run lists its cells")
    part = replace(plan, cells=cells, seconds=plan.seconds * len(cells) / len(plan.cells))
    return replace(part, algorithms=tuple(a for a in plan.algorithms if part.cells_of(a)))
