"""Time of a captured chain of calls on this rank, for choosing a grid: no verification, no samples kept."""

from collections.abc import Callable
from itertools import pairwise

from collbench.algorithms.cuda_buffers import wait_event

__all__ = ["CALLS", "drain", "eager_us", "graph_us"]

CALLS = 40
"""Calls in one chain."""

_REPLAYS = 6


def drain(deadline_s: float, what: str) -> None:
    """Wait until the default and the current stream are through.

    Raises:
        TimeoutError: they are not within the deadline.
    """
    import torch

    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    for stream in (torch.cuda.default_stream(), torch.cuda.current_stream()):
        done.record(stream)
        wait_event(done, deadline_s, what)


def eager_us(launch: Callable[[int], None], deadline_s: float) -> float:
    """Microseconds per call of one chain launched call by call, behind a first call that brings the ranks together."""
    launch(0)

    def several() -> None:
        for _ in range(CALLS):
            launch(0)

    return _timed(several, 1, deadline_s)[0] / CALLS


def graph_us(launch: Callable[[int], None], slots: int, meet: Callable[[], None], deadline_s: float) -> float:
    """Median microseconds per call of a few replays of a captured chain; the first replay brings the ranks together.

    `meet` is a barrier of all ranks, entered when everything is enqueued that may take long on the host.
    """
    import torch

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    try:
        with torch.cuda.stream(stream):
            launch(0)
            drain(deadline_s, "the warm-up of a grid")
            graph.capture_begin(capture_error_mode="thread_local")
            for k in range(CALLS):
                launch(k % slots)
            graph.capture_end()
            meet()
            times = sorted(_timed(graph.replay, _REPLAYS, deadline_s)[1:])
    finally:
        graph.reset()
    return times[len(times) // 2] / CALLS


def _timed(work: Callable[[], None], repeats: int, deadline_s: float) -> list[float]:
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    wait_event(events[-1], deadline_s, "a call that is tuned")
    return [a.elapsed_time(b) * 1000 for a, b in pairwise(events)]
