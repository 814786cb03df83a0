"""A baseline: one reviewable JSON file with the launch medians of every cell, meant to be committed.

One line per cell, keys sorted, numbers with six digits: a change of one cell is one changed line.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError, UsageError
from collbench.gate.sides import CellData, SessionSpread, Side, joined, side_of_run
from collbench.gate.validity import examine
from collbench.gate.verdicts import GateMode, Rules
from collbench.results.lines import parse_json
from collbench.results.reading import RUN
from collbench.results.records import SCHEMA, Status
from collbench.results.schema import version_of
from collbench.results.summary import clean
from collbench.units import format_us, six_digits
from collbench.wording import first_of

__all__ = ["changes", "dump", "load_side", "read", "read_object", "refuse_invalid", "side_of_json"]

_MAX_BYTES = 16 << 20
_MAX_LAUNCHES = 10_000
_HARDWARE = ("uuid", "serial", "hostname")


def load_side(path: str | Path) -> Side:
    """A side from a run folder, a baseline file, the JSON of pytest-benchmark, or a folder of such JSON files.

    Raises:
        UsageError: nothing is there.
        InvalidError: what is there cannot be used.
    """
    path = Path(path)
    if not path.is_dir():
        return read(path)
    files = [] if (path / RUN).exists() else sorted(path.glob("*.json"))
    return _of_files(path, files) if files else side_of_run(path)


def _of_files(folder: Path, files: Sequence[Path]) -> Side:
    """One launch per file, in the order of their names."""
    from collbench.gate.pytest_benchmark import is_pytest_benchmark, side_of_benchmarks

    sides = []
    for path in files:
        data = read_object(path)
        if not is_pytest_benchmark(data):
            raise InvalidError(f"{path}: expected a run folder, or a folder that holds pytest-benchmark's JSON alone")
        sides.append(side_of_benchmarks(data, str(path)))
    return joined(sides, str(folder))


def read(path: str | Path) -> Side:
    """A side from a file.

    Raises:
        UsageError: no such file.
        InvalidError: too large, damaged, another schema, duplicate cells, numbers that are none.
    """
    return side_of_json(read_object(Path(path)), str(path))


def read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object of a file of at most 16 MiB; a pipe or a device is read no further than that.

    Raises:
        UsageError: no such file.
        InvalidError: too large, damaged, not an object.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such run folder or file")
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror}") from error
    if len(text) > _MAX_BYTES:
        raise InvalidError(f"{path}: larger than {_MAX_BYTES >> 20} MiB: not a file of ours; give a run folder")
    try:
        data: Mapping[str, Any] = parse_json(text)
    except InvalidError as error:
        raise InvalidError(f"{path}: {error}: damaged; make it anew") from None
    return data


def side_of_json(data: Mapping[str, Any], where: str) -> Side:
    """A side from the object of a file; `where` names it in errors.

    Raises:
        InvalidError: it is neither a baseline nor pytest-benchmark's.
    """
    from collbench.gate.pytest_benchmark import is_pytest_benchmark, side_of_benchmarks

    if is_pytest_benchmark(data):
        return side_of_benchmarks(data, where)
    version_of(data, where)
    if data.get("kind") != "baseline":
        raise InvalidError(f"{where}: kind is {str(data.get('kind'))[:40]!r}, expected a baseline or a run folder")
    try:
        return _side(data, where)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidError(f"{where}: {type(error).__name__}: {clean(str(error))[:120]}: damaged") from None


def _side(data: Mapping[str, Any], where: str) -> Side:
    launches = int(data["launches"])
    if not 0 < launches <= _MAX_LAUNCHES:
        raise InvalidError(f"{where}: launches is {launches}, expected 1 to {_MAX_LAUNCHES}")
    cells: dict[str, CellData] = {}
    for row in data["cells"]:
        cell_id = clean(str(row["cell_id"]))
        if cell_id in cells:
            raise InvalidError(f"{where}: cell {cell_id[:120]!r} stands there twice")
        cells[cell_id] = _cell(row, f"{where}: cell {cell_id[:120]!r}")
    if not cells:
        raise InvalidError(f"{where}: holds no cell: make it anew")
    hard, soft = (
        {clean(str(k)): clean(str(v)) for k, v in data["fingerprint"][kind].items()} for kind in ("hard", "soft")
    )
    origin = {key: clean(str(data.get(key, ""))) for key in ("run_id", "created", "version")}
    return Side(where, cells, launches, hard, soft, _spread(data, where), origin=origin)


def _cell(row: Mapping[str, Any], where: str) -> CellData:
    status = Status(row["status"])
    medians, iterations = row["median_us"], row["iterations"]
    if not all(type(us) in {int, float} and math.isfinite(us) and us > 0 for us in medians):
        raise InvalidError(f"{where}: median_us holds something that is no time above 0")
    if not all(type(count) is int and count > 0 for count in iterations) or len(iterations) != len(medians):
        raise InvalidError(f"{where}: iterations must be whole numbers, one per launch")
    if (status is Status.OK) != bool(medians):
        raise InvalidError(f"{where}: status {status} with {len(medians)} medians: only an ok cell has them")
    return CellData(status, clean(str(row.get("reason", ""))), tuple(map(float, medians)), tuple(iterations))


def _spread(data: Mapping[str, Any], where: str) -> SessionSpread | None:
    found = data.get("between_session_sd")
    if found is None:
        return None
    sd, sessions = found["sd"], found["sessions"]
    if type(sd) not in {int, float} or not 0 <= sd < 1 or type(sessions) is not int or sessions < 1:
        raise InvalidError(f"{where}: between_session_sd must hold sd below 1 and a number of sessions")
    hours = found.get("hours")
    if hours is not None and (type(hours) not in {int, float} or not 0 <= hours < math.inf):
        raise InvalidError(f"{where}: between_session_sd: hours must be a number from 0")
    return SessionSpread(float(sd), sessions, hours)


def refuse_invalid(side: Side) -> None:
    """Only a run that a gate could pass may become a baseline.

    Raises:
        InvalidError: it has problems, or a cell that is neither ok nor unsupported.
    """
    found = examine(side, side, Rules(), GateMode.STORED)
    reasons = [*found.faults, *(f"{cell_id}: {why}" for cell_id, why in found.cell_faults.items())]
    if not found.compared:
        reasons.append("no cell is ok")
    if reasons:
        raise InvalidError(f"{side.name}: cannot be a baseline: {first_of(reasons)}")


def dump(side: Side, spread: SessionSpread | None = None) -> str:
    """The file's text. Left out are names and numbers that point at one machine."""
    rows = [_row(cell_id, cell) for cell_id, cell in sorted(side.cells.items())]
    kept = spread or side.spread
    head = {
        "between_session_sd": None if kept is None else _spread_row(kept),
        "fingerprint": {"hard": dict(side.hard), "soft": _public(side.soft)}, "kind": "baseline",
        "launches": side.launches, "schema": SCHEMA, **side.origin,
    }  # fmt: skip
    text = json.dumps(head, sort_keys=True, indent=1, allow_nan=False)
    lines = ",\n  ".join(json.dumps(row, sort_keys=True, allow_nan=False) for row in rows)
    return f'{{\n "cells": [\n  {lines}\n ],{text[1:]}\n'


def _spread_row(spread: SessionSpread) -> dict[str, Any]:
    hours = {} if spread.hours is None else {"hours": six_digits(spread.hours)}
    return {"sd": six_digits(spread.sd), "sessions": spread.sessions} | hours


def _public(facts: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in facts.items() if not any(word in k.lower() for word in _HARDWARE)}


def _row(cell_id: str, cell: CellData) -> dict[str, Any]:
    row: dict[str, Any] = {
        "cell_id": cell_id, "iterations": list(cell.iterations), "status": str(cell.status),
        "median_us": _written(cell),
    }  # fmt: skip
    return row | ({"reason": cell.reason} if cell.reason else {})


def changes(old: Side, new: Side) -> list[str]:
    """What an update changes: one line per cell that comes, goes, or changes its median or status."""
    found = []
    for cell_id in sorted({*old.cells, *new.cells}):
        before, now = old.cells.get(cell_id), new.cells.get(cell_id)
        if before is None or now is None:
            found.append(f"{'+' if before is None else '-'} {cell_id}")
        elif before.status is not now.status:
            found.append(f"~ {cell_id}: {before.status} -> {now.status}")
        elif before.medians_us and now.medians_us and _written(before) != _written(now):
            a, b = _middle(before.medians_us), _middle(now.medians_us)
            found.append(f"~ {cell_id}: {format_us(a)} -> {format_us(b)} us ({(b / a - 1) * 100:+.1f} %)")
    keys = sorted({*old.hard, *new.hard})
    return found + [
        f"~ fingerprint {key}: {old.hard.get(key, '') or 'none'} -> {new.hard.get(key, '') or 'none'}"
        for key in keys
        if old.hard.get(key, "") != new.hard.get(key, "")
    ]


def _written(cell: CellData) -> list[float]:
    """Medians as a file holds them."""
    return [six_digits(us) for us in cell.medians_us]


def _middle(values: tuple[float, ...]) -> float:
    from statistics import median

    return median(values)
