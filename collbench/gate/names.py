"""Names of cells as people read them, and the numbers of a verdict as text."""

from collections.abc import Iterable, Sequence

from collbench.gate.verdicts import CellVerdict, Outcome, Verdict
from collbench.results.summary import clean
from collbench.units import format_us
from collbench.wording import counted

__all__ = ["by_effect", "change", "headline", "interval", "short_names", "times"]

_FIELDS = 13
_ALWAYS = {1, 5}
"""Places of the algorithm and the bytes in a `cell_id`: shown even where all cells share them."""

_CALLS, _WORLD = 8, 6
_WORST = (Verdict.INVALID, Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.OK)


def short_names(cell_ids: Iterable[str]) -> dict[str, str]:
    """For each `cell_id` the fields in which the cells differ, with algorithm and bytes always; else all of it."""
    split = {cell_id: cell_id.split("/") for cell_id in cell_ids}
    if any(len(parts) != _FIELDS for parts in split.values()):
        return {cell_id: clean(cell_id) for cell_id in split}
    shown = [
        i for i in range(_FIELDS) if i in _ALWAYS or len({parts[i] for parts in split.values()}) > 1
    ]  # fmt: skip
    names = {
        cell_id: clean(" ".join(_word(i, parts[i]) for i in shown if parts[i] != "-"))
        for cell_id, parts in split.items()
    }
    return names if len(set(names.values())) == len(names) else {cell_id: clean(cell_id) for cell_id in split}


def _word(place: int, text: str) -> str:
    return {_CALLS: f"x{text}", _WORLD: f"{text} ranks"}.get(place, text)


def by_effect(cells: Iterable[CellVerdict]) -> list[CellVerdict]:
    """Worst verdicts first, the largest change first among equals."""
    return sorted(
        cells, key=lambda cell: (_WORST.index(cell.verdict), -abs((cell.ratio or cell.median_ratio or 1.0) - 1))
    )


def change(cell: CellVerdict) -> str:
    """`+20.3 %`, or `-`."""
    return "-" if cell.ratio is None else f"{_percent(cell.ratio)} %"


def interval(cell: CellVerdict) -> str:
    """95 % interval of the change: `+18.9 .. +21.7 %`, or `-`."""
    if cell.low is None or cell.high is None:
        return "-"
    return f"{_percent(cell.low)} .. {_percent(cell.high)} %"


def _percent(ratio: float) -> str:
    """`+1.2`; nothing is `+0.0`, never `-0.0`."""
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f}"


def times(cell: CellVerdict) -> tuple[str, str]:
    """Medians of both sides in microseconds."""
    return format_us(cell.base_median_us), format_us(cell.current_median_us)


def headline(outcome: Outcome) -> str:
    """One sentence: the verdict, how many cells of each, how it was measured."""
    total = sum(not cell.control for cell in outcome.cells)
    counts = ", ".join(f"{outcome.count(verdict)} {verdict}" for verdict in _WORST if outcome.count(verdict))
    controls = sum(cell.control for cell in outcome.cells)
    more = f", {controls} control" if controls else ""
    return f"{outcome.verdict}: {counted(total, 'cell')} ({counts or 'none'}{more}), {_launches(outcome)}"


def _launches(outcome: Outcome) -> str:
    if outcome.mode == "paired":
        return f"{counted(outcome.blocks, 'pair')} of launches"
    match outcome.record.get("launches"):
        case [int(base), int(current)] if base != current:
            return f"{counted(base, 'launch', 'es')} of the base and {current} of the current, stored"
    return f"{counted(outcome.blocks, 'launch', 'es')} a side, stored"


def fit(texts: Sequence[str], width: int) -> list[str]:
    """Cut texts to a width."""
    return [text if len(text) <= width else text[: max(0, width - 3)] + "..." for text in texts]
