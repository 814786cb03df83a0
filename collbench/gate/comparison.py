"""Two sides beside each other: numbers only, no verdict."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from collbench.gate.names import short_names
from collbench.gate.sides import CellData, Side
from collbench.results.records import Status
from collbench.units import format_us

__all__ = ["compare", "differences", "table"]


def compare(base: Side, current: Side) -> list[dict[str, Any]]:
    """One row per cell of either side: status and median of both, their ratio where both have one."""
    found = []
    for cell_id in dict.fromkeys([*base.cells, *current.cells]):
        before, now = base.cells.get(cell_id), current.cells.get(cell_id)
        a, b = _median(before), _median(now)
        found.append({
            "cell_id": cell_id, "base_status": _status(before), "current_status": _status(now), "base_us": a,
            "current_us": b, "ratio": b / a if a and b else None,
        })  # fmt: skip
    return found


def _median(cell: CellData | None) -> float | None:
    return median(cell.medians_us) if cell is not None and cell.status is Status.OK else None


def _status(cell: CellData | None) -> str:
    return "absent" if cell is None else str(cell.status)


def differences(base: Side, current: Side) -> list[str]:
    """What else is not the same: fingerprint keys, numbers of launches."""
    pairs = {
        f"{key} (hard)": (base.hard.get(key, ""), current.hard.get(key, "")) for key in {*base.hard, *current.hard}
    }
    pairs |= {key: (base.soft.get(key, ""), current.soft.get(key, "")) for key in {*base.soft, *current.soft}}
    pairs["launches"] = (str(base.launches), str(current.launches))
    return [f"{key}: {a or 'none'}, {b or 'none'}" for key, (a, b) in sorted(pairs.items()) if a != b]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Text table."""
    names = short_names(row["cell_id"] for row in rows)
    lines = [("cell", "base_us", "current_us", "change")]
    for row in rows:
        texts = [
            format_us(us) if us is not None else row[status]
            for us, status in ((row["base_us"], "base_status"), (row["current_us"], "current_status"))
        ]
        ratio = row["ratio"]
        change = "-" if ratio is None else f"{(ratio - 1) * 100:+.1f} %"
        lines.append((names[row["cell_id"]], *texts, change))  # type: ignore[arg-type]  # always two texts
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(line[i].rjust(widths[i]) for i in (1, 2, 3))]) for line in lines
    )
