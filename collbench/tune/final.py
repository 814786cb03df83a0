"""The finalist against the default, in pairs of fresh launches: the search's own times are the luckiest of many."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from collbench.results.records import Status
from collbench.tune.search import Trial
from collbench.tune.space import Candidate

__all__ = ["Final", "Interval", "PairedRatio", "judge_final"]


class Interval(Protocol):
    """A ratio, candidate over default, and the ends of its 95 % interval."""

    @property
    def ratio(self) -> float:
        """Candidate over default."""

    @property
    def lower(self) -> float:
        """Lower end."""

    @property
    def upper(self) -> float:
        """Upper end."""


PairedRatio = Callable[[Sequence[float], Sequence[float]], Interval]
"""From launch times of default and candidate, pair by pair; `gate.paired.paired_ratio`."""


@dataclass(frozen=True, slots=True)
class Final:
    """What the pairs say: `overall` is of each launch's geometric mean over cells, `cells` of each cell alone.

    Values are (default us, candidate us, ratio, lower, upper), microseconds as geometric means. Empty, with a `status`
    and reason, where a launch of either side was not ok.
    """

    candidate: Candidate
    pairs: int
    status: Status = Status.OK
    reason: str = ""
    overall: tuple[float, float, float, float, float] | None = None
    cells: Mapping[str, tuple[float, float, float, float, float]] = field(default_factory=dict)

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval lies below the default's time."""
        return self.overall is not None and self.overall[4] < 1

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        names = ("default_us", "candidate_us", "ratio", "lower", "upper")
        return {
            "candidate": self.candidate.name, "pairs": self.pairs, "status": str(self.status), "reason": self.reason,
            "overall": dict(zip(names, self.overall, strict=True)) if self.overall else None,
            "cells": [{"cell_id": key, **dict(zip(names, of, strict=True))} for key, of in self.cells.items()],
        }  # fmt: skip


def judge_final(
    candidate: Candidate, default: str, trials: Sequence[Trial], pairs: int, paired_ratio: PairedRatio
) -> Final:
    """Judge the launches 0 .. pairs-1 of both. Cells that the default cannot do are left out."""
    sides = [{t.launch: t for t in trials if t.candidate == name} for name in (default, candidate.name)]
    made = len(sides[0].keys() & sides[1].keys())
    if made < pairs:
        return Final(candidate, made, Status.NOT_RUN, f"{made} of {pairs} pairs of launches were made")
    keys = [key for key, cell in sides[0][0].cells.items() if cell.status is Status.OK]
    for side, name in zip(sides, (default, candidate.name), strict=True):
        for launch in range(pairs):
            for key in keys:
                cell = side[launch].cells[key]
                if cell.status is not Status.OK:
                    return Final(candidate, made, cell.status, f"{name}, launch {launch}: {cell.reason}")
    times = {key: [[side[k].cells[key].us for k in range(pairs)] for side in sides] for key in keys}
    base, own = ([_mean([times[key][side][k] for key in keys]) for k in range(pairs)] for side in (0, 1))
    return Final(
        candidate, made, overall=_row(base, own, paired_ratio),
        cells={key: _row(both[0], both[1], paired_ratio) for key, both in times.items()},
    )  # fmt: skip


def _row(
    base: Sequence[float], own: Sequence[float], paired_ratio: PairedRatio
) -> tuple[float, float, float, float, float]:
    found = paired_ratio(base, own)
    return _mean(base), _mean(own), found.ratio, found.lower, found.upper


def _mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))
