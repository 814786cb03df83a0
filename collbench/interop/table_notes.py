"""Cells of a table of times, and the lines below it: what intervals rest on, flags, why a cell has no time."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from collbench.interop.enqueued import Kernel
from collbench.results.intervals import LEAST_LAUNCHES
from collbench.results.markdown import plain
from collbench.results.private import public
from collbench.results.records import Flag
from collbench.units import format_bytes, format_us
from collbench.wording import ADVICE

__all__ = ["Entry", "notes"]

_SMALL = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
_TIED = "\u00a0"
"""A space at which no line is broken: else a narrow column tears an interval apart."""

_MOST_REASON = 600
_FLAGS = {
    Flag.NOISY: "noisy (iterations or launches differ widely, or are few)",
    Flag.IMPLAUSIBLE: "implausible (below the floor)", Flag.THROTTLED: "throttled (clocks were held down)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell: its row of `results.summary`, the medians of its launches in us, their interval, what it enqueued."""

    row: Mapping[str, Any]
    medians: tuple[float, ...] = ()
    interval_us: tuple[float, float] | None = None
    enqueued: tuple[tuple[Kernel, ...], ...] = ()

    @property
    def text(self) -> str:
        """Time and interval, as in `2.34 (2.31 to 2.37)`, or the status.

        A time without an interval has the mark of its launches behind it. Spaces in the brackets do not break.
        """
        if self.row["p50_us"] is None:
            return plain(str(self.row["status"]))
        time = format_us(self.row["p50_us"])
        if self.interval_us is None:
            return f"{time}{_TIED}{_mark(len(self.medians))}"
        low, high = map(format_us, self.interval_us)
        return f"{time} ({low}{_TIED}to{_TIED}{high})"


_Lines = Mapping[str, Mapping[int, Entry]]


def _mark(launches: int) -> str:
    """A small number, which the line below the table takes up."""
    return str(launches).translate(_SMALL)


def notes(lines: _Lines, whose: str) -> list[str]:
    """Items of a list, for rows by their label: launches, flags, and each reason once with the rows it holds for.

    `whose` says what the times are.
    """
    entries = [entry for line in lines.values() for entry in line.values() if entry.row["p50_us"] is not None]
    sizes = {size for line in lines.values() for size in line}
    holes = any(len(line) < len(sizes) for line in lines.values())
    empty = ["empty: not planned at this size with this number of calls"] if holes else []
    flagged = [text for flag in _FLAGS for text in _grouped(lines, partial(_flagged, flag))]
    return [f"- {text}" for text in (*_on_launches(entries, whose), *empty, *flagged, *_grouped(lines, _reason))]


def _flagged(flag: Flag, row: Mapping[str, Any]) -> str:
    return _FLAGS[flag] if str(flag) in row["flags"] else ""


def _on_launches(entries: Iterable[Entry], whose: str) -> list[str]:
    timed = list(entries)
    many = sorted({len(one.medians) for one in timed if one.interval_us})
    few = sorted({len(one.medians) for one in timed if not one.interval_us})
    found = []
    if timed:
        span = f"{many[0]} to {many[-1]}" if len(many) > 1 else "".join(map(str, many))
        brackets = f"; in brackets its 95 % interval, from the medians of {span} launches" if many else ""
        found.append(f"microseconds per call, {whose}{brackets}")
    told = [f"{_mark(n)} no interval: {n} launch{'es' if n != 1 else ''}" for n in few if n < LEAST_LAUNCHES]
    if told:
        found.append(f"{', '.join(told)}; an interval takes {LEAST_LAUNCHES}")
    zero = (n for n in few if n >= LEAST_LAUNCHES)
    return found + [f"{_mark(n)} no interval: a median of {n} launches is zero, which has no logarithm" for n in zero]


def _reason(row: Mapping[str, Any]) -> str:
    """Status and reason in Markdown, without advice on how to go on; empty where there is nothing to say."""
    if row["status"] == "ok" and not row["reason"]:
        return ""
    why = plain(public(row["reason"].partition(ADVICE)[0]), _MOST_REASON)
    return f"{plain(str(row['status']))}: {why or 'no reason was recorded'}"


def _grouped(lines: _Lines, of: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """`what it is: rows`; rows are told with their sizes where it is not so at all of them."""
    found: dict[str, dict[str, list[str]]] = {}
    for label, line in lines.items():
        sizes: dict[str, list[int]] = {}
        for size, entry in sorted(line.items()):
            if words := of(entry.row):
                sizes.setdefault(words, []).append(size)
        for words, some in sizes.items():
            where = "" if len(some) == len(line) else ", ".join(map(format_bytes, some))
            found.setdefault(words, {}).setdefault(where, []).append(label)
    return [f"{words}: {'; '.join(_at(where, rows[where]) for where in sorted(rows))}" for words, rows in found.items()]


def _at(where: str, labels: list[str]) -> str:
    return f"{', '.join(labels)} (at {where})" if where else ", ".join(labels)
