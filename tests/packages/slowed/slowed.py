"""A host algorithm that a variable slows down, found through the entry-point group as another package's would be.

`COLLBENCH_DEMO_SLOWDOWN=0.2` makes each call of `slowed_ring` take about 20 % longer: every rank spins for that part of
the time that its call took. With 0 it is `host_ring`.
"""

import dataclasses
import os
import time

from collbench.algorithms.host import ALGORITHMS as HOST
from collbench.algorithms.host import Ring

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
ALGORITHMS = (
    dataclasses.replace(
        _RING, name="slowed_ring", family="slowed", runner="slowed:SlowedRing", imports=(*_RING.imports, "slowed")
    ),
)
