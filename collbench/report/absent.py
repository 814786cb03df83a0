"""Who leads at some sizes and was not measured at others: there the answer is open."""

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.report.series import TIE, Panel
from collbench.units import format_bytes

__all__ = ["Absent", "absent", "listed", "never", "sizes_text"]

_MOST_NAMES = 3
_CHOOSER = "auto"


@dataclass(frozen=True, slots=True)
class Absent:
    """Algorithms that are the fastest, or within `TIE` of it, at `led` and have no cell that ended ok at `missing`.

    Sizes that they do not support are not among the missing ones.
    """

    names: tuple[str, ...]
    led: tuple[int, ...]
    missing: tuple[int, ...]


def absent(panel: Panel) -> list[Absent]:
    """One entry for those that lead and miss the same sizes, the fastest first."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    best = {size: min(_times(panel, size), default=0.0) for size in panel.sizes}
    for one in panel.series:
        refused = panel.unsupported.get(one.name, frozenset())
        led = tuple(p.bytes for p in one.points if p.plausible and p.p50_us < TIE * best[p.bytes])
        missing = tuple(size for size in panel.sizes if one.at(size) is None and size not in refused)
        if led and missing and one.algorithm != _CHOOSER:
            found.setdefault((led, missing), []).append(one.name)
    return [Absent(tuple(names), led, missing) for (led, missing), names in found.items()]


def never(panel: Panel) -> list[str]:
    """Who was planned and not run at any size of the panel: nobody knows how fast they are."""
    ran = {one.name for one in panel.series}
    return [name for name in panel.not_run if name not in ran and name != _CHOOSER]


def _times(panel: Panel, size: int) -> list[float]:
    points = [one.at(size) for one in panel.series if one.algorithm != _CHOOSER]
    return [point.p50_us for point in points if point and point.plausible]


def sizes_text(sizes: Sequence[int], every: Sequence[int]) -> str:
    """`1K`, `1K and 4K`, `1K to 64K` where they are neighbours among `every` size, else a list."""
    first = list(every).index(sizes[0])
    if len(sizes) > 2 and tuple(every[first : first + len(sizes)]) == tuple(sizes):  # noqa: PLR2004 - two are listed
        return f"{format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"
    return listed([format_bytes(size) for size in sizes], len(sizes))


def listed(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """`a and b`, `a, b and c`, `a, b, c and 2 more`."""
    more = len(names) - most
    *first, last = names if more <= 0 else [*names[:most], f"{more} more"]
    return f"{', '.join(first)} and {last}" if first else last
