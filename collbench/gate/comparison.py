"""Two sides beside each other: numbers only, no verdict."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from collbench.gate.names import short_names
from collbench.gate.sides import CellData, Side
from collbench.results.intervals import LEAST_LAUNCHES, interval_of_ratio
from collbench.results.records import Status
from collbench.results.summary import clean
from collbench.results.table import grid, squeeze
from collbench.results.terminal import wrapped
from collbench.units import format_us

__all__ = ["compare", "differences", "table"]

_RIGHT = frozenset({"base_us", "current_us", "change", "95 % interval"})
_LEAVE_FIRST = ("base_us", "current_us")
_FACTOR = 10.0  # from here on a factor says more than a percentage


def compare(base: Side, current: Side) -> list[dict[str, Any]]:
    """One row per cell of either side: status, reason and median of both, and where both have a time their ratio.

    `low` and `high` are its 95 % interval, None below 5 launches on either side; `flags` is `noisy` where a side is.
    """
    found = []
    for cell_id in dict.fromkeys([*base.cells, *current.cells]):
        before, now = base.cells.get(cell_id), current.cells.get(cell_id)
        a, b = _median(before), _median(now)
        low, high = _interval(before, now)
        found.append({
            "cell_id": cell_id, "base_status": _status(before), "current_status": _status(now), "base_us": a,
            "current_us": b, "ratio": b / a if a and b else None, "low": low, "high": high,
            "base_launches": _launches(before), "current_launches": _launches(now),
            "flags": ["noisy"] if any(side is not None and side.noisy for side in (before, now)) else [],
            "base_reason": before.reason if before else "", "current_reason": now.reason if now else "",
        })  # fmt: skip
    return found


def _median(cell: CellData | None) -> float | None:
    return median(cell.medians_us) if cell is not None and cell.status is Status.OK else None


def _status(cell: CellData | None) -> str:
    return "absent" if cell is None else str(cell.status)


def _launches(cell: CellData | None) -> int:
    return len(cell.medians_us) if cell is not None else 0


def _interval(before: CellData | None, now: CellData | None) -> tuple[float | None, float | None]:
    found = interval_of_ratio(now.medians_us, before.medians_us) if before and now else None
    return found or (None, None)


def differences(base: Side, current: Side) -> list[str]:
    """What else is not the same: fingerprint keys, numbers of launches."""
    pairs = {
        f"{key} (hard)": (base.hard.get(key, ""), current.hard.get(key, "")) for key in {*base.hard, *current.hard}
    }
    pairs |= {key: (base.soft.get(key, ""), current.soft.get(key, "")) for key in {*base.soft, *current.soft}}
    pairs["launches"] = (str(base.launches), str(current.launches))
    return [f"{key}: {a or 'none'}, {b or 'none'}" for key, (a, b) in sorted(pairs.items()) if a != b]


def table(rows: Sequence[dict[str, Any]], width: int | None = None) -> str:
    """Text table: a line per row for scripts; with `width` only rows with a time, and once why the others have none."""
    shown = [row for row in rows if width is None or row["base_us"] is not None or row["current_us"] is not None]
    lines: list[str] = []
    if shown or not rows:
        columns = _columns(shown)
        if width is not None:
            columns = {name: texts for name, texts in columns.items() if set(texts) != {"-"}}
        gone = squeeze(columns, width, _LEAVE_FIRST) if width is not None else []
        lines += grid(columns, _RIGHT.__contains__)
        lines += [wrapped(f"not shown at {width} characters: {', '.join(gone)}", width, 2)] if gone else []
    lines += [wrapped(text, width, 2) for text in (*_without_interval(shown), *_statistic(shown))]
    told = [wrapped(text, width, 2) for text in _reasons(rows)] if width is not None else []
    return "\n".join([*lines, *([""] if lines and told else []), *told])


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    names = short_names(row["cell_id"] for row in rows)
    return {
        "cell": [names[row["cell_id"]] for row in rows],
        "base_us": [_time(row, "base") for row in rows], "current_us": [_time(row, "current") for row in rows],
        "change": [_change(row["ratio"]) for row in rows],
        "95 % interval": [_span(row) for row in rows], "flags": [",".join(row["flags"]) or "-" for row in rows],
    }  # fmt: skip


def _time(row: dict[str, Any], side: str) -> str:
    us = row[f"{side}_us"]
    return format_us(us) if us is not None else str(row[f"{side}_status"])


def _change(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"x{ratio:.0f}" if ratio >= _FACTOR else f"{_percent(ratio)} %"


def _percent(ratio: float) -> str:
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f}"


def _span(row: dict[str, Any]) -> str:
    return "-" if row["low"] is None else f"{_percent(row['low'])} .. {_percent(row['high'])} %"


def _without_interval(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How sure the changes are not, where launches are too few for an interval."""
    bare = [row for row in rows if row["ratio"] is not None and row["low"] is None]
    if not bare:
        return []
    a, b = (min(row[f"{side}_launches"] for row in bare) for side in ("base", "current"))
    which = "" if len(bare) == sum(row["ratio"] is not None for row in rows) else f" for {len(bare)} changes"
    launches = f"{a} launch{'es' if a != 1 else ''} before and {b} now"
    text = f"no interval{which}: {launches}, {LEAST_LAUNCHES} on each side give one"
    noisy = any(row["flags"] for row in bare)
    return [f"{text}; what is noisy differs from launch to launch by itself" if noisy else text]


def _statistic(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Which time it is, where another one of the same launches is told elsewhere."""
    several = any(max(row["base_launches"], row["current_launches"]) > 1 for row in rows if row["ratio"] is not None)
    text = "base_us and current_us: median of the launches' medians, which the interval is of too"
    return [f"{text}; p50_us of sweep, report and export is the median over all iterations"] if several else []


def _reasons(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each algorithm, pair of statuses and reason of cells that have no time on one or both sides."""
    found: dict[tuple[str, ...], int] = {}
    for row in rows:
        sides = [(side, row[f"{side}_status"], row[f"{side}_reason"]) for side in ("base", "current")]
        if row["base_us"] is None or row["current_us"] is None:
            parts = row["cell_id"].split("/")
            key = (
                clean(parts[1] if len(parts) > 1 else row["cell_id"]),
                *(text for side in sides for text in side[1:]),
            )
            found[key] = found.get(key, 0) + 1
    return [f"{name}, {count} cell{'s' if count > 1 else ''}: {_why(*rest)}" for (name, *rest), count in found.items()]


def _why(base: str, base_reason: str, current: str, current_reason: str) -> str:
    if (base, base_reason) == (current, current_reason):
        return f"{base} on both sides{f': {base_reason}' if base_reason else ''}"
    told = ((name, status, reason) for name, status, reason in (
        ("base", base, base_reason), ("current", current, current_reason)
    ))  # fmt: skip
    return "; ".join(f"{name} {status}{f' ({reason})' if reason else ''}" for name, status, reason in told)
