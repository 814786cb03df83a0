"""Taking times: one sample is `calls` launches back to back from an aligned start, in microseconds per call."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from collbench.algorithms.base import Runner

__all__ = ["Clock", "HostClock"]


class Clock(ABC):
    """Times one runner in one mode. A context manager: a captured graph lives as long as the clock."""

    def __init__(self, runner: Runner, calls: int, align: Callable[[], None]) -> None:
        self.runner = runner
        self.calls = calls
        self.align = align

    @abstractmethod
    def samples(self, iterations: int) -> list[float]:
        """Take `iterations` samples; this rank's time per call in microseconds, each from an aligned start.

        Raises:
            TimeoutError: a launch did not end within the ranks' deadline.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class HostClock(Clock):
    """Algorithms that return when they are done: `perf_counter_ns` around the calls."""

    def samples(self, iterations: int) -> list[float]:
        """See `Clock.samples`."""
        launch, slots, now = self.runner.launch, range(self.calls), time.perf_counter_ns
        taken = []
        for _ in range(iterations):
            self.align()
            begin = now()
            for slot in slots:
                launch(slot)
            taken.append((now() - begin) / (1000 * self.calls))
        return taken
