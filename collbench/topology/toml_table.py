"""TOML tables that know where they stand, so that every complaint names file and line."""

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collbench.topology.graph import TopologyError

__all__ = ["MAX_CHARS", "Document", "Place", "Table", "parse_toml"]

MAX_CHARS = 1 << 20
"""Longest text that is read: a machine file has a few kilobytes, so a larger one is something else."""

type_names: Mapping[type, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes", list: "a list",
    dict: "a table",
}  # fmt: skip

Place = tuple[str | int, ...]
"""Keys and list positions from the top of the file: `("gpus", 1, "id")`."""

_BITS = 63
_TOO_LONG = "a whole number has more than TOML's 64 bits"
_HEADER = re.compile(r"\s*(?P<open>\[\[?)\s*(?P<name>[A-Za-z0-9_\-.\s]+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*(?P<name>[A-Za-z0-9_\-]+(?:\s*\.\s*[A-Za-z0-9_\-]+)*)\s*=")
_AT_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)|\s*\(at end of document\)")


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML text; all TOML of collbench is read here.

    Raises:
        ValueError: no TOML, lists in lists without end, or a whole number of more than TOML's 64 bits.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python reads up to 4,300 digits
        raise ValueError(_TOO_LONG) from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    left: list[Any] = [values]
    while left:
        value = left.pop()
        if isinstance(value, dict | list):
            left.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, int) and value.bit_length() > _BITS:
            raise ValueError(_TOO_LONG)
    return values


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed TOML text with the line of each table and key."""

    file: str
    values: dict[str, Any]
    lines: Mapping[Place, int]

    @classmethod
    def parse(cls, text: str, file: str) -> "Document":
        """Parse `text`; `file` is what complaints call it.

        Raises:
            TopologyError: no TOML, or longer than `MAX_CHARS`.
        """
        if len(text) > MAX_CHARS:
            raise TopologyError(f"{file}: {len(text)} characters, expected a TOML file of at most {MAX_CHARS}")
        try:
            values = parse_toml(text)
        except ValueError as error:
            found = _AT_LINE.search(str(error))
            line = f":{found[1] or text.count(chr(10)) + 1}" if found else ""
            raise TopologyError(f"{file}{line}: no TOML: {_AT_LINE.sub('', str(error))}") from error
        return cls(file, values, _line_index(text))

    def line(self, place: Place) -> int:
        """Line of what stands at `place`, or of the nearest table around it."""
        return next((self.lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in self.lines), 1)

    def top(self) -> "Table":
        """The whole file as a table."""
        return Table(self, (), self.values)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a document; the getters check types and name the place of what they refuse."""

    document: Document
    place: Place
    values: Mapping[str, Any]

    def error(self, key: str | None, message: str) -> TopologyError:
        """Complaint about a key (None: about the table as a whole)."""
        place = self.place if key is None else (*self.place, key)
        return TopologyError(f"{self.document.file}:{self.document.line(place)}: {message}")

    def only(self, allowed: Iterable[str]) -> None:
        """Refuse every key that is not in `allowed`.

        Raises:
            TopologyError: names the key, the nearest allowed one, and all of them.
        """
        known = list(allowed)
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
                raise self.error(key, f"unknown key {key!r} in {self._title()}: {hint}")

    def text(self, key: str, default: str | None = None) -> str:
        """Text of a key; without `default` the key must be there and not be empty."""
        value = self._get(key, str, default)
        if default is None and not value.strip():
            raise self.error(key, f"{key} is empty, expected a text")
        return str(value)

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        """Whole number in [low, high]."""
        value = self._get(key, int, default)
        if value != default and not low <= value <= high:
            raise self.error(key, f"{key} = {value}, expected {low} to {high}")
        return int(value)

    def flag(self, key: str) -> bool:
        """Truth value, false where the key is missing."""
        return bool(self._get(key, bool, default=False))

    def positive_pair(self, key: str) -> tuple[float | None, float | None]:
        """A number above zero for both directions, or a list of two: forward, back. (None, None) where missing."""
        value = self.values.get(key)
        if value is None:
            return None, None
        both = value if isinstance(value, list) else [value, value]
        if len(both) != 2:  # noqa: PLR2004 - a link has two directions
            raise self.error(key, f"{key} lists {len(both)} numbers, expected one, or two: [forward, back]")
        return self._positive(key, both[0]), self._positive(key, both[1])

    def table(self, key: str) -> "Table | None":
        """The table below a key, None where missing."""
        value = self._get(key, dict, {})
        return Table(self.document, (*self.place, key), value) if key in self.values else None

    def tables(self, key: str) -> tuple["Table", ...]:
        """The tables of a list such as `[[gpus]]`."""
        rows = self._get(key, list, [])
        for index, row in enumerate(rows):
            if not isinstance(row, dict):
                raise self.error(key, f"{key}[{index}] is {_type_name(row)}, expected a table")
        return tuple(Table(self.document, (*self.place, key, index), row) for index, row in enumerate(rows))

    def texts(self, key: str) -> tuple[str, ...]:
        """A text, or a list of texts; empty where missing."""
        value = self.values.get(key, [])
        rows = [value] if isinstance(value, str) else value
        if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
            raise self.error(key, f"{key}: expected a text in quotes or a list of them")
        return tuple(rows)

    def _positive(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"{key} is {_type_name(value)}, expected a number")
        if not 0 < value < math.inf:
            raise self.error(key, f"{key} = {value}, expected a finite number above zero")
        return float(value)

    def _get(self, key: str, kind: type, default: Any) -> Any:  # noqa: ANN401 - checked here, narrowed by the callers
        if key not in self.values:
            if default is None:
                raise self.error(None, f"{self._title()} has no {key!r}")
            return default
        value = self.values[key]
        if type(value) is not kind:
            raise self.error(key, f"{key} is {_type_name(value)}, expected {type_names[kind]}")
        return value

    def _title(self) -> str:
        names = [str(part) for part in self.place if isinstance(part, str)]
        if not names:
            return "the file"
        return f"[[{names[0]}]]" if isinstance(self.place[-1], int) else f"[{'.'.join(names)}]"


def _type_name(value: object) -> str:
    return type_names.get(type(value), type(value).__name__)


def _line_index(text: str) -> dict[Place, int]:
    """Line of each header and key. Values that span lines count with the line of their key."""
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    base: Place = ()
    quoted = False
    for number, line in enumerate(text.split("\n"), 1):
        opens = line.count('"""') + line.count("'''")
        if not quoted and (header := _HEADER.fullmatch(line)):
            base = _enter(header, counts)
            lines.setdefault(base, number)
        elif not quoted and (key := _KEY.match(line)):
            place = base
            for part in re.split(r"\s*\.\s*", key["name"]):
                place = (*place, part)
                lines.setdefault(place, number)
        quoted ^= opens % 2 == 1
    return lines


def _enter(header: re.Match[str], counts: dict[Place, int]) -> Place:
    *above, last = re.split(r"\s*\.\s*", header["name"])
    place: Place = ()
    for part in above:
        place = (*place, part)
        place = (*place, counts[place]) if place in counts else place
    place = (*place, last)
    if header["open"] == "[[":
        counts[place] = counts.get(place, -1) + 1
        place = (*place, counts[place])
    return place
