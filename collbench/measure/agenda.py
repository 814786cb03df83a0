"""What is left of a plan, and what it takes: the same for the sweep that does it and for the one that only asks."""

import contextlib
from collections.abc import Hashable, Iterable, Mapping

from collbench.algorithms.base import Algorithm
from collbench.errors import InvalidError
from collbench.measure.costs import Costs, took_s
from collbench.measure.ledger import Ledger
from collbench.measure.plan import Plan, key_of
from collbench.measure.turns import Work
from collbench.results.records import Samples, Status
from collbench.results.store import RunFolder

__all__ = ["Agenda"]

Evidence = Mapping[tuple[str, int], Mapping[str, str]]
"""What really ran, by cell and launch."""


class Agenda:
    """Open cells of a plan's launches in `ledger`, and the seconds of a launch of each algorithm in `costs`.

    `samples` and `evidence` are what a run that goes on holds already.
    """

    def __init__(
        self, plan: Plan, launches: int, samples: Iterable[Samples] = (), evidence: Evidence | None = None
    ) -> None:
        # what a budget or a failure before it cut off gets its turn when the run is resumed
        done = {(one.cell_id, one.launch) for one in samples if one.status is not Status.NOT_RUN}
        self._keys = [key_of(algorithm) for algorithm in plan.algorithms]
        self.ledger = Ledger(plan, launches, done)
        cells = {key_of(a): len(plan.cells_of(a)) for a in plan.algorithms}
        self.costs = Costs(cells, plan.launch_s, {key_of(a): _kin(a) for a in plan.algorithms})
        _learn_from(evidence or {}, plan, self.costs)

    @classmethod
    def of(cls, plan: Plan, launches: int, folder: RunFolder) -> "Agenda":
        """That of a run's folder. Evidence that cannot be read teaches nothing: who reads the run is told of it."""
        evidence: Evidence = {}
        if plan.launch_s:  # whoever leaves that out has planned already
            with contextlib.suppress(InvalidError):
                evidence = folder.evidence()
        return cls(plan, launches, folder.samples(), evidence)

    def work(self) -> list[Work]:
        """What is left to do for each algorithm, in the order of the plan."""
        return [
            Work(key, self.ledger.launches(key), self.costs.of(key), self.costs.is_known(key)) for key in self._keys
        ]


def _learn_from(evidence: Evidence, plan: Plan, costs: Costs) -> None:
    """What launches took, by the evidence of a run that goes on."""
    keys = {cell.cell_id: key_of(cell) for cell in plan.cells}
    for (cell_id, launch), texts in evidence.items():
        if cell_id in keys and (seconds := took_s(texts)):
            costs.learn(keys[cell_id], launch, seconds, 1)


def _kin(algorithm: Algorithm) -> Hashable:
    """What it shares with others that compiles in the first launch of any of them; itself where nothing compiles."""
    if algorithm.device == "cpu":
        return key_of(algorithm)
    return algorithm.family, algorithm.imports, algorithm.foreign, algorithm.preload
