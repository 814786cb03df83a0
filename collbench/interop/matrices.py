"""Matrices of numbers between devices, as p2pBandwidthLatencyTest and nvbandwidth print them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.errors import InvalidError
from collbench.topology.captured_text import lines_of

__all__ = ["Matrix", "MatrixError", "PciDevice", "Values", "header_of", "read_rows", "stripped"]

_CORNERS = frozenset({"D\\D", "GPU", "CPU", "Dst->", "D/D", "GPU(row)"})
_INDEX = re.compile(r"\d{1,4}", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{0,9})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_NONE = frozenset({"n/a", "-", "\u2014", "\u2013", "x", "nan", "*"})
_PREFIX = re.compile(r"\s*(?:\[[\w.-]{1,80}(?:,[\w.-]{1,80}){1,3}\]\s?<std(?:out|err)>:? ?|\[\d{1,6}\]: |\d{1,6}: )")
_LONGEST = 20_000


Values = dict[tuple[int, int], float | None]
"""Numbers by (row, column); None where the program has none."""


class MatrixError(InvalidError):
    """Output with matrices that cannot be read: names the line, quotes it, says what was expected."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A GPU as the program numbers it; `busid` as `0000:bb:dd.0`, empty where it is not printed."""

    index: int
    model: str
    busid: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """Values by (row, column), None where the program has none; `corner` is the word above the row numbers."""

    corner: str
    columns: tuple[int, ...]
    values: Mapping[tuple[int, int], float | None]

    @property
    def rows(self) -> tuple[int, ...]:
        """Numbers of the rows in order."""
        return tuple(dict.fromkeys(row for row, _ in self.values))

    @property
    def total(self) -> float:
        """Sum of all values."""
        return math.fsum(value for value in self.values.values() if value is not None)


def stripped(text: str) -> list[str]:
    """Lines without colours, tags and the prefixes of mpirun and srun."""
    found = []
    for line in lines_of(text):
        match = _PREFIX.match(line[:200]) if "[" in line[:10] or ":" in line[:8] else None
        found.append(line[match.end() : _LONGEST] if match else line[:_LONGEST])
    return found


def header_of(line: str) -> tuple[str, tuple[int, ...]] | None:
    r"""Corner and column numbers of a line above a matrix: `D\D 0 1 2`, `GPU 0 1`, or `0 1 2` alone."""
    words = line.replace("|", " ").split()
    corner = words[0] if words and words[0] in _CORNERS else ""
    numbers = words[1:] if corner else words
    if not numbers or not all(_INDEX.fullmatch(word) for word in numbers):
        return None
    columns = tuple(int(word) for word in numbers)
    return (corner, columns) if columns == tuple(range(columns[0], columns[0] + len(columns))) else None


def read_rows(lines: Sequence[str], start: int, columns: tuple[int, ...]) -> tuple[Values, int]:
    """Rows of a matrix from line `start` on: values by (row, column), and the line behind the last row.

    Raises:
        ValueError: a row whose values are no numbers, or of which there are not as many as columns; the second
            argument is the line's index.
    """
    values: Values = {}
    index, before = start, -1
    while index < len(lines):
        words = lines[index].replace("|", " ").split()
        if len(words) < 2 or not _INDEX.fullmatch(words[0]) or int(words[0]) <= before:  # noqa: PLR2004 - a number and a value
            break
        if len(words) != len(columns) + 1:
            raise ValueError(f"{len(words) - 1} values, expected {len(columns)} under the header", index)
        before = int(words[0])
        for column, word in zip(columns, words[1:], strict=True):
            values[before, column] = _value(word, index)
        index += 1
    return values, index


def _value(word: str, index: int) -> float | None:
    if word.lower() in _NONE:
        return None
    if not _NUMBER.fullmatch(word) or not math.isfinite(float(word)):
        raise ValueError(f"{word[:24]!r} is no number", index)
    return float(word)
