"""A kept comparison is read back as it was; damage is one line that names file and place."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import CollbenchError, InvalidError
from collbench.gate.judge import judge_paired
from collbench.gate.kept import read_outcome
from collbench.gate.sides import CellData, Side
from collbench.gate.verdicts import Outcome, Rules
from collbench.results.records import Status


@pytest.fixture
def outcome(make_side: Callable[..., Side], make_noisy: Callable[..., Any]) -> Outcome:
    """A slower cell, a control, a broken one, one that neither side runs."""
    base, current = map(make_side, make_noisy(1, effect=0.2))
    without = {"none": CellData(Status.UNSUPPORTED, "needs NVLink")}
    now = {**current.cells, **without, "cell003": CellData(Status.CRASHED, "why")}
    sides = replace(base, cells={**base.cells, **without}), replace(current, cells=now)
    return judge_paired(*sides, Rules(controls=("cell001",)), {"seed": 7})


def test_it_comes_back_as_it_was(outcome: Outcome, tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(outcome.as_dict()), encoding="utf-8")

    again = read_outcome(path)

    assert again == outcome
    assert again.as_dict() == outcome.as_dict()


def first(data: dict[str, Any], **fields: object) -> dict[str, Any]:
    return data | {"rows": [data["rows"][0] | fields, *data["rows"][1:]]}


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "empty": (lambda _: "", "not JSON"),
    "truncated": (lambda d: json.dumps(d)[:-20], "not JSON"),
    "nesting": (lambda _: "[" * 4_000_000, "nested too deep"),
    "kind": (lambda d: d | {"kind": "baseline"}, "kind is 'baseline'"),
    "schema": (lambda d: d | {"schema": "collbench/9"}, "newer than"),
    "verdict": (lambda d: first(d, verdict="FINE"), "'FINE' is not a valid Verdict"),
    "another verdict": (lambda d: d | {"verdict": "OK"}, "verdict is 'OK', its cells say REGRESSED"),
    "text for a number": (lambda d: first(d, ratio="1.2"), "rows[0] ratio is '1.2'"),
    "huge": (lambda d: json.dumps(first(d, ratio="@")).replace('"@"', "1e999"), "1e999 is not a finite number"),
    "times": (lambda d: first(d, base_us=[True]), "rows[0] base_us"),
    "look": (lambda d: first(d, look=1.5), "rows[0] look"),
    "rules": (lambda d: d | {"rules": {"alpha": 7}}, "--alpha 7"),
    "rules of another release": (lambda d: d | {"rules": {"beta": 7}}, "beta"),
    "rows": (lambda d: d | {"rows": 3}, "damaged"),
    "record": (lambda d: d | {"record": 3}, "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_line(name: str, outcome: Outcome, tmp_path: Path) -> None:
    make, expected = DAMAGE[name]
    path = tmp_path / "gate.json"
    made = make(json.loads(json.dumps(outcome.as_dict())))
    path.write_text(made if isinstance(made, str) else json.dumps(made), encoding="utf-8")

    with pytest.raises(InvalidError) as error:
        read_outcome(path)

    assert str(error.value).startswith(str(path))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_no_file_is_a_wrong_call(tmp_path: Path) -> None:
    with pytest.raises(CollbenchError, match="no such") as error:
        read_outcome(tmp_path / "none.json")
    assert error.value.exit_code == 2
