"""Whether switching a server's own all-reduce off is advised: only where that was measured, and is the slower one."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from collbench.results.records import Collective
from collbench.units import format_us
from collbench.workload.settings import Setting
from collbench.workload.times import CallTime, Times

__all__ = ["Timed", "kept"]

_CLEAR = 1.05
"""Ratio of times from which one is the slower of a run without intervals: less is a tie on our pages."""


class Timed(Protocol):
    """What is asked of a step: the algorithm, and times of its collectives and of itself in microseconds."""

    @property
    def algorithm(self) -> str:
        """Its name."""

    @property
    def comm_us(self) -> float:
        """All collectives of the step."""

    @property
    def step_us(self) -> float:
        """The step."""

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """Of the step."""


def kept(
    settings: Iterable[Setting], chosen: Timed, steps: Sequence[Timed], times: Times, kind: Collective, size: int
) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Settings that are advised for `chosen`, and a sentence without a full stop for each that is not.

    `steps` are those of the same batch, `size` the bytes of its calls of collective `kind`.
    """
    found, remarks = [], []
    for one in settings:
        own = next((step for step in steps if step.algorithm == one.replaces), None)
        if not one.replaces or (own is not None and times.source == "run" and _slower(own, chosen)):
            found.append(one)
        elif own is None or times.source != "run":
            remarks.append(_unknown(one, chosen.algorithm, times, kind, size))
        else:
            remarks.append(
                f"{one.where}: its default, {one.replaces}, is not slower than {chosen.algorithm} in this run; do not "
                f"set {one.text}"
            )
    return tuple(found), tuple(remarks)


def _slower(own: Timed, chosen: Timed) -> bool:
    if own.interval_us is not None and chosen.interval_us is not None:
        return own.interval_us[0] > chosen.interval_us[1]
    return own.comm_us > _CLEAR * chosen.comm_us


def _unknown(setting: Setting, chosen: str, times: Times, kind: Collective, size: int) -> str:
    text = f"{setting.where}: its default, {setting.replaces}, was not measured at {size} bytes"
    if times.source == "run" and (near := _nearest(setting.replaces, chosen, times, kind, size)):
        at, own, other = near
        text += f" (at {at} it takes {format_us(own.us)} us, {chosen} {format_us(other.us)})"
    return f"{text}, so nothing is advised on {setting.text}"


def _nearest(own: str, chosen: str, times: Times, kind: Collective, size: int) -> tuple[int, CallTime, CallTime] | None:
    """The measured size next to `size` at which both have a time."""
    ours, theirs = times.curve(own, kind), times.curve(chosen, kind)
    both = sorted(ours.keys() & theirs.keys(), key=lambda at: max(at, size) / min(at, size))
    return (both[0], ours[both[0]], theirs[both[0]]) if both else None
