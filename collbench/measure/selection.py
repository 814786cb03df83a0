"""A part of a plan: the same cells under the same conditions, and no others."""

from collections.abc import Sequence
from dataclasses import replace

from collbench.algorithms.base import Algorithm
from collbench.errors import UsageError
from collbench.measure.estimates import start_s
from collbench.measure.plan import Plan, key_of

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
    kept = tuple(a for a in plan.algorithms if part.cells_of(a))
    launch_s = {key_of(a): _seconds(plan, part, a) for a in kept if key_of(a) in plan.launch_s}
    return replace(part, algorithms=kept, launch_s=launch_s)


def _seconds(plan: Plan, part: Plan, algorithm: Algorithm) -> float:
    """Of a launch of the part: the start is the same, the cells are fewer."""
    begin = start_s(algorithm, part.cells[0].call.world_size)
    cells = len(part.cells_of(algorithm)) / len(plan.cells_of(algorithm))
    return begin + max(0.0, plan.launch_s[key_of(algorithm)] - begin) * cells
