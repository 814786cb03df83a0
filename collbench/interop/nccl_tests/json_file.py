"""The file that `-J` writes (nccl-tests; versions 1 to 4 of its format) and the records of rccl-tests' `-Z json`.

The file of `-J` holds the whole environment of rank 0, which `without_environment` takes out before. It is
written piece by piece: of a run that died, the rows that were finished are read. `inf` in it is no JSON, and is taken
for no value.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from collbench.interop.nccl_tests.builder import completed
from collbench.interop.nccl_tests.figures import figures
from collbench.interop.nccl_tests.table import (
    PROGRAMS,
    Device,
    Figures,
    Invocation,
    OutputError,
    Row,
    Settings,
    nccl_version,
)
from collbench.interop.nccl_tests.words import given, program_in, settings_from

__all__ = ["cut_short", "looks_like_json", "read_json"]

_BARE = re.compile(r"(?<=[:,\[])\s*[+-]?(?:inf|nan)(?:inity)?\s*(?=[,\]}])", re.IGNORECASE)
_START = re.compile(r"\s*(?:\{\s*\"|\[\s*\{)")
_SPACE = re.compile(r"[\s\ufeff]*")
_RESULTS = re.compile(r'"results"\s*:\s*\[')
_NAMES: Mapping[str, str] = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "AlltoAll": "alltoall",
    "AllToAll": "alltoall", "SendRecv": "sendrecv", "Broadcast": "broadcast", "Reduce": "reduce", "Gather": "gather",
    "Scatter": "scatter", "HyperCube": "hypercube", "AlltoAllv": "alltoallv",
}  # fmt: skip
_MOST_PROBLEMS, _QUOTE = 20, 90
_PLACES = {"out": "out_of_place", "in": "in_place"}
_Object = Mapping[str, Any]


def looks_like_json(text: str) -> bool:
    """Whether the text begins as such a file does; `[1,0]<stdout>:` of mpirun does not."""
    return _START.match(text) is not None


def read_json(text: str) -> list[Invocation]:
    """The runs of one `-J` file or of several behind each other, or those in a list of rccl-tests' records.

    Raises:
        OutputError: not such a file, or one without a row that can be read: what is wrong is quoted.
    """
    found: list[Invocation] = []
    for one in _pieces(text):
        if found and not looks_like_json(one):
            problem = f"{len(one.strip())} characters behind the end of a file of -J were not read"
            return [*found[:-1], replace(found[-1], problems=(*found[-1].problems, problem))]
        try:
            found += _runs(*_loaded(one))
        except OutputError as error:
            if not found:
                raise
            found[-1] = replace(found[-1], problems=(*found[-1].problems, f"the file behind it: {error}"))
    if not any(one.rows for one in found):
        problems = [problem for one in found for problem in one.problems]
        failures = [failure for one in found for failure in one.failures]
        raise OutputError((problems + failures + ["JSON with empty results: the run ended before its first row"])[0])
    return found


def _pieces(text: str) -> Iterator[str]:
    """Whole objects or lists, one after the other; last what is none."""
    text = text.lstrip("\ufeff")
    cleaned = _BARE.sub(lambda match: "0".ljust(len(match[0])), text)  # of the same length
    decoder, begin = json.JSONDecoder(parse_constant=lambda _: None), 0
    while begin < len(text):
        at = _SPACE.match(cleaned, begin).end()  # type: ignore[union-attr]  # it matches everywhere
        try:
            end = decoder.raw_decode(cleaned, at)[1]
        except (ValueError, RecursionError):
            end = len(text)
        if piece := text[at:end]:
            yield piece
        begin = end


def _runs(data: Any, cut: bool) -> list[Invocation]:  # noqa: ANN401, FBT001 - what `_loaded` gives
    if isinstance(data, list):
        return _records(data)
    if isinstance(data, dict) and isinstance(data.get("results"), list):
        return [_invocation(data, cut)]
    raise OutputError(f"JSON without results: {_quoted(data)}: expected the file of nccl-tests' -J")


def _loaded(text: str) -> tuple[Any, bool]:
    """The data, and whether its end was missing."""
    text = _BARE.sub("null", text.lstrip("\ufeff"))
    try:
        return json.loads(text, parse_constant=lambda _: None), False
    except RecursionError:
        raise OutputError("JSON that is nested too deep: not the file of nccl-tests' -J") from None
    except ValueError as error:
        whole = _recovered(text)
        if whole is not None:
            return whole, True
        at = getattr(error, "pos", 0)
        if '"results"' not in text and not text.rstrip().endswith("}"):
            raise OutputError("JSON that ends before its results: the run was stopped or died before its first row, or "
                              "the file was cut") from None  # fmt: skip
        around = _printable(text[max(0, at - 40) : at + 20])
        raise OutputError(f"damaged JSON at character {at}, near {around!r}: {str(error)[:80]}") from None


def _recovered(text: str) -> Any:  # noqa: ANN401 - JSON
    """A file that ends within its results: all that was written before the row in work; None where that is not so."""
    start = _RESULTS.search(text)
    if start is None:
        return None
    decoder, end, position = json.JSONDecoder(parse_constant=lambda _: None), start.end(), start.end()
    while True:
        try:
            _, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        end = position
        position += len(re.match(r"[\s,]*", text[position : position + 100]).group())  # type: ignore[union-attr]
    try:
        return json.loads(text[:end] + "]}", parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _invocation(data: _Object, cut: bool) -> Invocation:  # noqa: FBT001 - said by the one caller
    rows: list[Row] = []
    problems: list[str] = []
    for index, one in enumerate(data["results"]):
        try:
            rows.append(_row(_object(one)))
        except ValueError as error:
            problems.append(f"results[{index}] {_quoted(one)}: {error}")
    if cut:
        problems.append(cut_short(len(rows)))
    words = [str(word) for word in _list(data.get("args"))]
    config = _mapping(data.get("config"))
    bounds = _mapping(data.get("out_of_bounds")).get("count")
    errors = [_printable(str(error)) for error in _list(data.get("errors")) if str(error).strip()]
    return completed(Invocation(
        _program(words, data["results"]), 0, _settings(config, words), tuple(rows), _devices(config), "",
        nccl_version(_whole(data.get("nccl_version"), 0)), bounds if isinstance(bounds, int) else None,
        bool(data.get("end_time")) and not cut, "", tuple(errors[:_MOST_PROBLEMS]), tuple(problems[:_MOST_PROBLEMS]),
    ))  # fmt: skip


def cut_short(rows: int) -> str:
    """The problem of a file whose end is missing."""
    return f"the file ends within its results, behind {rows} row{'s' * (rows != 1)}: the run was stopped or died"


def _program(words: Sequence[str], results: Sequence[Any]) -> str:
    found = program_in(PurePath(words[0]).name) if words else None
    if found:
        return found[0]
    names = [str(one.get("experiment_name", "")) for one in results[:1] if isinstance(one, dict)]
    name = _NAMES.get(names[0], "") if names else ""
    return name if name in PROGRAMS else ""


def _settings(config: _Object, words: Sequence[str]) -> Settings:
    """From the file's own words; what only the command line tells (-a, -z, -R ...) from there."""
    base = settings_from(given(words[1:]))
    counts = {
        "threads": "nthreads", "gpus": "ngpus", "iterations": "iterations", "aggregated": "aggregated_iterations",
        "warmup": "warmup_iters", "validation": "validation", "graph": "graph",
    }  # fmt: skip
    values: dict[str, Any] = {name: _whole(config.get(key), getattr(base, name)) for name, key in counts.items()}
    blocking = base.blocking or (1 if _true(config.get("blocking_collectives")) else 0)
    per_iteration = base.per_iteration or _true(config.get("per_iter_timing"))
    return replace(base, **values, blocking=blocking, per_iteration=per_iteration)


def _devices(config: _Object) -> tuple[Device, ...]:
    found = []
    for one in (one for one in _list(config.get("devices")) if isinstance(one, dict)):
        rank, group, pid = (_whole(one.get(key), 0) for key in ("rank", "group", "pid"))
        host, bus, model = (
            _printable(str(one.get(key, "")))[:200] for key in ("hostname", "device_hex", "device_info")
        )
        found.append(Device(rank, group, pid, host, bus, model))
    return tuple(found)


def _row(one: _Object) -> Row:
    """One result.

    Raises:
        ValueError: a key is missing or holds something else.
    """
    size, count = _whole(one.get("size"), -1), _whole(one.get("count"), -1)
    if size < 0 or count < 0:
        raise ValueError("expected size and count")
    places = {}
    for place, key in _PLACES.items():
        if isinstance(one.get(key), dict):
            places[place] = _figures(size, one[key], _mapping(one.get(f"{key}_per_iter")))
    if not places:
        raise ValueError("neither out_of_place nor in_place")
    root = str(one.get("root", "-1")).strip()
    proof = {str(k)[:40]: _printable(str(v))[:80] for k, v in list(_mapping(one.get("tuning")).items())[:16]}
    return Row(
        size, count, _printable(str(one.get("type", "")))[:24], _printable(str(one.get("redop") or ""))[:24],
        int(root) if re.fullmatch(r"-?\d{1,6}", root, re.ASCII) else -1, places, proof,
    )  # fmt: skip


def _figures(size: int, place: _Object, per_iteration: _Object) -> Figures:
    clock = "cpu_time" if "cpu_time" in place else "time"
    time, algbw, busbw = (_text(place.get(key)) for key in (clock, "alg_bw", "bus_bw"))
    wrong = place.get("nwrong")
    count = None if wrong is None else _wrong(wrong)
    found = figures(size, time, algbw, busbw, count, cputime=clock == "cpu_time")
    return replace(found, process_us=_process_us(per_iteration))


def _process_us(per_iteration: _Object) -> tuple[tuple[float, ...], ...]:
    """Times of each iteration: a row per process, or one of the largest over them; the skipped ones are left out."""
    lists = _list(per_iteration.get("per_process_max_times_us")) or [_list(per_iteration.get("times_us"))]
    skipped = max(0, _whole(per_iteration.get("skipped_iterations"), 0))
    rows = [_list(one)[skipped:] for one in lists]
    if not rows or not rows[0] or len({len(row) for row in rows}) > 1:
        return ()
    if not all(type(x) in {int, float} and math.isfinite(x) and x > 0 for row in rows for x in row):
        raise ValueError("times per iteration that are no times")
    return tuple(tuple(float(x) for x in row) for row in rows)


def _wrong(value: object) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return int(value)
    raise ValueError(f"nwrong is {str(value)[:24]!r}, expected a count")


def _records(data: Sequence[Any]) -> list[Invocation]:
    """rccl-tests: one object for each place of each size."""
    grouped: dict[str, list[_Object]] = {}
    problems: list[str] = []
    for index, one in enumerate(data):
        if isinstance(one, dict) and {"size", "time", "algBw", "busBw"} <= one.keys():
            grouped.setdefault(str(one.get("name", "")), []).append(one)
        else:
            problems.append(f"[{index}] {_quoted(one)}: expected size, time, algBw and busBw")
    found = []
    for name, members in grouped.items():
        rows = []
        for one in members:
            try:
                rows.append(_record(one))
            except ValueError as error:
                problems.append(f"{_quoted(one)}: {error}")
        ranks = _whole(members[0].get("ranks"), 0)
        whole = completed(Invocation(_NAMES.get(name, ""), 0, Settings(), tuple(rows), finished=True))
        found.append(replace(whole, world_size=ranks or whole.world_size))
    if not found:
        raise OutputError(problems[0] if problems else "an empty list: expected rccl-tests' records")
    return [replace(found[0], problems=(*found[0].problems, *problems[:_MOST_PROBLEMS])), *found[1:]]


def _record(one: _Object) -> Row:
    size = _whole(one["size"], -1)
    if size < 0:
        raise ValueError("expected a size")
    wrong = one.get("wrong")
    count = int(wrong) if isinstance(wrong, str) and re.fullmatch(r"\d{1,18}", wrong, re.ASCII) else None
    found = figures(size, _text(one["time"]), _text(one["algBw"]), _text(one["busBw"]), count)
    place = "in" if one.get("inPlace") == 1 else "out"
    dtype, redop = (_printable(str(one.get(key) or ""))[:24] for key in ("type", "redop"))
    return Row(size, 0, dtype, redop, -1, {place: found})


def _text(value: object) -> str:
    return repr(value) if type(value) in {int, float} else str(value)


def _whole(value: object, otherwise: int) -> int:
    return value if type(value) is int and 0 <= value < 1 << 63 else otherwise


def _true(value: object) -> bool:
    return value is True or value == "true" or (type(value) is int and value > 0)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> _Object:
    return value if isinstance(value, dict) else {}


def _object(value: object) -> _Object:
    if not isinstance(value, dict):
        raise ValueError("expected an object")  # noqa: TRY004 - faults of data are ValueErrors here
    return value


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _quoted(value: object) -> str:
    text = _printable(json.dumps(value, default=str)[: 4 * _QUOTE])
    return text if len(text) <= _QUOTE else text[: _QUOTE - 3] + "..."
