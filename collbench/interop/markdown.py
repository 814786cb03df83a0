"""Runs as tables of GitHub-flavoured Markdown, for pull requests, issues and documents.

One table per call (collective, op, dtype, skew, epilogue), mode and number of calls: a row is an algorithm, a column a
size, fastest first at the smallest size. Statistics are those of `results.summary` and `results.intervals`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collbench.interop.enqueued import Kernel, kernels, told
from collbench.interop.provenance import LETTERS, head, refuse_other_machines
from collbench.interop.table_notes import Entry, notes
from collbench.results.intervals import interval_of_medians
from collbench.results.markdown import code_or_text, plain
from collbench.results.private import public
from collbench.results.records import Run, Samples, Status
from collbench.results.summary import fold, rows
from collbench.units import format_bytes

__all__ = ["Source", "markdown"]

_MOST_COLUMNS = 8
_MOST_WITH_INTERVALS = 5
_SHARED = ("collective", "op", "dtype", "world_size", "epilogue", "skew", "mode", "calls")
_NEVER_RAN = frozenset({Status.UNSUPPORTED, Status.NOT_RUN})


@dataclass(frozen=True, slots=True)
class Source:
    """One run and what its folder holds; `floors` gives microseconds by cell_id, evidence is by cell and launch."""

    run: Run
    samples: Sequence[Samples]
    evidence: Mapping[tuple[str, int], Mapping[str, str]] = field(default_factory=dict)
    floors: Mapping[str, float] | None = None


_Line = dict[int, Entry]
_Table = dict[tuple[str, str], _Line]


def markdown(sources: Sequence[Source], *, with_head: bool = True, with_kernels: bool = False) -> str:
    """Tables of one run, or of several of one machine, whose rows then say of which sweep they are.

    Raises:
        InvalidError: several runs that are not of one machine.
    """
    refuse_other_machines([source.run for source in sources])
    tables: dict[tuple[str, ...], _Table] = {}
    for letter, source in zip(LETTERS, sources, strict=False):
        for key, name, size, entry in _entries(source):
            tables.setdefault(key, {}).setdefault((letter, name), {})[size] = entry
    lines = head([source.run for source in sources]) if with_head else []
    for key, table in tables.items():
        lines += ["", f"**{_title(key, sources)}**", *_sheet(table, several=len(sources) > 1, enqueued=with_kernels)]
        lines += _below(table, sources)
    if not tables:
        lines += ["", "No collective was measured."]
    return "\n".join(lines).strip("\n") + "\n"


def _entries(source: Source) -> Iterable[tuple[tuple[str, ...], str, int, Entry]]:
    """Key of the table, name of the row, size and cell."""
    medians: dict[str, list[float]] = {}
    for one in source.samples:
        if one.status is Status.OK:
            medians.setdefault(one.cell_id, []).append(float(np.median(fold(one))))
    enqueued: dict[str, list[tuple[Kernel, ...]]] = {}
    for (cell_id, _), evidence in source.evidence.items():
        enqueued.setdefault(cell_id, []).extend(kernels(evidence))
    for row in rows(source.run, source.samples, source.floors):
        key = tuple(str(row[name]) for name in _SHARED)
        of_launches = tuple(medians.get(row["cell_id"], ())) if row["p50_us"] is not None else ()
        yield key, _name(row), row["bytes"], Entry(
            row, of_launches, interval_of_medians(of_launches), tuple(enqueued.get(row["cell_id"], ())),
        )  # fmt: skip


def _name(row: Mapping[str, Any]) -> str:
    """Markdown of the algorithm, and what tells its cells apart."""
    buffers = "" if row["buffers"] in {"", "warm"} else f"{plain(row['buffers'])} buffers"
    place = "" if row["place"] == "out" else "in place" if row["place"] == "in" else plain(row["place"])
    more = ", ".join(filter(None, (place, buffers)))
    name = " ".join(filter(None, (code_or_text(row["algorithm"]), plain(row["variant"]))))
    return f"{name}, {more}" if more else name


def _title(key: Sequence[str], sources: Sequence[Source]) -> str:
    collective, op, dtype, ranks, epilogue, skew, mode, calls = map(plain, key)
    parts = [" of ".join(filter(None, (f"{collective}, {op}" if op else collective, dtype)))]
    if any(str(source.run.world_size) != ranks for source in sources):
        parts.append(f"{ranks} ranks")
    parts += [f"epilogue {epilogue}"] if epilogue else []
    parts += [f"splits {skew}"] if skew else []
    parts += [mode, "single calls" if calls == "1" else f"chains of {calls} calls"]
    return ", ".join(parts)


def _sheet(table: _Table, *, several: bool, enqueued: bool) -> list[str]:
    """The table, in parts where it is wide."""
    sizes = sorted({size for line in table.values() for size in line})
    shown = sorted(((key, line) for key, line in table.items() if _has_row(line)), key=lambda one: _order(one, sizes))
    wide = any(entry.interval_us for _, line in shown for entry in line.values())
    most = (_MOST_WITH_INTERVALS if wide else _MOST_COLUMNS) - enqueued
    lines = []
    for start in range(0, len(sizes) if shown else 0, most):
        part = sizes[start : start + most]
        lines += ["", *_part(shown, part, several=several, enqueued=enqueued)]
    return lines


def _below(table: _Table, sources: Sequence[Source]) -> list[str]:
    tools = sorted(
        {str(one.run.settings.get("tool", "")) for one in sources if one.run.settings.get("group_times") is True}
    )
    whose = (
        f"as {plain(public(' and '.join(tools)))} gives them" if any(tools) else "the median of the slowest rank's time"
    )
    sizes = sorted({size for line in table.values() for size in line})
    ordered = sorted(table.items(), key=lambda one: _order(one, sizes))
    below = notes({_label(key, len(sources) > 1): line for key, line in ordered}, whose)
    return ["", *below] if below else []


def _has_row(line: _Line) -> bool:
    """Whether anything of it was started: else what is below the table says all of it."""
    return any(entry.row["status"] not in _NEVER_RAN for entry in line.values())


def _order(one: tuple[tuple[str, str], _Line], sizes: Sequence[int]) -> tuple[Any, ...]:
    key, line = one
    times = [line[size].row["p50_us"] if size in line else None for size in sizes]
    return (*(math.inf if us is None else us for us in times), key[1], key[0])


def _label(key: tuple[str, str], several: bool) -> str:  # noqa: FBT001 - a filter, not a switch
    letter, name = key
    return f"{name} ({letter})" if several else name


def _part(
    shown: Sequence[tuple[tuple[str, str], _Line]], sizes: Sequence[int], *, several: bool, enqueued: bool
) -> list[str]:
    ends = ["enqueued"] if enqueued else []
    heads = ["algorithm", *(["sweep"] if several else []), *map(format_bytes, sizes), *ends]
    rule = ["---", *(["---"] if several else []), *("--:" for _ in sizes), *("---" for _ in ends)]
    lines = [heads]
    for (letter, name), line in shown:
        texts = [line[size].text if size in line else "" for size in sizes]
        found = {format_bytes(size): line[size].enqueued for size in sizes if size in line}
        lines.append([name, *([letter] if several else []), *texts, *([told(found)] if enqueued else [])])
    written = [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines]
    return [written[0], f"|{'|'.join(rule)}|", *written[1:]]
