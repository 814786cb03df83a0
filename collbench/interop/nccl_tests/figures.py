"""Numbers of a row, checked: what is printed must be a number, and bandwidth must fit size and time."""

import math
import re
from collections.abc import Iterable, Sequence

from collbench.interop.nccl_tests.table import DTYPES, Device, Figures, Row

__all__ = ["figures", "number", "program_of", "ranks_of", "ranks_said", "wrong_of"]

_NUMBER = re.compile(r"[+-]?(?:\d{1,18}(?:\.\d{0,24})?|\.\d{1,24})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_UNKNOWN = {"n/a", "na", "-", "null", ""}
_ABSOLUTE, _RELATIVE = 0.011, 0.012
"""What printing with two decimals, or three significant digits, may hide in a bandwidth."""
_MOST_RANKS = 1 << 16
_TWO_RANKS, _MORE_THAN_TWO_RANKS, _TOO_MANY = 0.95, 1.05, 1.995
"""Ratios of bus to algorithm bandwidth of an all_reduce: 1 for two ranks, towards 2 for so many that none can tell."""


def number(text: str, name: str) -> float:
    """A finite number.

    Raises:
        ValueError: it is none; the text says so under `name`.
    """
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{name} is {text[:24]!r}, expected a number")
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{name} is {text[:24]!r}, expected a finite number")
    return value


def wrong_of(text: str) -> int | None:
    """Wrong elements; None where nobody looked (`N/A`).

    Raises:
        ValueError: neither.
    """
    if text.strip().lower() in _UNKNOWN:
        return None
    value = number(text, "#wrong")
    if value < 0 or value != int(value):
        raise ValueError(f"#wrong is {text[:24]!r}, expected a count")
    return int(value)


def figures(
    size: int, time_text: str, algbw_text: str, busbw_text: str, wrong: int | None, *, cputime: bool = False
) -> Figures:
    """One place of a row.

    Raises:
        ValueError: a field is no number, a time is not above zero, or the bandwidth does not fit.
    """
    time_us = number(time_text, "time")
    algbw, busbw = number(algbw_text, "algbw"), number(busbw_text, "busbw")
    if time_us <= 0 or algbw < 0 or busbw < 0:
        raise ValueError(f"time {time_text[:24]}, algbw {algbw_text[:24]}, busbw {busbw_text[:24]}: expected times "
                         "above zero and no negative bandwidth")  # fmt: skip
    # with -C the time is the processor's, and the bandwidth is not made of it
    if not cputime and not _fits(size / time_us / 1e3, algbw, time_us, time_text):
        raise ValueError(
            f"algbw {algbw_text[:24]} GB/s does not fit {size} bytes in {time_text[:24]} us: another column or unit?"
        )
    return Figures(time_us, algbw, busbw, wrong)


def _fits(expected: float, algbw: float, time_us: float, time_text: str) -> bool:
    mantissa, _, exponent = time_text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    step = 10.0 ** (int(exponent or 0) - decimals)
    hidden = min(0.5, step / 2 / time_us)
    return abs(algbw - expected) <= _ABSOLUTE + (_RELATIVE + hidden) * max(algbw, expected)


def ranks_said(devices: Sequence[Device], per_process: int) -> int:
    """World size by the list of devices; 0 without one.

    With `NCCL_TESTS_SPLIT` the ranks fall into groups, and a group is what communicates. A list that was cut ends
    early, and -J lists only the first device of each process in some releases: then processes are counted.
    """
    if not devices:
        return 0
    groups = [device.group for device in devices]
    if len(set(groups)) > 1:
        return groups.count(min(groups))
    processes = len({(device.host, device.pid) for device in devices})
    most = max(max(device.rank for device in devices) + 1, processes * max(1, per_process))
    return min(most, _MOST_RANKS)


def program_of(rows: Sequence[Row]) -> str:
    """`all_reduce` where the numbers leave nothing else, empty where another program could print the same.

    It sums, one rank's bytes are its elements, and bus bandwidth is above algorithm bandwidth.
    """
    sums = all(row.redop not in {"", "none"} and row.bytes == row.count * _itemsize(row) for row in rows)
    return "all_reduce" if rows and sums and _bus_ratio(rows) > _MORE_THAN_TWO_RANKS else ""


def ranks_of(program: str, rows: Sequence[Row]) -> int:
    """World size that the numbers show, 0 where they show none.

    all_gather, reduce_scatter and alltoall print the bytes of all ranks beside the elements of one; all_reduce has
    bus over algorithm bandwidth of 2 (n - 1) / n (nccl-tests' doc/PERFORMANCE.md).
    """
    if program in {"", "all_gather", "reduce_scatter", "alltoall"}:
        parts = {_share(row) for row in rows if row.count > 0 and row.bytes > 0}
        ranks = parts.pop() if len(parts) == 1 else 0
        return ranks if program or ranks > 1 else 0
    ratio = _bus_ratio(rows) if program == "all_reduce" else 0.0
    if not _TWO_RANKS <= ratio < _TOO_MANY:
        return 0
    ranks = round(2 / (2 - ratio))
    # a step from n to n + 1 ranks changes the ratio by 2 / n / (n + 1)
    return ranks if ranks > 1 and abs(2 - 2 / ranks - ratio) < 0.5 / ranks**2 else 0


def _bus_ratio(rows: Iterable[Row]) -> float:
    """Bus over algorithm bandwidth where rounding hides it least; 0 without a rate of 1 GB/s."""
    rates = [one for row in rows for one in row.places.values() if one.algbw_gbps >= 1]
    best = max(rates, key=lambda one: one.algbw_gbps, default=None)
    return best.busbw_gbps / best.algbw_gbps if best else 0.0


def _itemsize(row: Row) -> int:
    return DTYPES.get(row.dtype, ("", 0))[1]


def _share(row: Row) -> int:
    each = row.count * _itemsize(row)
    return row.bytes // each if each and row.bytes % each == 0 else 0
