"""What two runs enqueued for the same cells, from their evidence: who starts early, which kernels, which grids."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collbench.errors import InvalidError
from collbench.interop.chosen import fields_of
from collbench.interop.enqueued import kernels
from collbench.results.reading import RUN
from collbench.results.store import RunFolder
from collbench.results.summary import clean

__all__ = ["enqueued_differences"]

_MOST = 3
_Facts = Mapping[str, frozenset[str]]
_EARLY, _KERNEL, _GRID, _CHOICE = "programmatic launch", "kernel", "grid", "NCCL's choice"


def enqueued_differences(base: str | Path, current: str | Path, cell_ids: Iterable[str]) -> list[str]:
    """Lines on what differs, grouped, an algorithm once in each; cells of both that ended well are asked.

    Over the launches of a side a grid may vary: sides differ where they have none in common. Nothing is said of what
    neither side has evidence of; where one has none that can be read, a line says so.
    """
    cell_ids = list(cell_ids)
    sides = [_of(path, frozenset(cell_ids)) for path in (base, current)]
    if not all(sides):
        told = [str(path) for path, facts in zip((base, current), sides, strict=True) if not facts]
        return [f"what was enqueued is not compared: {told[0]} has no evidence of it"] if len(told) == 1 else []
    found: dict[str, _Difference] = {}
    for cell_id in cell_ids:
        before, now = (facts.get(cell_id, {}) for facts in sides)
        for fact in before.keys() & now.keys():
            if not before[fact] & now[fact]:
                fields = fields_of(cell_id)
                both = _words(before[fact]), _words(now[fact])
                found.setdefault(fact, _Difference()).add(
                    fields.get("algorithm", cell_id), fields.get("bytes", ""), both
                )
    return [line for fact in (_EARLY, _KERNEL, _CHOICE, _GRID) if fact in found for line in found[fact].lines(fact)]


@dataclass(slots=True)
class _Difference:
    """One kind of difference: by algorithm its sizes, and what stands on either side at each."""

    by_name: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)

    def add(self, name: str, size: str, both: tuple[str, str]) -> None:
        self.by_name.setdefault(clean(name), {})[clean(size)] = both

    def lines(self, fact: str) -> list[str]:
        if fact == _EARLY:
            only = {side: [name for name in self.by_name if self._early(name, i)] for i, side in enumerate(_SIDES)}
            return [f"{fact} on {side} only: {', '.join(names)}" for side, names in only.items() if names]
        told = [f"{name} {_by_size(sizes)}" for name, sizes in self.by_name.items()]
        more = f"; and of {len(told) - _MOST} more" if len(told) > _MOST else ""
        return [f"{fact}: {'; '.join(told[:_MOST])}{more}"]

    def _early(self, name: str, side: int) -> bool:
        return any(both[side] == _YES for both in self.by_name[name].values())


_SIDES = ("base", "current")
_YES, _NO = "yes", "no"


def _by_size(sizes: Mapping[str, tuple[str, str]]) -> str:
    """`1x64, 2x32 (at 1024 bytes; differs at 1 size more)`."""
    (size, (before, now)), *more = sizes.items()
    alike = all(both == (before, now) for _, both in more)
    ending = f"; differs at {len(more)} size{'s' if len(more) > 1 else ''} more" if more and not alike else ""
    where = "" if alike and more else f" (at {size} bytes{ending})"
    return f"{before}, {now}{where}"


def _words(values: frozenset[str]) -> str:
    return " or ".join(sorted(values))


def _of(path: str | Path, wanted: frozenset[str]) -> dict[str, _Facts]:
    """Facts by cell of a run folder; empty of a baseline file, or without evidence."""
    path = Path(path)
    if not (path / RUN).exists():
        return {}
    found: dict[str, dict[str, set[str]]] = {}
    try:
        with RunFolder.open(path) as folder:
            evidence = folder.evidence()
    except InvalidError:  # of the file of evidence alone: the run itself was read before
        return {}
    for (cell_id, _), texts in evidence.items():
        if cell_id in wanted:
            for fact, text in _facts(texts):
                found.setdefault(cell_id, {}).setdefault(fact, set()).add(text)
    return {cell_id: {fact: frozenset(texts) for fact, texts in facts.items()} for cell_id, facts in found.items()}


def _facts(evidence: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if choice := evidence.get("choice"):
        yield _CHOICE, clean(choice)
    for call in kernels(evidence):
        yield _EARLY, _YES if any(kernel.early for kernel in call) else _NO
        yield _KERNEL, " then ".join(clean(kernel.name) for kernel in call)
        yield _GRID, " then ".join(kernel.grid for kernel in call)
