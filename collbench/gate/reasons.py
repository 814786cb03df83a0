"""What is said of cells, once for all of whom it is said."""

from collections.abc import Iterable, Sequence

from collbench.gate.names import by_effect, change, interval, short_names, times
from collbench.gate.verdicts import CellVerdict, Outcome, Verdict
from collbench.results.summary import clean

__all__ = ["change_note", "faults", "grouped", "not_compared", "reasons", "with_numbers", "worst"]

_PLACE = 1
"""Of the algorithm in a `cell_id`."""


def faults(outcome: Outcome) -> list[str]:
    """What stands against any verdict: that of the comparison as it is, that of cells once per reason."""
    of_cells = {f"{cell.cell_id}: {cell.reason}": (cell.cell_id, cell.reason) for cell in outcome.cells}
    whole = [fault for fault in outcome.faults if fault not in of_cells]
    return [*whole, *grouped([of_cells[fault] for fault in outcome.faults if fault in of_cells], _ids(outcome))]


def not_compared(outcome: Outcome) -> list[str]:
    """Cells that neither side runs, once per reason."""
    ids = [*_ids(outcome), *(cell_id for cell_id, _ in outcome.not_compared)]
    return grouped(outcome.not_compared, ids)


def reasons(outcome: Outcome) -> list[str]:
    """Reasons of verdicts on cells with numbers, once for all that share it: `INCONCLUSIVE, all 8 cells: ...`."""
    said = set(outcome.faults)
    rows = [cell for cell in with_numbers(outcome) if cell.reason and cell.reason not in said]
    return [
        f"{verdict}, {text}"
        for verdict in dict.fromkeys(str(cell.verdict) for cell in rows)
        for text in grouped([(c.cell_id, c.reason) for c in rows if str(c.verdict) == verdict], _ids(outcome))
    ]


def worst(outcome: Outcome) -> str:
    """The cell that became slower, or else faster, by most: `host_ring 1024: 45.9 -> 68.5 us, +49.3 % (95 %: ...)`."""
    if outcome.verdict not in {Verdict.REGRESSED, Verdict.IMPROVED}:
        return ""
    cells = [c for c in by_effect(outcome.cells) if c.verdict is outcome.verdict and not c.control]
    name = short_names(_ids(outcome))[cells[0].cell_id]
    if cells[0].ratio is None:
        return f"{name}: {clean(cells[0].reason)}"
    base, now = times(cells[0])
    return f"{name}: {base} -> {now} us, {change(cells[0])} (95 % interval {interval(cells[0])})"


def with_numbers(outcome: Outcome) -> list[CellVerdict]:
    """Cells to be listed, worst first: of those without a verdict only such as have times; `faults` says the rest."""
    return [
        cell for cell in by_effect(outcome.cells)
        if cell.verdict is not Verdict.INVALID or cell.base_median_us is not None or not outcome.faults
    ]  # fmt: skip


def grouped(told: Iterable[tuple[str, str]], cell_ids: Sequence[str]) -> list[str]:
    """For each reason of `told` (cell_id, reason) one text: `ring (4 of 8 cells), tree 1024: reason`.

    `cell_ids` are all cells, of which those of an algorithm are counted. In the order in which reasons come up.
    """
    names = short_names(dict.fromkeys(cell_ids))
    of: dict[str, set[str]] = {}
    for cell_id in cell_ids:
        of.setdefault(_algorithm(cell_id, names), set()).add(cell_id)
    found: dict[str, dict[str, list[str]]] = {}
    for cell_id, reason in told:
        found.setdefault(clean(reason), {}).setdefault(_algorithm(cell_id, names), []).append(cell_id)
    return [f"{_who(some, of, names)}: {reason}" for reason, some in found.items()]


def _who(some: dict[str, list[str]], of: dict[str, set[str]], names: dict[str, str]) -> str:
    cells, total = sum(map(len, some.values())), sum(map(len, of.values()))
    if cells == total > 1:
        return f"all {total} cells"
    return ", ".join(
        names[ids[0]] if len(ids) == 1 else f"{algorithm} ({len(ids)} of {len(of[algorithm])} cells)"
        for algorithm, ids in some.items()
    )


def _algorithm(cell_id: str, names: dict[str, str]) -> str:
    parts = cell_id.split("/")
    return clean(parts[_PLACE]) if names[cell_id] != clean(cell_id) and len(parts) > _PLACE else names[cell_id]


def _ids(outcome: Outcome) -> list[str]:
    return [cell.cell_id for cell in outcome.cells]


def change_note(outcome: Outcome) -> str:
    """Where `change` comes from, which is not the two times beside it; empty where there is none."""
    if not any(cell.ratio is not None for cell in outcome.cells):
        return ""
    if outcome.mode == "paired":
        ratio = "the geometric mean of the ratios within pairs of launches"
    else:
        ratio = "the ratio of the two sides' geometric means over launches"
    return f"change is {ratio}; base and now are medians over launches, whose ratio may differ"
