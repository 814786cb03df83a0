"""Lines of JSON: one record each, appended whole, read back with every fault named by file and line."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np

from collbench.errors import InvalidError
from collbench.results.files import refuse_special
from collbench.results.hostile import tamed
from collbench.results.records import Flag, Samples, Status

__all__ = ["KEYS", "MAX_LINE_BYTES", "Parsed", "decode", "encode", "parse_json", "read"]

KEYS = ("cell_id", "launch", "status", "reason", "flags", "calls", "latency_us")
"""Keys of a line of `samples.jsonl`, in order."""

MAX_LINE_BYTES = 32 << 20
"""Longest line that is read: 16 ranks x 100,000 iterations x 20 characters; a longer one is no line of ours."""

_T = TypeVar("_T")
_E = TypeVar("_E", Status, Flag)
_MAX_LAUNCHES = 1_000_000
_KEPT_PROBLEMS = 20
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE = (b"0" * 19, b"e000")
"""What every number has that does not fit, digits made zeros and without `+`; others may have it too."""
_MOST_DIGITS, _BITS = 20, 63


@dataclass(frozen=True, slots=True)
class Parsed(Generic[_T]):
    """Records of a file with their line numbers, what was wrong, and the file's length up to its last whole line.

    `whole_bytes` is less than the file's size if the last line was cut; `newline` says that only its end is missing.
    """

    records: tuple[tuple[int, _T], ...]
    problems: tuple[str, ...]
    whole_bytes: int
    newline: bool = False


def parse_json(text: bytes, tame: Callable[[Any], Any] = tamed) -> dict[str, Any]:
    """Read one JSON object; its texts are tamed (results/hostile.py), by default to a line each.

    Raises:
        InvalidError: not JSON in UTF-8, nested too deep, not an object, or a number in it that is not finite or, if
            whole, has more than 64 bits.
    """
    alike = text.translate(_ALIKE, b"+")
    whole, finite = (_whole_number, _finite) if any(part in alike for part in _LARGE) else (None, None)
    try:
        value = tame(json.loads(text.decode(), parse_constant=_refuse, parse_int=whole, parse_float=finite))
    except RecursionError:
        raise InvalidError("nested too deep") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"not JSON ({str(error)[:80]})") from None
    except ValueError as error:
        raise InvalidError(str(error)[:80]) from None
    if not isinstance(value, dict):
        raise InvalidError(f"expected a JSON object, found {type(value).__name__}")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _whole_number(text: str) -> int:
    value = int(text) if len(text) <= _MOST_DIGITS else None
    if value is None or value.bit_length() > _BITS:
        raise ValueError("a whole number has more than 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_MOST_DIGITS]} is not a finite number")
    return value


def encode(samples: Samples) -> bytes:
    """One line of `samples.jsonl` with its newline.

    Raises:
        InvalidError: a latency that is not finite and at least zero.
    """
    values = (
        samples.cell_id, samples.launch, str(samples.status), samples.reason, [str(f) for f in samples.flags],
        samples.calls, samples.latency_us,
    )  # fmt: skip
    _latencies(samples.latency_us)
    return json.dumps(dict(zip(KEYS, values, strict=True)), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(data: Mapping[str, Any]) -> Samples:
    """Inverse of `encode`, from the parsed object; keys that are not ours are ignored.

    Raises:
        InvalidError: a key is missing, of the wrong kind, or a word is unknown.
    """
    for key in KEYS:
        if key not in data:
            raise InvalidError(f"key {key!r} is missing")
    cell_id, reason, flags = data["cell_id"], data["reason"], data["flags"]
    if not isinstance(cell_id, str) or not isinstance(reason, str) or not isinstance(flags, list):
        raise InvalidError("cell_id and reason must be text, flags a list")
    status = _word(Status, data["status"], "status")
    latency_us = _latencies(data["latency_us"])
    if (status is Status.OK) != bool(latency_us):
        raise InvalidError(f"status {status} with {len(latency_us)} ranks' samples: only an ok cell has samples")
    return Samples(
        cell_id, _whole(data["launch"], "launch", 0), status, reason,
        tuple(_word(Flag, flag, "flag") for flag in flags), _whole(data["calls"], "calls", 1), latency_us,
    )  # fmt: skip


def _word(kind: type[_E], value: Any, name: str) -> _E:  # noqa: ANN401 - whatever the file holds
    try:
        return kind(value)
    except ValueError:
        raise InvalidError(f"{name} {str(value)[:40]!r} is unknown, expected one of {', '.join(kind)}") from None


def _whole(value: object, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_LAUNCHES:
        raise InvalidError(f"{name} is {str(value)[:40]!r}, expected a whole number of at least {least}")
    return value


def _latencies(value: Any) -> tuple[tuple[float, ...], ...]:  # noqa: ANN401 - whatever the file holds
    if not isinstance(value, list | tuple) or not all(isinstance(rank, list | tuple) for rank in value):
        raise InvalidError("latency_us must be a list of ranks, each a list of iterations")
    if not value:
        return ()
    if not all(set(map(type, rank)) <= {float, int} for rank in value):
        raise InvalidError("latency_us holds something that is not a number")
    if len({len(rank) for rank in value}) > 1 or not value[0]:
        raise InvalidError(
            f"latency_us has {[len(rank) for rank in value][:16]} iterations per rank, expected the same"
        )
    array = np.asarray(value, dtype=np.float64)
    if not np.isfinite(array).all() or (array < 0).any():
        raise InvalidError("latency_us holds a value that is not finite or below zero")
    return tuple(map(tuple, array.tolist()))


def read(
    path: Path, parse: Callable[[dict[str, Any]], _T], *, needed: bool = True, tame: Callable[[Any], Any] = tamed
) -> Parsed[_T]:
    """Read a file of JSON lines; `parse` makes a record of one object and raises InvalidError for a fault.

    A damaged line costs itself only, and is named; a last line without its end is what was being written.

    Raises:
        InvalidError: the file cannot be read, or it is `needed` and has damaged lines and none of use.
    """
    records: list[tuple[int, _T]] = []
    problems: list[str] = []
    end, newline, cut = 0, False, ""
    try:
        refuse_special(path)
        with path.open("rb") as file:
            for number, start, line in _lines(file):
                newline = line is not None and not line.endswith(b"\n")
                try:
                    records += [
                        (number, record) for record in _record(line, lambda text: parse(parse_json(text, tame)))
                    ]
                except InvalidError as error:
                    if newline:
                        cut, newline = f"{path.name} line {number}: cut off while it was written; left out", False
                        break
                    problems.append(f"{path.name} line {number}: {error}; left out")
                end = file.tell() if line is None else start + len(line)
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror}") from error
    if needed and problems and not records:
        raise InvalidError(f"{path}: none of its lines can be used: {problems[0]}")
    return Parsed(tuple(records), _shorten(problems, path.name) + ((cut,) if cut else ()), end, newline)


def _record(line: bytes | None, parse: Callable[[bytes], _T]) -> list[_T]:
    if line is None:
        raise InvalidError(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    return [parse(line)] if line.strip() else []


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes | None]]:
    """Number, offset and content of each line; None for one that is too long, which is skipped in pieces."""
    number, start = 0, 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        length = len(line)
        if length > MAX_LINE_BYTES:
            piece = line
            while piece and not piece.endswith(b"\n"):
                piece = file.readline(1 << 20)
                length += len(piece)
        yield number, start, None if length > MAX_LINE_BYTES else line
        start += length


def _shorten(problems: list[str], name: str) -> tuple[str, ...]:
    more = len(problems) - _KEPT_PROBLEMS
    return tuple(problems[:_KEPT_PROBLEMS]) + ((f"{name}: {more} more lines are damaged",) if more > 0 else ())
