"""Runs with something wrong in them, drawn anew from one seed: every command ends with a code and one line."""

import contextlib
import copy
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.cli import main
from collbench.report import sharing
from collbench.testing import synthetic_gpu_run

FILES = ("run.json", "samples.jsonl", "probes.jsonl")
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**63, 10**400, 1e308, -0.0, 5e-324, float("nan"), float("inf"), "", "x", "x" * 100_000,
    "\x1b[31mred\x07", "<script>alert(1)</script>", '=HYPERLINK("x")', "nan", "a\nb", "\u202eevil", "\ud800", "../..",
    [], [[]], [None], ["x"], {}, {"a": 1}, "%s%n{0}",
)  # fmt: skip
COMMANDS = (
    ("report", "RUN", "--out", "r.html"), ("explain", "RUN"), ("advise", "RUN"),
    ("doctor", "RUN"), ("compare", "RUN", "GOOD"), ("gate", "GOOD", "RUN"),
    ("baseline", "save", "RUN", "--to", "b.json"), ("export", "--format", "csv", "RUN"),
    ("export", "--format", "nccl-tests", "RUN"), ("export", "--format", "openmetrics", "RUN"),
    ("export", "--format", "markdown", "--kernels", "RUN"),
)  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with probes."""
    path = tmp_path_factory.mktemp("good") / "run"
    return synthetic_gpu_run(path, sizes=(14336,), launches=2, iterations=3, factors={"push": 0.9}).path


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value; of a list the first four."""
    if at:
        yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*at, key))


def mutated(value: Any, data: st.DataObject) -> Any:
    """The value with a place in it set to something else, removed, or doubled."""
    value = copy.deepcopy(value)
    most = data.draw(st.sampled_from([3, 3, 9]), label="depth")  # few of the many places are deep in the topology
    known = [place for place in places(value) if len(place) <= most]
    place = known[data.draw(st.integers(0, 99_999)) % len(known)]
    parent = value
    for key in place[:-1]:
        parent = parent[key]
    change = data.draw(st.sampled_from(["set", "set", "set", "remove", "double"]), label="change")
    if change == "remove":
        del parent[place[-1]]
    elif change == "double" and isinstance(parent, list):
        parent.insert(0, copy.deepcopy(parent[place[-1]]))
    else:
        parent[place[-1]] = data.draw(st.sampled_from(VALUES), label="value")
    return value


def damage(run: Path, name: str, data: st.DataObject) -> None:
    text = (run / name).read_text(encoding="utf-8")
    if name.endswith(".json"):
        (run / name).write_text(json.dumps(mutated(json.loads(text), data)), encoding="utf-8")
        return
    lines = text.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1), label="line")
    lines[number] = json.dumps(mutated(json.loads(lines[number]), data))
    (run / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def told(words: list[str]) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    return code, out.getvalue()


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_a_damaged_run_is_never_an_internal_error(
    data: st.DataObject, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    Path("b.json").unlink(missing_ok=True)
    shutil.copytree(good, run)
    damage(run, data.draw(st.sampled_from(FILES), label="file"), data)
    command = data.draw(st.sampled_from(COMMANDS), label="command")

    code, text = told([{"RUN": str(run), "GOOD": str(good)}.get(word, word) for word in command])

    assert code in {0, 1, 3}, text
    assert "internal error" not in text
    assert not [c for c in text if c in "\x1b\x07\u202e\u2028"]
    assert max(map(len, text.splitlines()), default=0) < 10_000


def test_a_host_has_words_for_every_mechanism_of_probes() -> None:
    """A run folder may hold any of them, whoever wrote it."""
    assert set(sharing._MECHANISMS) <= set(sharing._HOST_WORDS)
