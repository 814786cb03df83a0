"""How long predictions take from 8 to 64 GPUs: writes the table of README.md, and growth.svg beside this file."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from collbench.contention.fairshare import Usage, run
from collbench.contention.predict import Model
from collbench.contention.traffic import Flow, Move, Phase, Schedule, one_stage
from collbench.results.records import Call
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology

SHAPES = ((2, 4), (4, 4), (4, 8), (8, 8))
CURVES = ("first prediction", "same pattern anew", "distinct sizes, exact", "distinct sizes, merged")


def machine(switches: int, per: int) -> Topology:
    """Switches with `per` GPUs each below one processor, PCIe Gen5."""
    nodes = [Node("socket0", NodeKind.SOCKET)]
    nodes += [Node(f"switch{s}", NodeKind.SWITCH) for s in range(switches)]
    nodes += [Node(f"gpu{g}", NodeKind.GPU) for g in range(switches * per)]
    pairs = [(f"switch{s}", "socket0") for s in range(switches)]
    pairs += [(f"gpu{g}", f"switch{g // per}") for g in range(switches * per)]
    ends = [(a, b) for pair in pairs for a, b in (pair, pair[::-1])]
    return Topology(tuple(nodes), tuple(Link(a, b, LinkKind.PCIE, 5, 16) for a, b in ends))


def usage_of(topology: Topology) -> Usage:
    """All pairs of GPUs on their links."""
    number = {(link.src, link.dst): i for i, link in enumerate(topology.links)}
    pairs = [(a, b) for a in topology.gpus for b in topology.gpus if a != b]
    rows = [[(number[link.src, link.dst], 1.0) for link in topology.route(a, b)] for a, b in pairs]
    return Usage.of(rows, len(number))


def seconds(function: Callable[[], object], repeats: int = 3) -> float:
    """Best of a few runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def measure(switches: int, per: int) -> list[float]:
    """Seconds of each curve."""
    topology, ranks = machine(switches, per), switches * per
    schedule = one_stage(Call(43_008, ranks), Move.PUSH)
    first = seconds(lambda: Model(machine(switches, per)).predict(schedule))
    model = Model(topology)
    model.predict(schedule)
    scales = iter(range(1, 100))

    def anew() -> None:
        """One flow differs by a hair, so the pattern is new while routes are known."""
        flows = schedule.phases[0].flows
        odd = Flow(flows[0].src, flows[0].dst, flows[0].bytes * (1 - next(scales) * 1e-9))
        model.predict(Schedule((Phase((odd, *flows[1:]), 1),)))

    usage = usage_of(topology)
    size = np.random.default_rng(1).uniform(1e4, 1e6, usage.flows)
    exact = seconds(lambda: run(usage, 54.0, size), 1)
    return [first, seconds(anew), exact, seconds(lambda: run(usage, 54.0, size, merge=0.015))]


def draw(gpus: list[int], curves: list[list[float]]) -> None:
    """Both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "growth"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, curve, marker in zip(CURVES, curves, "osD^", strict=True):
        axes.loglog(gpus, [1e3 * s for s in curve], marker=marker, label=name)
    axes.set_xticks(gpus, [str(n) for n in gpus])
    axes.minorticks_off()
    axes.set_xlabel("GPUs, all pairs")
    axes.set_ylabel("milliseconds")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).with_name("growth.svg"), metadata={"Date": None})


if __name__ == "__main__":
    table = [measure(*shape) for shape in SHAPES]
    counts = [switches * per for switches, per in SHAPES]
    for ranks, row in zip(counts, table, strict=True):
        cells = (f"{name} {1e3 * s:.1f} ms" for name, s in zip(CURVES, row, strict=True))
        sys.stdout.write(f"{ranks} GPUs: {', '.join(cells)}\n")
    draw(counts, [list(curve) for curve in zip(*table, strict=True)])
