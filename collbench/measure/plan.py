"""What to measure, in which order, how many calls and iterations, and about how long it takes."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from collbench.algorithms.base import Algorithm
from collbench.algorithms.epilogues import whole_rows
from collbench.algorithms.routing import EVEN, Skew
from collbench.algorithms.shapes import IN_PARTS
from collbench.errors import UsageError
from collbench.measure.budget import Budget
from collbench.measure.estimates import cell_s, servers_s, start_s
from collbench.results.records import DTYPE_BYTES, Call, Cell, Collective, Fabric, Mode
from collbench.topology.machine import Machine

__all__ = ["CHAINED", "Key", "Options", "Plan", "key_of", "make_plan", "seconds_per_cell", "sizes"]

Key = tuple[str, str]
"""Name and variant of an algorithm."""

_Item = TypeVar("_Item")

CHAINED = 122
"""Calls of a chained sample: what one decode step of a 61-layer model makes (docs/design.md section 1)."""

_HOST_MEMORY = 1 << 30
"""Bytes that all ranks' slots together may take on a host; keeps 8 ranks with their libraries under 4 GiB."""

_GPU_MEMORY = 24 << 30
"""Bytes that the slots of all ranks on one GPU may take."""

_SAMPLE_US = 60_000
"""About the longest sample: a chain is cut to 64, 32, ... calls where 122 would take longer by estimate.
Three batches, warm-up and verification of a slow cell then end within half a second."""

_MAX_SIZES = 64
_WHOLE_SECONDS = 90.0
"""Timed seconds of a sweep without a budget, shared by its cells; with starts and checks it ends within minutes."""

_DEFAULT_SECONDS = 0.3
_REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True)
class Options:
    """A sweep's settings, as the command line gives them. Empty or None: what fits the machine."""

    algorithms: str = ""
    first_bytes: int | None = None
    last_bytes: int | None = None
    factor: int = 4
    sizes: tuple[int, ...] = ()
    modes: tuple[Mode, ...] = (Mode.EAGER, Mode.GRAPH)
    calls: tuple[int, ...] = (1, CHAINED)
    op: str = "sum"
    dtype: str = ""
    launches: int = 1
    iterations: int = 0
    warmup: int = 2
    budget_s: float | None = None
    timeout_s: float = 30.0
    share_gpu: bool = False
    allow_busy: bool = False
    nccl: str = ""
    collective: Collective = Collective.ALL_REDUCE
    epilogue: str = ""
    shuffle: int | None = None
    skews: tuple[str, ...] = ()
    probe: bool = True

    def as_dict(self) -> dict[str, Any]:
        """JSON form, kept in `run.json`."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Plan:
    """Cells in the order of measuring, grouped by algorithm, and the time that they are expected to take.

    `launch_s` has the seconds of a launch of each algorithm that can run, once its libraries are imported; what is not
    in it is taken for free until it was launched. `once_s` is what a sweep pays once, for its fork servers.
    """

    algorithms: tuple[Algorithm, ...]
    cells: tuple[Cell, ...]
    seconds: float
    slots: dict[tuple[str, Call], int] = field(default_factory=dict)
    launch_s: Mapping[Key, float] = field(default_factory=dict)
    once_s: float = 0.0

    def cells_of(self, algorithm: Algorithm) -> list[Cell]:
        """This algorithm's cells."""
        return [c for c in self.cells if key_of(c) == key_of(algorithm)]

    def slots_of(self, cell: Cell) -> int:
        """Slots that the runner of this cell's call needs: the most calls of any cell with the same call."""
        return self.slots[cell.algorithm, cell.call]


def key_of(one: Algorithm | Cell) -> Key:
    """The algorithm's, or that of a cell's algorithm."""
    return (one.name if isinstance(one, Algorithm) else one.algorithm), one.variant


def sizes(first: int, last: int, factor: int) -> list[int]:
    """Message sizes from `first` to `last` bytes, each `factor` times the one before.

    Raises:
        UsageError: the range is empty or has more than 64 sizes.
    """
    if last < first:
        raise UsageError(f"largest size {last} is below the smallest, {first}: swap -b and -e")
    if factor < 2:  # noqa: PLR2004 - a factor of one never ends
        raise UsageError(f"factor {factor}: expected 2 or more")
    found = [first]
    while found[-1] * factor <= last:
        found.append(found[-1] * factor)
        if len(found) > _MAX_SIZES:
            raise UsageError(f"more than {_MAX_SIZES} sizes between {first} and {last}: use a larger -f")
    return found


def seconds_per_cell(cells: int) -> float:
    """Timed seconds of one cell of a sweep without a budget."""
    return min(_DEFAULT_SECONDS, _WHOLE_SECONDS / max(1, cells))


def make_plan(options: Options, machine: Machine, algorithms: Sequence[Algorithm], reserved_s: float = 0.0) -> Plan:
    """List the cells. The same options on the same machine always give the same cells.

    Of a budget `reserved_s` are kept for other work; it changes what is expected, and no cell.

    Raises:
        UsageError: a dtype, op or size that no algorithm could have.
    """
    host = machine.fabric is Fabric.HOST
    dtype = options.dtype or ("float32" if host else "bfloat16")
    if dtype not in DTYPE_BYTES:
        raise UsageError(f"unknown dtype {dtype!r}: expected one of {', '.join(DTYPE_BYTES)}")
    wanted = _sizes_of(options, host=host)
    for size in wanted:
        if size % DTYPE_BYTES[dtype]:
            raise UsageError(f"size {size} is no whole number of {dtype} elements ({DTYPE_BYTES[dtype]} bytes each)")
    calls = _calls_of(options, machine.ranks, dtype, wanted)
    algorithms = _shuffled(algorithms, options.shuffle)
    cells = tuple(
        _shuffled(
            [c for a in algorithms for call, skew in calls for c in _cells_of(options, machine, a, call, skew)],
            options.shuffle,
        )
    )
    slots: dict[tuple[str, Call], int] = {}
    for cell in cells:
        key = (cell.algorithm, cell.call)
        slots[key] = max(slots.get(key, 1), cell.calls)
    planned = options.launches * len(cells)
    timed_s = seconds_per_cell(len(cells))
    if options.budget_s is not None:
        timed_s = Budget(options.budget_s, reserved_s).timed_s(planned)
    launch_s = _launch_seconds(options, machine, algorithms, cells, timed_s)
    once_s = servers_s(a for a in algorithms if key_of(a) in launch_s)
    total = options.launches * sum(launch_s.values()) + once_s
    seconds = total if options.budget_s is None else min(total, options.budget_s)
    return Plan(tuple(algorithms), cells, seconds, slots, launch_s, once_s)


def _shuffled(items: Sequence[_Item], seed: int | None) -> list[_Item]:
    """In an order that depends on the seed alone; as they are without one."""
    found = list(items)
    if seed is not None:
        random.Random(seed).shuffle(found)  # noqa: S311 - an order of measuring, no secret
    return found


def _calls_of(options: Options, ranks: int, dtype: str, wanted: Sequence[int]) -> list[tuple[Call, str]]:
    """The calls of these sizes with the names of their skews, each pair once."""
    found = [
        (call, skew.name)
        for skew in map(Skew.parse, options.skews or (EVEN,))
        for call in (_even_calls(options, ranks, dtype, wanted) if skew.name == EVEN
                     else [skew.call(size, ranks, dtype) for size in wanted])
    ]  # fmt: skip
    return [(call, "" if name == EVEN else name) for call, name in dict.fromkeys(found)]


def _even_calls(options: Options, ranks: int, dtype: str, wanted: Sequence[int]) -> list[Call]:
    """Sizes are rounded down to parts of equal size or whole rows; a barrier has one size."""
    collective, itemsize = options.collective, DTYPE_BYTES[dtype]
    op = options.op if collective in _REDUCING else ""
    if collective is Collective.BARRIER:
        fitting = [ranks * itemsize]
    elif collective in IN_PARTS:
        fitting = [max(1, size // (ranks * itemsize)) * ranks * itemsize for size in wanted]
    elif options.epilogue:
        fitting = [whole_rows(size // itemsize, itemsize) * itemsize for size in wanted]
    else:
        fitting = list(wanted)
    return [Call(size, ranks, collective, op, dtype, epilogue=options.epilogue) for size in dict.fromkeys(fitting)]


def _sizes_of(options: Options, *, host: bool) -> list[int]:
    if options.sizes:
        return sorted(dict.fromkeys(options.sizes))
    first = options.first_bytes or 1 << 10
    last = options.last_bytes or (first if options.first_bytes else (1 << 20 if host else 4 << 20))
    return sizes(first, last, options.factor)


def _cells_of(options: Options, machine: Machine, algorithm: Algorithm, call: Call, skew: str = "") -> Iterable[Cell]:
    # an algorithm without any of the modes asked for still gets its row, which will say `unsupported`
    modes = [mode for mode in options.modes if mode in algorithm.modes] or list(options.modes[:1])
    most, batch = _most_calls(machine, algorithm, call), algorithm.batch
    numbers = dict.fromkeys(-(-min(k, most) // batch) * batch for k in options.calls)
    variant = algorithm.variant
    return [Cell(algorithm.name, call, mode, k, variant, skew=skew) for k in numbers for mode in modes]


def _most_calls(machine: Machine, algorithm: Algorithm, call: Call) -> int:
    """Calls that memory and the algorithm's cost allow; depends on no measurement, so that a cell's name is stable."""
    memory = _HOST_MEMORY if algorithm.device == "cpu" else _GPU_MEMORY
    sharing = machine.ranks if algorithm.device == "cpu" or machine.share_gpu else 1
    affordable = _SAMPLE_US / max(algorithm.cost_us(call, machine), 1e-3)
    arrays = 5 if call.epilogue else 2
    most = min(algorithm.max_calls, memory // (arrays * call.bytes * sharing), affordable)
    return CHAINED if most >= CHAINED else 1 << max(0, int(most).bit_length() - 1)


def _launch_seconds(
    options: Options, machine: Machine, algorithms: Sequence[Algorithm], cells: Sequence[Cell], timed_s: float
) -> dict[Key, float]:
    """Expected seconds of a launch of each algorithm that can run: its group's start and its cells."""
    able = {key_of(a): a for a in algorithms}
    found: dict[Key, float] = {}
    for cell in cells:
        key = key_of(cell)
        algorithm = able[key]
        if algorithm.support(machine, cell.call):
            once_s = algorithm.cost_us(cell.call, machine) * cell.calls / 1e6
            found.setdefault(key, start_s(algorithm, machine.ranks))
            found[key] += cell_s(once_s, timed_s, options.iterations, options.warmup)
    return found
