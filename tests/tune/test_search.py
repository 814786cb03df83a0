"""The search finds the fastest of a made-up space, leaves out what fails, stops in time, and goes on later."""

import itertools
import math
import random
from collections.abc import Callable

import pytest

from collbench.results.records import Status
from collbench.tune.search import RUNGS, CellTime, Search, Trial, standings
from collbench.tune.space import Candidate, Space

SPACE = Space({"NCCL_PROTO": ("LL", "LL128", "Simple"), "NCCL_MAX_CTAS": ("1", "2", "4"), "NCCL_NTHREADS": ("256",)})
CANDIDATES = SPACE.candidates(40, 1)
BEST = "PROTO=LL+MAX_CTAS=2"


def true_us(candidate: Candidate) -> float:
    """The fastest is a combination whose parts alone gain little."""
    settings = candidate.settings
    factor = {"LL": 0.97, "LL128": 1.2, "Simple": 2.0}.get(settings.get("NCCL_PROTO", ""), 1.0)
    factor *= {"1": 1.1, "2": 0.96, "4": 1.3}.get(settings.get("NCCL_MAX_CTAS", ""), 1.0)
    factor *= 1.05 if "NCCL_NTHREADS" in settings else 1.0
    return 20 * factor * (0.8 if candidate.name == BEST else 1.0)


class World:
    """A machine whose clock the trials advance, which drifts, and on which some candidates fail."""

    def __init__(self, *, noise: float = 0.01, drift: float = 0.0, faults: dict[str, Status] | None = None) -> None:
        self.now, self.made = 0.0, 0
        self._noise, self._drift, self._faults = noise, drift, faults or {}
        self._draw = random.Random(7)

    def __call__(self, candidate: Candidate, launch: int) -> Trial:
        self.made += 1
        self.now += 1.0
        fault = self._faults.get(candidate.name)
        if fault is not None:
            self.now += 20.0
            return Trial(
                candidate.name, launch, {"a": CellTime(Status.OK, 1.0), "b": CellTime(fault, reason="so it is")}
            )
        scale = (1 + self._drift * self.made) * math.exp(self._draw.gauss(0, self._noise))
        us = true_us(candidate) * scale
        return Trial(candidate.name, launch, {"a": CellTime(Status.OK, us), "b": CellTime(Status.OK, 3 * us)})

    def clock(self) -> float:
        return self.now


def searched(world: World, stop_at: float = math.inf, trials: tuple[Trial, ...] = ()) -> Search:
    search = Search(CANDIDATES, world, trials, world.clock)
    search.measure_default(math.inf)
    search.run(lambda: stop_at)
    return search


@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_the_fastest_is_found(drift: float) -> None:
    """Also where the machine has become twice as slow at the end: everybody is compared with the default beside it."""
    best, *_ = standings(CANDIDATES, searched(World(drift=drift)).trials)
    assert best.candidate.name == BEST
    assert best.launches == max(RUNGS)
    assert best.ratio == pytest.approx(0.97 * 0.96 * 0.8, rel=0.1)


def test_most_candidates_get_one_launch() -> None:
    """Launches go to those that may win: a third has two, a ninth four."""
    trials = searched(World()).trials
    counts = [sum(t.candidate == c.name for t in trials) for c in CANDIDATES if not c.is_default]
    assert sum(n == max(RUNGS) for n in counts) <= math.ceil(len(CANDIDATES) / 9) + 1
    assert sum(n == 1 for n in counts) >= len(CANDIDATES) // 2


@pytest.mark.parametrize(
    "status", [Status.WRONG, Status.HUNG, Status.CRASHED, Status.UNSUPPORTED, Status.OUT_OF_MEMORY]
)
def test_the_fastest_does_not_win_if_it_fails(status: Status) -> None:
    """A cell that is right and quick does not help a candidate whose other cell is not; it gets no second launch."""
    search = searched(World(faults={BEST: status}))
    best, *others = standings(CANDIDATES, search.trials)
    assert best.candidate.name != BEST
    (out,) = (one for one in others if one.candidate.name == BEST)
    assert (out.status, out.reason, out.launches) == (status, "so it is", 1)
    assert math.isnan(out.ratio)


def test_nothing_is_begun_that_would_end_too_late() -> None:
    world = World()
    search = Search(CANDIDATES, world, clock=world.clock)
    search.measure_default(math.inf)
    assert not search.run(lambda: 10.0)
    assert world.now <= 10.0
    left = [one for one in standings(CANDIDATES, search.trials) if one.status is Status.NOT_RUN]
    assert {one.reason for one in left} == {"not measured within the budget"}
    assert len(left) == len(CANDIDATES) - len({t.candidate for t in search.trials})


def test_a_hang_does_not_stop_the_search_early() -> None:
    """Its 21 seconds are no measure of what the next trial takes."""
    world = World(faults={CANDIDATES[1].name: Status.HUNG})
    search = Search(CANDIDATES, world, clock=world.clock)
    search.measure_default(math.inf)
    search.run(lambda: 30.0)
    assert 28 <= world.now <= 30


def test_a_slow_first_launch_does_not_stop_the_search_early() -> None:
    """Starting a fork server took 12 s; what follows takes one second each, and fills the time."""
    world = World()
    world.now = 0.0
    began = False

    def evaluate(candidate: Candidate, launch: int) -> Trial:
        nonlocal began
        world.now += 0.0 if began else 12.0
        began = True
        return world(candidate, launch)

    search = Search(CANDIDATES, evaluate, clock=world.clock)
    search.measure_default(math.inf)
    search.run(lambda: 20.0)
    assert world.now == 20.0


def test_a_trial_that_the_deadline_cut_is_none_and_ends_the_search() -> None:
    world = World()
    search = Search(CANDIDATES, lambda c, n: None if world.made == 3 else world(c, n), clock=world.clock)
    search.measure_default(math.inf)
    assert not search.run(lambda: math.inf)
    assert len(search.trials) == 3


def test_combinations_with_slow_or_failing_parts_come_last() -> None:
    names = [t.candidate for t in searched(World(faults={"PROTO=LL128": Status.HUNG})).trials]
    firsts = [name for name in dict.fromkeys(names) if name.count("=") > 1]
    assert firsts[0] == BEST  # 0.97 x 0.96 of its parts
    broken = [k for k, name in enumerate(firsts) if "LL128" in name]
    assert min(broken) == len(firsts) - len(broken)
    slow = [k for k, name in enumerate(firsts) if "Simple" in name]
    assert min(slow) == len(firsts) - len(broken) - len(slow)


def test_it_goes_on_where_it_stopped() -> None:
    """A search in three pieces makes the trials of one that was not stopped, and the default's at each start."""
    world, trials = World(noise=0.0), tuple[Trial, ...]()
    for stop_at in (9.0, 25.0, math.inf):
        trials = tuple(searched(world, stop_at, trials).trials)
    whole = searched(World(noise=0.0)).trials

    def others(of: "tuple[Trial, ...] | list[Trial]") -> list[tuple[str, int]]:
        return [(t.candidate, t.launch) for t in of if t.candidate != "default"]

    assert others(trials) == others(whole)
    assert len({(t.candidate, t.launch) for t in trials}) == len(trials)


def test_a_default_that_gives_nothing_leaves_nothing_to_compare() -> None:
    search = searched(World(faults={"default": Status.HUNG}))
    assert search.default_is_ok()  # its first cell is right: that one is compared
    nothing = Search(CANDIDATES, lambda c, n: Trial(c.name, n, {"a": CellTime(Status.WRONG, reason="sums")}))
    nothing.measure_default(math.inf)
    assert not nothing.default_is_ok()


def test_the_default_is_measured_again_and_again() -> None:
    names = [t.candidate for t in searched(World()).trials]
    gaps = [i for i, name in enumerate(names) if name == "default"]
    assert max(b - a for a, b in itertools.pairwise(gaps)) <= 9


def _told() -> tuple[list[str], Callable[[Trial], None]]:
    told: list[str] = []
    return told, lambda trial: told.append(trial.candidate)


def test_every_trial_is_told() -> None:
    told, tell = _told()
    world = World()
    search = Search(CANDIDATES, world, clock=world.clock)
    search.run(lambda: math.inf, tell)
    assert told == [trial.candidate for trial in search.trials]
