"""Which rank is the last one: a rank for which the others wait shows in every algorithm."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collbench.report.sharing import LEVELS

__all__ = ["last_matrix", "last_ranks"]

_Floats = npt.NDArray[np.float64]
_MOST_RANKS = 32
_CHANCE_SD = 4.0
"""Standard deviations of a share from which on it is no chance, with 12 algorithms of 32 ranks looked at."""


def last_ranks(launches: Sequence[_Floats]) -> _Floats:
    """Part of the iterations in which each rank was the slowest; ranks that are equally slow share an iteration.

    `launches` are latencies as arrays of ranks x iterations.
    """
    counts = np.zeros(launches[0].shape[0])
    for part in launches:
        slowest = part == part.max(axis=0)
        counts += (slowest / slowest.sum(axis=0)).sum(axis=1)
    parts: _Floats = counts / counts.sum()
    return parts


def last_matrix(by_name: Mapping[str, Sequence[_Floats]]) -> dict[str, Any] | None:
    """Shares of each algorithm as a matrix for the template, with its finding; None where no cell has several ranks."""
    kept = {name: launches for name, launches in by_name.items() if launches}
    ranks = max((part.shape[0] for launches in kept.values() for part in launches), default=0)
    kept = {name: [part for part in launches if part.shape[0] == ranks] for name, launches in kept.items()}
    found = {name: last_ranks(launches) for name, launches in kept.items() if launches}
    if not found or not 1 < ranks <= _MOST_RANKS:
        return None
    top = max(float(parts.max()) for parts in found.values())
    lines = [
        (name, [_share(name, rank, float(part), top) for rank, part in enumerate(parts)])
        for name, parts in found.items()
    ]
    counts = {name: sum(part.shape[1] for part in kept[name]) for name in found}
    return {
        "title": "Which rank is the last, % of the iterations of all sizes", "finding": _finding(found, counts, ranks),
        "ranks": list(range(ranks)), "lines": lines,
    }  # fmt: skip


def _finding(found: Mapping[str, _Floats], counts: Mapping[str, int], ranks: int) -> str:
    """Who waits for whom beyond chance; iterations count as independent, so that chance is taken rather too small."""
    even = 1 / ranks
    name = max(found, key=lambda one: float(found[one].max()))
    rank, share = int(found[name].argmax()), float(found[name].max())
    beyond = (share - even) / math.sqrt(even * (1 - even) / counts[name]) > _CHANCE_SD
    what = f"rank {rank} is the last in {share:.0%} of {name}'s iterations"
    if beyond:
        return f"{name} waits most for one rank: {what}, where {even:.1%} would be an even share."
    return f"No rank stands out: at most, {what}, and an even share is {even:.1%}."


def _share(name: str, rank: int, part: float, top: float) -> dict[str, str]:
    shade = f"h{min(LEVELS - 1, int(part / top * LEVELS))}"
    return {"text": f"{100 * part:.0f}", "shade": shade, "title": f"{name}: rank {rank} is the last in {part:.1%}"}
