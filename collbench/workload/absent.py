"""What has no time; and who is the fastest where it ran, but not at the size of a step: then the answer is open."""

from collections.abc import Collection, Iterable

from collbench.results.records import Collective
from collbench.units import format_us
from collbench.workload.times import Times

__all__ = ["Missing", "absent", "grouped"]

_NEAR = 1.05
_MOST_NAMES = 3


Missing = tuple[str, str]
"""Bytes that an algorithm has no time at, and its name; or what is missing of all, and nothing."""


def grouped(missing: Iterable[Missing]) -> tuple[str, ...]:
    """One sentence for all algorithms that lack the same sizes."""
    lacking: dict[str, list[str]] = {}
    for size, name in dict.fromkeys(missing):
        lacking.setdefault(name, []).append(size)
    names: dict[str, list[str]] = {}
    for name, sizes in lacking.items():
        names.setdefault(", ".join(sizes), []).append(name)
    return tuple(f"no time at {what} bytes: {', '.join(of)}" if any(of) else what for what, of in names.items())


def absent(times: Times, kind: Collective, sizes: Collection[int], known: Collection[str], best: str) -> str:
    """A sentence without a full stop on those that lead, or nearly, at a measured size and are not among the `known`.

    Empty where there are none. `sizes` are the bytes of the calls, `best` is who is the fastest of the known ones. What
    does not support these sizes is no candidate.
    """
    curves = {name: times.curve(name, kind) for name in times.algorithms(kind)}
    least = {size: min(c[size].us for c in curves.values() if size in c) for size in _sizes(curves.values())}
    found = {
        name: [size for size, time in curve.items() if time.us < _NEAR * least[size]]
        for name, curve in curves.items()
        if name not in known and not any(times.refuses(name, kind, size) for size in sizes)
    }
    leading = sorted((name for name, led in found.items() if led), key=lambda name: curves[name][found[name][0]].us)
    if not leading:
        return ""
    first, at = leading[0], found[leading[0]][-1]
    told = f"at {at} {first} takes {format_us(curves[first][at].us)} us"
    if at in curves.get(best, {}):
        told += f" and {best} {format_us(curves[best][at].us)}"
    more = len(leading) - _MOST_NAMES
    names = ", ".join(leading[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    where = ", ".join(map(str, sizes))
    return f"Who is the fastest at {where} bytes is open: not run there, though the fastest elsewhere: {names} ({told})"


def _sizes(curves: Collection[Collection[int]]) -> set[int]:
    return {size for curve in curves for size in curve}
