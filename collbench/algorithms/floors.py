"""The floor of every cell of a run."""

from collections.abc import Mapping
from dataclasses import replace

from collbench.algorithms.base import registry
from collbench.contention.floor import floor
from collbench.contention.traffic import Schedule
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
            schedule = replace(schedule, early=algorithm.starts_early(machine))  # it may, whatever this run chose
            if _ranks(schedule) > cell.call.world_size:
                continue  # of a plug-in that draws the traffic of another machine: it costs its own floor only
            limit = floor(
                schedule, machine.topology, run.fabric, cell.mode, ranks=run.world_size, device=algorithm.device
            )
            found[cell.cell_id] = limit.us / algorithm.batch
    return found


def _ranks(schedule: Schedule) -> int:
    ends = (max(flow.src, flow.dst) for phase in schedule.phases for flow in phase.flows)
    return 1 + max(ends, default=-1)
