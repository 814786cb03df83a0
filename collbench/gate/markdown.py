"""The verdicts for a step summary or a comment, and as annotations of a run on GitHub."""

from collections.abc import Sequence

from collbench.gate.names import by_effect, change, headline, interval, short_names, times
from collbench.gate.reasons import change_note, faults, not_compared, with_numbers
from collbench.gate.verdicts import CellVerdict, Outcome, Verdict
from collbench.results.markdown import plain
from collbench.results.summary import clean
from collbench.wording import counted

__all__ = ["MAX_SUMMARY_BYTES", "MOST_ANNOTATIONS", "annotations", "markdown"]

MAX_SUMMARY_BYTES = 1 << 20
"""Largest step summary that GitHub shows (documentation of workflow commands)."""

MOST_ANNOTATIONS = 10
"""Most annotations of one kind that GitHub shows for a step (same source)."""

_ROWS = 200
_SHORT = 10
_PIECE = 300


def markdown(outcome: Outcome, *, short: bool = False) -> str:
    """Headline, what stands against a verdict, notes, and a table, worst first; `short` shows ten rows.

    Below `MAX_SUMMARY_BYTES` whatever the names are; what was left out is counted.
    """
    lines = [f"### collbench gate: {outcome.verdict}", "", plain(headline(outcome)) + ".", ""]
    lines += _listed("Why there is no verdict", faults(outcome))
    lines += _listed("Notes", outcome.notes)
    names = short_names(cell.cell_id for cell in outcome.cells)
    shown = with_numbers(outcome)[: _SHORT if short else _ROWS]
    if shown:
        lines += ["| verdict | cell | base us | now us | change | 95 % interval | reason |"]
        lines += ["|---|---|--:|--:|--:|--:|---|", *(_row(cell, names[cell.cell_id]) for cell in shown)]
    rest = len(outcome.cells) - len(shown)
    if rest:
        left = f"{counted(rest, 'more cell')} {'is' if rest == 1 else 'are'} left out"
        lines += ["", f"{left}; the JSON file has all of them."]
    note = change_note(outcome)
    lines += ["", plain(note[:1].upper() + note[1:]) + "."] if note else []
    lines += _listed("Not compared", not_compared(outcome))
    text = "\n".join(lines) + "\n"
    assert len(text.encode()) < MAX_SUMMARY_BYTES  # noqa: S101 - rows and pieces are bounded above
    return text


def _listed(title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    more = [f"- {len(items) - _SHORT} more"] if len(items) > _SHORT else []
    return ["", f"**{title}**", "", *(f"- {plain(item)}" for item in items[:_SHORT]), *more, ""]


def _row(cell: CellVerdict, name: str) -> str:
    base, now = times(cell)
    control = " (control)" if cell.control else ""
    reason = plain(cell.reason)
    return (
        f"| {cell.verdict} | {plain(name)}{control} | {base} | {now} | {change(cell)} | {interval(cell)} | {reason} |"
    )


def annotations(outcome: Outcome) -> list[str]:
    """Workflow commands, at most ten: faults, then regressions, the largest first; the last one counts the rest."""
    names = short_names(cell.cell_id for cell in outcome.cells)
    found = [("no verdict", fault) for fault in faults(outcome)]
    if not found and not outcome.cells:
        found = [("no verdict", "not one cell was compared")]
    if not outcome.faults:
        for cell in by_effect(outcome.cells):
            if cell.verdict is Verdict.REGRESSED:
                base, now = times(cell)
                told = f"{base} -> {now} us, {change(cell)}" if cell.ratio is not None else cell.reason
                found.append((f"REGRESSED {names[cell.cell_id]}", told))
    more = len(found) - MOST_ANNOTATIONS
    if more > 0:
        found = [*found[: MOST_ANNOTATIONS - 1], ("more", f"{more + 1} more; the summary lists them")]
    return [f"::error title={_property(title)}::{_data(text)}" for title, text in found]


def _data(text: str) -> str:
    return clean(text)[:_PIECE].replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(f"collbench: {text}").replace(":", "%3A").replace(",", "%2C")
