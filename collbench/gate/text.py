"""The verdicts as a table for a terminal."""

import textwrap
from typing import TYPE_CHECKING

from collbench.gate.names import by_effect, change, fit, headline, interval, short_names, times
from collbench.gate.verdicts import Outcome
from collbench.results.summary import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["text"]

_COLUMNS = ("verdict", "cell", "base_us", "now_us", "change", "95 % interval", "p_holm", "reason")
_RIGHT = {"base_us", "now_us", "change", "95 % interval", "p_holm"}
_LEAVE_FIRST = ("p_holm", "95 % interval", "base_us", "now_us")
_LEAST = {"reason": 24, "cell": 24}
_LONGEST_CELL = 72
_SHORTEST = 8


def text(outcome: Outcome, width: int | None = None) -> str:
    """Headline, faults and notes, then one row per cell, worst first; with `width` no line is longer than that.

    Columns are left out where they do not fit, the least telling first, then names and reasons are cut.
    """
    lines = [headline(outcome)]
    lines += [f"fault: {clean(fault)}" for fault in outcome.faults]
    lines += [f"note: {clean(note)}" for note in outcome.notes]
    lines += [f"not compared: {clean(cell_id)}: {clean(why)}" for cell_id, why in outcome.not_compared]
    if width is not None:
        lines = [part for line in lines for part in textwrap.wrap(line, max(20, width), subsequent_indent="  ")]
    return "\n".join([*lines, *_table(outcome, width)])


def _table(outcome: Outcome, width: int | None) -> list[str]:
    names = short_names(cell.cell_id for cell in outcome.cells)
    rows = []
    for cell in by_effect(outcome.cells):
        p = "-" if cell.p_holm is None else f"{cell.p_holm:.2g}"
        name = names[cell.cell_id] + (" (control)" if cell.control else "")
        rows.append((str(cell.verdict), name, *times(cell), change(cell), interval(cell), p, clean(cell.reason)))
    if not rows:
        return []
    columns = {name: [row[i] for row in rows] for i, name in enumerate(_COLUMNS)}
    columns["cell"] = fit(columns["cell"], _LONGEST_CELL)
    columns = {name: texts for name, texts in columns.items() if any(word not in {"", "-"} for word in texts)}
    if width is not None:
        _squeeze(columns, width)
    return ["", *_lines(columns)]


def _squeeze(columns: dict[str, list[str]], width: int) -> None:
    for name in _LEAVE_FIRST:
        if sum(_widths(columns, least=True)) > width and name in columns:
            del columns[name]
    for name in ("reason", "cell"):
        if name in columns:
            own = max(map(len, (name, *columns[name])))
            room = width - sum(_widths(columns, least=False)) + own
            columns[name] = fit(columns[name], max(_SHORTEST, room))


def _widths(columns: dict[str, list[str]], *, least: bool) -> list[int]:
    """Width of each column with the two spaces before it."""
    found = []
    for i, (name, texts) in enumerate(columns.items()):
        longest = max(map(len, (name, *texts)))
        found.append((min(longest, _LEAST[name]) if least and name in _LEAST else longest) + (2 if i else 0))
    return found


def _lines(columns: dict[str, list[str]]) -> list[str]:
    aligned: list[Sequence[str]] = []
    for name, texts in columns.items():
        longest = max(map(len, (name, *texts)))
        aligned.append([word.rjust(longest) if name in _RIGHT else word.ljust(longest) for word in (name, *texts)])
    return ["  ".join(words).rstrip() for words in zip(*aligned, strict=True)]
