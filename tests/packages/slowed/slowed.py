"""Algorithms that a variable slows down, found through the entry-point group as another package's would be.

`COLLBENCH_DEMO_SLOWDOWN=0.2` makes each call of `slowed_ring` (`host_ring` between CPU ranks) take about 20 % longer:
every rank spins for that part of the time that its call took. Each call of `slowed_push` (`push_flags` between GPUs)
gets a kernel that sleeps behind it, whatever the number is. With 0 both are what they were made of.
"""

import dataclasses
import os
import time

from collbench.algorithms.host import ALGORITHMS as HOST
from collbench.algorithms.host import Ring
from collbench.algorithms.push import ALGORITHMS as PUSH

SLOWDOWN = float(os.environ.get("COLLBENCH_DEMO_SLOWDOWN", "0"))


class SlowedRing(Ring):
    """`host_ring`, then a spin."""

    def launch(self, i: int) -> None:
        start = time.perf_counter_ns()
        super().launch(i)
        if SLOWDOWN:
            now = time.perf_counter_ns()
            end = now + SLOWDOWN * (now - start)
            while time.perf_counter_ns() < end:
                pass


_RING = next(algorithm for algorithm in HOST if algorithm.name == "host_ring")
_PUSH = next(algorithm for algorithm in PUSH if algorithm.name == "push_flags")
ALGORITHMS = (
    dataclasses.replace(
        _RING, name="slowed_ring", family="slowed", runner="slowed:SlowedRing", imports=(*_RING.imports, "slowed")
    ),
    dataclasses.replace(_PUSH, name="slowed_push", family="slowed", runner="slowed_gpu:SlowedPush"),
)
