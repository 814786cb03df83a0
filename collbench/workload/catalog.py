"""Workloads as data: `collbench/workloads/*.toml` and files of users in the same form. Times in microseconds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError, UsageError
from collbench.results.records import SCHEMA, Collective
from collbench.topology.toml_table import parse_toml
from collbench.units import MAX_BYTES

__all__ = ["Calls", "Speculation", "Workload", "find", "folder", "load", "names", "read"]

_MAX_FILE_BYTES = 1 << 20
_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Calls:
    """`count` calls per step; a message has `bytes_per_token` for each token of a rank's step."""

    collective: Collective
    count: int
    bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Speculation:
    """A verify step gives `accepted_tokens` (among them the one that is always right); drafting costs `draft_us`.

    `baseline` is the workload that decodes without speculation.
    """

    baseline: str
    draft_tokens: int
    accepted_tokens: float
    draft_us: float
    source: str


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of model step.

    `other_us` is what a step costs beside collectives, plus `other_us_per_sequence` for each sequence;
    `fusion_us` is what fusing the operation behind a collective saves per call. `sequences_are_per_rank`: batches count
    sequences of one rank, as in expert parallelism. `sources` says where each group of numbers comes from.
    """

    name: str
    summary: str
    batches: tuple[int, ...]
    calls: tuple[Calls, ...]
    other_us: float
    other_us_per_sequence: float = 0.0
    tokens_per_sequence: int = 1
    sequences_are_per_rank: bool = False
    speculation: Speculation | None = None
    fusion_us: float = 0.0
    sources: Mapping[str, str] | None = None

    def bytes_of(self, calls: Calls, batch: int) -> int:
        """Message size at a batch size."""
        return calls.bytes_per_token * self.tokens_per_sequence * batch

    def other_at(self, batch: int) -> float:
        """Microseconds of a step beside its collectives, drafting included."""
        drafting = self.speculation.draft_us if self.speculation else 0.0
        return self.other_us + self.other_us_per_sequence * batch + drafting

    def tokens_at(self, batch: int, ranks: int) -> float:
        """Tokens that one step of all ranks gives."""
        accepted = self.speculation.accepted_tokens if self.speculation else 1.0
        return accepted * batch * (ranks if self.sequences_are_per_rank else 1)


def folder() -> Path:
    """Folder of the workloads that come with collbench."""
    return Path(__file__).resolve().parents[1] / "workloads"


def names() -> tuple[str, ...]:
    """Their names, sorted."""
    return tuple(sorted(path.stem for path in folder().glob("*.toml")))


def find(name_or_path: str, beside: Path = Path()) -> Path:
    """Path of a workload: a name out of `names()`, or a path, which a file names as seen from its own folder `beside`.

    Raises:
        UsageError: neither.
    """
    if name_or_path in names():
        return folder() / f"{name_or_path}.toml"
    path = beside / name_or_path
    if path.suffix == ".toml" and path.is_file():
        return path
    raise UsageError(f"no workload {name_or_path!r}: give the path of a .toml file, or one of {', '.join(names())}")


def load(path: Path) -> Workload:
    """Read a workload file.

    Raises:
        InvalidError: it cannot be read, or holds what cannot be; the message names file and field.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise InvalidError(f"{path}: larger than 1 MiB, expected a workload of a few KiB")
        values = parse_toml(raw.decode())
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidError(f"{path}: no TOML: {error}") from error
    return read(values, str(path))


def read(data: Mapping[str, Any], where: str) -> Workload:
    """A workload from its fields.

    Raises:
        InvalidError: a field is missing, unknown, of the wrong kind or out of range.
    """
    top = _Table(
        data, where, {"schema", "name", "summary", "source", "batches", "step", "calls", "speculation", "fusion"}
    )
    if top.text("schema") != SCHEMA:
        raise InvalidError(f"{where}: schema {top.text('schema')!r}: this release reads {SCHEMA}")
    step = top.table("step", {
        "other_us", "other_us_per_sequence", "tokens_per_sequence", "sequences_are_per_rank", "source",
    })  # fmt: skip
    fusion = top.table("fusion", {"saved_us_per_call", "source"}) if "fusion" in data else None
    speculation = _speculation(top) if "speculation" in data else None
    sources = {"calls": top.text("source"), "step": step.text("source")}
    sources |= {"fusion": fusion.text("source")} if fusion else {}
    sources |= {"speculation": speculation.source} if speculation else {}
    return Workload(
        name=top.text("name"), summary=top.text("summary"), batches=top.batches(), calls=top.calls(),
        other_us=step.number("other_us"), other_us_per_sequence=step.number("other_us_per_sequence", 0.0),
        tokens_per_sequence=step.whole("tokens_per_sequence", 1),
        sequences_are_per_rank=step.flag("sequences_are_per_rank"), speculation=speculation,
        fusion_us=fusion.number("saved_us_per_call") if fusion else 0.0, sources=sources,
    )  # fmt: skip


def _speculation(top: "_Table") -> Speculation:
    table = top.table("speculation", {"baseline", "draft_tokens", "accepted_tokens", "draft_us", "source"})
    found = Speculation(
        table.text("baseline"), table.whole("draft_tokens"), table.number("accepted_tokens"), table.number("draft_us"),
        table.text("source"),
    )  # fmt: skip
    if not 1 <= found.accepted_tokens <= found.draft_tokens + 1:
        raise InvalidError(
            f"{top.where}: speculation.accepted_tokens {found.accepted_tokens:g}: expected 1 to "
            f"{found.draft_tokens + 1}, the drafted tokens and the one that is always right"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of a file; every reading says where it failed."""

    data: Any
    where: str
    known: frozenset[str] | set[str]

    def __post_init__(self) -> None:
        if not isinstance(self.data, Mapping):
            raise InvalidError(f"{self.where}: expected a table")
        strange = sorted(set(self.data) - self.known)
        if strange:
            raise InvalidError(f"{self.where}: unknown field {strange[0]!r}: expected {', '.join(sorted(self.known))}")

    def _get(self, name: str) -> Any:  # noqa: ANN401 - any TOML value
        if name not in self.data:
            raise InvalidError(f"{self.where}: {name} is missing")
        return self.data[name]

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str) or not value.strip():
            raise InvalidError(f"{self.where}: {name} {value!r}: expected a text")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name) if default is None else self.data.get(name, default)
        fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fine or value < 0:
            raise InvalidError(f"{self.where}: {name} {value!r}: expected a number of zero or more")
        return float(value)

    def whole(self, name: str, default: int | None = None) -> int:
        value = self._get(name) if default is None else self.data.get(name, default)
        return _whole(value, f"{self.where}: {name}")

    def flag(self, name: str) -> bool:
        value = self.data.get(name, False)
        if not isinstance(value, bool):
            raise InvalidError(f"{self.where}: {name} {value!r}: expected true or false")
        return value

    def table(self, name: str, known: set[str]) -> "_Table":
        return _Table(self._get(name), f"{self.where}: {name}", known)

    def batches(self) -> tuple[int, ...]:
        values = self._get("batches")
        if not isinstance(values, list) or not values:
            raise InvalidError(f"{self.where}: batches {values!r}: expected a list of numbers of sequences")
        return tuple(_whole(value, f"{self.where}: batches") for value in values)

    def calls(self) -> tuple[Calls, ...]:
        entries = self._get("calls")
        if not isinstance(entries, list) or not entries:
            raise InvalidError(f"{self.where}: calls: expected at least one [[calls]]")
        return tuple(_calls(entry, f"{self.where}: calls[{index}]") for index, entry in enumerate(entries))


def _calls(entry: object, where: str) -> Calls:
    table = _Table(entry, where, {"collective", "count", "bytes_per_token"})
    word = table.text("collective")
    if word not in {*Collective}:
        raise InvalidError(f"{where}: collective {word!r}: expected one of {', '.join(Collective)}")
    size = table.whole("bytes_per_token")
    if size > MAX_BYTES or size % 2:
        raise InvalidError(f"{where}: bytes_per_token {size}: expected an even number of at most 1 TiB")
    return Calls(Collective(word), table.whole("count"), size)


def _whole(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= max(_MOST, MAX_BYTES):
        raise InvalidError(f"{where} {value!r}: expected a whole number of 1 or more")
    return value
