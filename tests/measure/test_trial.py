"""What a trial finds among launches that do nothing or go wrong now and then, and how surely (docs/design.md)."""

import itertools
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collbench.algorithms.base import Runner
from collbench.measure import trial
from collbench.measure.clock import HostClock
from collbench.measure.trial import BATCHES, SPOTS, Trial, cut
from collbench.measure.verify import Check
from collbench.results.records import Call

COMMAND = {"warmup": 2, "iterations": 100, "seconds": 0.1, "least": 3, "most": 100}
TRIALS = 400
Fault = Callable[["Alone", int, int], bool]


class Alone(Runner):
    """An all-reduce over one rank: a copy. `fault(runner, launch, slot)` says of a launch whether it stays undone."""

    def __init__(self, slots: int, fault: Fault, *, wrong: bool = False) -> None:
        ranks: Any = SimpleNamespace(
            rank=0, world_size=1, local_world_size=1, device="cpu", exchange=lambda value: [value], phase=lambda _: None
        )
        super().__init__(ranks, Call(256, 1, dtype="float32"), slots)
        self.x, self.y = (np.zeros((slots, 64), np.float32) for _ in "xy")
        self.fault, self.wrong, self.launched = fault, wrong, 0
        self.seen: dict[int, bytes] = {}

    def inputs(self, i: int) -> dict[str, Any]:
        return {"x": self.x[i]}

    def outputs(self, i: int) -> dict[str, Any]:
        return {"y": self.y[i]}

    def launch(self, i: int) -> None:
        self.launched += 1
        undone = self.fault(self, self.launched, i)
        self.seen[i] = self.x[i].tobytes()
        if not undone:
            self.y[i] = self.x[i]
        elif self.wrong:
            self.y[i, 5] += 1


def timed(runner: Alone, seed: int, **changes: int) -> trial.Timed:
    """A trial of this runner, alone on its host."""
    clock = HostClock(runner, runner.slots, lambda: None)
    check = Check(runner, runner.call, 0, seed=seed)
    ranks: Any = runner.ranks
    return Trial(clock, check, ranks, itertools.count(1), seed).time({**COMMAND, **changes})


def found(fault: Fault, *, wrong: bool = False, slots: int = 1, trials: int = TRIALS, iterations: int = 100) -> float:
    """Share of trials with fixed seeds that find this fault."""
    problems = [
        timed(Alone(slots, fault, wrong=wrong), seed, iterations=iterations).problem for seed in range(trials)
    ]  # fmt: skip
    return sum(bool(problem) for problem in problems) / trials


@pytest.fixture(autouse=True)
def _all_spot_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number depends on the time that a launch takes; a busy machine must not change what is tested here."""
    monkeypatch.setattr(trial, "_SPOT_SECONDS", 1e9)


def never(_runner: Alone, _launch: int, _slot: int) -> bool:
    return False


def idle_on_known_inputs(runner: Alone, _launch: int, slot: int) -> bool:
    """Works on the first launch of each data set."""
    return bool(runner.seen.get(slot) == runner.x[slot].tobytes())


def idle_on_written_outputs(runner: Alone, _launch: int, slot: int) -> bool:
    """Works where it sees poison."""
    return not np.isnan(runner.y[slot, 0])


def every_second(_runner: Alone, launch: int, _slot: int) -> bool:
    return launch % 2 == 0


def every_second_unless_looked_at(runner: Alone, launch: int, slot: int) -> bool:
    return launch % 2 == 0 and idle_on_written_outputs(runner, launch, slot)


def one_in_ten(seed: int) -> Fault:
    rng = random.Random(seed)
    return lambda _runner, _launch, _slot: rng.random() < 0.1


@pytest.mark.parametrize("slots", [1, 5])
def test_a_right_algorithm_passes_with_as_many_samples_as_asked_for(slots: int) -> None:
    for seed, iterations in enumerate([3, 4, 5, 17, 100]):
        done = timed(Alone(slots, never), seed, iterations=iterations)
        assert (done.problem, len(done.samples)) == ("", iterations)


def test_what_was_judged_is_told() -> None:
    """Ends of batches, spot checks, and the seed from which both were drawn."""
    evidence = timed(Alone(1, never), 7).evidence
    told = evidence["judged"]
    lengths = [int(word.strip(",")) for word in told.split() if word.strip(",").isdigit()][:BATCHES]
    assert sum(lengths) == 100
    assert told.endswith(f"iterations, and {BATCHES * SPOTS} alone; seed 7")
    assert float(evidence["alone_p50_us"]) > 0


@pytest.mark.parametrize("fault", [idle_on_known_inputs, idle_on_written_outputs, every_second])
@pytest.mark.parametrize("iterations", [3, 20, 100])
def test_launches_that_do_nothing_by_rule_are_always_found(fault: Fault, iterations: int) -> None:
    assert found(fault, iterations=iterations, trials=100) == 1


@pytest.mark.parametrize("slots", [1, 5])
def test_every_second_launch_is_found_although_it_works_where_it_sees_poison(slots: int) -> None:
    assert found(every_second_unless_looked_at, slots=slots) >= 0.999


def test_every_second_launch_at_random_is_found() -> None:
    """Half of 24 spot checks are enough: 1 - 0.5 ** 24."""
    rng = random.Random(3)
    assert found(lambda *_: rng.random() < 0.5) == 1


@pytest.mark.parametrize(("wrong", "judged"), [(False, BATCHES * SPOTS), (True, BATCHES * SPOTS + BATCHES)])
def test_one_launch_in_ten_is_found_as_often_as_the_docs_say(wrong: bool, judged: int) -> None:  # noqa: FBT001 - a table
    """1 - 0.9 ** n of n launches that are judged alone; a wrong one is also seen where a batch ends."""
    expected = 1 - 0.9**judged
    share = found(one_in_ten(11), wrong=wrong)
    assert abs(share - expected) <= 3 * math.sqrt(expected * (1 - expected) / TRIALS)


def test_one_launch_in_ten_of_a_chain_is_found() -> None:
    """122 calls: each spot check judges 8 of them."""
    assert found(one_in_ten(5), slots=122, trials=20) == 1


def test_a_spot_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong but what happens behind the last batch."""
    monkeypatch.setattr(trial, "cut", lambda _iterations, _rng: [1, 1, 1])
    problem = timed(Alone(1, lambda _runner, launch, _slot: launch > 3), 0, iterations=3).problem
    assert problem.startswith("in an iteration judged alone, rank 0: slot 0 of 1: ")


def test_batches_are_cut_anywhere_and_add_up() -> None:
    lengths = [cut(20, np.random.default_rng(seed)) for seed in range(300)]
    assert {sum(each) for each in lengths} == {20}
    assert {min(each) for each in lengths} >= {1, 2, 3, 4, 5, 6}
    assert cut(3, np.random.default_rng(0)) == [1, 1, 1]


def test_long_iterations_are_spot_checked_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the timed run, or 20 ms."""
    monkeypatch.setattr(trial, "_SPOT_SECONDS", 0.02)
    counts = [trial._affordable(n, BATCHES, seconds, 0.0) for n, seconds in ((100, 0.0001), (100, 0.01), (3, 0.1))]
    assert counts == [200, 10, 0]
