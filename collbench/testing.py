"""Public helpers for tests of collbench and of what builds on it: data with a truth that is known."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collbench.results.records import Call, Cell, Fabric, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.machine import Machine

__all__ = ["SyntheticRun", "host_machine", "synthetic_run", "synthetic_samples"]

HOST_COSTS: Mapping[str, tuple[float, float]] = {
    "host_one_stage_pull": (8.0, 0.55), "host_one_stage_push": (9.0, 0.60), "host_two_stage": (14.0, 0.16),
    "host_ring": (46.0, 0.12), "host_tree": (24.0, 0.30), "gloo": (310.0, 0.90),
}  # fmt: skip
"""Invented microseconds of a call and per KiB: a shape like that of host algorithms, not a measurement."""


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
) -> SyntheticRun:
    """Make a run folder with known truth.

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
    truth = {cell.cell_id: _truth_us(cell, costs) for cell in cells if cell.algorithm not in (failing or {})}
    with RunFolder.create(path, run) as folder:
        for launch in range(launches):
            for index, cell in enumerate(cells):
                if cell.cell_id in truth:
                    one = synthetic_samples(
                        cell, truth[cell.cell_id], launch=launch, iterations=iterations, noise=noise,
                        seed=seed * 1_000_003 + launch * 10_007 + index,
                    )  # fmt: skip
                else:
                    one = Samples(cell.cell_id, launch, *(failing or {})[cell.algorithm], calls=cell.calls)
                folder.append(one)
        if finish:
            folder.finish()
        return SyntheticRun(Path(path), folder.run, truth)


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
