"""How long one call takes, by algorithm and message size: from a run, or from the model on a topology alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from collbench.algorithms.base import Algorithm, registry
from collbench.algorithms.predictions import Forecast
from collbench.errors import InvalidError
from collbench.results.intervals import interval_of_medians
from collbench.results.records import Cell, Collective, Fabric, Mode, Run, Samples, Status
from collbench.results.summary import fold
from collbench.topology.graph import Topology

__all__ = ["CallTime", "ModelTimes", "RunTimes", "Times"]


_CHOOSERS = {"auto", "nccl_auto"}


@dataclass(frozen=True, slots=True)
class CallTime:
    """Microseconds of one call; `interval_us` 95 % from at least 5 launches, or the model's nominal 90 %, else None.

    `how` says where it comes from where that is not an exact cell: `between 8192 and 32768 bytes`.
    """

    us: float
    interval_us: tuple[float, float] | None
    how: str = ""


class Times(Protocol):
    """What advice is made from."""

    ranks: int
    fabric: Fabric
    source: str
    """`run` or `model`."""
    mode: Mode
    launches: int
    """Least launches of any cell; 0 for the model."""

    def algorithms(self, collective: Collective) -> Sequence[str]:
        """Names of what there are times of."""

    def at(self, algorithm: str, collective: Collective, size_bytes: int) -> CallTime | None:
        """Time of one call; None where there is nothing to say."""

    def joined(self, algorithm: str, collective: Collective, size_bytes: int, batch: int) -> CallTime | None:
        """Time per message of `batch` messages in one call, where that was measured."""


class RunTimes:
    """Times of a run's `ok` cells: graph before eager, the longest chain before shorter ones, as a decode step runs.

    Between two measured sizes time is taken as linear in the bytes; beyond them nothing is said.

    Raises:
        InvalidError: the run has no `ok` cell.
    """

    source = "run"

    def __init__(self, run: Run, samples: Iterable[Samples]) -> None:
        self.ranks, self.fabric = run.world_size, run.fabric
        medians: dict[str, list[float]] = {}
        bad: set[str] = set()
        for one in samples:
            if one.status is not Status.OK:
                bad.add(one.cell_id)
            elif one.latency_us:
                medians.setdefault(one.cell_id, []).append(_median(one))
        kept = _alike([cell for cell in run.cells if cell.cell_id in medians and cell.cell_id not in bad])
        if not kept:
            raise InvalidError("the run has no cell that ended ok: there is nothing to advise from")
        self._joining = {name for name, algorithm in registry().items() if algorithm.batch > 1}
        self.launches = min(len(medians[cell.cell_id]) for cell in kept)
        self.mode = Mode.GRAPH if any(cell.mode is Mode.GRAPH for cell in kept) else Mode.EAGER
        self._curves = _curves([cell for cell in kept if cell.mode is self.mode], medians)

    def algorithms(self, collective: Collective) -> Sequence[str]:
        """See `Times`; not those that join several calls, which no server can use as its model is."""
        return [name for name, kind in self._curves if kind is collective and name not in self._joining]

    def joined(self, algorithm: str, collective: Collective, size_bytes: int, batch: int) -> CallTime | None:
        """See `Times`: from cells of the algorithm `NAME_joined_K`."""
        return self.at(f"{algorithm}_joined_{batch}", collective, size_bytes)

    def curve(self, algorithm: str, collective: Collective) -> Mapping[int, CallTime]:
        """Measured times by size, ascending."""
        return dict(sorted(self._curves.get((algorithm, collective), {}).items()))

    def at(self, algorithm: str, collective: Collective, size_bytes: int) -> CallTime | None:
        """See `Times`."""
        curve = self._curves.get((algorithm, collective), {})
        if size_bytes in curve:
            return curve[size_bytes]
        below = max((size for size in curve if size < size_bytes), default=None)
        above = min((size for size in curve if size > size_bytes), default=None)
        if below is None or above is None:
            return None
        share = (size_bytes - below) / (above - below)
        low, high = curve[below], curve[above]
        interval = None
        if low.interval_us and high.interval_us:
            a, b = (x + share * (y - x) for x, y in zip(low.interval_us, high.interval_us, strict=True))
            interval = (a, b)
        return CallTime(low.us + share * (high.us - low.us), interval, f"between {below} and {above} bytes")


def _alike(cells: Sequence[Cell]) -> list[Cell]:
    """Cells that may be compared: of each collective those with the plainest and then the most frequent settings."""
    groups: dict[Collective, dict[tuple[str, ...], list[Cell]]] = {}
    for cell in cells:
        call = cell.call
        settings = (call.dtype, call.op, cell.place, cell.buffers, call.epilogue, cell.skew or str(call.splits))
        groups.setdefault(call.collective, {}).setdefault(settings, []).append(cell)
    plainest = (
        max(of_one.items(), key=lambda item: (not item[0][4], item[0][5] in {"", "()"}, len(item[1])))
        for of_one in groups.values()
    )
    return [cell for _, members in plainest for cell in members]


def _median(one: Samples) -> float:
    import numpy as np

    return float(np.median(fold(one)))


def _curves(
    cells: Iterable[Cell], medians: Mapping[str, Sequence[float]]
) -> dict[tuple[str, Collective], dict[int, CallTime]]:
    longest: dict[tuple[str, Collective, int], Cell] = {}
    for cell in cells:
        name = " ".join(filter(None, (cell.algorithm, cell.variant)))
        key = (name, cell.call.collective, cell.call.bytes)
        if key not in longest or longest[key].calls < cell.calls:
            longest[key] = cell
    found: dict[tuple[str, Collective], dict[int, CallTime]] = {}
    for (name, collective, size), cell in longest.items():
        values = medians[cell.cell_id]
        middle = math.exp(math.fsum(map(math.log, values)) / len(values))
        found.setdefault((name, collective), {})[size] = CallTime(middle, interval_of_medians(values))
    return found


class ModelTimes:
    """Times that the model predicts on a topology, captured in a graph; see `Forecast` for what it raises."""

    source = "model"
    mode = Mode.GRAPH
    launches = 0

    def __init__(self, topology: Topology, ranks: int | None = None) -> None:
        self._topology, self._ranks = topology, ranks
        self._forecasts: dict[Collective, Forecast] = {}
        self._rows: dict[tuple[Collective, int], dict[str, CallTime]] = {}
        usual = self._forecast(Collective.ALL_REDUCE)
        self.ranks, self.fabric = usual.ranks, usual.fabric

    def _forecast(self, collective: Collective) -> Forecast:
        if collective not in self._forecasts:
            every = list(registry().values())
            chosen = [a for a in every if _predictable(a) and a.collective is collective]
            self._forecasts[collective] = Forecast(
                self._topology, ranks=self._ranks, collective=collective, algorithms=chosen or [every[0]]
            )
        return self._forecasts[collective]

    def joined(self, algorithm: str, collective: Collective, size_bytes: int, batch: int) -> CallTime | None:
        """See `Times`: the model knows a joined call as a larger one."""
        del algorithm, collective, size_bytes, batch
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of times on this topology should know, as sentences without a full stop."""
        return tuple(note[0].upper() + note[1:] for note in self._forecast(Collective.ALL_REDUCE).notes)

    def algorithms(self, collective: Collective) -> Sequence[str]:
        """See `Times`."""
        return [algorithm.name for algorithm in self._forecast(collective).algorithms]

    def at(self, algorithm: str, collective: Collective, size_bytes: int) -> CallTime | None:
        """See `Times`."""
        key = (collective, size_bytes)
        if key not in self._rows:
            rows = self._forecast(collective).rows([size_bytes])
            self._rows[key] = {
                row["algorithm"]: CallTime(row["total_us"], (row["low_us"], row["high_us"])) for row in rows
            }
        return self._rows[key].get(algorithm)


def _predictable(algorithm: Algorithm) -> bool:
    """What collbench can run and a server could use: not what chooses among others, nor what needs another model."""
    return bool(algorithm.runner) and algorithm.name not in _CHOOSERS and algorithm.batch == 1
