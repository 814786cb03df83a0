"""A run in other tools' formats: parsed back by their rules, hostile names as text, nothing invented."""

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pytest_benchmark.stats import Stats

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


def test_one_launch_has_no_range(tmp_path: Path) -> None:
    made = synthetic_run(tmp_path / "run", costs={"a": (5.0, 0.1)}, sizes=(1024,), calls=(1,))
    with RunFolder.open(made.path) as folder:
        (one,) = json.loads(export(folder.run, folder.samples(), "gab"))
    assert "range" not in one
    assert one["extra"].endswith(" iterations, 1 launch")


def test_numbers_for_scripts_have_six_digits(texts: dict[str, str]) -> None:
    """Not what a sum of fractions leaves in the last of sixteen."""
    for form in ("csv", "bmf", "gab", "pytest-benchmark"):
        numbers = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", texts[form])
        assert numbers
        assert [one for one in numbers if len(one.replace(".", "").strip("0")) > 6] == []


def test_openmetrics_is_read_by_prometheus_own_parser(texts: dict[str, str]) -> None:
    latency, cells = text_string_to_metric_families(texts["openmetrics"])  # type: ignore[no-untyped-call]  # it has none

    assert (latency.name, latency.type, latency.unit) == ("collbench_latency_seconds", "gauge", "seconds")
    values = {(s.labels["bytes"], s.labels["quantile"]): s.value for s in latency.samples}
    assert len(values) == len(latency.samples) == 6
    assert values["1024", "0"] < values["1024", "0.5"] < values["1024", "0.99"] < 1e-3
    assert {s.labels["status"]: s.value for s in cells.samples} == {"ok": 2, "hung": 2}


def test_openmetrics_tells_all_cells_apart() -> None:
    """Cells that differ in nothing but place, buffers, epilogue or skew have labels of their own."""
    call = Call(1024, 2, dtype="float32")
    cells = [
        Cell("x", call, Mode.EAGER, 1), Cell("x", call, Mode.EAGER, 1, "", "in"),
        Cell("x", call, Mode.EAGER, 1, "", "out", "cold"), Cell("x", call, Mode.EAGER, 1, skew="zipf"),
        Cell("x", replace(call, epilogue="residual_rmsnorm"), Mode.EAGER, 1),
    ]  # fmt: skip
    run = Run("x", "2026", ("x",), "0", Fabric.HOST, 2, 1, tuple(cells))

    text = export(run, [synthetic_samples(cell, 10.0) for cell in cells], "openmetrics")

    names = [line.split("} ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(set(names)) == len(names) == 3 * 5 + 1


def test_pytest_benchmark_gets_seconds_and_all_that_it_writes_itself(texts: dict[str, str]) -> None:
    data = json.loads(texts["pytest-benchmark"])

    stats = data["benchmarks"][0]["stats"]
    assert set(stats) == {*Stats.fields, "iterations"}
    assert stats["min"] <= stats["q1"] <= stats["median"] <= stats["q3"] <= stats["max"] < 1e-3
    assert stats["q1"] >= stats["ld15iqr"] >= stats["min"]
    assert stats["q3"] <= stats["hd15iqr"] <= stats["max"]
    assert stats["outliers"] == f"{stats['stddev_outliers']};{stats['iqr_outliers']}"
    assert 0 < stats["stddev_outliers"] < stats["rounds"] == 120


def test_pytest_benchmarks_own_command_shows_the_file(texts: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "0001_run.json"
    path.write_text(texts["pytest-benchmark"], encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", str(path)], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all_reduce/host_ring/") == 2


def test_nccl_tests_table_has_its_columns_and_the_bus_bandwidth(texts: dict[str, str]) -> None:
    """8 ranks: bus bandwidth is 2 * 7 / 8 of the algorithm's; a cell without a time says why."""
    rows = [line.split() for line in texts["nccl-tests"].splitlines() if not line.startswith("#")]

    size, count, kind, op, root, time, algbw, busbw, wrong = rows[1]
    assert (size, count, kind, op, root, wrong) == ("14336", "7168", "bfloat16", "sum", "-1", "0")
    assert float(algbw) == pytest.approx(14336 / float(time) / 1e3, abs=0.006)
    assert float(busbw) == pytest.approx(1.75 * 14336 / float(time) / 1e3, abs=0.006)
    assert len(rows) == 2
    comments = [line for line in texts["nccl-tests"].splitlines() if "hung" in line]
    assert [line.split()[0] for line in comments] == ["#", "#"]
    assert comments[0].endswith("1024 bytes: hung: =HYPERLINK(1) no answer")


def test_nccl_tests_table_uses_its_words_and_sets_both_places_beside_each_other() -> None:
    call = Call(1024, 2, dtype="float32")
    cells = [Cell("x", call, Mode.EAGER, 1, "", place) for place in ("out", "in")]
    run = Run("x", "2026", ("x",), "0", Fabric.HOST, 2, 1, tuple(cells))
    samples = [synthetic_samples(cell, us, noise=0.0) for cell, us in zip(cells, (10.0, 20.0), strict=True)]

    text = export(run, samples, "nccl-tests")

    (row,) = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert row[:5] == ["1024", "256", "float", "sum", "-1"]
    assert [float(word) for word in row[5:]] == [10.0, 0.1, 0.1, 0, 20.0, 0.05, 0.05, 0]


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
