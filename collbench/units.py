"""Parse and print bytes, durations and rates. KiB = 1024 bytes, GB/s = 1e9 bytes/s, times in microseconds."""

import math
import re
from collections.abc import Mapping
from typing import Any

from collbench.errors import UsageError

__all__ = [
    "MAX_BYTES",
    "about_bytes",
    "format_bytes",
    "format_us",
    "parse_bytes",
    "parse_duration",
    "rounded",
    "six_digits",
]

MAX_BYTES = 1 << 40
"""Largest message size that any command accepts: 1 TiB; above it a typing error is more likely than a wish."""

_BYTES = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)\s*(?P<unit>[kKmMgG]?)(?:i?[bB])?")
_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|)")
_SECONDS = {"ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_bytes(text: str) -> int:
    """Read a size as nccl-tests does: `1K` = 1024, `14336`, `4M`.

    Raises:
        UsageError: not a size, not a whole number of bytes, zero, or above `MAX_BYTES`.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"size {text!r}: expected a number of bytes such as 14336, 1K or 4M")
    value = float(match["number"]) * _FACTOR[match["unit"].lower()]
    if not math.isfinite(value) or value > MAX_BYTES:
        raise UsageError(f"size {text!r} is larger than 1 TiB: give a smaller message size")
    if value < 1 or value != int(value):
        raise UsageError(f"size {text!r}: expected a whole number of bytes, at least 1")
    return int(value)


def parse_duration(text: str) -> float:
    """Read a time span such as `90`, `45s`, `5m`, `1.5h`; gives seconds.

    Raises:
        UsageError: not a time span, or not above zero.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"duration {text!r}: expected a number with s, m or h, such as 45s or 5m")
    seconds = float(match["number"]) * _SECONDS[match["unit"]]
    if not 0 < seconds < float("inf"):
        raise UsageError(f"duration {text!r}: expected more than zero seconds")
    return seconds


def format_bytes(size: int) -> str:
    """Print a size so that `parse_bytes` reads it back: `1K`, `14336`, `4M`."""
    for unit in ("G", "M", "K"):
        factor = _FACTOR[unit.lower()]
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def about_bytes(size: float) -> str:
    """Print a size with two digits: `1.3M`, `960K`, `512`."""
    for unit in ("G", "M", "K"):
        number = size / _FACTOR[unit.lower()]
        if number >= 1:
            return f"{number:.2g}{unit}" if number < 100 else f"{number:.0f}{unit}"  # noqa: PLR2004 - three digits
    return f"{size:.0f}"


def format_us(value: float | None) -> str:
    """Print microseconds with three significant digits; `-` where there is no value."""
    if value is None or not math.isfinite(value):
        return "-"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 2
    return f"{value:.{min(digits, 2)}f}"


def six_digits(value: float) -> float:
    """The number with six significant digits: 4.326599999999999 is 4.3266."""
    return float(f"{value:.6g}")


def rounded(value: object) -> Any:  # noqa: ANN401 - as it came in, for `json.dumps`
    """A JSON value for people's scripts: each fraction in it with six significant digits, whole numbers as they are."""
    if isinstance(value, float):
        return value if value.is_integer() or not math.isfinite(value) else six_digits(value)
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, (list, tuple)) else value
