"""What the gate knows of one side: every cell's launch medians, and the fingerprint of the machine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from collbench.errors import InvalidError
from collbench.results.records import Flag, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.results.summary import clean, fold, is_noisy

__all__ = ["CellData", "SessionSpread", "Side", "joined", "side_of_run"]

_WORST_FIRST = (
    Status.WRONG, Status.CRASHED, Status.HUNG, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.NOT_RUN, Status.OK,
)  # fmt: skip


_LEAST_HOURS = 4.0
"""Runs within less are hardly different occasions."""


@dataclass(frozen=True, slots=True)
class CellData:
    """One cell of one side: median (or another quantile) of the group's time per launch, us, in the launches' order.

    `iterations` holds the number of timed iterations of each launch. `status` is the worst of all launches, with its
    reason; only an `ok` cell has medians. `implausible` says what was below its floor, empty if nothing was; `noisy` is
    the flag of that name, False where only medians are known.
    """

    status: Status
    reason: str = ""
    medians_us: tuple[float, ...] = ()
    iterations: tuple[int, ...] = ()
    implausible: str = ""
    noisy: bool = False


@dataclass(frozen=True, slots=True)
class SessionSpread:
    """Standard deviation of a cell's log time from one occasion to another, learnt from unchanged runs.

    `hours` lie between the first and the last of them; None where that is not known.
    """

    sd: float
    sessions: int
    hours: float | None = None

    @property
    def caution(self) -> str:
        """What to say of runs that were made one after the other; empty if they lie hours apart, or nobody knows."""
        if self.hours is None or self.hours >= _LEAST_HOURS:
            return ""
        within = f"{self.hours * 60:.0f} minutes" if self.hours >= 1 / 30 else "2 minutes"
        return (
            f"between_session_sd was learnt from runs within {within}: on another occasion (other load, clocks, a "
            "restart) this machine may differ by more, and be called slower"
        )


@dataclass(frozen=True, slots=True)
class Side:
    """A side of a comparison. `problems` name everything of its files that could not be used."""

    name: str
    cells: Mapping[str, CellData]
    launches: int
    hard: Mapping[str, str] = field(default_factory=dict)
    soft: Mapping[str, str] = field(default_factory=dict)
    spread: SessionSpread | None = None
    problems: tuple[str, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)


def side_of_run(path: str | Path, name: str = "", quantile: float = 0.5) -> Side:
    """Read a run folder; a launch's value is this quantile of its iterations.

    Raises:
        UsageError: there is no such folder.
        InvalidError: it is no run, or its samples cannot be read.
    """
    with RunFolder.open(path) as folder:
        run, samples, problems = folder.run, folder.samples(), folder.problems()
    by_cell: dict[str, list[Samples]] = {}
    for one in samples:
        by_cell.setdefault(one.cell_id, []).append(one)
    if not run.cells:
        raise InvalidError(f"{path}: the run plans no cell: measure again")
    _refuse_duplicates([cell.cell_id for cell in run.cells], str(path))
    floors, unknown = _floors(run)
    cells = {c.cell_id: _cell(by_cell.get(c.cell_id, []), floors.get(c.cell_id), quantile) for c in run.cells}
    found = [*problems, *unknown] if run.finished else [*problems, *unknown, "the run was not finished"]
    hard, soft = _fingerprint(run.machine)
    origin = {"run_id": run.run_id, "created": run.created, "version": run.version}
    return Side(
        name or str(path), cells, run.launches, hard | {"fabric": str(run.fabric), "ranks": str(run.world_size)}, soft,
        problems=tuple(clean(text) for text in found), origin=origin,
    )  # fmt: skip


def joined(sides: Sequence[Side], name: str) -> Side:
    """The launches of several runs of one side as one, in order.

    Cells that only some of them have count as not run; a difference of hard keys between them is a problem.
    """
    ids = list(dict.fromkeys(cell_id for side in sides for cell_id in side.cells))
    problems = [text for side in sides for text in side.problems]
    for side in sides[1:]:
        changed = sorted(key for key in {*side.hard, *sides[0].hard} if side.hard.get(key) != sides[0].hard.get(key))
        problems += [f"{name}: {key} changed between launches" for key in changed]
    cells = {cell_id: _one_of([side.cells.get(cell_id) for side in sides]) for cell_id in ids}
    launches = sum(side.launches for side in sides)
    return replace(sides[0], name=name, cells=cells, launches=launches, problems=tuple(dict.fromkeys(problems)))


def _one_of(parts: Sequence[CellData | None]) -> CellData:
    whole = [part or CellData(Status.NOT_RUN, "not in the plan of every launch") for part in parts]
    worst = min(whole, key=lambda part: _WORST_FIRST.index(part.status))
    if worst.status is not Status.OK:
        return worst
    return CellData(
        Status.OK, "", tuple(us for part in whole for us in part.medians_us),
        tuple(count for part in whole for count in part.iterations),
        next((part.implausible for part in whole if part.implausible), ""), any(part.noisy for part in whole),
    )  # fmt: skip


def _cell(launches: Iterable[Samples], floor_us: float | None, quantile: float) -> CellData:
    ordered = sorted(launches, key=lambda one: one.launch)
    if not ordered:
        return CellData(Status.NOT_RUN, "no launch has a record of it")
    # what a budget cut off takes nothing from the launches before; the gate asks for all of them
    ordered = [one for one in ordered if one.status is not Status.NOT_RUN] or ordered
    worst = min(ordered, key=lambda one: _WORST_FIRST.index(one.status))
    if worst.status is not Status.OK:
        return CellData(worst.status, clean(worst.reason) or "no reason was recorded")
    folds = [fold(one) for one in ordered]
    medians = tuple(float(np.quantile(one, quantile)) for one in folds)
    odd = ""
    if min(medians) <= 0:
        odd = "a time of 0 us"
    elif floor_us is not None and min(medians) < floor_us:
        odd = f"{min(medians):.3g} us, its floor is {floor_us:.3g} us"
    elif any(Flag.IMPLAUSIBLE in one.flags for one in ordered):
        odd = "flagged implausible when it was measured"
    p50, p99 = (float(q) for q in np.quantile(np.concatenate(folds), (0.5, 0.99)))
    return CellData(Status.OK, "", medians, tuple(one.size for one in folds), odd, is_noisy(folds, p50, p99))


def _floors(run: Run) -> tuple[Mapping[str, float], list[str]]:
    from collbench.algorithms.floors import floors_of

    try:
        return floors_of(run), []
    except (InvalidError, KeyError, TypeError, ValueError, AttributeError) as error:
        return {}, [f"the machine in run.json cannot be read: {type(error).__name__}: {error}"]


def _fingerprint(machine: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    found = machine.get("fingerprint")
    parts = found if isinstance(found, dict) else {}

    def texts(name: str) -> dict[str, str]:
        values = parts.get(name)
        return {clean(str(k)): clean(str(v)) for k, v in values.items()} if isinstance(values, dict) else {}

    return texts("hard"), texts("soft")


def _refuse_duplicates(cell_ids: Sequence[str], where: str) -> None:
    seen: set[str] = set()
    for cell_id in cell_ids:
        if cell_id in seen:
            raise InvalidError(f"{where}: cell {clean(cell_id)[:120]!r} stands there twice: measure again")
        seen.add(cell_id)
