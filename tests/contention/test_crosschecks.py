"""Two other solvers find the finish times that ours finds: HiGHS by repeated linear programs, and SimGrid."""

import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.contention.fairshare import Usage, max_min, run
from collbench.contention.parameters import priors
from collbench.contention.traffic import Flow, Move, one_stage, ring
from collbench.results.records import Call
from collbench.topology import catalog

SYSTEM_PYTHON = "/usr/bin/python3"
SIMGRID = Path(__file__).with_name("simgrid_maxmin.py")
CLOSE = 1e-9

Case = dict[str, Any]


def usage_of(case: Case) -> Usage:
    return Usage.of([[(link, 1.0) for link in route] for route in case["routes"]], len(case["capacity"]))


def ours(case: Case) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Finish times in the case's unit of time."""
    return run(usage_of(case), case["capacity"], case["sizes"]).finish_us * 1e3


def random_case(seed: int) -> Case:
    """Up to 12 links and 30 flows, of routes without order."""
    dice = random.Random(seed)
    links = dice.randint(2, 12)
    capacity = [round(dice.uniform(1, 100), 3) for _ in range(links)]
    routes = [dice.sample(range(links), dice.randint(1, min(4, links))) for _ in range(dice.randint(2, 30))]
    return {"capacity": capacity, "routes": routes, "sizes": [dice.randint(1_000, 10_000_000) for _ in routes]}


def machine_case(name: str, flows: Sequence[Flow]) -> Case:
    """Flows on a machine that comes with collbench; links without a capacity are left out, as they hold nobody back."""
    topology = catalog.load(catalog.find(name))
    numbers: dict[tuple[str, str], int] = {}
    capacity: list[float] = []
    routes = []
    for flow in flows:
        route = []
        for link in topology.route(topology.gpus[flow.src], topology.gpus[flow.dst]):
            known = priors().capacity(link)
            if known is None:
                continue
            if (link.src, link.dst) not in numbers:
                numbers[link.src, link.dst] = len(capacity)
                capacity.append(known.value)
            route.append(numbers[link.src, link.dst])
        routes.append(route)
    return {"capacity": capacity, "routes": routes, "sizes": [int(flow.bytes) for flow in flows]}


def machine_cases() -> list[Case]:
    """Even and uneven traffic on every machine that comes with collbench."""
    cases = []
    for name in catalog.names():
        ranks = len(catalog.load(catalog.find(name)).gpus)
        if ranks < 2:
            continue
        call = Call(43_008, ranks)
        even = one_stage(call, Move.PUSH).phases[0].flows
        uneven = tuple(Flow(f.src, f.dst, 10_000.0 * (1 + (3 * f.src + 5 * f.dst) % 11)) for f in even)
        cases += [machine_case(name, flows) for flows in (even, uneven, ring(call, 2).phases[0].flows)]
    return cases


def highs_rates(case: Case, alive: Sequence[int]) -> dict[int, float]:
    """Max-min rates of the flows `alive`: raise the least rate by a linear program, freeze who is stuck, again."""
    from scipy.optimize import linprog

    capacity, routes = np.array(case["capacity"]), case["routes"]
    rates: dict[int, float] = {}
    while len(rates) < len(alive):
        free = [f for f in alive if f not in rates]
        fixed, loads = np.zeros(capacity.size), np.zeros(capacity.size)
        for flow in alive:
            for link in routes[flow]:
                (fixed if flow in rates else loads)[link] += rates.get(flow, 1.0)
        busy = loads > 0
        answer = linprog([-1.0], A_ub=loads[busy, None], b_ub=(capacity - fixed)[busy], method="highs")
        level = float(answer.x[0])
        full = busy & (fixed + loads * level >= capacity * (1 - 1e-11))
        stuck = [f for f in free if any(full[link] for link in routes[f])]
        assert stuck
        rates |= dict.fromkeys(stuck, level)
    return rates


def highs_finish(case: Case) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Finish times with `highs_rates` after every end."""
    left = np.array(case["sizes"], float)
    finish, now, alive = np.zeros(left.size), 0.0, list(range(left.size))
    while alive:
        rates = highs_rates(case, alive)
        step = min(left[f] / rates[f] for f in alive)
        now += step
        for flow in alive:
            left[flow] -= rates[flow] * step
        done = [f for f in alive if left[f] <= 1e-9 * case["sizes"][f]]
        finish[done] = now
        alive = [f for f in alive if f not in done]
    return finish


def error(found: Any, expected: Any) -> float:
    return float(np.max(np.abs(np.asarray(found) / np.asarray(expected) - 1)))


def halved(case: Case, link: int) -> Case:
    return case | {"capacity": [c / 2 if i == link else c for i, c in enumerate(case["capacity"])]}


def test_highs_finds_the_same_rates_on_200_random_graphs() -> None:
    for seed in range(200):
        case = random_case(seed)
        expected = highs_rates(case, range(len(case["routes"])))
        found = max_min(usage_of(case), case["capacity"]).gbps
        assert error(found, [expected[f] for f in range(found.size)]) < CLOSE, seed


def test_highs_finds_the_same_finish_times() -> None:
    """On the machines that come with collbench, and on random graphs."""
    for case in [*machine_cases(), *map(random_case, range(25))]:
        assert error(ours(case), highs_finish(case)) < CLOSE


def test_highs_would_see_a_wrong_capacity() -> None:
    """Negative controls: one percent, and an uplink of half the width."""
    case = machine_cases()[-2]
    more = case | {"capacity": [c * 1.01 for c in case["capacity"]]}
    assert error(ours(more), highs_finish(case)) == pytest.approx(1 - 1 / 1.01)
    assert error(ours(halved(case, 1)), highs_finish(case)) > 0.2


@pytest.fixture(scope="module")
def simgrid() -> Any:
    """Finish times of cases by SimGrid."""
    if shutil.which(SYSTEM_PYTHON) is None:
        pytest.skip(f"no {SYSTEM_PYTHON}, in which Debian's python3-simgrid would be")
    probe = subprocess.run([SYSTEM_PYTHON, "-c", "import simgrid"], capture_output=True, timeout=30, check=False)
    if probe.returncode:
        pytest.skip("python3-simgrid is not installed: apt-get install python3-simgrid")

    def solve(cases: list[Case]) -> list[list[float]]:
        done = subprocess.run(
            [SYSTEM_PYTHON, str(SIMGRID)], input=json.dumps(cases), capture_output=True, text=True, timeout=100,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: list[list[float]] = json.loads(done.stdout)
        return found

    return solve


@pytest.mark.slow
def test_simgrid_finds_the_same_finish_times(simgrid: Any) -> None:
    """On the machines that come with collbench, and on 200 random graphs."""
    cases = [*machine_cases(), *map(random_case, range(200))]
    for case, expected in zip(cases, simgrid(cases), strict=True):
        assert error(ours(case), expected) < CLOSE


def test_simgrid_would_see_a_wrong_capacity(simgrid: Any) -> None:
    """Negative controls: one percent, and an uplink of half the width."""
    case = machine_cases()[-2]
    more = case | {"capacity": [c * 1.01 for c in case["capacity"]]}
    wider, narrower = simgrid([more, halved(case, 1)])
    assert error(wider, ours(case)) == pytest.approx(1 - 1 / 1.01)
    assert error(narrower, ours(case)) > 0.2


def test_simgrid_solves_the_case_by_hand(simgrid: Any) -> None:
    """Flows of 100, 100 and 60 over links of 10 and 4 (see test_fairshare)."""
    case = {"capacity": [10, 4], "routes": [[0], [0, 1], [1]], "sizes": [100, 100, 60]}
    assert simgrid([case])[0] == pytest.approx([12.5, 40, 30])
