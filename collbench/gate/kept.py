"""A comparison that was kept: `gate.json`, as `--json-file` writes it and pairs leave it beside their launches."""

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError, UsageError
from collbench.gate.baseline import read_object
from collbench.gate.verdicts import CellVerdict, GateMode, Outcome, Rules, Verdict
from collbench.results.schema import version_of
from collbench.results.summary import clean

__all__ = ["GATE", "read_outcome"]

GATE = "gate.json"
"""Name of the file in a run folder, or beside the launches of pairs."""

_FIELDS = tuple(field.name for field in fields(CellVerdict))
_TEXTS = {"cell_id", "verdict", "reason"}
_LISTS = {"base_us", "current_us"}
_PLAIN = {"look": int, "control": bool}


def read_outcome(path: str | Path) -> Outcome:
    """The comparison of a file.

    Raises:
        UsageError: no such file.
        InvalidError: damaged, of another kind or a newer schema, a verdict or a number that is none.
    """
    where = str(path)
    data = read_object(Path(path))
    version_of(data, where)
    if data.get("kind") != "gate":
        raise InvalidError(f"{where}: kind is {str(data.get('kind'))[:40]!r}, expected gate: what --json-file wrote")
    try:
        return _outcome(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, UsageError) as error:
        raise InvalidError(f"{where}: {type(error).__name__}: {clean(str(error))[:120]}: damaged") from None


def _outcome(data: Mapping[str, Any]) -> Outcome:
    rules: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data["rules"].items()}
    shift = data["shift"]
    outcome = Outcome(
        GateMode(data["mode"]), Rules(**rules), tuple(_cell(row, i) for i, row in enumerate(data["rows"])),
        tuple(map(str, data["faults"])), tuple(map(str, data["notes"])),
        tuple((str(one["cell_id"]), str(one["reason"])) for one in data["not_compared"]),
        None if shift is None else _number(shift, "shift"), int(data["blocks"]), dict(data["record"]),
    )  # fmt: skip
    if outcome.verdict != data["verdict"]:
        raise ValueError(f"verdict is {data['verdict']!r}, its cells say {outcome.verdict}")
    return outcome


def _cell(row: Mapping[str, Any], place: int) -> CellVerdict:
    found: dict[str, Any] = {"verdict": Verdict(row["verdict"])}
    for name in _FIELDS:
        value = row[name]
        where = f"rows[{place}] {name}"
        if name in _LISTS:
            found[name] = tuple(_number(one, where) for one in value)
        elif name in _PLAIN:
            if type(value) is not _PLAIN[name]:
                raise ValueError(f"{where} is {value!r}")
            found[name] = value
        elif name in _TEXTS:
            found.setdefault(name, str(value))
        else:
            found[name] = None if value is None else _number(value, where)
    return CellVerdict(**found)


def _number(value: object, where: str) -> float:
    if type(value) not in {int, float} or not math.isfinite(value):  # type: ignore[arg-type]  # a number by now
        raise ValueError(f"{where} is {str(value)[:40]!r}, expected a number")
    return float(value)  # type: ignore[arg-type]  # same
