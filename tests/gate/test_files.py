"""Sides from files: run folders, baselines, pytest-benchmark; damage is one line that names file and place."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import CollbenchError, InvalidError, UsageError
from collbench.gate.baseline import changes, dump, load_side, read, refuse_invalid
from collbench.gate.calibration import calibrate
from collbench.gate.comparison import compare
from collbench.gate.judge import judge_stored
from collbench.gate.sides import CellData, SessionSpread, Side, joined, side_of_run
from collbench.gate.verdicts import Rules, Verdict
from collbench.results.records import Status
from collbench.testing import synthetic_run

COSTS = {"host_ring": (46.0, 0.12), "host_tree": (24.0, 0.30)}


def a_run(path: Path, **settings: Any) -> Path:
    """A run folder of 4 cells and 6 launches."""
    known: dict[str, Any] = {"costs": COSTS, "sizes": (1024, 65536), "calls": (1,), "launches": 6, "iterations": 20}
    return synthetic_run(path, **(known | settings)).path


def test_a_run_gives_one_median_per_launch(tmp_path: Path) -> None:
    side = side_of_run(a_run(tmp_path / "run"))

    (cell, *_) = side.cells.values()
    assert (len(side.cells), side.launches, len(cell.medians_us), cell.iterations) == (4, 6, 6, (20,) * 6)
    assert side.hard["fabric"] == "host"
    assert side.problems == ()


def test_what_a_budget_cut_off_takes_nothing_from_the_launches_before(tmp_path: Path) -> None:
    """Five of six launches are compared, with an interval; the gate, which asks for all of them, says how many."""
    paths = [a_run(tmp_path / name, finish=False) for name in ("base", "now")]
    for path in paths:
        samples = path / "samples.jsonl"
        lines = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            if line["launch"] == 5:
                line |= {"status": "not_run", "reason": "the budget of 9 s was used up", "latency_us": []}
        samples.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    base, now = map(side_of_run, paths)

    assert all((cell.status, len(cell.medians_us)) == (Status.OK, 5) for cell in base.cells.values())
    assert all(row["low"] is not None for row in compare(base, now))
    (cell, *_) = judge_stored(base, now, Rules()).cells
    assert (cell.verdict, "measured in 5 of 6 launches" in cell.reason) == (Verdict.INVALID, True)


def test_a_lower_quantile_gives_lower_times(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run")

    half, quarter = side_of_run(path).cells, side_of_run(path, quantile=0.25).cells

    assert all(a < b for c in half for a, b in zip(quarter[c].medians_us, half[c].medians_us, strict=True))


def test_the_order_of_the_ranks_changes_nothing(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run")
    before = side_of_run(path).cells
    lines = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    turned = [line | {"latency_us": line["latency_us"][::-1]} for line in lines]
    (path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in turned), encoding="utf-8")

    assert turned != lines
    assert side_of_run(path).cells == before


def test_a_run_that_was_not_finished_is_a_problem(tmp_path: Path) -> None:
    side = side_of_run(a_run(tmp_path / "run", finish=False))

    assert side.problems == ("the run was not finished",)
    with pytest.raises(InvalidError, match="cannot be a baseline"):
        refuse_invalid(side)


def test_times_below_the_floor_are_implausible(tmp_path: Path) -> None:
    side = side_of_run(a_run(tmp_path / "run", costs={"host_ring": (1e-6, 0.0)}))

    assert "its floor is" in next(iter(side.cells.values())).implausible


def test_a_failing_cell_has_its_reason_and_no_time(tmp_path: Path) -> None:
    side = side_of_run(a_run(tmp_path / "run", failing={"host_tree": (Status.HUNG, "rank 1: no answer")}))

    cell = next(cell for cell_id, cell in side.cells.items() if "host_tree" in cell_id)
    assert (cell.status, cell.reason, cell.medians_us) == (Status.HUNG, "rank 1: no answer", ())


def test_joined_launches_are_in_order_and_changes_between_them_are_problems(tmp_path: Path) -> None:
    sides = [side_of_run(a_run(tmp_path / f"run{i}", seed=i, launches=1)) for i in range(3)]

    whole = joined(sides, "base")

    cell_id = next(iter(whole.cells))
    assert whole.cells[cell_id].medians_us == tuple(side.cells[cell_id].medians_us[0] for side in sides)
    moved = [sides[0], replace(sides[1], hard=dict(sides[1].hard) | {"driver": "600"})]
    assert joined(moved, "base").problems == ("base: driver changed between launches",)


def test_a_baseline_is_read_back_as_it_was(tmp_path: Path) -> None:
    side = replace(side_of_run(a_run(tmp_path / "run")), spread=SessionSpread(0.0125, 7))
    path = tmp_path / "baseline.json"
    path.write_text(dump(side), encoding="utf-8")

    again = read(path)

    assert (again.hard, again.spread, again.launches) == (side.hard, side.spread, side.launches)
    assert dump(again) == dump(side)
    assert list(again.cells) == sorted(side.cells)


def test_a_baseline_of_300_cells_and_16_launches_is_small_and_one_line_per_cell(
    make_side: Callable[..., Side], make_noisy: Callable[..., Any]
) -> None:
    base, _ = make_noisy(0, cells=300, blocks=16)
    side = make_side(base)
    long = "all_reduce/host_one_stage_pull/2.30.7/sum/bfloat16/1048576/8/graph/122/out/warm/-/-"
    text = dump(replace(side, cells={f"{long}{i}": cell for i, cell in enumerate(side.cells.values())}))

    assert len(text.encode()) < 300_000
    assert sum('"cell_id"' in line for line in text.splitlines()) == 300


def test_an_update_says_what_changes(tmp_path: Path) -> None:
    old = side_of_run(a_run(tmp_path / "old"))
    new = side_of_run(a_run(tmp_path / "new", seed=1, costs={"host_ring": (69.0, 0.18), "gloo": (300.0, 0.9)}))

    lines = changes(old, new)

    assert sum(line.startswith("+ ") for line in lines) == 2
    assert sum(line.startswith("- ") for line in lines) == 2
    assert any("host_ring" in line and re.search(r"\(\+(49|5[01])\.\d %\)$", line) for line in lines)
    assert changes(old, old) == []


def test_an_update_prints_times_as_the_list_does(tmp_path: Path) -> None:
    """`show` prints 3.40, and so does what changes."""
    old, new = (Side("s", {"a": CellData(Status.OK, "", (us,), (9,))}, 1, {"ranks": "8"}) for us in (3.4, 14.0))
    again = Side("s", {"a": CellData(Status.OK, "", (3.4000000001,), (9,))}, 1, {"ranks": "8"})
    assert changes(old, again) == [], "a file has six digits"
    assert changes(old, new) == ["~ a: 3.40 -> 14.0 us (+311.8 %)"]


def good(tmp_path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(dump(side_of_run(a_run(tmp_path / "run"))))
    return data


def first(data: dict[str, Any], **fields: object) -> dict[str, Any]:
    return data | {"cells": [data["cells"][0] | fields, *data["cells"][1:]]}


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "truncated": (lambda d: json.dumps(d)[:-40], "not JSON"),
    "NaN": (lambda d: json.dumps(first(d, median_us=[float("nan")] * 6)), "NaN is not a number of JSON"),
    "duplicate": (lambda d: d | {"cells": [*d["cells"], d["cells"][0]]}, "stands there twice"),
    "schema": (lambda d: d | {"schema": "collbench/9"}, "newer than"),
    "no schema": (lambda d: {"cells": d["cells"]}, "not a file of collbench"),
    "kind": (lambda d: d | {"kind": "sweep"}, "kind is 'sweep'"),
    "no cells": (lambda d: d | {"cells": []}, "holds no cell"),
    "cells no list": (lambda d: d | {"cells": 7}, "damaged"),
    "text for a time": (lambda d: first(d, median_us=["1"] * 6), "no time above 0"),
    "zero": (lambda d: first(d, median_us=[0.0] * 6), "no time above 0"),
    "true": (lambda d: first(d, median_us=[True] * 6), "no time above 0"),
    "huge": (
        lambda d: json.dumps(first(d, median_us="@")).replace('"@"', "[1e999,1,1,1,1,1]"),
        "1e999 is not a finite number",
    ),
    "iterations": (lambda d: first(d, iterations=[20]), "one per launch"),
    "status": (lambda d: first(d, status="fine"), "damaged"),
    "hung with times": (lambda d: first(d, status="hung"), "only an ok cell"),
    "launches": (lambda d: d | {"launches": -1}, "launches is -1"),
    "spread": (lambda d: d | {"between_session_sd": {"sd": "a", "sessions": 5}}, "between_session_sd"),
    "spread's hours": (
        lambda d: d | {"between_session_sd": {"sd": 0.1, "sessions": 5, "hours": "a"}}, "hours must be a number",
    ),
    "spread missing": (lambda d: d | {"between_session_sd": {}}, "damaged"),
    "a list": (lambda d: [d], "expected a JSON object"),
    "empty": (lambda _: "", "not JSON"),
    "nesting": (lambda _: "[" * 4_000_000, "nested too deep"),
    "fingerprint": (lambda d: d | {"fingerprint": {"hard": []}}, "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_one_line_that_names_it(name: str, tmp_path: Path) -> None:
    make, expected = DAMAGE[name]
    path = tmp_path / "baseline.json"
    made = make(good(tmp_path))
    path.write_text(made if isinstance(made, str) else json.dumps(made), encoding="utf-8")

    with pytest.raises(InvalidError) as error:
        load_side(path)

    assert str(error.value).startswith(str(path))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_50_mebibytes_are_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(b"[" * (50 << 20))

    for endless in (path, Path("/dev/zero")):
        with pytest.raises(InvalidError, match="larger than 16 MiB"):
            load_side(endless)


@pytest.mark.parametrize("make", [lambda p: p / "none", lambda p: p])
def test_nothing_and_an_empty_folder(make: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(CollbenchError) as error:
        load_side(make(tmp_path))
    assert error.value.exit_code in {2, 3}


def benchmarks(**stats: object) -> dict[str, Any]:
    """A file as pytest-benchmark writes it, cut to what is read."""
    one = {"name": "test_a", "fullname": "tests/test_a.py::test_a", "extra_info": {}}
    known = {"median": 2e-3, "rounds": 50, "iterations": 1}
    info = {"machine": "x86_64", "python_implementation": "CPython", "cpu": {"brand_raw": "A"}, "python_version": "3"}
    return {"machine_info": info, "benchmarks": [{**one, "stats": known | stats}], "datetime": "2026"}


def test_pytest_benchmarks_json_is_a_side_of_one_launch(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(benchmarks()), encoding="utf-8")

    side = load_side(path)

    assert side.cells["tests/test_a.py::test_a"].medians_us == (2000.0,)
    assert side.hard == {"cpu": "A", "arch": "x86_64", "python": "CPython"}
    assert judge_stored(side, side, Rules()).verdict is Verdict.INCONCLUSIVE


def test_a_folder_of_pytest_benchmarks_json_is_one_launch_per_file(tmp_path: Path) -> None:
    """Numbers of rounds that differ, since pytest-benchmark chooses them, are no unequal samples."""
    for i in range(5):
        text = json.dumps(benchmarks(median=(2 + i) * 1e-3, rounds=50 + i))
        (tmp_path / f"{i}.json").write_text(text, encoding="utf-8")

    side = load_side(tmp_path)

    assert side.launches == 5
    assert side.cells["tests/test_a.py::test_a"].medians_us == pytest.approx((2000, 3000, 4000, 5000, 6000))
    found = calibrate([load_side(path) for path in sorted(tmp_path.iterdir())])
    assert (found.spread.sessions, found.launch_sd, found.blocks) == (5, (), ())
    assert found.spread.sd > 0.3
    (tmp_path / "other.json").write_text('{"kind": "baseline"}', encoding="utf-8")
    with pytest.raises(InvalidError, match=r"other\.json: expected a run folder, or a folder that holds"):
        load_side(tmp_path)


@pytest.mark.parametrize("stats", [{"median": "x"}, {"median": -1.0}, {"rounds": 0}, {"median": None}])
def test_damaged_pytest_benchmarks_json_names_the_benchmark(stats: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(benchmarks(**stats)), encoding="utf-8")

    with pytest.raises(InvalidError, match=r"b\.json: benchmarks\[0\]: "):
        load_side(path)


def test_calibration_learns_the_spread_between_occasions(tmp_path: Path) -> None:
    """Five runs whose common factor has a standard deviation of 4 %."""
    factors = (0.95, 0.97, 1.0, 1.03, 1.05)
    sides = []
    for i, f in enumerate(factors):
        costs = {name: (us * f, kib * f) for name, (us, kib) in COSTS.items()}
        sides.append(replace(side_of_run(a_run(tmp_path / f"r{i}", seed=i, costs=costs)), origin={"run_id": str(i)}))

    found = calibrate(sides)

    assert found.spread.sd == pytest.approx(0.041, abs=0.01)
    assert found.spread.sessions == 5
    assert [blocks for _, blocks, _ in found.blocks] == sorted((b for _, b, _ in found.blocks), key=lambda b: -(b or 0))


@pytest.mark.parametrize(
    ("last", "hours", "told"),
    [("2026-11-29T10:03:00+00:00", 0.05, "within 3 minutes"), ("2026-11-30T10:00:00+00:00", 24.0, ""), ("?", None, "")],
)
def test_runs_in_a_row_are_hardly_occasions_and_the_gate_says_so(
    last: str, hours: float | None, told: str, tmp_path: Path
) -> None:
    side = side_of_run(a_run(tmp_path / "run"))
    moments = ["2026-11-29T10:00:00+00:00"] * 4 + [last]
    sides = [replace(side, origin={"run_id": str(i), "created": at}) for i, at in enumerate(moments)]

    spread = calibrate(sides).spread

    assert spread.hours == (None if hours is None else pytest.approx(hours))
    path = tmp_path / "baseline.json"
    path.write_text(dump(side, spread), encoding="utf-8")
    notes = judge_stored(read(path), side, Rules()).notes
    assert (told in notes[0]) if told else (notes == ())


def test_calibration_refuses_what_would_mislead(tmp_path: Path) -> None:
    side = replace(side_of_run(a_run(tmp_path / "run")), origin={"run_id": "a"})
    five = [replace(side, origin={"run_id": str(i)}) for i in range(5)]

    with pytest.raises(UsageError, match="4 runs: at least 5"):
        calibrate(five[:4])
    with pytest.raises(UsageError, match="twice"):
        calibrate([side] * 5)
    with pytest.raises(InvalidError, match="driver is not that of"):
        calibrate([*five[:4], replace(five[4], hard=dict(side.hard) | {"driver": "1"})])
