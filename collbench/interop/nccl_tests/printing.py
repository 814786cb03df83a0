"""What was read from nccl-tests, as rows of our own and as a text table."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from collbench.interop.nccl_tests.table import DTYPES, Figures, Invocation, Row
from collbench.results.records import SCHEMA
from collbench.results.summary import clean
from collbench.results.table import grid
from collbench.results.terminal import wrapped
from collbench.units import format_us

__all__ = ["as_json", "rows_of", "table"]

_COLUMNS = (
    "collective", "bytes", "count", "dtype", "op", "place", "time_us", "p50_us", "p99_us", "algbw_gbps", "busbw_gbps",
    "wrong",
)  # fmt: skip
_WORDS = {"collective", "dtype", "op", "place"}
_SHARED = ("collective", "dtype", "op")


def rows_of(invocations: Sequence[Invocation]) -> list[dict[str, Any]]:
    """One row for each place of each size: times are us, rates GB/s (1e9), `wrong` null where nobody checked.

    `time_us` is the mean that the program printed; `p50_us`, `p99_us` and `min_us` are of the iterations (the largest
    time over the processes in each), null where it gave none. Where elements were wrong there is neither time nor rate.
    """
    return [
        {"run": number, **_row(one, row, place, figures)}
        for number, one in enumerate(invocations)
        for row in one.rows
        for place, figures in row.places.items()
    ]


def _row(one: Invocation, row: Row, place: str, figures: Figures) -> dict[str, Any]:
    collective, wrong = one.collective, bool(figures.wrong)
    return {
        "collective": str(collective) if collective else one.program, "bytes": row.bytes, "count": row.count,
        "dtype": DTYPES.get(row.dtype, (row.dtype, 0))[0], "op": "" if row.redop == "none" else row.redop,
        "root": row.root if row.root >= 0 else None, "place": place,
        "time_us": None if wrong else figures.time_us, **_quantiles(figures),
        "algbw_gbps": None if wrong else figures.algbw_gbps, "busbw_gbps": None if wrong else figures.busbw_gbps,
        "wrong": figures.wrong,
        "proof": dict(row.proof),
    }  # fmt: skip


def _quantiles(figures: Figures) -> dict[str, float | int | None]:
    if not figures.process_us or figures.wrong:
        return {"p50_us": None, "p99_us": None, "min_us": None, "iterations": None}
    fold = np.asarray(figures.process_us, dtype=np.float64).max(axis=0)
    p50, p99 = (float(q) for q in np.quantile(fold, (0.5, 0.99)))
    return {"p50_us": p50, "p99_us": p99, "min_us": float(fold.min()), "iterations": int(fold.size)}


def as_json(invocations: Sequence[Invocation]) -> dict[str, Any]:
    """The object that `--json` prints: `rows`, and for each run what it was."""
    runs = [
        {
            "program": one.program, "world_size": one.world_size or None, "hosts": one.hosts, "nccl": one.nccl,
            "nccl_tests": one.version, "statistic": statistic(one), "mode": "graph" if one.settings.graph else "eager",
            "finished": one.finished, "inferred": one.inferred, "failures": list(one.failures),
            "problems": list(one.problems),
        }
        for one in invocations
    ]  # fmt: skip
    return {"schema": SCHEMA, "kind": "nccl-tests", "runs": runs, "rows": rows_of(invocations)}


def statistic(one: Invocation) -> str:
    """Whose time the column is, in words."""
    settings = one.settings
    calls = settings.iterations * settings.aggregated * max(1, settings.graph)
    whose = {"avg": "the ranks' mean", "rank0": "rank 0", "min": "the fastest rank", "max": "the slowest rank"}
    chain = f"{settings.graph} graphs of {calls // settings.graph}" if settings.graph else f"{calls} calls"
    how = {0: f"{chain} back to back", 1: "a wait and a barrier behind each call", 2: "a wait behind each call",
           3: "each call from a barrier, which is not counted"}  # fmt: skip
    if settings.cputime:
        return "the processor's time of launching, not the collective's"
    return f"mean of {calls} calls, {whose[settings.average]}; {how.get(settings.blocking, f'-z {settings.blocking}')}"


def table(invocations: Sequence[Invocation], width: int | None = None) -> str:
    """A text table for each run, under a line that says what it was.

    With `width` (characters) lines are folded, and words that all rows share stand in the line above alone.
    """
    return "\n\n".join(_titled(one, width) for one in invocations if one.rows)


def _titled(one: Invocation, width: int | None) -> str:
    ranks = f"{one.world_size} ranks" if one.world_size else "unknown number of ranks"
    versions = [f"NCCL {one.nccl}" if one.nccl else "", f"nccl-tests {one.version}" if one.version else ""]
    rows = rows_of([one])
    columns = {name: [_text(name, row[name]) for row in rows] for name in _COLUMNS}
    columns = {
        name: texts for name, texts in columns.items() if name not in {"p50_us", "p99_us"} or set(texts) != {"-"}
    }
    shared = [name for name in _SHARED if width is not None and len(set(columns[name])) == 1]
    words = [texts[0] for name in shared if (texts := columns.pop(name)) and name != "collective"]
    told = (f"{one.program or 'unknown collective'}", ranks, *map(clean, versions), *words)
    lines = [wrapped(f"{', '.join(filter(None, told))}: {statistic(one)}", width, 2)]
    if one.inferred:
        lines.append(wrapped(f"not said in the output: {one.inferred}", width, 2))
    return "\n".join([*lines, *grid(columns, lambda name: name not in _WORDS)])


def _text(name: str, value: object) -> str:
    if value is None:
        return "not checked" if name == "wrong" else "-"
    if isinstance(value, float):
        return format_us(value) if name.endswith("_us") else f"{value:.2f}"
    return clean(str(value)) or "-"
