"""Files that somebody else wrote: what they hold steers no terminal, floods none, and is of the right kind."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import InvalidError, one_line
from collbench.results.hostile import MAX_TEXT, tamed
from collbench.results.lines import parse_json
from collbench.results.probes import Probe
from collbench.results.records import Call, Cell, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.testing import host_machine, synthetic_run
from collbench.topology.graph import TopologyError
from collbench.topology.machine import Machine

EVIL = "x\x1b[31m\u202e\u2028\x07\ud800y\nz"
TAME = "x[31m y z"


@given(st.text(st.characters(min_codepoint=32, categories=("L", "N", "P", "S", "M", "Zs"))))
def test_text_that_people_write_is_unchanged(text: str) -> None:
    assert tamed({text: [text, 1, None, {"x": text}]}) == {text: [text, 1, None, {"x": text}]}


@given(st.lists(st.text(max_size=9), max_size=5))
def test_what_is_joined_of_texts_stays_joined(texts: list[str]) -> None:
    """A cell's name is joined of its fields; samples must still find it."""
    joined = tamed("/".join(texts))
    assert joined == "/".join(map(tamed, texts))
    assert joined.isprintable() or max(joined) >= "\xa0"


def test_long_texts_are_cut_and_logs_keep_their_lines() -> None:
    assert tamed("x" * 100_000) == "x" * MAX_TEXT + "..."
    assert tamed({"log": "a\n\tb\x1b" + "x" * 9_000}, breaks=True) == {"log": "a\n\tb" + "x" * 9_000}
    assert len(one_line("x" * 100_000)) < 2_100


def test_a_run_is_tamed_when_it_is_read_and_stays_on_disk_as_it_was(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "run", launches=1).path
    for name in ("run.json", "samples.jsonl"):
        text = (folder / name).read_text(encoding="utf-8").replace("host_ring", json.dumps(EVIL)[1:-1])
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "samples.parquet").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    with RunFolder.open(folder) as run:
        assert TAME in {cell.algorithm for cell in run.run.cells}
        assert len(run.samples()) == len(run.run.cells)
        assert run.problems() == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"a": 1e999}', "1e999 is not a finite number"), (b'{"a": -1E+400}', "not a finite number"),
        (b'{"a": 9223372036854775808}', "more than 64 bits"), (b'{"a": ' + b"9" * 5000 + b"}", "more than 64 bits"),
        (b'{"a": NaN}', "NaN is not a number"), (b'{"a":' * 90_000, "nested too deep|not JSON"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_named(text: bytes, says: str) -> None:
    with pytest.raises(InvalidError, match=says):
        parse_json(text)
    fine = b'{"a": [9223372036854775807, 1.2345678901234567890123, 1e300, 0.1]}'
    assert parse_json(fine) == {"a": [2**63 - 1, 1.2345678901234567, 1e300, 0.1]}


RUN = Run("id", "2026", ("collbench",), "0", host_machine().fabric, 2, 1, (Cell("a", Call(8, 2), Mode.EAGER, 1),))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("run_id", None, "run_id is null, expected a text"),
        ("run_id", "x" * 501, "has 501 characters, expected"),
        ("command", "sweep", "command is a text, expected a list"),
        ("command", [[]], r"command\[0\] is a list"),
        ("world_size", True, "world_size is true or false"),
        ("world_size", 0, "world_size is 0, expected 1 to"),
        ("launches", 1.5, "launches is a number"),
        ("fabric", "string", "is not a valid Fabric"),
        ("cells", {}, "cells is an object, expected a list"),
        ("cells", [3], r"cells\[0\] is a whole number"),
        ("machine", [["a", 1]], "machine is a list"),
        ("settings", None, "settings is null"),
        ("environment", {"nccl": [[]]}, "environment of nccl is a list"),
        ("environment", {"nccl": {"A": 1}}, "A is a whole number, expected a text"),
    ],
)
def test_a_field_of_a_run_of_the_wrong_kind_is_named(field: str, value: object, says: str) -> None:
    data = json.loads(json.dumps(RUN.as_dict()))
    assert Run.from_dict(data) == RUN
    with pytest.raises(InvalidError, match=f"^run.json: .*{says}"):
        Run.from_dict(data | {field: value})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("facts", True, "facts is true or false"), ("facts", {"p2p": ["ok"]}, "p2p is a list, expected a text"),
        ("software", {"nccl": 2}, "nccl is a whole number"), ("ranks", -1, "ranks is -1"), ("fabric", "x", "Fabric"),
        ("hosts", "1", "hosts is a text"), ("share_gpu", 1, "share_gpu is a whole"), ("topology", [], "topology is"),
    ],
)  # fmt: skip
def test_a_field_of_a_machine_of_the_wrong_kind_is_named(field: str, value: object, says: str) -> None:
    data = host_machine().as_dict()
    assert Machine.from_dict(data).as_dict() == data
    with pytest.raises(TopologyError, match=f"^machine: .*{says}"):
        Machine.from_dict(data | {field: value})
    with pytest.raises(TopologyError, match=f"^machine: {field} is missing"):
        Machine.from_dict({name: one for name, one in data.items() if name != field})


PROBE = Probe("flag", "solo", 0, 1, ((0, 1),), 8, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"src": 1.5}, {"src": -2}, {"flows": [[0]]}, {"flows": [[0, 1, 2]]}, {"flows": [[0, -1]]}, {"flows": [3]},
        {"bytes": -1}, {"value": "1"}, {"value": True}, {"spread": None}, {"name": None}, {"status": 1},
    ],
)  # fmt: skip
def test_a_field_of_a_probe_of_the_wrong_kind_is_refused(change: dict[str, Any]) -> None:
    assert Probe.from_row(PROBE.row()) == PROBE
    with pytest.raises(InvalidError):
        Probe.from_row(PROBE.row() | change)


@pytest.mark.parametrize("make", [lambda s: s, lambda s: replace(s, reason="x" * 90_000 + EVIL)])
def test_warnings_of_a_hostile_reason_are_short(make: Callable[[Samples], Samples], tmp_path: Path) -> None:
    """What is appended by ourselves is read back as it was, what is endless is cut."""
    with RunFolder.create(tmp_path / "run", RUN) as folder:
        written = make(Samples(RUN.cells[0].cell_id, 0, Status.HUNG, "no answer in 5 s"))
        folder.append(written)
        assert folder.samples() == [replace(written, reason=tamed(written.reason))]
