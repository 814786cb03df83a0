"""Two forecasts side by side: what changes when a machine is rewired."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Change", "Fastest", "changes", "fastest", "only_on"]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One algorithm at one size on both sides; `before` and `after` are rows of `Forecast.rows`."""

    before: Row
    after: Row

    @property
    def ratio(self) -> float:
        """Time after over time before: below 1 is faster."""
        return float(self.after["total_us"] / self.before["total_us"])


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest algorithm of each side at one size."""

    bytes: int
    change: Change


def changes(before: Iterable[Row], after: Iterable[Row]) -> list[Change]:
    """What both sides predict, in the order of the second."""
    known = {(row["algorithm"], row["bytes"]): row for row in before}
    return [Change(known[key], row) for row in after if (key := (row["algorithm"], row["bytes"])) in known]


def fastest(before: Sequence[Row], after: Sequence[Row]) -> list[Fastest]:
    """The best of each side at every size that both have, which may be two different algorithms."""
    best = [_best(rows) for rows in (before, after)]
    return [Fastest(size, Change(best[0][size], best[1][size])) for size in sorted(best[0].keys() & best[1].keys())]


def only_on(one: Iterable[Row], other: Iterable[Row]) -> list[str]:
    """Algorithms that the first side has at some size and the second at none."""
    return sorted({row["algorithm"] for row in one} - {row["algorithm"] for row in other})


def _best(rows: Iterable[Row]) -> dict[int, Row]:
    found: dict[int, Row] = {}
    for row in rows:
        kept = found.get(row["bytes"])
        if kept is None or row["total_us"] < kept["total_us"]:
            found[row["bytes"]] = row
    return found
