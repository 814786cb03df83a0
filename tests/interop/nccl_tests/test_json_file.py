"""The file of -J: numbers, iterations, no environment; a file of a run that died; rccl-tests' records."""

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.errors import InvalidError
from collbench.interop.nccl_tests.cells import measured
from collbench.interop.nccl_tests.environment import without_environment
from collbench.interop.nccl_tests.printing import as_json
from collbench.interop.nccl_tests.reading import parse
from collbench.interop.nccl_tests.table import OutputError
from collbench.results import lines
from tests.interop.nccl_tests.layouts import RANKS, TIMES_US, json_object, json_text, rates


def test_numbers_and_what_ran() -> None:
    (run,) = parse(json_text())
    assert [row.bytes for row in run.rows] == list(TIMES_US)
    assert [row.places["in"].time_us for row in run.rows] == [times[1] for times in TIMES_US.values()]
    assert (run.program, run.world_size, run.nccl, run.wrong, run.finished) == ("all_reduce", RANKS, "2.30.7", 0, True)
    assert run.rows[0].proof["proto"] == "LL"
    assert (run.settings.blocking, run.settings.per_iteration) == (3, True)


def test_iterations_of_one_process_and_of_one_process_per_rank() -> None:
    """The first iteration was skipped in the program's own summary, so it is here."""
    (single,) = parse(json_text())
    assert single.rows[0].places["out"].process_us == ((12.6, 12.7, 12.8, 12.9, 13.0),)
    (each,) = parse(json_text(processes=RANKS))
    assert len(each.rows[0].places["out"].process_us) == RANKS
    assert each.world_size == RANKS


def test_nothing_of_the_environment_is_kept() -> None:
    shown = json.dumps(as_json(parse(json_text())))
    assert "hunter2" not in shown
    assert "secret" not in shown
    assert "/srv/me" not in shown


LISTED = '"env":["A=],\\"x\\":1","API=hunter2: No such file or directory'


@pytest.mark.parametrize(
    "text",
    [
        '{"version":2,"args":["x"],' + LISTED,
        '{"version":2,"args":["x"],' + LISTED + '"],"nccl_v',
        '{"version":2,"args":["x"],' + LISTED + '"],"nccl_version":23007}',
        '{"version":2,"args":["x"],' + LISTED + '"]}',
        '{"version":2,"args":["x"],' + LISTED + '", hunter2, "],"results":[7]}',
        'PI=hunter2","A=1: No such file or directory"],"nccl_version":23007,"results":3}',
        '[1,0]<stdout>: {"version":2,' + LISTED + '"],"nccl_version":23007}',
        '{"version": 2,\n' + LISTED.replace(",", ",\n") + '"\n],\n"results": 3}',
    ],
)
def test_no_error_quotes_the_environment(text: str) -> None:
    """Whatever is wrong with the file, and wherever it ends."""
    with pytest.raises(OutputError) as caught:
        parse(text)
    assert "hunter2" not in str(caught.value)
    assert "A=" not in str(caught.value)


def test_no_cut_lets_the_environment_out() -> None:
    """Wherever the end or the beginning of the file is missing."""
    text = json_text(iterations=2)
    for at in range(1, text.index('"config"')):
        for part in (text[:at], text[at:]):
            try:
                said = json.dumps(as_json(parse(part)))
            except OutputError as error:
                said = str(error)
            assert "hunter" not in said
            assert "HOME" not in said


def test_damage_within_the_environment_costs_no_row() -> None:
    """Names of bytes that are no JSON stand there; lines and characters keep their numbers."""
    text = json_text().replace("hunter2", "hunter\\2\x01")
    assert [row.bytes for row in parse(text)[0].rows] == list(TIMES_US)
    assert len(without_environment(text)) == len(text)
    assert without_environment("x\n" + text).count("\n") == 1


def test_values_that_are_no_json() -> None:
    """`inf` stands bare where a bandwidth was divided by zero; a time that is none costs its row alone."""
    text = json_text().replace('"time": 12.5', '"time": inf').replace('"cv', '"cv')
    (run,) = parse(text)
    assert [row.bytes for row in run.rows] == list(TIMES_US)[1:]
    assert "results[0]" in run.problems[0]


def test_a_run_that_died_leaves_its_finished_rows() -> None:
    text = json_text()
    cut = text[: text.index('"size": 1048576') + 30]
    (run,) = parse(cut)
    assert [row.bytes for row in run.rows] == list(TIMES_US)[:2]
    assert not run.finished
    assert "stopped or died" in run.problems[-1]
    assert run.world_size == RANKS


def test_files_behind_each_other_are_all_read() -> None:
    """As `cat a.json b.json` gives them; what is none is told, and not quoted: it may be of the environment."""
    one = json_text()
    for between in ("", "\n", "\n\ufeff"):
        runs = parse(one + between + one)
        assert [len(run.rows) for run in runs] == [len(TIMES_US)] * 2
        assert all(run.finished and not run.problems for run in runs)
    died = one[: one.index("}", one.index('"results"'))]
    for behind, told in (
        (died, "behind 0 rows: the run was stopped or died"),
        (one[:40], "the file behind it: JSON that ends before its results"),
        ("SECRET=1", "8 characters behind the end of a file of -J were not read"),
    ):
        runs = parse(one + behind)
        assert len(runs[0].rows) == len(TIMES_US)
        assert told in runs[-1].problems[-1]


def test_a_mark_and_the_signs_of_a_quoting_reply_are_taken_off() -> None:
    quoted = "".join(f"> {line}\n" for line in json_text().splitlines())
    for text in ("\ufeff" + json_text(), quoted, quoted.replace("> ", ">> "), "\ufeff" + quoted):
        (run,) = parse(text)
        assert len(run.rows) == len(TIMES_US)


def test_blocking_without_a_command_line() -> None:
    (run,) = parse(json_text(args=[]))
    assert (run.program, run.settings.blocking) == ("all_reduce", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', "JSON without results"),
        ('{"results": []}', "empty results"),
        ('{"results": [1, null]}', "results[0] 1: expected an object"),
        ('{"results": [{"size": 8, "count": 2, "out_of_place": {"time": "nan"}}]}', "time is 'nan'"),
        ('{"results": 3', "damaged JSON"),
        ('{"version": 2, "args": [', "ends before its results"),
        ('{"a": ' + "[" * 100_000, "nested too deep"),
        ('[{"a": 1}]', "expected size, time, algBw and busBw"),
    ],
)
def test_named_errors(text: str, message: str) -> None:
    with pytest.raises(OutputError, match=re.escape(message)):
        parse(text)


def test_records_of_rccl_tests() -> None:
    records = []
    for size, times in TIMES_US.items():
        for in_place, us in enumerate(times):
            algbw, busbw = rates(size, us)
            records.append({
                "numCycle": 0, "name": "AllReduce", "nodes": 1, "ranks": 8, "ranksPerNode": 8, "gpusPerRank": 1,
                "size": size, "type": "float", "redop": "sum", "inPlace": in_place, "time": us, "algBw": algbw,
                "busBw": busbw, "wrong": "0" if in_place else "N/A",
            })  # fmt: skip
    (run,) = parse(json.dumps(records))
    assert (run.program, run.world_size) == ("all_reduce", 8)
    assert [f.wrong for row in run.rows for f in row.places.values()] == [None, 0] * 3


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def _paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [before]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += _paths(inner, (*before, key))
    return found


WHOLE = json_object(iterations=2)
PATHS = [path for path in _paths(WHOLE) if path]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PATHS), ANY)
def test_any_value_anywhere_is_read_or_named(path: tuple[Any, ...], value: Any) -> None:
    data = json.loads(json.dumps(WHOLE))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    _read(json.dumps(data))


@given(st.integers(0, 4000), st.text(max_size=6))
def test_any_cut_is_read_or_named(at: int, put: str) -> None:
    _read(json_text()[:at] + put)


def _read(text: str) -> None:
    try:
        found = parse(text)
    except InvalidError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both ends are right
    else:
        json.dumps(as_json(found), allow_nan=False)
        with contextlib.suppress(InvalidError):
            kept = measured(found)
            assert len({cell.cell_id for cell in kept.cells}) == len(kept.cells)
            for samples in kept.samples:
                assert lines.decode(json.loads(lines.encode(samples))) == samples
        assert any(run.rows for run in found)
