"""How much the choice is worth against what runs where nobody chooses: NCCL on GPUs, gloo on processors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collbench.report.answer import Lead
from collbench.report.series import Panel, Series
from collbench.results.intervals import interval_of_ratio
from collbench.results.records import Fabric
from collbench.units import format_bytes, format_us

__all__ = ["DECODE_BYTES", "UNKNOWN", "Gain", "gain", "gains", "no_gain", "sentence", "usual"]

DECODE_BYTES = 14336
"""Of one token of a large model; the sentence is about the measured size nearest to it."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Time of `other` over that of the fastest, with its 95 % interval from launches where there are enough."""

    bytes: int
    best: str
    best_us: float
    other: str
    other_us: float
    interval: tuple[float, float] | None

    @property
    def ratio(self) -> float:
        """Above 1: the fastest one is that many times as fast."""
        return self.other_us / self.best_us

    @property
    def words(self) -> str:
        """`5.10x [4.92, 5.31]`."""
        span = "" if self.interval is None else " [{}, {}]".format(*map(format_us, self.interval))
        return f"{format_us(self.ratio)}x{span}"


def usual(panel: Panel) -> Series | None:
    """What runs where nobody chooses: `nccl_auto`, else NCCL's fastest setting here, else gloo; None without them."""
    by_family = [[s for s in panel.series if s.algorithm.startswith(word)] for word in ("nccl_auto", "nccl_", "gloo")]
    return next((some[0] for some in by_family if some), None)


def gains(panel: Panel, leads: Sequence[Lead]) -> dict[int, Gain]:
    """By size, where the usual algorithm has a time, and is neither the fastest itself nor tied with it."""
    other = usual(panel)
    if other is None:
        return {}
    found = {lead.bytes: gain(lead, other) for lead in leads if lead.best is not other and other.name not in lead.ties}
    return {size: one for size, one in found.items() if one is not None}


def gain(lead: Lead, other: Series) -> Gain | None:
    """At one size; None where `other` has no believable time there."""
    point = other.at(lead.bytes)
    if point is None or not point.plausible:
        return None
    interval = interval_of_ratio(point.spread.medians, lead.point.spread.medians)
    return Gain(lead.bytes, lead.best.name, lead.point.p50_us, other.name, point.p50_us, interval)


def no_gain(lead: Lead, other: Series) -> str:
    """Why nothing is gained over `other` at one size, in a word or two."""
    if lead.best is other:
        return "is the fastest"
    return "tied" if other.name in lead.ties else UNKNOWN


UNKNOWN = "not measured"
"""What stands where `other` has no believable time."""


def sentence(panel: Panel, leads: Sequence[Lead], fabric: Fabric, crowding: str = "") -> str:
    """What a manager reads, at the size nearest to a decode step's.

    `crowding` says that ranks took turns on too few hardware threads: then the gain is one of this machine only.
    """
    other = usual(panel)
    if other is None:
        return "" if fabric is Fabric.HOST else "NCCL was not measured in this mode, so there is no gain to tell."
    if len(panel.series) == 1:
        return ""  # the headline says that it alone ran
    found = gains(panel, leads)
    if not found and all(one.algorithm == other.algorithm for one in panel.series):
        return f"Nothing but {other.algorithm} was measured, so there is no gain to tell."
    if not found:
        tied = any(other.name in lead.ties for lead in leads)
        how = "the fastest itself, or tied with it," if tied else "the fastest itself"
        return f"{other.name} is {how} wherever it was measured: there is nothing to gain over it."
    size = min(found, key=lambda size: abs(math.log(size / DECODE_BYTES)))
    one = found[size]
    times = f"{format_us(one.best_us)} us and {one.other} {format_us(one.other_us)} us"
    text = f"At {format_bytes(size)} {one.best} takes {times}: {one.words.replace('x', ' times as fast', 1)}"
    alone = f". {crowding}, which costs each of them differently: no such gain is to be expected elsewhere."
    ending = alone if crowding else "."
    if len(found) == 1:
        return f"{text}{ending}"
    least, most = min(found.values(), key=lambda g: g.ratio), max(found.values(), key=lambda g: g.ratio)
    ends = [f"{format_us(one.ratio)}x at {format_bytes(one.bytes)}" for one in (least, most)]
    told = [no_gain(lead, other) for lead in leads if lead.bytes not in found]
    where = f"over the {len(leads) - told.count(UNKNOWN)} sizes with both" if UNKNOWN in told else "over all sizes"
    return f"{text}; {where} {' to '.join(ends)}{ending}"
