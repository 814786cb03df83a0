"""Why it takes that long: each time split into the terms of the model, what stays unexplained, and the sentence."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from collbench.contention.explain import MOST_RATIO, Explanation, Verdict, said_once
from collbench.contention.predict import TERMS, Prediction
from collbench.errors import CollbenchError
from collbench.report.canvas import BACK, BLOCK, CURVES, INK, MUTED, Drawn, Key, Table, named_rows, picture
from collbench.report.figure import MOST_CURVES
from collbench.report.gain import DECODE_BYTES
from collbench.report.holding import holds_back
from collbench.report.predicted import Predicted
from collbench.report.series import Panel
from collbench.report.svg import Styles
from collbench.results.private import public
from collbench.results.summary import clean
from collbench.units import format_bytes, format_us
from collbench.wording import counted

__all__ = ["chosen_sizes", "predicted_reasons", "reasons"]

_COLOUR = {
    "launch": 7, "sync": 0, "path": 8, "port": 2, "queueing": 3, "efficiency": 1, "window": 5, "reduce": 11,
    "protocol": 4,
}  # fmt: skip
_WORDS = {
    "launch": "launch", "sync": "sync: flags and fences", "path": "path: latency of the wires",
    "port": "port: a rank's own bytes", "queueing": "queueing: a link is shared",
    "efficiency": "efficiency: what links lose", "window": "window: reads in flight", "reduce": "reduce: summing",
    "protocol": "protocol: more bytes and hops",
}  # fmt: skip
_LEAST_LABEL = 0.07
_LEAST_US = 0.005
_MOST_SENTENCES = 12


@dataclass(frozen=True, slots=True)
class _Bar:
    """One cell with its prediction and, where it was measured, time and explanation.

    The terms count only where it is `explained`.
    """

    name: str
    prediction: Prediction
    measured_us: float | None = None
    explanation: Explanation | None = None

    @property
    def explained(self) -> bool:
        return self.explanation is None or self.explanation.verdict is not Verdict.UNEXPLAINED

    @property
    def total_us(self) -> float:
        """What of the prediction counts."""
        return self.prediction.total_us * self.explained

    @property
    def link(self) -> str:
        b = self.prediction.bottleneck
        if b is None or not self.explained or not holds_back(self.prediction):
            return ""
        return f"{clean(b.link)}: {counted(b.flows, 'flow')}, {b.gbps:.1f} GB/s"


def chosen_sizes(panel: Panel) -> list[int]:
    """The smallest size, the one nearest to a decode step's, and the largest."""
    sizes = panel.sizes
    middle = min(sizes, key=lambda size: abs(math.log(size / DECODE_BYTES)))
    return sorted({sizes[0], middle, sizes[-1]})


def reasons(
    told: Predicted, rows: Sequence[Mapping[str, Any]], panels: Sequence[Panel], styles: Styles
) -> dict[str, Any]:
    """`why` for the template: figures and sentences of the first panel with predictions, or why there is none."""
    measured = {row["cell_id"]: row for row in rows if row["p50_us"] is not None}
    for panel in panels:
        found = [(size, _bars(told, measured, panel, size)) for size in chosen_sizes(panel)]
        if any(bars for _, bars in found):
            figures = [
                _figure(f"{format_bytes(size)}, {panel.title}", bars, styles, f"why{i}-")
                for i, (size, bars) in enumerate(found)
                if bars
            ]
            words = [(format_bytes(size), [b.explanation for b in bars if b.explanation]) for size, bars in found]
            return {"why": {"empty": "", "mode": panel.title, "figures": figures, **_words(words)}}
    words = [
        (format_bytes(size), _explanations(told, measured, panel, size))
        for panel in panels[:1]
        for size in chosen_sizes(panel)
    ]
    title = panels[0].title if panels else ""
    return {"why": {"empty": told.why_not(), "mode": title, "figures": [], **_words(words)}}


def predicted_reasons(title: str, predictions: Sequence[tuple[str, Prediction]], styles: Styles, prefix: str) -> Drawn:
    """The figure of predictions without measurements, as (name, prediction) in the order of the bars."""
    return _figure(title, [_Bar(name, one) for name, one in predictions], styles, prefix)


def _words(found: Sequence[tuple[str, Sequence[Explanation]]]) -> dict[str, Any]:
    """`words` by size, and what holds of `all` of them, said once."""
    shared, sentences = said_once([one for _, some in found for one in some])
    left = iter(sentences)
    words = [(size, [public(next(left)) for _ in some]) for size, some in found]
    return {"words": [(size, some) for size, some in words if some], "all": " ".join(shared)}


def _cells(measured: Mapping[str, Mapping[str, Any]], panel: Panel, size: int) -> list[tuple[str, Mapping[str, Any]]]:
    """Rows of a panel at one size, fastest first."""
    found = [
        (one.name, measured[point.cell_id])
        for one in panel.series
        if (point := one.at(size)) and point.plausible and point.cell_id in measured
    ]
    return sorted(found, key=lambda pair: float(pair[1]["p50_us"]))


def _bars(told: Predicted, measured: Mapping[str, Mapping[str, Any]], panel: Panel, size: int) -> list[_Bar]:
    """The fastest cells, and NCCL's fastest in the last place where none of its rows is among them."""
    rows = [(name, row) for name, row in _cells(measured, panel, size) if row["cell_id"] in told.best]
    first, rest = rows[:MOST_CURVES], rows[MOST_CURVES:]
    if not any(name.startswith("nccl") for name, _ in first):
        other = [pair for pair in rest if pair[0].startswith("nccl")][:1]
        first = [*first[: MOST_CURVES - len(other)], *other]
    return [_Bar(name, told.best[row["cell_id"]], row["p50_us"], told.explain(row)) for name, row in first]


def _explanations(
    told: Predicted, measured: Mapping[str, Mapping[str, Any]], panel: Panel, size: int
) -> list[Explanation]:
    found = []
    for _, row in _cells(measured, panel, size)[:_MOST_SENTENCES]:
        try:
            found.append(told.explain(row))
        except CollbenchError:
            continue
    return found


def _figure(title: str, bars: Sequence[_Bar], styles: Styles, prefix: str) -> Drawn:
    finding = _finding(bars)
    terms = [term for term in TERMS if any(b.explained and b.prediction.terms_us[term] >= _LEAST_US for b in bars)]
    titles: dict[str, list[str]] = {}
    height = 0.75 + 0.31 * len(bars)
    svg = picture(partial(_paint, bars, terms, titles), (7.4, height), prefix, styles, f"{title}. {finding}", titles)
    keys = [Key(_WORDS[term], _COLOUR[term], BLOCK) for term in terms]
    note = _note(bars)
    return Drawn(title, finding, svg, _table(title, bars, terms), note, keys, "Terms in their order", "microseconds")


def _note(bars: Sequence[_Bar]) -> str:
    first = bars[0].explanation
    if first is None:
        return "Nothing was measured: each bar is the model's prediction."
    note = "The upright stroke is what was measured; an empty box behind the terms is unexplained."
    if not all(bar.explained for bar in bars):
        note += f" Above {MOST_RATIO:g} times the prediction no term is named, and the whole bar is empty."
    return f"{public(first.sentence)} {note}"


def _paint(bars: Sequence[_Bar], terms: Sequence[str], titles: dict[str, list[str]], figure: Any) -> None:  # noqa: ANN401 - matplotlib has no types
    axes = named_rows(figure, [bar.name for bar in bars])
    reach = 1.04 * max(max(bar.measured_us or 0.0, bar.total_us) for bar in bars)
    for y, bar in enumerate(bars):
        _row(axes, y, bar, terms, titles, reach)
    axes.set_xlim(0, reach)


def _row(axes: Any, y: int, bar: _Bar, terms: Sequence[str], titles: dict[str, list[str]], reach: float) -> None:  # noqa: ANN401 - same
    left = 0.0
    for term in terms if bar.explained else ():
        us = bar.prediction.terms_us[term]
        if us < _LEAST_US:
            continue
        name = f"bar{y}{term}"
        axes.barh(
            y, us, left=left, height=0.64, color=CURVES[_COLOUR[term]], edgecolor=BACK, linewidth=0.8, gid=name
        )  # fmt: skip
        titles[name] = [f"{bar.name}: {term} {format_us(us)} us of {format_us(bar.prediction.total_us)} predicted"]
        if us > reach * _LEAST_LABEL * max(1.0, len(term) / 5):
            axes.text(left + us / 2, y, term, color=BACK, ha="center", va="center", fontsize=8.5)
        left += us
    if bar.measured_us is None:
        return
    rest = bar.measured_us - left
    if rest > 0:
        axes.barh(
            y, rest, left=left, height=0.64, facecolor="none", edgecolor=MUTED, linewidth=0.9, linestyle=(0, (3, 2)),
            gid=f"rest{y}",
        )  # fmt: skip
        titles[f"rest{y}"] = [f"{bar.name}: {format_us(rest)} us unexplained"]
    name = f"measured{y}"
    axes.plot([bar.measured_us] * 2, [y - 0.42, y + 0.42], color=INK, linewidth=2.2, solid_capstyle="butt", gid=name)
    titles[name] = [f"{bar.name}: {format_us(bar.measured_us)} us measured"]


def _finding(bars: Sequence[_Bar]) -> str:
    """The largest term of the fastest, who waits most for a shared link, and what is not explained."""
    parts = []
    clear = [bar for bar in bars if bar.explained]
    if clear:
        first = clear[0]
        term, us = max(first.prediction.terms_us.items(), key=lambda item: item[1])
        share = us / first.prediction.total_us
        parts.append(
            f"Of the {format_us(first.prediction.total_us)} us predicted for {first.name}, {term} is {share:.0%}"
        )
        parts += [text for text in [_queueing(clear)] if text]
    if rest := [bar.name for bar in bars if not bar.explained]:
        parts.append(f"not explained: {', '.join(rest)} (above {MOST_RATIO:g} times the prediction)")
    return f"{'; '.join(parts)}."


def _queueing(bars: Sequence[_Bar]) -> str:
    part: Callable[[_Bar], float] = lambda bar: bar.prediction.terms_us["queueing"] / bar.prediction.total_us  # noqa: E731
    most = max(bars, key=part)
    if not any(bar.prediction.bottleneck for bar in bars):
        return ""
    if part(most) < 0.005:  # noqa: PLR2004 - nothing once rounded
        return "nobody waits for a shared link"
    b = most.prediction.bottleneck
    where = f" at {clean(b.link)} with {counted(b.flows, 'flow')}" if b else ""
    return f"{most.name} waits most for a shared link: {part(most):.0%}{where}"


def _table(title: str, bars: Sequence[_Bar], terms: Sequence[str]) -> Table:
    told = bars[0].measured_us is not None
    numbers = [("predicted", True), *((term, True) for term in terms)]
    numbers = [("measured", True), *numbers, ("unexplained", True)] if told else numbers
    columns = [("algorithm", False), *numbers, ("link that binds", False), ("from priors", True)]
    lines = []
    for bar in bars:
        terms_us = bar.prediction.terms_us
        parts = [format_us(bar.prediction.total_us), *(format_us(terms_us[t]) if bar.explained else "" for t in terms)]
        if bar.measured_us is not None:
            parts = [format_us(bar.measured_us), *parts, f"{bar.measured_us - bar.total_us:+.2f}"]
        lines.append([bar.name, *parts, bar.link, f"{bar.prediction.prior_share:.0%}"])
    return Table(f"Terms in microseconds, {title}", columns, lines)
