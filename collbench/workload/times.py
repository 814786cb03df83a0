"""How long one call takes, by algorithm and message size: from a run, or from the model on a topology alone."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from collbench.algorithms.base import Algorithm, registry
from collbench.algorithms.cuda_support import number
from collbench.algorithms.predictions import Forecast
from collbench.errors import InvalidError
from collbench.results.intervals import interval_of_medians
from collbench.results.records import Cell, Collective, Fabric, Mode, Run, Samples, Status
from collbench.results.summary import fold
from collbench.topology.graph import Topology
from collbench.topology.models import arch_of
from collbench.workload.comparable import comparable
from collbench.workload.settings import WORKSPACE

if TYPE_CHECKING:
    import numpy as np

    _Fold = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["CallTime", "ModelTimes", "RunTimes", "Times"]

_KERNELS = "flashinfer_pcie_"
_CHOOSERS = {"auto", "nccl_auto"}
_WIDEST = 8
"""Sizes that are further apart say nothing of those between them: protocols change there."""


@dataclass(frozen=True, slots=True)
class CallTime:
    """Microseconds of one call: of a run the median over all iterations of all launches, as a row's `p50_us`.

    `interval_us` is 95 % from at least 5 launches, or the model's nominal 90 %, else None.

    `how` says where it comes from where that is not an exact cell: `between 8192 and 32768 bytes`.
    """

    us: float
    interval_us: tuple[float, float] | None
    how: str = ""

    def over(self, k: int) -> "CallTime":
        """Time per message of a call that joins k of them."""
        interval = None if self.interval_us is None else (self.interval_us[0] / k, self.interval_us[1] / k)
        return CallTime(self.us / k, interval, self.how)


class Times(Protocol):
    """What advice is made from."""

    ranks: int
    fabric: Fabric
    source: str
    """`run` or `model`."""
    mode: Mode
    launches: int
    """Least launches of any cell; 0 for the model."""
    arch: int
    """Compute capability of the GPUs, 90 of `sm_90`; 0 where it is not known."""
    epilogue: str
    """What was fused behind the all-reduces that these times are of; empty for plain ones."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of these times should know, as sentences without a full stop."""

    def algorithms(self, collective: Collective) -> Sequence[str]:
        """Names of what there are times of."""

    def at(self, algorithm: str, collective: Collective, size_bytes: int) -> CallTime | None:
        """Time of one call; None where there is nothing to say."""

    def curve(self, algorithm: str, collective: Collective) -> Mapping[int, CallTime]:
        """Measured times by size, ascending; empty of a model."""

    def refuses(self, algorithm: str, collective: Collective, size_bytes: int) -> bool:
        """Whether the run says that it does not support that size, or the next one that was asked for."""

    def joined(self, algorithm: str, collective: Collective, size_bytes: int, batch: int) -> CallTime | None:
        """Time per message of `batch` messages in one call, where that was measured."""


class RunTimes:
    """Times of a run's `ok` cells: graph before eager, the longest chain before shorter ones, as a decode step runs.

    Where chains of a collective were timed, single calls of it are left aside: they hold other costs, and a curve from
    one kind to the other would be of neither. Between two measured sizes at most 8 times apart, time is taken as linear
    in the bytes; elsewhere nothing is said. `notes` name cells that were left aside because they must not be compared
    with those taken.

    Raises:
        InvalidError: the run has no `ok` cell.
    """

    source = "run"

    def __init__(self, run: Run, samples: Iterable[Samples]) -> None:
        self.ranks, self.fabric = run.world_size, run.fabric
        folds: dict[str, list[_Fold]] = {}
        bad: set[str] = set()
        refused: set[str] = set()
        for one in samples:
            if one.status is Status.NOT_RUN:
                continue  # what a budget cut off takes nothing from the launches before
            if one.status is not Status.OK:
                bad.add(one.cell_id)
                refused |= {one.cell_id} if one.status is Status.UNSUPPORTED else set()
            elif one.latency_us:
                folds.setdefault(one.cell_id, []).append(fold(one))
        kept, self.notes = comparable([cell for cell in run.cells if cell.cell_id in folds and cell.cell_id not in bad])
        if not kept:
            raise InvalidError("the run has no cell that ended ok: there is nothing to advise from")
        self._joining = {name for name, algorithm in registry().items() if algorithm.batch > 1}
        self.launches = min(len(folds[cell.cell_id]) for cell in kept)
        self.mode = Mode.GRAPH if any(cell.mode is Mode.GRAPH for cell in kept) else Mode.EAGER
        used = [cell for cell in kept if cell.mode is self.mode]
        self._curves = _curves(used, folds)
        self.arch = _arch(run)
        self.epilogue = next((c.call.epilogue for c in used if c.call.collective is Collective.ALL_REDUCE), "")
        self._asked = _asked((cell for cell in run.cells if cell.mode is self.mode), refused)

    def algorithms(self, collective: Collective) -> Sequence[str]:
        """See `Times`; not those that join several calls, which no server can use as its model is, nor `auto`.

        It keeps the fastest of our own algorithms, whose rows are the answer; where it ran alone it is one itself.
        """
        names = [name for name, kind in self._curves if kind is collective and name not in self._joining]
        return [name for name in names if name != "auto"] or names

    def joined(self, algorithm: str, collective: Collective, size_bytes: int, batch: int) -> CallTime | None:
        """See `Times`: from cells of the algorithm `NAME_joined_K`."""
        return self.at(f"{algorithm}_joined_{batch}", collective, size_bytes)

    def curve(self, algorithm: str, collective: Collective) -> Mapping[int, CallTime]:
        """See `Times`."""
        return dict(sorted(self._curves.get((algorithm, collective), {}).items()))

    def refuses(self, algorithm: str, collective: Collective, size_bytes: int) -> bool:
        """See `Times`."""
        asked = self._asked.get((algorithm, collective), {})
        below = max((size for size in asked if size <= size_bytes), default=None)
        above = min((size for size in asked if size >= size_bytes), default=None)
        return any(asked[size] for size in (below, above) if size is not None)

    def at(self, algorithm: str, collective: Collective, size_bytes: int) -> CallTime | None:
        """See `Times`."""
        curve = self._curves.get((algorithm, collective), {})
        if size_bytes in curve:
            return curve[size_bytes]
        below = max((size for size in curve if size < size_bytes), default=None)
        above = min((size for size in curve if size > size_bytes), default=None)
        if below is None or above is None or above > _WIDEST * below:
            return None
        share = (size_bytes - below) / (above - below)
        low, high = curve[below], curve[above]
        interval = None
        if low.interval_us and high.interval_us:
            a, b = (x + share * (y - x) for x, y in zip(low.interval_us, high.interval_us, strict=True))
            interval = (a, b)
        return CallTime(low.us + share * (high.us - low.us), interval, f"between {below} and {above} bytes")


def _arch(run: Run) -> int:
    facts = run.machine.get("facts")
    return number(str(facts.get("arch", ""))) if isinstance(facts, Mapping) else 0


def _curves(
    cells: Iterable[Cell], folds: Mapping[str, Sequence["_Fold"]]
) -> dict[tuple[str, Collective], dict[int, CallTime]]:
    longest: dict[tuple[str, Collective, int], Cell] = {}
    cells = list(cells)
    chained = {cell.call.collective for cell in cells if cell.calls > 1}
    for cell in cells:
        if cell.calls == 1 and cell.call.collective in chained:
            continue
        name = " ".join(filter(None, (cell.algorithm, cell.variant)))
        key = (name, cell.call.collective, cell.call.bytes)
        if key not in longest or longest[key].calls < cell.calls:
            longest[key] = cell
    found: dict[tuple[str, Collective], dict[int, CallTime]] = {}
    for (name, collective, size), cell in longest.items():
        found.setdefault((name, collective), {})[size] = _time(folds[cell.cell_id])
    return found


def _time(launches: Sequence["_Fold"]) -> CallTime:
    """A row's `p50_us`, as everywhere; its interval is from the medians of the launches."""
    import numpy as np

    medians = [float(np.median(one)) for one in launches]
    return CallTime(float(np.median(np.concatenate(launches))), interval_of_medians(medians))


def _asked(cells: Iterable[Cell], refused: Container[str]) -> dict[tuple[str, Collective], dict[int, bool]]:
    """Sizes that the run asked of each algorithm, and whether it was unsupported there."""
    found: dict[tuple[str, Collective], dict[int, bool]] = {}
    for cell in cells:
        name = " ".join(filter(None, (cell.algorithm, cell.variant)))
        found.setdefault((name, cell.call.collective), {})[cell.call.bytes] = cell.cell_id in refused
    return found


class ModelTimes:
    """Times that the model predicts on a topology, captured in a graph; see `Forecast` for what it raises.

    `verdicts` gives the doctor's by algorithm: what it does not say runs there is no advice, and `notes` name it.
    """

    source = "model"
    mode = Mode.GRAPH
    launches = 0
    epilogue = ""

    def __init__(
        self,
        topology: Topology,
        ranks: int | None = None,
        verdicts: Callable[[Forecast], Mapping[str, str]] | None = None,
    ) -> None:
        self._topology, self._ranks, self._verdicts = topology, ranks, verdicts
        self._unsure: dict[Collective, frozenset[str]] = {}
        self._forecasts: dict[Collective, Forecast] = {}
        self._rows: dict[tuple[Collective, int], dict[str, CallTime]] = {}
        usual = self._forecast(Collective.ALL_REDUCE)
        self.ranks, self.fabric = usual.ranks, usual.fabric
        models = {topology.node(gpu).attributes.get("model", "") for gpu in topology.gpus}
        self.arch = number(arch_of(models.pop())) if len(models) == 1 else 0

    def _forecast(self, collective: Collective) -> Forecast:
        if collective not in self._forecasts:
            every = list(registry().values())
            chosen = [a for a in every if _predictable(a) and a.collective is collective]
            self._forecasts[collective] = Forecast(
                self._topology, ranks=self._ranks, collective=collective, algorithms=chosen or [every[0]]
            )
        return self._forecasts[collective]

    def curve(self, algorithm: str, collective: Collective) -> Mapping[int, CallTime]:
        """See `Times`."""
        del algorithm, collective
        return {}

    def refuses(self, algorithm: str, collective: Collective, size_bytes: int) -> bool:
        """See `Times`."""
        del algorithm, collective, size_bytes
        return False

    def joined(self, algorithm: str, collective: Collective, size_bytes: int, batch: int) -> CallTime | None:
        """See `Times`: the model knows a joined call as a larger one."""
        del algorithm, collective, size_bytes, batch
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of times on this topology should know, as sentences without a full stop."""
        self.algorithms(Collective.ALL_REDUCE)  # which asks for the verdicts
        found = [note[0].upper() + note[1:] for note in self._forecast(Collective.ALL_REDUCE).notes]
        if names := sorted(set().union(*self._unsure.values())):
            found.append(f"Not advised, since nobody knows whether they run there: {', '.join(names)}")
        return tuple(found)

    def algorithms(self, collective: Collective) -> Sequence[str]:
        """See `Times`."""
        forecast = self._forecast(collective)
        names = [algorithm.name for algorithm in forecast.algorithms]
        if self._verdicts and collective not in self._unsure:
            known = self._verdicts(forecast)
            self._unsure[collective] = frozenset(name for name in names if known.get(name, "runs") != "runs")
        return [name for name in names if name not in self._unsure.get(collective, ())]

    def at(self, algorithm: str, collective: Collective, size_bytes: int) -> CallTime | None:
        """See `Times`."""
        key = (collective, size_bytes)
        if key not in self._rows:
            rows = self._forecast(collective).rows([size_bytes])
            self._rows[key] = {
                row["algorithm"]: CallTime(row["total_us"], (row["low_us"], row["high_us"])) for row in rows
            }
        return self._rows[key].get(algorithm) or self._by_size(algorithm, collective, size_bytes)

    def _by_size(self, algorithm: str, collective: Collective, size_bytes: int) -> CallTime | None:
        """Of what takes one of FlashInfer's kernels for PCIe at each size: as its traffic, where those run."""
        rows = self._rows[collective, size_bytes]
        if algorithm != WORKSPACE or not any(name.startswith(_KERNELS) for name in rows):
            return None
        prediction = self._forecast(collective).predict(registry()[algorithm], size_bytes)
        return CallTime(prediction.total_us, prediction.interval_us)


def _predictable(algorithm: Algorithm) -> bool:
    """What collbench can run and a server could use: not what chooses among others, nor what needs another model."""
    return bool(algorithm.runner) and algorithm.name not in _CHOOSERS and algorithm.batch == 1
