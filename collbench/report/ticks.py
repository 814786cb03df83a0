"""Where a logarithmic axis has its marks: sizes whose names do not run into each other, and times that are enough."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

from collbench.units import format_bytes

__all__ = ["labelled_sizes", "log_axis", "log_ticks"]

_LETTER, _GAP = 9.6, 6.0
"""Points that a letter takes and that lie between two names, in the larger type of a phone."""

_BESIDE, _ABOVE = 32.0, 22.0
"""Points from one time to the next, at least."""

_LEAST = 4
_DECADES = 1000.0
_STEPS = (
    (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
    (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
)  # fmt: skip


def labelled_sizes(sizes: Sequence[int], points: float) -> list[int]:
    """Those of ascending sizes that are named on an axis of that many points from the first to the last.

    Powers of two come first, evenly spaced with the largest among them; then others that still have room.
    """
    if len(sizes) < 2:  # noqa: PLR2004 - one has room
        return list(sizes)
    scale = points / math.log2(sizes[-1] / sizes[0])
    even = [size for size in sizes if size & (size - 1) == 0] or list(sizes)
    steps = (even[::-step][::-1] for step in range(1, len(even) + 1))
    shown = next((some for some in steps if _room(some, scale)), even[-1:])
    for size in (sizes[-1], *sizes):
        more = sorted({*shown, size})
        if size not in even and _room(more, scale):
            shown = more
    return shown


def _room(sizes: Sequence[int], scale: float) -> bool:
    """Whether no two neighbours run into each other."""
    return all(
        scale * math.log2(b / a) >= _LETTER * (len(format_bytes(a)) + len(format_bytes(b))) / 2 + _GAP
        for a, b in itertools.pairwise(sizes)
    )


def log_axis(axes: Any, which: Literal["x", "y"]) -> None:  # noqa: ANN401 - matplotlib has no types
    """Set the marks of a logarithmic axis, which has its limits already."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    place, size = axes.get_position(), axes.figure.get_size_inches()
    across = which == "x"
    points = 72 * (size[0] * place.width if across else size[1] * place.height)
    low, high = axes.get_xlim() if across else axes.get_ylim()
    axis = axes.xaxis if across else axes.yaxis
    axis.set_major_locator(FixedLocator(log_ticks(low, high, points / (_BESIDE if across else _ABOVE))))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def log_ticks(low: float, high: float, room: float = math.inf) -> list[float]:
    """Round values from `low` to `high`: the fewest that are enough, or else as many as there is `room` for.

    These are powers of ten on an axis of three decades or more.
    """
    if high / low >= _DECADES:
        return _multiples(low, high, (1.0,))
    every = [*(_multiples(low, high, steps) for steps in _STEPS), _even(low, high)]
    wide = [some for some in every if _apart(some, room / math.log(high / low))]
    return next((some for some in wide if len(some) >= _LEAST), max(wide or every[:1], key=len))


def _apart(values: Sequence[float], scale: float) -> bool:
    return all(scale * math.log(b / a) >= 1 for a, b in itertools.pairwise(values))


def _multiples(low: float, high: float, steps: Sequence[float]) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = (float(f"{step:g}e{decade}") for decade in decades for step in steps)
    return [value for value in values if low <= value <= high]


def _even(low: float, high: float) -> list[float]:
    """Of an axis so short that it is nearly linear: about five steps of 1, 2 or 5."""
    rough = (high - low) / _LEAST
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(m * decade for m in (5.0, 2.0, 1.0) if m * decade <= rough)
    return [float(f"{i * step:.10g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
