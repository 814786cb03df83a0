"""A run in other tools' formats: parsed back by their rules, hostile names as text, nothing invented."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.interop.exports import FORMATS, export
from collbench.results.records import Call, Cell, Fabric, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.testing import synthetic_run, synthetic_samples


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    """Two algorithms, one of which hangs, at two sizes, 6 launches."""
    path = synthetic_run(
        tmp_path / "run", costs={"host_ring": (46.0, 0.12), "gloo": (310.0, 0.9)}, sizes=(1024, 14336), calls=(1,),
        launches=6, iterations=20, failing={"gloo": (Status.HUNG, "=HYPERLINK(1)\nno answer")},
    ).path  # fmt: skip
    with RunFolder.open(path) as folder:
        return {form: export(folder.run, folder.samples(), form) for form in FORMATS}


def test_csv_has_every_cell_and_no_formula(texts: dict[str, str]) -> None:
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))

    assert len(rows) == 4
    assert {row["reason"] for row in rows} == {"", "'=HYPERLINK(1) no answer"}
    assert float(rows[0]["p50_us"]) == pytest.approx(46.12, rel=0.05)


def test_bencher_gets_nanoseconds_within_the_range_of_the_launches(texts: dict[str, str]) -> None:
    found = json.loads(texts["bmf"])

    assert len(found) == 2
    for measures in found.values():
        latency = measures["latency"]
        assert latency["lower_value"] < latency["value"] < latency["upper_value"]
        assert latency["value"] > 40_000


def test_github_action_benchmark_gets_a_list_of_values_with_units(texts: dict[str, str]) -> None:
    found = json.loads(texts["gab"])

    assert [sorted(one) for one in found] == [["extra", "name", "range", "unit", "value"]] * 2
    assert found[0]["unit"] == "us"


def test_openmetrics_follows_its_grammar(texts: dict[str, str]) -> None:
    lines = texts["openmetrics"].splitlines()

    sample = re.compile(r'[a-z_]+\{([a-z_]+="(\\.|[^"\\])*",?)*\} [-+.e0-9]+')
    assert lines[-1] == "# EOF"
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)
    assert 'collbench_cells{status="hung"} 2' in lines


def test_pytest_benchmark_gets_seconds_and_its_own_keys(texts: dict[str, str]) -> None:
    data = json.loads(texts["pytest-benchmark"])

    stats = data["benchmarks"][0]["stats"]
    wanted = {"min", "max", "mean", "stddev", "rounds", "median", "iqr", "q1", "q3", "ops", "total", "iterations"}
    assert wanted <= set(stats)
    assert stats["min"] <= stats["q1"] <= stats["median"] <= stats["q3"] <= stats["max"] < 1e-3
    assert stats["rounds"] == 120


def test_nccl_tests_table_has_its_columns_and_the_bus_bandwidth(texts: dict[str, str]) -> None:
    """8 ranks: bus bandwidth is 2 * 7 / 8 of the algorithm's; a cell without a time says why."""
    rows = [line.split() for line in texts["nccl-tests"].splitlines() if not line.startswith("#")]

    size, count, kind, op, root, time, algbw, busbw, wrong = rows[1]
    assert (size, count, kind, op, root, wrong) == ("14336", "7168", "bfloat16", "sum", "-1", "0")
    assert float(algbw) == pytest.approx(14336 / float(time) / 1e3, abs=0.006)
    assert float(busbw) == pytest.approx(1.75 * 14336 / float(time) / 1e3, abs=0.006)
    assert rows[3][5] == "N/A"
    assert rows[3][-2:] == ["no", "answer"]


@pytest.mark.parametrize("form", FORMATS)
def test_hostile_names_stay_text(form: str) -> None:
    name = 'a"} 1\n# EOF\n=cmd|\x1b[31m\\'
    cell = Cell(name, Call(1024, 2, dtype="float32"), Mode.EAGER, 1)
    run = Run("x", "2026", ("x",), "0", Fabric.HOST, 2, 1, (cell,))

    text = export(run, [synthetic_samples(cell, 10.0)], form)

    assert "\x1b" not in text
    assert text.count("\n# EOF") == (form == "openmetrics")
    if form in {"bmf", "gab", "pytest-benchmark"}:
        json.loads(text)
    if form == "csv":
        assert len(list(csv.reader(io.StringIO(text)))) == 2


def test_an_empty_run_is_an_empty_table() -> None:
    run = Run("x", "2026", ("x",), "0", Fabric.HOST, 2, 1, ())
    samples: list[Samples] = []

    found: dict[str, Any] = {form: export(run, samples, form) for form in FORMATS}

    assert json.loads(found["bmf"]) == {}
    assert found["openmetrics"].endswith("# EOF\n")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="--format xml: expected one of csv"):
        export(Run("x", "", (), "0", Fabric.HOST, 2, 1, ()), [], "xml")
