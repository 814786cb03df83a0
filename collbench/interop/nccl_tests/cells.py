"""From rows of nccl-tests to cells and samples of a run folder, saying no more than the program said.

Most releases print one mean per size. It becomes one sample of n calls back to back, in one row: whose time it is
stands in the cell's variant. Only `-I` gives times per iteration, and those of every rank only where each rank was a
process.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from collbench.errors import InvalidError
from collbench.interop.nccl_tests.table import DTYPES, PROGRAMS, Figures, Invocation, Row, Settings
from collbench.results.records import Call, Cell, Mode, Samples, Status
from collbench.units import MAX_BYTES

__all__ = [
    "ALGORITHM", "BUFFERS", "Measured", "as_iterations", "by_iterations", "evidence_of", "measured", "samples_of",
    "variant", "with_said",
]  # fmt: skip

ALGORITHM = "nccl_tests"
"""Name of the algorithm: NCCL, as it chooses, called by nccl-tests."""

BUFFERS = ""
"""Neither warm nor cold is known: calls step through buffers as large as the largest size of the sweep."""

_EVENTS = "events"
_MOST_CALLS = 1_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """Cells in the order in which they were printed, their samples, what ran, and what was left out, as sentences."""

    cells: tuple[Cell, ...]
    samples: tuple[Samples, ...]
    evidence: Mapping[tuple[str, int], Mapping[str, str]]
    left_out: tuple[str, ...]
    world_size: int
    launches: int


def measured(invocations: Sequence[Invocation]) -> Measured:
    """What a run folder holds of these runs; a later run of the same program is the next launch.

    Raises:
        InvalidError: the collective or the number of ranks cannot be known, they differ between the runs, or no row is
            left that a cell can be made of.
    """
    with_rows = [one for one in invocations if one.rows]
    sizes = {one.world_size for one in with_rows}
    if len(sizes) != 1:
        raise InvalidError(f"runs of {', '.join(map(str, sorted(sizes)))} ranks: a run folder holds one world size")
    cells: dict[str, Cell] = {}
    samples: list[Samples] = []
    evidence: dict[tuple[str, int], Mapping[str, str]] = {}
    left_out: list[str] = []
    launches: dict[str, int] = {}
    for one in with_rows:
        number = launches.get(one.program, 0)
        launches[one.program] = number + 1
        found, taken, odd = samples_of(one, number)
        cells |= found
        samples += taken
        left_out += odd
        evidence |= {(cell_id, number): evidence_of(one, cell) for cell_id, cell in found.items()}
    if not cells:
        raise InvalidError(f"nothing that a run folder can hold: {'; '.join(dict.fromkeys(left_out)) or 'no rows'}")
    return Measured(
        tuple(cells.values()), tuple(samples), evidence, tuple(dict.fromkeys(left_out)), sizes.pop(),
        max(launches.values()),
    )  # fmt: skip


def samples_of(one: Invocation, launch: int) -> tuple[dict[str, Cell], list[Samples], list[str]]:
    """Cells by id, one launch's samples of each, and what was left out.

    Raises:
        InvalidError: the collective or the number of ranks is not known, or times are the processor's (-C).
    """
    _check(one)
    cells: dict[str, Cell] = {}
    parts: dict[str, list[Figures]] = {}
    empty = 0
    for row in one.rows:
        empty += row.bytes == 0
        for place, figures in row.places.items():
            if 0 < row.bytes <= MAX_BYTES:
                cell = _cell(one, row, place, figures)
                cells[cell.cell_id] = cell
                parts.setdefault(cell.cell_id, []).append(figures)
    left_out = [f"{empty} row{'s' * (empty > 1)} of 0 bytes: nothing is called"] if empty else []
    found = [_samples(cells[cell_id], launch, figures, one) for cell_id, figures in parts.items()]
    return cells, found, left_out


def by_iterations(cell: Cell) -> bool:
    """Whether samples of this cell are iterations (-I), not means."""
    return _EVENTS in cell.variant.split()


def as_iterations(mean: Cell, average: str) -> Cell:
    """The cell of the iterations whose mean this is; `average` is the word for it in the variant."""
    words = " ".join(_EVENTS if word == average else word for word in mean.variant.split())
    return replace(mean, variant=words, calls=1)


def _check(one: Invocation) -> None:
    if one.settings.cputime:
        raise InvalidError("the table of -C 1 holds the processor's time of launching, not the collective's: measure "
                           "without -C")  # fmt: skip
    if not one.program:
        raise InvalidError("which collective it is cannot be seen: say it with --collective")
    if PROGRAMS[one.program] is None:
        raise InvalidError(f"{one.program}: a run folder has no word for this collective; the table can be printed")
    if not one.world_size:
        raise InvalidError("how many ranks there were cannot be seen: say it with --nproc")


def _cell(one: Invocation, row: Row, place: str, figures: Figures) -> Cell:
    collective = PROGRAMS[one.program]
    assert collective is not None  # noqa: S101 - _check has refused those without a word
    op = "" if row.redop in {"", "none"} else row.redop
    call = Call(row.bytes, one.world_size, collective, op, DTYPES.get(row.dtype, (row.dtype, 0))[0])
    mode = Mode.GRAPH if one.settings.graph else Mode.EAGER
    checked = figures.wrong is not None
    words = variant(one.settings, nccl=one.nccl, root=row.root, iterations=_usable(one, figures), checked=checked)
    return Cell(ALGORITHM, call, mode, _calls(one.settings, figures), words, place, BUFFERS)


def variant(settings: Settings, *, nccl: str, root: int, iterations: bool, checked: bool) -> str:
    """What tells times apart that must not be compared: NCCL's version, whose time, how it waited, what was set.

    `events` are times per iteration by CUDA events, the largest over the processes; `avg`, `rank0`, `min` and `max` are
    means, taken so over the ranks (-a). `unverified`: nobody compared the results.
    """
    words = [
        nccl, _EVENTS if iterations else settings.average, f"z{settings.blocking}" if settings.blocking else "",
        f"m{settings.aggregated}" if settings.aggregated > 1 else "", *settings.others,
        f"root{root}" if root >= 0 else "", "" if checked else "unverified",
    ]  # fmt: skip
    return " ".join(filter(None, words))


def _usable(one: Invocation, figures: Figures) -> bool:
    """Whether times per iteration are per call: with -m above 1 nobody says of how many calls they are."""
    return bool(figures.process_us) and one.settings.aggregated == 1


def _calls(settings: Settings, figures: Figures) -> int:
    """Calls behind one sample: with events or waiting (-z) one, else all that ran before the clock was read."""
    if (figures.process_us and settings.aggregated == 1) or settings.blocking in {1, 2}:
        return 1
    if settings.blocking:
        return settings.aggregated
    calls = settings.iterations * settings.aggregated * max(1, settings.graph)
    return min(max(1, calls), _MOST_CALLS)


def _samples(cell: Cell, launch: int, parts: Iterable[Figures], one: Invocation) -> Samples:
    """Rows of one size in one run (-N) are repetitions; those with wrong elements have no time."""
    parts = list(parts)
    wrong = sum(figures.wrong or 0 for figures in parts)
    if wrong:
        return Samples(cell.cell_id, launch, Status.WRONG, f"{wrong} wrong elements, as nccl-tests checked them",
                       calls=cell.calls)  # fmt: skip
    if all(_usable(one, figures) for figures in parts):
        matrices = [_by_rank(figures.process_us, one.world_size) for figures in parts]
        if len({len(matrix) for matrix in matrices}) == 1:
            ranks = tuple(tuple(x for part in row for x in part) for row in zip(*matrices, strict=True))
            return Samples(cell.cell_id, launch, Status.OK, calls=cell.calls, latency_us=ranks)
    means = (tuple(figures.time_us for figures in parts),)
    return Samples(cell.cell_id, launch, Status.OK, calls=cell.calls, latency_us=means)


def _by_rank(process_us: Sequence[Sequence[float]], ranks: int) -> tuple[tuple[float, ...], ...]:
    """Rows of ranks where each process was one; else one row, the largest over the processes in each iteration."""
    if len(process_us) == ranks:
        return tuple(tuple(row) for row in process_us)
    return (tuple(max(times) for times in zip(*process_us, strict=True)),)


def evidence_of(one: Invocation, cell: Cell) -> dict[str, str]:
    """What ran and how it was measured, as text by name; no host, no path, nothing of the environment."""
    settings, checks = one.settings, one.settings.validation
    proof = next((row.proof for row in one.rows if row.bytes == cell.call.bytes and row.proof), {})
    said = {
        "program": f"{one.program}_perf", "nccl-tests": one.version, "nccl": one.nccl, "inferred": one.inferred,
        "measured": f"{settings.iterations} iterations of {settings.aggregated} calls, -a {settings.average}, "
        f"-z {settings.blocking}, -G {settings.graph}" + (f", -c {checks}" if checks is not None else ""),
    }  # fmt: skip
    return {key: text for key, text in {**said, **proof}.items() if text}


def with_said(one: Invocation, *, program: str = "", ranks: int = 0) -> Invocation:
    """With what the user says of it in place of what could not be seen.

    Raises:
        InvalidError: it contradicts what the output says.
    """
    for said, seen, name in ((program, one.program, "collective"), (ranks, one.world_size, "number of ranks")):
        if said and seen and said != seen and not one.inferred:
            raise InvalidError(f"the output says {seen}, the call says {said}: leave the {name} out")
    return replace(one, program=program or one.program, world_size=ranks or one.world_size)
