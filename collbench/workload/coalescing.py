"""What joining calls that do not wait for each other is worth, as far as it was measured or the model says it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collbench.workload.catalog import Workload
from collbench.workload.times import CallTime, Times

__all__ = ["Coalescing", "coalescing"]

_JOINED = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Coalescing:
    """What joining k independent calls of `bytes` into one saves per step, if all of them could be joined.

    `saved_us` is None where a run did not measure both themselves, with intervals; `interval_us` is None of a model.
    """

    batch: int
    algorithm: str
    k: int
    bytes: int
    saved_us: float | None
    interval_us: tuple[float, float] | None


def coalescing(workload: Workload, times: Times, fastest: Mapping[int, str]) -> Iterable[Coalescing]:
    """For the fastest algorithm by batch size: k calls in one, measured as such, or as a call of the joined size."""
    if len(workload.calls) != 1:
        return
    (calls,) = workload.calls
    for batch, name in fastest.items():
        size = workload.bytes_of(calls, batch)
        alone = times.at(name, calls.collective, size)
        for k in _JOINED:
            together = times.joined(name, calls.collective, size, k)
            if together is None:
                larger = times.at(name, calls.collective, k * size)
                together = larger.over(k) if larger else None
            saved, interval = _difference(alone, together, calls.count, measured=times.source == "run")
            yield Coalescing(batch, name, k, size, saved, interval)


def _difference(
    alone: CallTime | None, together: CallTime | None, count: int, *, measured: bool
) -> tuple[float | None, tuple[float, float] | None]:
    """Microseconds saved by `count` calls; of a run only from exact cells with intervals, whose ends face each other.

    Errors of a model are common to both, so that an interval of the difference does not follow from theirs.
    """
    if alone is None or together is None:
        return None, None
    saved = count * (alone.us - together.us)
    if not measured:
        return saved, None
    if alone.how or together.how or not alone.interval_us or not together.interval_us:
        return None, None
    (low, high), (fast, slow) = alone.interval_us, together.interval_us
    return saved, (count * (low - slow), count * (high - fast))
