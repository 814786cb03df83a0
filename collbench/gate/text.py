"""The verdicts as a table for a terminal."""

from collections.abc import Sequence

from collbench.gate.names import by_effect, change, fit, headline, interval, short_names, times
from collbench.gate.reasons import change_note, faults, not_compared, reasons, with_numbers
from collbench.gate.verdicts import CellVerdict, Outcome
from collbench.results.summary import clean
from collbench.results.table import grid
from collbench.results.terminal import wrapped
from collbench.wording import counted

__all__ = ["text"]

_COLUMNS = ("verdict", "cell", "base_us", "now_us", "change", "95 % interval", "p_holm", "reason")
_WORDS = {"verdict", "cell", "reason"}
_LEAVE_FIRST = ("p_holm", "base_us", "now_us")
_SHORTEST_CELL, _LONGEST_CELL = 24, 72


def text(outcome: Outcome, width: int | None = None) -> str:
    """Headline, faults and notes, then one row per cell, worst first.

    Without `width` each row is one line with its reason, for scripts. With `width` no line is longer: reasons stand
    below the table, once for all cells that share one, and columns that do not fit are left out, the least telling
    first.
    """
    lines = [headline(outcome)]
    lines += [f"fault: {clean(fault)}" for fault in faults(outcome)]
    lines += [f"note: {clean(note)}" for note in outcome.notes]
    lines += [f"not compared: {clean(one)}" for one in not_compared(outcome)]
    told = [] if width is None else reasons(outcome)
    note = change_note(outcome)
    told += [note] if note else []
    shown = by_effect(outcome.cells) if width is None else with_numbers(outcome)
    table, left_out = _table(outcome, shown, width)
    if rest := len(outcome.cells) - len(shown):
        told.append(f"{counted(rest, 'cell')} without times not listed; --json has all")
    if left_out:
        told.append(f"not shown at {width} characters: {', '.join(left_out)}")
    blocks = [[wrapped(clean(line), width, 2) for line in lines], table, [wrapped(clean(t), width, 2) for t in told]]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _table(outcome: Outcome, cells: Sequence[CellVerdict], width: int | None) -> tuple[list[str], list[str]]:
    """Lines of the table, and the names of the columns that did not fit."""
    names = short_names(cell.cell_id for cell in outcome.cells)
    rows = []
    for cell in cells:
        p = "-" if cell.p_holm is None else f"{cell.p_holm:.2g}"
        name = names[cell.cell_id] + (" (control)" if cell.control else "")
        rows.append((str(cell.verdict), name, *times(cell), change(cell), interval(cell), p, clean(cell.reason)))
    if not rows:
        return [], []
    columns = {name: [row[i] for row in rows] for i, name in enumerate(_COLUMNS)}
    columns["cell"] = fit(columns["cell"], _LONGEST_CELL)
    columns = {name: texts for name, texts in columns.items() if any(word not in {"", "-"} for word in texts)}
    left_out = [] if width is None else _squeeze(columns, width)
    return grid(columns, lambda name: name not in _WORDS), left_out


def _squeeze(columns: dict[str, list[str]], width: int) -> list[str]:
    """Take columns away until the rest fits, then cut the names of cells; gives the names of the columns."""
    columns.pop("reason", None)
    gone = []
    for name in (*_LEAVE_FIRST, "95 % interval"):
        room = _SHORTEST_CELL if name == "95 % interval" else _LONGEST_CELL
        if _width(columns, room) > width and columns.pop(name, None) is not None:
            gone.append(name)
    columns["cell"] = fit(columns["cell"], max(_SHORTEST_CELL, _longest(columns, "cell") + width - _width(columns)))
    return gone


def _width(columns: dict[str, list[str]], longest_cell: int = _LONGEST_CELL) -> int:
    """Characters of a line, were no cell's name longer than this."""
    widths = [min(_longest(columns, name), longest_cell if name == "cell" else 999) + 2 for name in columns]
    return sum(widths) - 2


def _longest(columns: dict[str, list[str]], name: str) -> int:
    return max(map(len, (name, *columns[name])))
