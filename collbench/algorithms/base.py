"""The one interface that matters: an algorithm is a record and a runner, and the registry finds them."""

import importlib
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol, Self

from collbench.contention.traffic import Schedule
from collbench.errors import UsageError, nearest
from collbench.results.records import Call, Collective, Mode, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["Algorithm", "Foreign", "Proof", "Ranks", "Runner", "known_systems", "registry", "select"]

_MODULES = (
    "one_stage", "two_stage", "push", "islands", "staged_ring", "push_collectives", "auto", "vllm",
    "flashinfer", "nccl", "symmetric_memory", "gloo", "host", "host_exchange",
    "nccl_symmetric", "nccl_per_call", "all_to_all",
    "coalesced", "vllm_gated", "sglang", "flashinfer_fusion", "flashinfer_workspace", "mscclpp", "b12x",
    "expert_parallel",
)  # fmt: skip
_SYSTEMS = (
    "vllm_gated", "sglang", "flashinfer_fusion", "mscclpp", "expert_parallel",
)  # fmt: skip
_GROUP = "collbench.algorithms"
_LONGEST_WORD = 40


class Ranks(Protocol):
    """What a runner knows of its peers. One process per rank; all ranks call the same methods in the same order."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: str
    """`cpu`, or `cuda:N` (several ranks share an N on `shared-gpu`)."""
    deadline_s: float
    """Seconds after which a wait inside a runner must give up with an error."""

    def exchange(self, value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
        """Gather one JSON value of every rank, in rank order, on every rank. Takes about 1 ms; for set-up only.

        Raises:
            TimeoutError: a rank did not come within the deadline.
        """

    def barrier(self) -> None:
        """Wait until all ranks are here; for set-up only."""

    def process_group(self, backend: str) -> Any:  # noqa: ANN401 - a torch ProcessGroup; torch may be absent
        """torch.distributed's default group over these ranks, made at the first call and destroyed with the worker."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What really ran: `reason` is empty if it is what the algorithm's name promises, else what ran instead."""

    reason: str = ""
    evidence: Mapping[str, str] = field(default_factory=dict)


class Runner(ABC):
    """One algorithm set up for one call on one rank: memory is opened on entry and freed on exit, also after an error.

    `slots` input and output buffers are made; `launch(i)` reads slot i's inputs and writes slot i's outputs, on the
    current stream for CUDA, and enqueues only: it is capture-safe and allocates nothing. Arrays are numpy arrays for
    `cpu` algorithms that need no torch, else torch tensors; one-dimensional, of `call.count` elements, of the call's
    dtype (`ml_dtypes.bfloat16` in numpy), named (`x` -> `y` for an all-reduce).

    What cannot be opened or launched here raises: NotImplementedError makes the cell `unsupported` with its text as
    the reason (say what to do), TimeoutError `hung`, an out-of-memory error `out_of_memory`, others `crashed`.
    """

    blocks = 0
    """Thread blocks of one launch that wait for peers: all ranks' together must be resident on a shared GPU."""
    threads = 0
    """Threads of such a block."""
    unsigned_zeros = False
    """Whether the sign of a zero may differ between ranks, as it does where +0 says "not yet written"."""

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        self.ranks = ranks
        self.call = call
        self.slots = slots

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abstractmethod
    def inputs(self, i: int) -> Mapping[str, Any]:
        """Input arrays of slot i by name."""

    @abstractmethod
    def outputs(self, i: int) -> Mapping[str, Any]:
        """Output arrays of slot i by name."""

    @abstractmethod
    def launch(self, i: int) -> None:
        """Run slot i."""

    def captured(self) -> None:  # noqa: B027 - most have nothing to share
        """Called on all ranks behind every capture of launches, before a graph is replayed: addresses may be shared."""

    def failure(self) -> str:
        """Who waited for whom, where a launch gave up waiting for a peer on its own; empty if none did."""
        return ""

    def proof(self) -> Proof:
        """What really ran, asked once after the first verified launches."""
        return Proof()


@dataclass(frozen=True, slots=True)
class Foreign:
    """Other people's modules that the fork server imports before it forks, for as long as that does no harm.

    `modules` are in order, from light to heavy: one that touches CUDA, leaves a thread, hangs, fails or ends the
    process is left out with those behind it, and the workers import themselves what they need. One that is not
    there is passed over. `variables` names those of the algorithm's `environment` that are read at import: the
    server is started under them.
    """

    modules: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


def _any_cost(call: Call, machine: Machine) -> float:
    del machine
    return 30.0 + call.bytes * call.world_size / 10_000


def _never(machine: Machine) -> bool:
    del machine
    return False


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One implementation of a collective: what it needs, what it sends, how it runs.

    `traffic` and `support` are pure, and `support` never raises. `runner` is `module:Class`, imported in the worker
    only; empty where there is none yet. `family` is the word of `--algorithms` (`own`, `symm`, `nccl`, `host`, ...).
    `imports` names the modules that the fork server imports before it forks (never one that touches CUDA at import),
    `foreign` those that it imports if it can: what other people wrote, and takes seconds.
    `environment` gives the variables that its workers need on this machine. `max_calls` caps the calls of a chained
    sample; `variant` goes into its cells' names and tells copies of one record apart (library version, settings), and
    `preload` is a library that its workers load before any other. `batch` calls share one launch: a sample's calls are
    rounded up to a multiple of it, `traffic` is that of all of them, and times are per call all the same. A group's
    first cell may take `opening_s` longer than others: a library is imported then, and compiles. `cost_us` estimates
    one call, from which the plan pins the length of chains: it need only be right within a factor of 5. `starts_early`
    says whether its launch overlaps the call before it on this machine (programmatic dependent launch).
    """

    name: str
    collective: Collective
    summary: str
    reference: str
    traffic: Callable[[Call, Topology], Schedule]
    support: Callable[[Machine, Call], Support]
    runner: str
    family: str
    device: str = "cuda"
    modes: tuple[Mode, ...] = (Mode.EAGER, Mode.GRAPH)
    imports: tuple[str, ...] = ()
    foreign: Foreign = Foreign()
    environment: Callable[[Machine], Mapping[str, str]] = field(default=lambda _machine: {})
    max_calls: int = 122
    variant: str = ""
    preload: str = ""
    batch: int = 1
    opening_s: float = 0.0
    cost_us: Callable[[Call, Machine], float] = _any_cost
    starts_early: Callable[[Machine], bool] = _never

    def load_runner(self) -> type[Runner]:
        """Import the runner's class; in a worker only."""
        module, _, name = self.runner.partition(":")
        loaded: type[Runner] = getattr(importlib.import_module(module), name)
        return loaded


def registry() -> dict[str, Algorithm]:
    """All algorithms by name: ours, then those of other packages' entry points `collbench.algorithms`.

    A module of ours or an entry point offers `ALGORITHMS`, a sequence of `Algorithm`. An entry point that fails to load
    is left out with a warning: other people's packages must not stop the tool.
    """
    found: dict[str, Algorithm] = {}
    for module in _MODULES:
        for algorithm in _algorithms_of(f"collbench.algorithms.{module}"):
            found[algorithm.name] = algorithm
    for point in importlib.metadata.entry_points(group=_GROUP):
        found |= _load_point(point, found)
    return found


def known_systems() -> dict[str, Algorithm]:
    """Systems that the doctor knows and that collbench cannot run yet, by name: records without a runner."""
    found = (a for module in _SYSTEMS for a in _systems_of(f"collbench.algorithms.{module}"))
    return {algorithm.name: algorithm for algorithm in found}


def _no_runner(machine: Machine, call: Call) -> Support:
    del machine, call
    return Support.no("collbench has no runner for it yet", "collbench doctor says what is known of it")


def _algorithms_of(module: str) -> Sequence[Algorithm]:
    offered: Sequence[Algorithm] = importlib.import_module(module).ALGORITHMS
    return offered


def _systems_of(module: str) -> Sequence[Algorithm]:
    """`SYSTEMS` of a module, which may have `ALGORITHMS` beside them."""
    offered: Sequence[Algorithm] = importlib.import_module(module).SYSTEMS
    return offered


def _load_point(point: importlib.metadata.EntryPoint, known: Mapping[str, Algorithm]) -> dict[str, Algorithm]:
    import warnings

    try:
        loaded = point.load()
        offered = {a.name: a for a in (loaded if isinstance(loaded, (list, tuple)) else [loaded])}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever another package does, even leave the process
        warnings.warn(f"algorithms of {point.value} left out: {type(error).__name__}: {error}", stacklevel=2)
        return {}
    for name in sorted(offered.keys() & known.keys()):
        warnings.warn(f"algorithm {name} of {point.value} left out: there is one of that name", stacklevel=2)
    return {name: algorithm for name, algorithm in offered.items() if name not in known}


def select(words: str, known: Mapping[str, Algorithm], collective: Collective | None = None) -> list[Algorithm]:
    """Algorithms for `--algorithms`: families, names or `all`, joined by commas, in the registry's order.

    With a `collective` only those of it are taken. A system without a runner is taken by its name alone, and is
    `unsupported` in a sweep.

    Raises:
        UsageError: a word is neither a family nor a name, or there is nothing of that collective behind it.
    """
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    if not wanted:
        raise UsageError("no algorithm named: give a family, a name or all")
    families = sorted({a.family for a in known.values()})
    strange = [word for word in wanted if word != "all" and word not in known and word not in families]
    systems = known_systems() if strange else {}
    for word in strange:
        if word not in systems:
            raise UsageError(_unknown(word, families, [*known, *systems]))
    fitting = [a for a in known.values() if collective in {None, a.collective}]
    for word in wanted:
        if word not in systems and not any(word in {"all", a.name, a.family} for a in fitting):
            others = sorted({a.collective for a in known.values() if word in {"all", a.name, a.family}})
            raise UsageError(f"{word} has no {collective}: give --collective {' or '.join(others)}")
    chosen = [a for a in fitting if {"all", a.name, a.family} & {*wanted}]
    return chosen + [replace(systems[word], support=_no_runner) for word in dict.fromkeys(strange)]


def _unknown(word: str, families: Sequence[str], names: Sequence[str]) -> str:
    """One line however many names there are; the nearest one is what most of those who mistyped look for."""
    meant = nearest(word, ["all", *families, *names])
    told = f"unknown algorithm {word[:_LONGEST_WORD]!r}"
    told += f": did you mean {meant}? Families:" if meant else "; families:"
    return f"{told} {', '.join(families)}; names: collbench doctor"
