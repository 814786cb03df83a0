"""Which cells of which launches are still to be measured."""

from collections.abc import Collection

from collbench.measure.plan import Key, Plan, key_of
from collbench.results.records import Cell

__all__ = ["Ledger"]


class Ledger:
    """The open cells of a plan's launches; `done` are those that a run holds already, as (cell_id, launch)."""

    def __init__(self, plan: Plan, launches: int, done: Collection[tuple[str, int]] = ()) -> None:
        self._open: dict[Key, dict[int, dict[str, Cell]]] = {}
        for cell in plan.cells:
            by_launch = self._open.setdefault(key_of(cell), {launch: {} for launch in range(launches)})
            for launch in range(launches):
                if (cell.cell_id, launch) not in done:
                    by_launch[launch][cell.cell_id] = cell

    def cells(self, key: Key, launch: int) -> list[Cell]:
        """The open ones of a launch, in the order of the plan."""
        return list(self._open.get(key, {}).get(launch, {}).values())

    def count(self, key: Key, launch: int) -> int:
        """How many they are."""
        return len(self._open.get(key, {}).get(launch, {}))

    def launches(self, key: Key) -> tuple[int, ...]:
        """Launches with open cells."""
        return tuple(launch for launch, cells in self._open.get(key, {}).items() if cells)

    def close(self, cell: Cell, launch: int) -> None:
        """It was measured, or given up."""
        self._open[key_of(cell)][launch].pop(cell.cell_id, None)

    @property
    def left(self) -> int:
        """All open cells."""
        return sum(len(cells) for by_launch in self._open.values() for cells in by_launch.values())
