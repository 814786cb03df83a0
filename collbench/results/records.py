"""Frozen records of calls, cells, samples and runs; the words are those of docs/vocabulary.md."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from collbench.errors import InvalidError
from collbench.results.kinds import rows, table, text, texts, whole
from collbench.units import MAX_BYTES

__all__ = [
    "DTYPE_BYTES",
    "SCHEMA",
    "Answer",
    "Call",
    "Cell",
    "Collective",
    "Fabric",
    "Flag",
    "Mode",
    "Resumed",
    "Run",
    "Samples",
    "Status",
    "Support",
]

SCHEMA = "collbench/1"
"""Name and version of every file and `--json` object that this release writes."""

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}
"""Element types that a call can have, with their size in bytes."""

MAX_NAME = 500
"""Characters of a name in a run: of an algorithm, a variant, the run itself."""

MAX_RANKS = 1 << 16
_MANY = 1_000_000


class Collective(StrEnum):
    """The operation."""

    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BARRIER = "barrier"
    P2P = "p2p"


class Mode(StrEnum):
    """Launched call by call, or captured in a CUDA graph and replayed."""

    EAGER = "eager"
    GRAPH = "graph"


class Fabric(StrEnum):
    """What the ranks really share."""

    PCIE = "pcie"
    NVLINK = "nvlink"
    MIXED = "mixed"
    NETWORK = "network"
    HOST = "host"
    SHARED_GPU = "shared-gpu"


class Status(StrEnum):
    """How a cell ended; each but `ok` has a reason."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    WRONG = "wrong"
    HUNG = "hung"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_RUN = "not_run"


class Flag(StrEnum):
    """Marks on an `ok` cell."""

    NOISY = "noisy"
    IMPLAUSIBLE = "implausible"
    THROTTLED = "throttled"


class Answer(StrEnum):
    """Whether an algorithm runs on a machine. `unknown` is never the same as `runs`."""

    RUNS = "runs"
    DOES_NOT_RUN = "does_not_run"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Support:
    """Answer to "does this algorithm run here?", with the reason, what would change it, and who says so."""

    answer: Answer
    reason: str = ""
    remedy: str = ""
    source: str = ""

    def __bool__(self) -> bool:
        """True unless it is known not to run: what is unknown is tried, and its failure recorded."""
        return self.answer is not Answer.DOES_NOT_RUN

    @classmethod
    def yes(cls, reason: str = "", source: str = "") -> "Support":
        """It runs."""
        return cls(Answer.RUNS, reason, "", source)

    @classmethod
    def no(cls, reason: str, remedy: str = "", source: str = "") -> "Support":
        """It does not run: `reason` is shown as the cell's, `remedy` says what would change it."""
        return cls(Answer.DOES_NOT_RUN, reason, remedy, source)

    @classmethod
    def unknown(cls, reason: str, remedy: str = "", source: str = "") -> "Support":
        """Nobody has said; the sweep tries it."""
        return cls(Answer.UNKNOWN, reason, remedy, source)


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call.

    `bytes` is the larger of one rank's send and receive buffer, as nccl-tests prints it; `splits` holds per-peer
    element counts of a skewed all-to-all (empty: even); `epilogue` names work fused behind the collective.
    """

    bytes: int
    world_size: int
    collective: Collective = Collective.ALL_REDUCE
    op: str = "sum"
    dtype: str = "bfloat16"
    splits: tuple[int, ...] = ()
    epilogue: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def count(self) -> int:
        """Elements in the larger of a rank's two buffers."""
        return self.bytes // self.itemsize


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of a result: a call, who performs it, and how it is timed.

    `calls` is the number k of calls that one sample times back to back; `place` is `out` or `in`; `buffers` is `warm`
    or `cold` (L2); `variant` tells cells of one run apart that differ in library version, protocol or grid.
    """

    algorithm: str
    call: Call
    mode: Mode
    calls: int
    variant: str = ""
    place: str = "out"
    buffers: str = "warm"
    skew: str = ""

    @property
    def cell_id(self) -> str:
        """Canonical name: thirteen fields in fixed order joined by `/`, `-` where a field is empty."""
        c = self.call
        fields = (
            c.collective, self.algorithm, self.variant, c.op, c.dtype, c.bytes, c.world_size, self.mode, self.calls,
            self.place, self.buffers, c.epilogue, self.skew or ("skewed" if c.splits else ""),
        )  # fmt: skip
        return "/".join(str(f).replace("/", "_") or "-" for f in fields)

    def row(self) -> dict[str, Any]:
        """The cell's fields under the names of the vocabulary, `cell_id` first; inverse of `from_row`."""
        c = self.call
        return {
            "cell_id": self.cell_id, "collective": str(c.collective), "algorithm": self.algorithm,
            "variant": self.variant, "op": c.op, "dtype": c.dtype, "bytes": c.bytes, "world_size": c.world_size,
            "mode": str(self.mode), "calls": self.calls, "place": self.place, "buffers": self.buffers,
            "epilogue": c.epilogue, "skew": self.skew, "splits": list(c.splits),
        }  # fmt: skip

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Cell":
        """Rebuild a cell from `row()`.

        Raises:
            InvalidError: a field is missing or is of the wrong kind.
        """
        name = partial(text, row, most=MAX_NAME)
        try:
            call = Call(
                bytes=whole(row, "bytes", 0, MAX_BYTES), world_size=whole(row, "world_size", 1, MAX_RANKS),
                collective=Collective(name("collective")), op=name("op"), dtype=name("dtype"),
                splits=tuple(rows({"splits": ()} | dict(row), "splits", int)), epilogue=name("epilogue", ""),
            )  # fmt: skip
            return cls(
                algorithm=name("algorithm"), call=call, mode=Mode(name("mode")), calls=whole(row, "calls", 1, _MANY),
                variant=name("variant", ""), place=name("place", "out"), buffers=name("buffers", "warm"),
                skew=name("skew", ""),
            )  # fmt: skip
        except (InvalidError, ValueError) as error:
            raise InvalidError(f"cell {str(row.get('cell_id', '?'))[:120]}: {error}") from None


@dataclass(frozen=True, slots=True)
class Samples:
    """What one launch measured of one cell: one line of `samples.jsonl`.

    `latency_us[rank][iteration]` is microseconds per call (the sample's time divided by `calls`), finite; empty unless
    `status` is `ok`. All ranks' samples are kept: the fold (maximum over ranks) is made when they are read. A single
    row stands for the group in a run with the setting `group_times`, where another tool gives no times of ranks.
    """

    cell_id: str
    launch: int
    status: Status
    reason: str = ""
    flags: tuple[Flag, ...] = ()
    calls: int = 1
    latency_us: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Resumed:
    """A later call that went on with a run: when it began (ISO 8601), and how it reads."""

    at: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Everything of a run but its samples: `run.json`.

    `command` is the call that began it, `resumed` has those that went on with it. `launches` is how many are planned;
    a later call may have raised it. `machine` is `topology.machine.Machine.as_dict()`; `cells` is the plan in order;
    `settings` are the sweep's options as given; `environment` holds the variables that were passed to the workers, by
    algorithm.
    """

    run_id: str
    created: str
    command: tuple[str, ...]
    version: str
    fabric: Fabric
    world_size: int
    launches: int
    cells: tuple[Cell, ...]
    machine: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    resumed: tuple[Resumed, ...] = ()
    finished: str = ""
    schema: str = SCHEMA

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """All calls that made the run, in order."""
        return tuple(filter(None, (self.command, *(one.command for one in self.resumed))))

    def as_dict(self) -> dict[str, Any]:
        """JSON form, `kind` = `run`."""
        fields = asdict(self) | {"kind": "run", "cells": [cell.row() for cell in self.cells]}
        return {"schema": fields.pop("schema"), "kind": fields.pop("kind"), **fields}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Run":
        """Inverse of `as_dict`; schema checks are the store's.

        Raises:
            InvalidError: a field is missing or is of the wrong kind.
        """
        try:
            return cls(
                run_id=text(data, "run_id", most=MAX_NAME), created=text(data, "created", most=MAX_NAME),
                command=tuple(rows(data, "command", str)), version=text(data, "version", most=MAX_NAME),
                fabric=Fabric(text(data, "fabric")), world_size=whole(data, "world_size", 1, MAX_RANKS),
                launches=whole(data, "launches", 1, _MANY), cells=tuple(map(Cell.from_row, rows(data, "cells"))),
                machine=table(data, "machine"), settings=table(data, "settings"),
                environment=_environment(table(data, "environment")), resumed=_resumed(data),
                finished=text(data, "finished", most=MAX_NAME), schema=text(data, "schema"),
            )  # fmt: skip
        except (InvalidError, ValueError) as error:
            raise InvalidError(f"run.json: {error}") from None


def _resumed(data: Mapping[str, Any]) -> tuple[Resumed, ...]:
    """Runs of older releases have no such field."""
    found = rows({"resumed": ()} | dict(data), "resumed")
    return tuple(Resumed(text(one, "at", most=MAX_NAME), tuple(rows(one, "command", str))) for one in found)


def _environment(data: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    known = {f"environment of {name[:120]}": values for name, values in data.items()}
    return {name: texts(known, told) for name, told in zip(data, known, strict=True)}
