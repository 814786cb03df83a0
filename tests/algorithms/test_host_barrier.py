"""The barrier lets nobody through early and waits for nobody for ever."""

import os
import signal
import time
from statistics import median
from typing import Any

import pytest

from collbench.algorithms.host_barrier import HostBarrier


@pytest.mark.parametrize("world", [1, 2, 8])
def test_nobody_leaves_before_everybody_has_come(forked: Any, world: int) -> None:
    """For each turn, the last arrival is before the first departure, also when a rank comes late."""

    def body(ranks: Any) -> list[tuple[float, float]]:
        stamps = []
        with HostBarrier.open(ranks) as barrier:
            for turn in range(100):
                if turn % 10 == ranks.rank:
                    time.sleep(1e-3)
                come = time.monotonic()
                barrier.wait()
                stamps.append((come, time.monotonic()))
        return stamps

    outcomes = forked(world, body)
    assert [o.error for o in outcomes] == [""] * world
    for turn in range(100):
        assert max(o.value[turn][0] for o in outcomes) <= min(o.value[turn][1] for o in outcomes)


def test_it_takes_microseconds(forked: Any) -> None:
    """Eight ranks meet within a millisecond in the median; waiting without yielding takes 16 ms on two cores."""

    def body(ranks: Any) -> float:
        times = []
        with HostBarrier.open(ranks) as barrier:
            for _ in range(500):
                start = time.perf_counter()
                barrier.wait()
                times.append(time.perf_counter() - start)
        return median(times)

    assert max(o.value for o in forked(8, body)) < 1e-3


def test_a_dead_rank_is_named(forked: Any) -> None:
    """Who waited for whom is in the error, within the deadline."""

    def body(ranks: Any) -> None:
        with HostBarrier.open(ranks) as barrier:
            barrier.wait()
            if ranks.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            barrier.wait()

    outcomes = forked(3, body, deadline_s=0.3)
    assert [o.error.split(" (flag")[0] for o in outcomes] == [
        "TimeoutError: rank 0 waited for rank 2 (barrier): no answer within 0.3 s",
        "TimeoutError: rank 1 waited for rank 2 (barrier): no answer within 0.3 s",
        "died",
    ]
