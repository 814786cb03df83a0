"""The verdicts of a gate as a page: every cell's change with its interval against the band that does not count."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collbench.gate.names import by_effect, change, headline, interval, short_names, times
from collbench.gate.verdicts import CellVerdict, Outcome
from collbench.results.summary import clean, printable

__all__ = ["gate_page"]

_TEMPLATES = Path(__file__).parent / "templates"
_WIDTH, _ROW, _EDGE = 280.0, 22.0, 10.0
_MOST_ROWS = 500
_MARK = {"REGRESSED": "k3", "IMPROVED": "k2", "OK": "k0", "INCONCLUSIVE": "k7", "INVALID": "k10"}


def gate_page(outcome: Outcome) -> str:
    """One HTML page that fetches nothing; names and reasons stay text whatever they hold."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from collbench.report.private import public

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    environment.filters["public"] = public
    css = Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file, no data in it
    shown = by_effect(outcome.cells)[:_MOST_ROWS]
    return environment.get_template("gate.html").render(
        css=css, outcome=outcome, headline=headline(outcome), lines=_lines(outcome, shown), width=_WIDTH, row=_ROW,
        axis=_axis(shown), rest=len(outcome.cells) - len(shown), effect=outcome.rules.min_effect * 100,
        record={k: public(_flat(v)) for k, v in outcome.record.items() if k != "orders"},
    )  # fmt: skip


def _flat(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shown(value: object) -> object:
    return value if hasattr(value, "__html__") or not isinstance(value, str) else printable(value)


def _reach(cells: Sequence[CellVerdict]) -> float:
    """Largest log ratio of the axis: of what the intervals need at least 5 %, at most a factor of two."""
    ends = [abs(math.log(end)) for cell in cells for end in (cell.low, cell.high) if end]
    return min(math.log(2), max([math.log(1.05), *ends]) * 1.05)


def _place(log_ratio: float, reach: float) -> float:
    inside = max(-reach, min(reach, log_ratio))
    return round(_EDGE + (inside + reach) / (2 * reach) * (_WIDTH - 2 * _EDGE), 1)


def _axis(cells: Sequence[CellVerdict]) -> list[tuple[float, str]]:
    """Marks of the axis: where, and what stands there."""
    reach = _reach(cells)
    steps = [p for p in (-40, -20, -10, -5, 0, 5, 10, 20, 40, 80) if abs(math.log1p(p / 100)) <= reach]
    if len(steps) > 5:  # noqa: PLR2004 - more would touch each other
        steps = [p for p in steps if abs(p) != 5]  # noqa: PLR2004 - the innermost pair goes
    return [(_place(math.log1p(p / 100), reach), f"{p:+d} %" if p else "0") for p in steps]


def _lines(outcome: Outcome, cells: Sequence[CellVerdict]) -> list[dict[str, Any]]:
    names = short_names(cell.cell_id for cell in outcome.cells)
    reach = _reach(cells)
    found = []
    for cell in cells:
        base, now = times(cell)
        margin = math.log1p(cell.margin if cell.margin is not None else outcome.rules.min_effect)
        drawn = cell.ratio is not None and cell.low is not None and cell.high is not None
        found.append({
            "name": names[cell.cell_id], "verdict": str(cell.verdict), "mark": _MARK[str(cell.verdict)], "base": base,
            "now": now, "change": change(cell), "interval": interval(cell), "reason": clean(cell.reason),
            "control": cell.control, "band": (_place(-margin, reach), _place(margin, reach)),
            "whisker": tuple(_place(math.log(end or 1), reach) for end in (cell.low, cell.high)) if drawn else None,
            "dot": _place(math.log(cell.ratio or 1), reach), "middle": _place(0.0, reach),
        })  # fmt: skip
    return found
