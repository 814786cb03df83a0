"""What each server is best told: nothing where its default is as fast, a setting only where that was seen to be faster.

A setting is judged by the row of what it starts, never by another row of the same family (`settings.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from collbench.results.records import Collective
from collbench.units import format_us
from collbench.workload.settings import NCCL, PROTOCOLS, Server, Setting
from collbench.workload.times import CallTime, Times

__all__ = ["Choice", "Timed", "choose", "of_steps"]

_CLEAR = 1.05
"""Ratio of times from which one is the slower of a run without intervals: less is a tie on our pages."""


_BELOW = "set the line below, which starts"


class Timed(Protocol):
    """What is asked of a step: the algorithm, and times of its collectives and of itself in microseconds."""

    @property
    def algorithm(self) -> str:
        """Its name."""

    @property
    def call_us(self) -> Mapping[int, float]:
        """One call by bytes."""

    @property
    def comm_us(self) -> float:
        """All collectives of the step."""

    @property
    def step_us(self) -> float:
        """The step."""

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """Of the step."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What one server is told. `settings` are advised, if any; `text` is the sentence to it, without a full stop.

    `algorithm` is what it then runs, empty where that is open.
    """

    where: str
    algorithm: str
    settings: tuple[Setting, ...]
    text: str


def of_steps(steps: Iterable[Timed]) -> dict[str, Timed]:
    """Steps by the algorithm that a setting names, the fastest of its variants; `steps` stand fastest first."""
    found: dict[str, Timed] = {}
    for step in steps:
        found.setdefault(step.algorithm.partition(" ")[0], step)
    return found


def choose(server: Server, steps: Mapping[str, Timed], times: Times, kind: Collective, size: int) -> Choice:
    """Advice on one server; `steps` are those of one batch (`of_steps`), `size` the bytes of its calls of `kind`."""
    own = steps.get(server.default) or (_fastest_nccl(steps) if server.default == NCCL else None)
    known = [one for one in server.settings if one.algorithm in steps and one.algorithm != server.default]
    known.sort(key=lambda one: steps[one.algorithm].comm_us)
    always = tuple(one for one in server.settings if not one.algorithm)
    best = next(iter(known), None)
    name = server.where if server.where == "NCCL" else f"{server.where} {server.release}"
    if own is None or (server.default != NCCL and times.source != "run"):
        return Choice(server.where, "", always, f"{name}: {_unknown(server, known, steps, times, kind, size)}")
    if best is not None and own is steps[best.algorithm]:
        text = f"{name}: {_BELOW} {_us(own)}; what NCCL chooses by itself has no time here: measure both"
        return Choice(server.where, best.algorithm, (best, *always), text)
    if best is not None and _slower(own, steps[best.algorithm], times):
        text = f"{name}: {_BELOW} {_us(steps[best.algorithm])}; {_own(own, server)} takes {_only_us(own)}"
        text += f"; {best.note}" if best.note else ""
        return Choice(server.where, best.algorithm, (best, *always), text + _about(server, steps))
    text = f"{name}: set nothing. {_capital(_own(own, server))} takes {_only_us(own)}"
    text += _others(known, steps, own) + _unmeasured(server, steps, times) + _about(server, steps)
    return Choice(server.where, own.algorithm, always, text)


def _fastest_nccl(steps: Mapping[str, Timed]) -> Timed | None:
    """Stands for what NCCL chooses where only its forced settings have times: the fastest of them, the careful way."""
    forced = (step for name, step in steps.items() if name.startswith("nccl_"))
    found = [step for step in forced if step.algorithm.partition(" ")[0].rpartition("_")[2] in PROTOCOLS]
    return min(found, key=lambda step: step.comm_us, default=None)


def _own(own: Timed, server: Server) -> str:
    stands = own.algorithm.partition(" ")[0] != server.default
    return f"the default, NCCL (at its fastest here, {own.algorithm})," if stands else f"the default, {own.algorithm},"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _us(step: Timed) -> str:
    return f"{step.algorithm}, {_only_us(step)}"


def _only_us(step: Timed) -> str:
    return f"{', '.join(format_us(us) for us in step.call_us.values())} us"


def _about(server: Server, steps: Mapping[str, Timed]) -> str:
    """What else is to be known of its default."""
    text = f". About the default: {server.note}" if server.note else ""
    if server.without:
        time = f", {_only_us(steps[server.without])}" if server.without in steps else ""
        text += f"; without FlashInfer it is {server.without}{time}"
    return text


def _others(known: Sequence[Setting], steps: Mapping[str, Timed], own: Timed) -> str:
    """The fastest that it could be told: its row, its time, and how."""
    if not known:
        return ""
    first = steps[known[0].algorithm]
    but = ", no clear gain" if first.comm_us < own.comm_us else ""
    return f"; {known[0].text} would start {_us(first)}{but}"


def _unmeasured(server: Server, steps: Mapping[str, Timed], times: Times) -> str:
    """Settings for a kernel of somebody else, which the run has no row of."""
    if times.source != "run":
        return ""
    missing = dict.fromkeys(one.algorithm for one in server.settings if "PCIE_IPC" in one.text)
    told = [name for name in missing if name not in steps]
    return f"; {', '.join(told)}, which PCIE_IPC settings start, was not measured" if told else ""


def _slower(own: Timed, chosen: Timed, times: Times) -> bool:
    """Whether it clearly is; errors of a model are common to both, so that its intervals say nothing on that."""
    if times.source == "run" and own.interval_us is not None and chosen.interval_us is not None:
        return own.interval_us[0] > chosen.interval_us[1]
    return own.comm_us > _CLEAR * chosen.comm_us


def _unknown(
    server: Server, known: Sequence[Setting], steps: Mapping[str, Timed], times: Times, kind: Collective, size: int
) -> str:
    text = f"its default, {server.default}, was not measured at {size} bytes"
    if times.source != "run":
        text = f"only a measurement tells whether its default, {server.default}, is slower than others"
    chosen = known[0].algorithm if known else ""
    if times.source == "run" and chosen and (near := _nearest(server.default, chosen, times, kind, size)):
        at, own, other = near
        text += f" (at {at} it takes {format_us(own.us)} us, {chosen} {format_us(other.us)})"
    text += f"{_unmeasured(server, steps, times)}, so nothing is advised"
    if known:
        text += f" on {known[0].text}, which starts {_us(steps[chosen])}"
    if times.source == "run":
        fused = f" --epilogue {times.epilogue}" if times.epilogue else ""
        text += f"; collbench sweep --algorithms {server.default}{fused} --sizes {size} measures it"
    return text + _about(server, steps)


def _nearest(own: str, chosen: str, times: Times, kind: Collective, size: int) -> tuple[int, CallTime, CallTime] | None:
    """The measured size next to `size` at which both have a time."""
    ours, theirs = times.curve(own, kind), times.curve(chosen, kind)
    both = sorted(ours.keys() & theirs.keys(), key=lambda at: max(at, size) / min(at, size))
    return (both[0], ours[both[0]], theirs[both[0]]) if both else None
