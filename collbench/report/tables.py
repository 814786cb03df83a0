"""The page's tables: every row, what did not run, and the same as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from collbench.results.private import public
from collbench.units import format_bytes, format_us

__all__ = ["MOST_ROWS", "constants", "csv_link", "csv_text", "failures", "full"]

MOST_ROWS = 3000
"""Rows that a page holds, so that it stays under 2 MB; it says so, and where the rest is, if there are more."""

_FIELDS = (
    "collective", "algorithm", "variant", "op", "dtype", "bytes", "world_size", "mode", "calls", "place", "buffers",
    "epilogue", "skew",
)  # fmt: skip
_ALWAYS = ("algorithm", "mode", "calls", "bytes")
_RESULTS = (
    "p50_us", "p99_us", "min_us", "floor_us", "predicted_us", "iterations", "launches", "status", "flags", "reason",
)  # fmt: skip
_NUMBERS = {"bytes", "calls", "world_size", "iterations", "launches"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def constants(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What is the same in every row and so needs no column."""
    names = [name for name in _FIELDS if name not in _ALWAYS] + ["launches", "iterations"] * (len(rows) > 1)
    same = {name: {str(row[name]) for row in rows} for name in names}
    return {name: next(iter(values)) for name, values in same.items() if len(values) == 1}


def full(rows: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, bool]], list[list[str]]]:
    """Columns as (name, is a number), and the texts of each row; columns without any value are left out."""
    left_out = constants(rows)
    names = [*_ALWAYS, *(name for name in _FIELDS if name not in _ALWAYS), *_RESULTS]
    names = [name for name in names if name not in left_out]
    texts = {name: [_text(name, row[name]) for row in rows] for name in names}
    shown = [name for name in names if name in {*_ALWAYS, "p50_us", "status"} or any(texts[name])]
    columns = [(name, name in _NUMBERS or name.endswith("_us")) for name in shown]
    return columns, [list(line) for line in zip(*(texts[name] for name in shown), strict=True)]


def _text(name: str, value: Any) -> str:  # noqa: ANN401 - any JSON value
    if value is None:
        return ""
    if name.endswith("_us"):
        return format_us(value)
    return ", ".join(value) if isinstance(value, list) else public(str(value))


def failures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What did not run: one entry per algorithm, status and reason, with the cells that it concerns."""
    groups: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["status"] != "ok":
            key = (row["algorithm"], row["variant"], row["status"], public(row["reason"]))
            groups.setdefault(key, []).append(row)
    total = {name: sum(row["algorithm"] == name for row in rows) for name in {key[0] for key in groups}}
    return [
        {"algorithm": " ".join(filter(None, key[:2])), "status": key[2], "reason": key[3],
         "cells": _cells(members, total[key[0]])}
        for key, members in groups.items()
    ]  # fmt: skip


def _cells(rows: Sequence[Mapping[str, Any]], total: int) -> str:
    if len(rows) == total:
        return f"all {total} cells" if total > 1 else "its one cell"
    modes = ", ".join(sorted({row["mode"] for row in rows}))
    sizes = sorted({row["bytes"] for row in rows})
    few = len(sizes) <= 4  # noqa: PLR2004 - what reads well in a line
    listed = ", ".join(map(format_bytes, sizes)) if few else f"{format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"
    return f"{len(rows)} of {total} cells ({modes}; {listed})"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """All rows as CSV under the rows' names; a text that a spreadsheet would run as a formula gets a leading quote."""
    names = [name for name in (rows[0] if rows else {}) if name != "splits"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_field(row[name]) for name in names] for row in rows)
    return out.getvalue()


def _field(value: Any) -> object:  # noqa: ANN401 - any JSON value
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, int):
        return value
    text = " ".join(value) if isinstance(value, list) else public(str(value))
    return "'" + text if text.startswith(_FORMULA) else text


def csv_link(rows: Sequence[Mapping[str, Any]]) -> str:
    """The CSV as a `data:` address, which a page can offer without script and without fetching anything."""
    return "data:text/csv;charset=utf-8," + quote(csv_text(rows), safe="/,;:()[]{}!*'~@=+ ".replace(" ", ""))
