"""Budgets of the solver and of predictions; `pytest tests/contention/test_speed.py --benchmark-only` prints the table.

Without that option each runs a few times only, and the best run is held to the budget: twice it fails.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collbench.contention import traffic
from collbench.contention.fairshare import Usage, max_min, run
from collbench.contention.patterns import all_to_all
from collbench.contention.predict import Model
from collbench.contention.traffic import Move
from collbench.results.records import Call, Collective
from collbench.topology import catalog
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology

MOST_US = {
    "one solve, 56 flows": 300,
    "fluid run, 56 flows": 600,
    "prediction, 8 GPUs, pattern known": 1_000,
    "prediction, 8 GPUs, new pattern": 1_000,
    "collbench predict from the shell": 500_000,
    "fluid run, 4,032 distinct sizes": 700_000,
}

Benchmark = Any


def switches(count: int, per: int) -> Usage:
    """All pairs of GPUs below `count` switches that meet in one place."""
    n = count * per
    rows = []
    for src in range(n):
        for dst in range(n):
            if src != dst:
                up = [(2 * n + src // per, 1.0), (2 * n + count + dst // per, 1.0)] if src // per != dst // per else []
                rows.append([(src, 1.0), *up, (n + dst, 1.0)])
    return Usage.of(rows, 2 * (n + count))


def machine(count: int, per: int) -> Topology:
    """As many switches with as many GPUs each below one processor, PCIe Gen5."""
    nodes = [Node("socket0", NodeKind.SOCKET)]
    nodes += [Node(f"switch{s}", NodeKind.SWITCH) for s in range(count)]
    nodes += [Node(f"gpu{g}", NodeKind.GPU) for g in range(count * per)]
    pairs = [(f"switch{s}", "socket0") for s in range(count)]
    pairs += [(f"gpu{g}", f"switch{g // per}") for g in range(count * per)]
    ends = [(a, b) for pair in pairs for a, b in (pair, pair[::-1])]
    return Topology(tuple(nodes), tuple(Link(a, b, LinkKind.PCIE, 5, 16) for a, b in ends))


@pytest.fixture
def timed(benchmark: Benchmark) -> Callable[[str, Callable[[], object]], None]:
    def measure(name: str, function: Callable[[], object]) -> None:
        rounds = 2 if MOST_US[name] > 100_000 else 20
        benchmark.name = name
        benchmark.pedantic(function, rounds=rounds, iterations=1, warmup_rounds=1)
        if benchmark.stats is not None:  # None with --benchmark-disable
            assert benchmark.stats.stats.min * 1e6 <= 2 * MOST_US[name]

    return measure


def test_one_solve(timed: Callable[[str, Callable[[], object]], None]) -> None:
    usage = switches(2, 4)
    assert usage.flows == 56
    timed("one solve, 56 flows", lambda: max_min(usage, 54.0))


def test_one_fluid_run(timed: Callable[[str, Callable[[], object]], None]) -> None:
    usage = switches(2, 4)
    timed("fluid run, 56 flows", lambda: run(usage, 54.0, 43_008.0))


def test_a_prediction_of_a_known_pattern(timed: Callable[[str, Callable[[], object]], None]) -> None:
    """Another size of an algorithm that was predicted before."""
    model = Model(catalog.load(catalog.find("two-flat-gen5-switches")))
    schedule = traffic.one_stage(Call(43_008, 8), Move.PULL)
    model.predict(schedule)
    timed("prediction, 8 GPUs, pattern known", lambda: model.predict(schedule))


def test_a_prediction_of_a_new_pattern(timed: Callable[[str, Callable[[], object]], None]) -> None:
    """Routes are known, the four fluid runs are made anew."""
    model = Model(catalog.load(catalog.find("two-flat-gen5-switches")))
    schedule = traffic.one_stage(Call(43_008, 8), Move.PULL)

    def anew() -> None:
        model.wires._costs.clear()
        model.predict(schedule)

    timed("prediction, 8 GPUs, new pattern", anew)


def of_children() -> float:
    """Seconds of processor time of all programs that have ended: other work on this machine does not count."""
    return sum(os.times()[2:4])


@pytest.mark.benchmark(timer=of_children)
def test_a_prediction_from_the_shell(
    timed: Callable[[str, Callable[[], object]], None],
    collbench: Callable[..., Any],
) -> None:
    """All algorithms at one size, the start of the program included."""
    words = ("predict", "--topology", "two-flat-gen5-switches", "-b", "43008")
    assert collbench(*words).returncode == 0
    timed("collbench predict from the shell", lambda: collbench(*words))


@pytest.mark.slow
def test_64_gpus_with_distinct_sizes(timed: Callable[[str, Callable[[], object]], None]) -> None:
    usage = switches(8, 8)
    size = np.random.default_rng(1).uniform(1e4, 1e6, usage.flows)
    assert len(set(size)) == 4032
    timed("fluid run, 4,032 distinct sizes", lambda: run(usage, 54.0, size, merge=0.015))


@pytest.mark.slow
def test_a_whole_prediction_for_64_gpus_ends_within_seconds() -> None:
    """A skewed all-to-all with a size of its own for each pair, routes included."""
    dice = np.random.default_rng(1)
    splits = tuple(int(s) for s in dice.integers(1_000, 100_000, 64 * 64))
    schedule = all_to_all(Call(1 << 20, 64, Collective.ALL_TO_ALL, splits=splits))
    prediction = Model(machine(8, 8)).predict(schedule)
    assert prediction.bottleneck is not None
    assert prediction.bottleneck.link.startswith(("switch", "socket0"))
    assert prediction.bottleneck.flows == 8 * 56
