"""Which cells of a run may be compared with each other, and which are left aside."""

from collections.abc import Mapping, Sequence

from collbench.results.records import Cell, Collective

__all__ = ["comparable"]

_MOST_ASIDE = 3
_SETTINGS = ("dtype", "op", "place", "buffers", "epilogue", "skew")


def comparable(cells: Sequence[Cell]) -> tuple[list[Cell], tuple[str, ...]]:
    """Cells that may be compared: of each collective those with the plainest and then the most frequent settings.

    Beside them a sentence for each collective of which others were left aside.
    """
    groups: dict[Collective, dict[tuple[str, ...], list[Cell]]] = {}
    for cell in cells:
        call = cell.call
        settings = (call.dtype, call.op, cell.place, cell.buffers, call.epilogue, cell.skew or str(call.splits))
        groups.setdefault(call.collective, {}).setdefault(settings, []).append(cell)
    found: list[Cell] = []
    notes = []
    for collective, of_one in groups.items():
        taken = max(of_one, key=lambda one: (not one[4], one[5] in {"", "()"}, len(of_one[one])))
        found += of_one[taken]
        if len(of_one) > 1:
            notes.append(_aside(collective, taken, of_one))
    return found, tuple(notes)


def _aside(collective: Collective, taken: tuple[str, ...], of_one: Mapping[tuple[str, ...], Sequence[Cell]]) -> str:
    differ = [i for i in range(len(taken)) if len({settings[i] for settings in of_one}) > 1]

    def told(settings: tuple[str, ...]) -> str:
        words = (f"{_SETTINGS[i]} {settings[i].strip('()') or 'none'}" for i in differ)
        return f"{', '.join(words)} ({len(of_one[settings])})"

    others = [told(settings) for settings in of_one if settings != taken]
    more = f"; and {len(others) - _MOST_ASIDE} more" if len(others) > _MOST_ASIDE else ""
    return (
        f"Of the run's {collective} cells those of {told(taken)} are taken; left aside: "
        f"{'; '.join(others[:_MOST_ASIDE])}{more}"
    )
