"""Two forecasts side by side as text: every column for scripts, and what fits a terminal for people."""

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.algorithms.choice import Choice, choices, model_notes, vouched
from collbench.algorithms.predictions import Forecast
from collbench.algorithms.rewiring import Change, changes, only_on
from collbench.doctor.forecasts import Diagnosis
from collbench.report.columns import Column, aligned, fitting
from collbench.report.forecast_text import (
    Row,
    brackets,
    command,
    crossings,
    doubts,
    link,
    mark,
    not_shown,
    spaced,
    sweep_of,
)
from collbench.results.terminal import wrapped
from collbench.units import format_us

__all__ = ["Side", "comparison_text"]


@dataclass(frozen=True, slots=True)
class Side:
    """One machine of two: its letter, forecast, judged rows, and what the doctor says."""

    letter: str
    forecast: Forecast
    rows: Sequence[Row]
    doctor: Diagnosis

    @property
    def head(self) -> str:
        """Whose letter it is."""
        one = self.forecast
        return f"{self.letter} = {one.topology.name}, {one.ranks} ranks, {one.fabric}, {one.mode}, {one.dtype}"


def comparison_text(sides: Sequence[Side], sizes: Sequence[int], width: int | None) -> list[str]:
    """Lines to print: who is fastest on each side, every algorithm that both have, and what a reader should know."""
    a, b = sides
    best = {side.letter: {one.bytes: one for one in choices(side.rows)} for side in sides}
    both = [(best["A"][size], best["B"][size]) for size in sorted(best["A"].keys() & best["B"].keys())]
    lines = [wrapped(side.head, width, 2) for side in sides]
    lines += aligned(_fastest_wide(both)) if width is None else _fastest_below(both)
    pairs = changes(a.rows, b.rows)
    lines += ["", *_table(pairs, [one for some in best.values() for one in some.values()], width)]
    lines.append(_star(sides, width))
    for side in sides:
        lines += _told(side, sizes, width)
    lines += [wrapped(text, width, 2) for text in _of_both(a, b)]
    if near := [one for pair in both for one in pair if one.overlaps]:
        lines.append(wrapped(_overlap(both, pairs), width, 2))
        lines.append(command(sweep_of(a.forecast, near, sizes), width))
    return lines


def _fastest_wide(both: Sequence[tuple[Choice, Choice]]) -> list[Column]:
    found = [Column("fastest at", [str(a.bytes) for a, _ in both])]
    for letter, side in zip("AB", zip(*both, strict=True) if both else ((), ()), strict=True):
        rows = [one.best for one in side]
        found += [
            Column(f"on {letter}", [row["algorithm"] for row in rows], right=False),
            Column(f"{letter}_us", [format_us(row["total_us"]) for row in rows]),
            Column(f"{letter}_low", [format_us(row["low_us"]) for row in rows]),
            Column(f"{letter}_high", [format_us(row["high_us"]) for row in rows]),
        ]
    return [*found, Column("change", [_percent(Change(a.best, b.best)) for a, b in both])]


def _fastest_below(both: Sequence[tuple[Choice, Choice]]) -> list[str]:
    """Both sides of a size below each other, which fits any terminal."""
    rows = [(letter, one.best) for pair in both for letter, one in zip("AB", pair, strict=True)]
    change = [text for a, b in both for text in ("", _percent(Change(a.best, b.best)))]
    return aligned([
        Column("fastest at", [str(row["bytes"]) if letter == "A" else "" for letter, row in rows]),
        Column("on", [letter for letter, _ in rows], right=False),
        Column("algorithm", [row["algorithm"] for _, row in rows], right=False),
        Column("us", [format_us(row["total_us"]) for _, row in rows]),
        Column("[low, high]", [brackets(row) for _, row in rows], right=False), Column("change", change),
    ])  # fmt: skip


def _table(pairs: Sequence[Change], found: Sequence[Choice], width: int | None) -> list[str]:
    marks = [mark(one.before, found) + mark(one.after, found) for one in pairs]
    sides = {"A": [one.before for one in pairs], "B": [one.after for one in pairs]}
    first = [
        Column("algorithm", [row["algorithm"] for row in sides["A"]], right=False),
        Column("bytes", [str(row["bytes"]) for row in sides["A"]]),
        *(Column(f"{side}_us", [format_us(row["total_us"]) for row in rows]) for side, rows in sides.items()),
        Column("change", [_percent(one) for one in pairs]),
    ]
    spans = [
        Column(f"{side} [low, high]", [brackets(row) for row in rows], right=False) for side, rows in sides.items()
    ]
    floors = [Column(f"{side}_floor", [format_us(row["floor_us"]) for row in rows]) for side, rows in sides.items()]
    links = [
        Column(f"bottleneck of {side}", [link(row["bottleneck"]) for row in rows], right=False)
        for side, rows in sides.items()
    ]
    if width is None:
        ends = [
            Column(f"{side}_{end}", [format_us(row[f"{end}_us"]) for row in rows])
            for side, rows in sides.items() for end in ("low", "high")
        ]  # fmt: skip
        told = Column("mark", [_word(text) or "-" for text in marks], right=False)
        return aligned([*first, *floors, *ends, told, *links])
    narrow = [Column("", [_word(text) for text in marks], right=False), *first]
    shown, gone = fitting(narrow, [spans, floors, links], width)
    return [*spaced(aligned(shown), sides["A"]), *not_shown(gone, width)]


def _star(sides: Sequence[Side], width: int | None) -> str:
    unasked = [f"{side.letter}: {side.doctor.asked}" for side in sides if not side.doctor.rows]
    text = "* fastest on A or B at its size, of what the doctor says runs there"
    return wrapped(" ".join(["* fastest on A or B at its size, if it runs.", *unasked]) if unasked else text, width, 2)


def _word(marks: str) -> str:
    """One mark for both sides: what may not run on one of them is worth nothing on the other."""
    return next((one for one in "x?*" if one in marks), "")


def _told(side: Side, sizes: Sequence[int], width: int | None) -> list[str]:
    notes = sorted({f"{row['algorithm']}: {note}" for row in side.rows for note in model_notes(row)})
    told = [*crossings(side.forecast, side.rows, sizes), *side.forecast.notes, *notes]
    marks = doubts(side.rows, side.doctor, width, f"{side.letter}: ")
    return [*marks, *(wrapped(f"{side.letter}: {text}", width, 2) for text in told)]


def _of_both(a: Side, b: Side) -> list[str]:
    told = []
    if a.forecast.ranks != b.forecast.ranks:
        fewer = min(a.forecast.ranks, b.forecast.ranks)
        told.append(f"A has {a.forecast.ranks} ranks and B {b.forecast.ranks}: --nproc {fewer} compares wirings alone")
    told += [
        f"only on {one.letter}: {', '.join(names)}" for one, other in ((a, b), (b, a))
        if (names := only_on(one.rows, other.rows))
    ]  # fmt: skip
    return told


def _overlap(both: Sequence[tuple[Choice, Choice]], pairs: Sequence[Change]) -> str:
    near = sum(bool(a.overlaps or b.overlaps) for a, b in both)
    inside = sum(_meet(one.before, one.after) for one in pairs if vouched(one.before) and vouched(one.after))
    total = sum(vouched(one.before) and vouched(one.after) for one in pairs)
    return (
        f"low to high is the model's nominal 90 %: at {near} of {len(both)} sizes others overlap with the fastest of "
        f"a side, and {inside} of {total} changes are smaller than the intervals. What both share cancels only if "
        "one is the other rewired. Measure before you choose, on each:"
    )


def _meet(one: Row, other: Row) -> bool:
    return bool(one["low_us"] <= other["high_us"] and other["low_us"] <= one["high_us"])


def _percent(change: Change) -> str:
    return f"{change.ratio - 1:+.0%}"
