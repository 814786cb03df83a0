"""Predictions of every algorithm on a topology, and where they cross."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collbench.algorithms import assumed
from collbench.algorithms.base import Algorithm, registry
from collbench.contention.floor import floor
from collbench.contention.parameters import Parameters
from collbench.contention.predict import Model, Prediction
from collbench.contention.traffic import Schedule
from collbench.errors import UsageError
from collbench.results.records import Call, Collective, Fabric, Mode, Support
from collbench.topology.graph import LinkKind, Topology, TopologyError
from collbench.topology.machine import Machine

__all__ = ["CHOOSING", "Crossover", "Forecast"]

_Time = Callable[[int], float]

_SUMMING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)

_OTHER = "another collective"
_ON_PROCESSORS = "it runs on processors, whose scheduling the model does not know"
_NOT_FORESEEN = {
    "nccl_auto": "what NCCL chooses is not modelled: see the forced rows",
    "auto": "it times others and keeps the fastest: see their rows",
    "torch_all_to_all_vdev": "how NVSHMEM moves its parts is not modelled",
}
CHOOSING = tuple(_NOT_FORESEEN)
"""Algorithms of which nobody can say beforehand what they carry out."""

_BY_SIZE = {
    "flashinfer_pcie_workspace": "its policy takes one of the flashinfer_pcie kernels at each size: see their rows",
}
"""Algorithms that carry out others, which ones their traffic says: a forecast has a row for each already."""

_SEVERAL = "several calls in one, which only a change of the model can do: see advise"
_USUAL_BYTES = 1 << 16  # a size that every algorithm takes that runs at all

_MOST_RANKS = 256
"""All pairs of them are as many flows as the model takes in one phase."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """From `bytes` on, `after` is faster than `before`, which is the fastest below."""

    bytes: int
    before: str
    after: str


class Forecast:
    """Every algorithm that could run on a topology, predicted; `left_out` says why others are not.

    Raises:
        UsageError: one rank, fewer GPUs than ranks, or more than 256 ranks.
        TopologyError: no GPUs, ranks without a route, PCIe links that form a cycle.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        ranks: int | None = None,
        mode: Mode = Mode.GRAPH,
        dtype: str = "bfloat16",
        collective: Collective = Collective.ALL_REDUCE,
        algorithms: Sequence[Algorithm] | None = None,
        parameters: Parameters | None = None,
    ) -> None:
        if not topology.gpus:
            raise TopologyError(
                f"topology {topology.name or '(unnamed)'} has no GPUs: ranks on processors are not predicted, "
                "they wait for time slices; measure them: collbench sweep --algorithms host"
            )
        self.ranks = len(topology.gpus) if ranks is None else ranks
        if not 1 < self.ranks <= len(topology.gpus):
            name, most = topology.name or "(unnamed)", len(topology.gpus)
            fit = {1: "it takes 2", 2: "2 fit"}.get(most, f"2 to {most} fit")
            raise UsageError(f"{self.ranks} ranks on topology {name} with {most} GPUs: {fit}")
        if self.ranks > _MOST_RANKS:
            raise UsageError(f"{self.ranks} ranks: predictions are made for at most {_MOST_RANKS}: give --nproc")
        self.topology, self.mode, self.dtype, self.collective = topology, mode, dtype, collective
        self.model = Model(topology, parameters, self.ranks)
        self.left_out: dict[str, str] = {}
        self._refused: dict[str, None] = {}
        self.algorithms = [a for a in algorithms or registry().values() if self._kept(a)]

    @cached_property
    def fabric(self) -> Fabric:
        """What the ranks share, from the links that they use."""
        kinds = {link.kind for a, b in self._pairs() for link in self.model.wires.route(a, b)}
        if LinkKind.NETWORK in kinds:
            return Fabric.NETWORK
        fast = kinds & {LinkKind.NVLINK, LinkKind.XGMI}
        return Fabric.PCIE if not fast else Fabric.MIXED if kinds - fast else Fabric.NVLINK

    def _pairs(self) -> Iterable[tuple[int, int]]:
        return ((a, b) for a in range(self.ranks) for b in range(self.ranks) if a != b)

    def _kept(self, algorithm: Algorithm) -> bool:
        reason = self._why_not(algorithm)
        if reason:
            self.left_out[algorithm.name] = reason
        return not reason

    def _why_not(self, algorithm: Algorithm) -> str:
        if algorithm.collective is not self.collective:
            return f"{_OTHER}: {algorithm.collective}"
        if algorithm.device != "cuda":
            return _ON_PROCESSORS
        if reason := {**_NOT_FORESEEN, **_BY_SIZE}.get(algorithm.name, _SEVERAL if algorithm.batch > 1 else ""):
            return reason
        if foreign := assumed.why_foreign(algorithm, self.topology):
            return foreign
        support = self._support(algorithm, _USUAL_BYTES)
        return "" if support else support.reason

    @cached_property
    def _machine(self) -> Machine:
        return assumed.assumed_machine(self.topology, self.fabric, self.ranks)

    @property
    def not_here(self) -> dict[str, list[str]]:
        """Reason -> algorithms of this collective on GPUs that are left out."""
        known = registry()
        return self.reasons(
            known[name] for name, reason in self.left_out.items()
            if name in known and name not in CHOOSING and reason != _ON_PROCESSORS and not reason.startswith(_OTHER)
        )  # fmt: skip

    def reasons(self, algorithms: Iterable[Algorithm]) -> dict[str, list[str]]:
        """Reason -> which of these algorithms are left out for it."""
        found: dict[str, list[str]] = {}
        for algorithm in algorithms:
            if algorithm.name in self.left_out:
                found.setdefault(self.left_out[algorithm.name], []).append(algorithm.name)
        return found

    @cached_property
    def _usual(self) -> Machine:
        return assumed.usual(self._machine)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the rows should know of this topology."""
        refused = (
            f"our kernels do not run here ({reason}): rows say what such traffic costs" for reason in self._refused
        )
        return (*assumed.notes(self.topology, self.fabric, self.ranks), *refused)

    def _support(self, algorithm: Algorithm, size_bytes: int) -> Support:
        """Whether it takes this call; what our own kernels cannot do on these cards does not hide their traffic."""
        call = self.call(size_bytes)
        found = algorithm.support(self._machine, call)
        if found or algorithm.family != assumed.OWN:
            return found
        elsewhere = algorithm.support(self._usual, call)
        if elsewhere:
            self._refused.setdefault(found.reason)
        return elsewhere

    def refuses(self, algorithm: Algorithm) -> bool:
        """Whether it is a kernel of ours that does not run on these cards: its rows say what such traffic costs."""
        return algorithm.family == assumed.OWN and not algorithm.support(self._machine, self.call(_USUAL_BYTES))

    def call(self, size_bytes: int) -> Call:
        """The call that is predicted."""
        op = "sum" if self.collective in _SUMMING else ""
        return Call(size_bytes, self.ranks, self.collective, op, self.dtype)

    def schedule(self, algorithm: Algorithm, size_bytes: int) -> Schedule:
        """Its traffic."""
        return assumed.traffic_of(algorithm, self.call(size_bytes), self._machine)

    def predict(self, algorithm: Algorithm, size_bytes: int) -> Prediction:
        """One algorithm at one size."""
        return self.model.predict(self.schedule(algorithm, size_bytes), self.mode)

    def rows(self, sizes: Iterable[int]) -> list[dict[str, Any]]:
        """Rows of `collbench predict --json`, by size, fastest first; algorithms that take the size only."""
        found = []
        for size in sizes:
            rows = [self._row(a, size) for a in self.algorithms if self._support(a, size)]
            found += sorted(rows, key=lambda row: (row["total_us"], row["algorithm"]))
        return found

    def _row(self, algorithm: Algorithm, size_bytes: int) -> dict[str, Any]:
        schedule = self.schedule(algorithm, size_bytes)
        prediction = self.model.predict(schedule, self.mode)
        low, high = prediction.interval_us
        model = prediction.row()
        limit = floor(schedule, self.topology, self.fabric, self.mode, ranks=self.ranks, known=self.model.parameters)
        return {
            "topology": self.topology.name, "algorithm": algorithm.name, "bytes": size_bytes,
            "total_us": model["total_us"], "low_us": max(low, limit.us), "high_us": high, "terms_us": model["terms_us"],
            "bottleneck": model["bottleneck"], "floor_us": limit.us, "prior_share": model["prior_share"],
            "notes": list(prediction.notes),
        }  # fmt: skip

    def crossovers(self, first: int, last: int, among: Collection[str] | None = None) -> list[Crossover]:
        """Where the fastest algorithm changes between two sizes, among those that take both; all, or those named.

        On the GPU every prediction is a straight line over bytes, so the fastest of them is one and the same between
        two sizes at which it is the fastest, and halving the range finds every change. Where the host's launches hold
        back eager calls, algorithms do not differ, and a change is none.
        """
        if not self.algorithms or first >= last:
            return []
        step = self.call(first).itemsize
        straight = self._lines(first, last, among)
        if not straight:
            return []
        found = _crossings(straight, first, last, step)
        if not all(self._holds(cross, step) for cross in found):
            found = _crossings({name: self._exact(name) for name in straight}, first, last, step)
        return [cross for cross in found if self._shows(cross)]

    def _lines(self, first: int, last: int, among: Collection[str] | None) -> dict[str, _Time]:
        """Time over bytes of the algorithms that no other one beats at both ends, as straight lines."""
        wanted = [a for a in self.algorithms if among is None or a.name in among]
        both = [a for a in wanted if self._support(a, first) and self._support(a, last)]
        ends = {a.name: (self._gpu_us(a, first), self._gpu_us(a, last)) for a in both}
        kept: dict[str, _Time] = {}
        best = float("inf")
        for name, (low, high) in sorted(ends.items(), key=lambda item: (item[1], item[0])):
            if high < best:
                best = high
                kept[name] = _line(first, low, last, high)
        return kept

    def _exact(self, name: str) -> _Time:
        algorithm = next(a for a in self.algorithms if a.name == name)
        return lambda size_bytes: self._gpu_us(algorithm, size_bytes)

    def _gpu_us(self, algorithm: Algorithm, size_bytes: int) -> float:
        return self.model.predict(self.schedule(algorithm, size_bytes), Mode.GRAPH).total_us

    def _shows(self, cross: Crossover) -> bool:
        after = next(a for a in self.algorithms if a.name == cross.after)
        return self.predict(after, cross.bytes).total_us <= self._gpu_us(after, cross.bytes)

    def _holds(self, cross: Crossover, step: int) -> bool:
        before, after = self._exact(cross.before), self._exact(cross.after)
        return after(cross.bytes) <= before(cross.bytes) and before(cross.bytes - step) <= after(cross.bytes - step)


def _line(first: int, low: float, last: int, high: float) -> _Time:
    return lambda size_bytes: low + (high - low) * (size_bytes - first) / (last - first)


def _crossings(times: Mapping[str, _Time], low: int, high: int, step: int) -> list[Crossover]:
    """By halving: what is the fastest at both ends of a range is the fastest within."""

    def fastest(size_bytes: int) -> str:
        return min((time(size_bytes), name) for name, time in times.items())[1]

    before, after = fastest(low), fastest(high)
    if before == after:
        return []
    middle = (low + high) // 2 // step * step
    if middle <= low:
        return [Crossover(high, before, after)]
    return _crossings(times, low, middle, step) + _crossings(times, middle, high, step)
