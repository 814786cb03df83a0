"""Public helpers for tests of collbench and of what builds on it: data with a truth that is known."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collbench.results.probes import Probe, append_probe
from collbench.results.records import Call, Cell, Fabric, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.machine import Machine

__all__ = ["GPU_FACTORS", "SyntheticRun", "host_machine", "synthetic_gpu_run", "synthetic_run", "synthetic_samples"]

HOST_COSTS: Mapping[str, tuple[float, float]] = {
    "host_one_stage_pull": (8.0, 0.55), "host_one_stage_push": (9.0, 0.60), "host_two_stage": (14.0, 0.16),
    "host_ring": (46.0, 0.12), "host_tree": (24.0, 0.30), "gloo": (310.0, 0.90),
}  # fmt: skip
"""Invented microseconds of a call and per KiB: a shape like that of host algorithms, not a measurement."""

GPU_FACTORS: Mapping[str, float] = {
    "one_stage_pull": 1.0, "push": 0.94, "two_stage_pull": 1.1, "symm_two_shot": 1.2, "islands": 1.05,
    "staged_ring": 2.6, "nccl_ring_ll": 1.0, "nccl_tree_ll": 0.9, "nccl_ring_simple": 1.1, "nccl_auto": 1.0,
}  # fmt: skip
"""Invented factors on the model's prediction, one of them beyond what is explained; not a measurement."""

_AUTO_US = (40.0, 0.25)
_EAGER_US = 4.0


@dataclass(frozen=True, slots=True)
class SyntheticRun:
    """A run folder and the truth behind it: the median that each `ok` cell's fold was drawn around, in us."""

    path: Path
    run: Run
    truth_us: Mapping[str, float]


def host_machine(ranks: int = 8, **facts: str) -> Machine:
    """A machine without GPUs: two sockets with their memory, joined by one link in each direction."""
    nodes = tuple(Node(f"socket{i}", NodeKind.SOCKET, {"cores": "32", "numa": str(i)}) for i in range(2))
    links = tuple(
        Link(a, b, LinkKind.SOCKET, capacity_gbps=40.0, latency_us=0.1, provenance="invented")
        for a, b in (("socket0", "socket1"), ("socket1", "socket0"))
    )
    software = {"python": "3.11.7", "numpy": "2.4.0"}
    return Machine(Topology(nodes, links, "invented"), Fabric.HOST, ranks, software=software, facts=facts)


def synthetic_samples(
    cell: Cell, median_us: float, *, launch: int = 0, iterations: int = 50, noise: float = 0.05, seed: int = 0
) -> Samples:
    """Samples of one launch whose fold is log-normal around `median_us` with standard deviation `noise` of its log.

    In each iteration one rank, drawn at random, takes the fold's time, the others between 80 % and all of it: so the
    time of any one rank is too small, as it is on a real machine.
    """
    draw = np.random.default_rng(seed)
    group = median_us * np.exp(noise * draw.standard_normal(iterations))
    ranks = group * draw.uniform(0.8, 1.0, (cell.call.world_size, iterations))
    ranks[draw.integers(cell.call.world_size, size=iterations), np.arange(iterations)] = group
    return Samples(cell.cell_id, launch, Status.OK, calls=cell.calls, latency_us=tuple(map(tuple, ranks.tolist())))


def synthetic_run(
    path: str | Path,
    *,
    costs: Mapping[str, tuple[float, float]] = HOST_COSTS,
    sizes: Sequence[int] = (1024, 14336, 65536, 262144),
    modes: Sequence[Mode] = (Mode.EAGER,),
    calls: Sequence[int] = (1, 122),
    failing: Mapping[str, tuple[Status, str]] | None = None,
    machine: Machine | None = None,
    launches: int = 1,
    iterations: int = 50,
    noise: float = 0.05,
    seed: int = 0,
    finish: bool = True,
    truth: Callable[[Run, Cell], float] | None = None,
) -> SyntheticRun:
    """Make a run folder with known truth, invented from `costs` or given by `truth` in us per call.

    `costs` gives (us per call, us per KiB) by algorithm, `failing` the (status, reason) of algorithms that do not run;
    in graph mode and with more than one call a call costs 70 % of it. The rest is as of a real sweep: plan, machine,
    samples by cell and launch, and unless `finish` is false the parquet file.

    Raises:
        CollbenchError: the folder cannot be made (`RunFolder.create`).
    """
    machine = machine or host_machine()
    cells = _plan(costs, sizes, modes, calls, machine.ranks)
    run = Run(
        run_id="synthetic", created="2026-01-01T00:00:00+00:00", command=("collbench", "sweep", "--nproc", "8"),
        version="0", fabric=machine.fabric, world_size=machine.ranks, launches=launches, cells=tuple(cells),
        machine=machine.as_dict(), settings={"seed": seed},
    )  # fmt: skip
    known = truth or (lambda _, cell: _truth_us(cell, costs))
    truth_us = {cell.cell_id: known(run, cell) for cell in cells if cell.algorithm not in (failing or {})}
    with RunFolder.create(path, run) as folder:
        for launch in range(launches):
            for index, cell in enumerate(cells):
                if cell.cell_id in truth_us:
                    one = synthetic_samples(
                        cell, truth_us[cell.cell_id], launch=launch, iterations=iterations, noise=noise,
                        seed=seed * 1_000_003 + launch * 10_007 + index,
                    )  # fmt: skip
                else:
                    one = Samples(cell.cell_id, launch, *(failing or {})[cell.algorithm], calls=cell.calls)
                if one.status is Status.OK:
                    folder.append_evidence(cell.cell_id, launch, {"judged": f"behind {iterations} iterations"})
                folder.append(one)
        if finish:
            folder.finish()
        return SyntheticRun(Path(path), folder.run, truth_us)


def synthetic_gpu_run(
    path: str | Path,
    *,
    topology: str = "two-flat-gen5-switches",
    factors: Mapping[str, float] = GPU_FACTORS,
    sizes: Sequence[int] = (1024, 4096, 14336, 43008, 131072, 524288),
    launches: int = 5,
    iterations: int = 30,
    probed: bool = True,
    facts: Mapping[str, str] | None = None,
    failing: Mapping[str, tuple[Status, str]] | None = None,
) -> SyntheticRun:
    """Make a run as on GPUs of a machine file whose truth is the model's prediction times a factor by algorithm.

    Eager calls take 4 us more, a call alone 20 %. With `probed`, probes of the same model stand beside it. For tests of
    what explains and draws; nothing of it was measured.

    Raises:
        CollbenchError: no such machine file, or the folder cannot be made.
    """
    from collbench.algorithms.cell_predictions import predictor
    from collbench.topology.catalog import find, load

    wires = load(find(topology))
    machine = Machine(wires, Fabric.PCIE, len(wires.gpus), software={"nccl": "2.30.7"}, facts=facts or {})

    def truth(run: Run, cell: Cell) -> float:
        found = predictor(run)(cell)
        us = _AUTO_US[0] + _AUTO_US[1] * cell.call.bytes / 1024 if found is None else found.total_us
        us = us * factors[cell.algorithm] + (_EAGER_US if cell.mode is Mode.EAGER else 0.0)
        return us * (1.2 if cell.calls == 1 else 1.0)

    made = synthetic_run(
        path, costs=dict.fromkeys(factors, (1.0, 1.0)), sizes=sizes, modes=(Mode.EAGER, Mode.GRAPH), failing=failing,
        machine=machine, launches=launches, iterations=iterations, noise=0.03, truth=truth,
    )  # fmt: skip
    if probed:
        _append_probes(made.path, machine)
    return made


def _append_probes(path: Path, machine: Machine) -> None:
    """What the model says each microbenchmark shows, 2 % off at random."""
    from collbench.contention.observations import Bench, observations, starting_point
    from collbench.contention.parameters import priors
    from collbench.measure.probe_plan import plan_probes

    draw = np.random.default_rng(3)
    bench = Bench(
        machine.topology, machine.ranks, starting_point(machine.topology, machine.fabric, priors()), machine.fabric
    )
    for task in plan_probes(machine.ranks, machine.topology, "cuda"):
        blank = Probe(task.name, task.pattern, *task.ends, task.flows, 1 << 20, 1.0, task.unit, 0.02)
        for seen in observations([blank], machine.topology, machine.ranks, machine.fabric):
            value = seen.model(bench) * math.exp(0.02 * draw.standard_normal())
            append_probe(path, Probe(task.name, task.pattern, *task.ends, task.flows, 1 << 20, value, task.unit, 0.02))


def _plan(
    algorithms: Iterable[str], sizes: Sequence[int], modes: Sequence[Mode], calls: Sequence[int], ranks: int
) -> list[Cell]:
    return [
        Cell(algorithm, Call(size, ranks), mode, k)
        for algorithm in algorithms
        for mode in modes
        for k in calls
        for size in sizes
    ]


def _truth_us(cell: Cell, costs: Mapping[str, tuple[float, float]]) -> float:
    call_us, kib_us = costs[cell.algorithm]
    eased = 0.7 if cell.mode is Mode.GRAPH or cell.calls > 1 else 1.0
    return call_us * eased + kib_us * cell.call.bytes / 1024
