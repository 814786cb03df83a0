"""The floor of every cell of a run."""

from collections.abc import Mapping

from collbench.algorithms.base import registry
from collbench.contention.floor import floor
from collbench.results.records import Run
from collbench.topology.machine import Machine

__all__ = ["floors_of"]


def floors_of(run: Run) -> Mapping[str, float]:
    """Microseconds per call by `cell_id`; cells of algorithms that this installation does not know are left out."""
    known, machine = registry(), Machine.from_dict(run.machine)
    found = {}
    for cell in run.cells:
        algorithm = known.get(cell.algorithm)
        if algorithm is not None:
            schedule = algorithm.traffic(cell.call, machine.topology)
            limit = floor(
                schedule, machine.topology, run.fabric, cell.mode, ranks=run.world_size, device=algorithm.device
            )
            found[cell.cell_id] = limit.us / algorithm.batch
    return found
