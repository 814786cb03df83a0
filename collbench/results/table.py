"""The table of a run's rows: all of it for scripts, and what fits a terminal for people."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collbench.results.summary import clean
from collbench.results.terminal import wrapped
from collbench.units import format_us

__all__ = ["ENOUGH_ITERATIONS", "grid", "reasons", "squeeze", "table"]

ENOUGH_ITERATIONS = 100
"""Iterations below which p99 is hardly anything but the largest of them."""

_Row = Mapping[str, Any]
_Columns = dict[str, list[str]]

_COLUMNS = (
    "algorithm", "variant", "skew", "mode", "place", "bytes", "calls", "p50_us", "p99_us", "min_us", "floor_us",
    "predicted_us", "iterations", "launches", "status", "flags", "reason",
)  # fmt: skip
_ALWAYS = frozenset({
    "algorithm", "mode", "bytes", "calls", "p50_us", "p99_us", "min_us", "floor_us", "predicted_us", "status",
})  # fmt: skip
_SAID_ONCE = ("variant", "skew", "mode", "calls", "launches", "floor_us", "predicted_us")
"""Columns that a terminal is told in one line where all rows have the same in them."""


_LEAVE_FIRST = ("iterations", "launches", "min_us", "predicted_us", "floor_us", "p99_us")
_NUMBERS = frozenset({"bytes", "calls", "iterations", "launches"})


def table(rows: Sequence[_Row], width: int | None = None) -> str:
    """Text table under the rows' own names; `-` where there is no value.

    Without `width` each row is one line; columns without any value, and the place where all rows have the same, are
    left out, but for the names of the cell, the times and the status. With `width` (characters) only rows with a time
    stand in the table, with what differs between them; what all share stands above, and below it one line for each
    algorithm and reason.
    """
    return _whole(rows) if width is None else "\n".join(_fitting(rows, width))


def _whole(rows: Sequence[_Row]) -> str:
    columns = {name: [_text(row.get(name)) for row in rows] for name in _COLUMNS}
    shown = {name: texts for name, texts in columns.items() if name in _ALWAYS or any(text != "-" for text in texts)}
    if len(set(columns["place"])) <= 1:
        shown.pop("place", None)
    return "\n".join(grid(shown, _is_number))


def _fitting(rows: Sequence[_Row], width: int) -> list[str]:
    timed = [row for row in rows if row.get("p50_us") is not None]
    lines = [wrapped(text, width, 2) for text in [_shared(timed)] if text]
    if timed:
        columns = _differing(timed)
        left_out = squeeze(columns, width, _LEAVE_FIRST)
        lines += grid(columns, _is_number)
        if any(text.endswith("*") for text in columns.get("p99_us", ())):
            lines.append(f"* of fewer than {ENOUGH_ITERATIONS} iterations: close to the largest of them")
        if left_out:
            lines.append(wrapped(f"not shown at {width} characters: {', '.join(left_out)}", width, 2))
    told = [wrapped(text, width, 2) for text in reasons(rows, _has_reason)]
    return [*lines, *([""] if lines and told else []), *told]


def _shared(rows: Sequence[_Row]) -> str:
    """What all rows have in common: `all_reduce of float32, 8 ranks; mode eager, launches 1`."""
    if not rows:
        return ""
    first = rows[0]

    def same(name: str) -> bool:
        return all(row.get(name) == first.get(name) for row in rows)

    words = [f"{first['collective']} of {first['dtype']}"] if same("collective") and same("dtype") else []
    words += [f"{first['world_size']} ranks"] if same("world_size") else []
    told = [f"{name} {text}" for name in _said_once(rows) if (text := _text(first.get(name))) != "-"]
    return "; ".join(part for part in (", ".join(words), ", ".join(told)) if part)


def _said_once(rows: Sequence[_Row]) -> list[str]:
    return [name for name in _SAID_ONCE if len({_text(row.get(name)) for row in rows}) <= 1]


def _differing(rows: Sequence[_Row]) -> _Columns:
    columns = {name: [_text(row.get(name)) for row in rows] for name in _COLUMNS}
    same_place = ["place"] if len(set(columns["place"])) <= 1 else []
    for name in ("status", "reason", *same_place, *_said_once(rows)):
        columns.pop(name, None)
    few = [row.get("iterations", 0) < ENOUGH_ITERATIONS for row in rows]
    if any(few):
        marked = zip(columns["p99_us"], few, strict=True)
        columns["p99_us"] = [f"{text}{'*' if one else ' '}" for text, one in marked]
    return {name: texts for name, texts in columns.items() if any(text.strip("- *") for text in texts)}


def squeeze(columns: _Columns, width: int, leave_first: Sequence[str]) -> list[str]:
    """Take columns away, in this order, until the rest fits; gives their names."""
    gone = []
    for name in leave_first:
        if sum(max(map(len, (head, *texts))) + 2 for head, texts in columns.items()) - 2 <= width:
            break
        if columns.pop(name, None) is not None:
            gone.append(name)
    return gone


def _has_reason(row: _Row) -> bool:
    return row.get("p50_us") is None or bool(row.get("reason"))


def reasons(rows: Sequence[_Row], about: Callable[[_Row], bool]) -> list[str]:
    """Of the rows that it is `about`, one line for each status, algorithm and reason, and of how many of its cells."""
    found: dict[tuple[str, ...], list[_Row]] = {}
    cells: dict[tuple[str, str], int] = {}
    for row in rows:
        name = clean(str(row["algorithm"])), clean(str(row.get("variant") or ""))
        cells[name] = cells.get(name, 0) + 1
        if about(row):
            found.setdefault((str(row["status"]), *name, clean(str(row.get("reason") or ""))), []).append(row)
    longest = max((len(key[0]) for key in found), default=0)
    return [
        f"{status.ljust(longest)}  {' '.join(filter(None, (name, variant)))}, {_which(some, cells[name, variant])}"
        f": {reason or 'no reason was recorded'}"
        for (status, name, variant, reason), some in found.items()
    ]


def _which(some: Sequence[_Row], of: int) -> str:
    """`8 of 8 cells`, or the only one: `eager, 4096 bytes, 122 calls`."""
    if len(some) > 1 or of == 1:
        return f"{len(some)} of {of} cells" if of > 1 else "its only cell"
    (row,) = some
    calls = "1 call" if row["calls"] == 1 else f"{row['calls']} calls"
    return f"{row['mode']}, {row['bytes']} bytes, {calls}"


def grid(columns: Mapping[str, Sequence[str]], is_number: Callable[[str], bool]) -> list[str]:
    """Lines of aligned columns below their names; numbers stand to the right."""
    aligned = []
    for name, texts in columns.items():
        longest = max(map(len, (name, *texts)))
        right = is_number(name)
        aligned.append([text.rjust(longest) if right else text.ljust(longest) for text in (name, *texts)])
    return ["  ".join(line).rstrip() for line in zip(*aligned, strict=True)]


def _is_number(name: str) -> bool:
    return name.endswith("_us") or name in _NUMBERS


def _text(value: object) -> str:
    if isinstance(value, float):
        return format_us(value)
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return clean(str(value)) or "-" if value is not None else "-"
