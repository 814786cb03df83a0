"""Tables: every row and column for scripts, what differs for people, and no line beyond the terminal."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.results.records import Call, Cell, Fabric, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.results.table import table
from collbench.results.terminal import terminal_width, wrapped
from collbench.testing import synthetic_run

NAMES = ("algorithm", "mode", "bytes", "calls", "p50_us", "p99_us", "min_us", "floor_us", "predicted_us", "status")
WHY = "gloo needs torch: pip install 'collbench[sweep]' and try again"
CELL = Cell("ring", Call(1024, 2), Mode.EAGER, 1)


@pytest.fixture
def found(tmp_path: Path) -> list[dict[str, Any]]:
    """Rows of four algorithms, of which one cannot run."""
    made = synthetic_run(tmp_path / "run", failing={"gloo": (Status.UNSUPPORTED, WHY)}, iterations=120)
    return rows(made.run, RunFolder.open(made.path).samples(), dict.fromkeys(made.truth_us, 1.0))


def _row(iterations: int = 200, cell: Cell = CELL) -> dict[str, Any]:
    run = Run("id", "2026-01-01", (), "0", Fabric.HOST, 2, 1, (cell,))
    return rows(run, [Samples(cell.cell_id, 0, Status.OK, latency_us=((2.0,) * iterations,) * 2)])[0]


def test_scripts_get_one_line_per_row_with_every_name(found: list[dict[str, Any]]) -> None:
    head, *lines = table(found).splitlines()

    assert set(head.split()) >= {*NAMES, "reason"}
    assert len(lines) == len(found)
    assert sum(WHY in line for line in lines) == sum(row["algorithm"] == "gloo" for row in found)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_people_get_what_fits(found: list[dict[str, Any]], width: int) -> None:
    """Only rows with a time are rows; a reason is told once, and no line is longer than the terminal."""
    text = table(found, width)
    first, head, *lines = text.replace(",\n  ", ", ").splitlines()
    timed = [row for row in found if row["p50_us"] is not None]

    assert max(map(len, text.splitlines())) <= width
    assert first.startswith("all_reduce of bfloat16, ")
    assert "floor_us 1.00" in first
    assert {"algorithm", "bytes", "p50_us"} <= set(head.split())
    assert not {"status", "floor_us", "predicted_us", "reason"} & set(head.split())
    assert sum(line.startswith("host_") for line in lines) == len(timed)
    count = len(found) - len(timed)
    assert " ".join(text.split()).endswith(f"unsupported gloo, {count} of {count} cells: {WHY}")


def test_columns_that_do_not_fit_are_named(found: list[dict[str, Any]]) -> None:
    wide = [row | {"algorithm": row["algorithm"] * 6} for row in found]

    assert "not shown at 80 characters: iterations" in table(wide, 80)
    assert "not shown" not in table(found, 160)


def test_a_p99_of_few_iterations_is_marked() -> None:
    assert "2.00*" not in table([_row(100)], 80)
    text = table([_row(99), _row(100)], 80)
    assert text.count("2.00*") == 1
    assert text.splitlines()[-1] == "* of fewer than 100 iterations: close to the largest of them"
    assert "*" not in table([_row(99)])


def test_one_cell_that_failed_is_told_by_its_fields() -> None:
    bad = _row() | {"status": "wrong", "p50_us": None, "reason": "rank 1, element 7"}
    told = table([_row(), bad], 100).splitlines()

    assert told[-2:] == ["", "wrong  ring, eager, 1024 bytes, 1 call: rank 1, element 7"]


def test_an_ok_row_with_a_reason_keeps_both() -> None:
    text = table([_row() | {"reason": "1 of 2 launches were not run"}], 100)

    assert "2.00" in text
    assert "ok  ring, its only cell: 1 of 2 launches were not run" in text


def test_a_run_without_any_time_is_its_reasons() -> None:
    lost = [_row() | {"status": "unsupported", "p50_us": None, "reason": "no CUDA device"} for _ in range(8)]

    assert table(lost, 80) == "unsupported  ring, 8 of 8 cells: no CUDA device"


def test_the_place_is_shown_where_it_differs() -> None:
    row, other = _row(), _row(cell=replace(CELL, place="in"))
    for width in (None, 100):
        assert " place " not in table([row, row], width)
        assert " place " in table([row, other], width)


def test_an_empty_table_is_its_head() -> None:
    assert table([]).split()[:2] == ["algorithm", "mode"]
    assert table([], 80) == ""


def test_the_width_is_that_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS alone makes nothing a terminal: a script may have inherited it."""
    monkeypatch.setenv("COLUMNS", "97")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert terminal_width() is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert terminal_width() == 97
    monkeypatch.setenv("COLUMNS", "20")
    assert terminal_width() == 60


def test_wrapped_lines_are_indented_and_long_words_stay_whole() -> None:
    assert wrapped("one two three", None) == "one two three"
    assert wrapped("one two three", 8, 2) == "one two\n  three"
    assert wrapped("a " + "x" * 30, 20, 2).splitlines()[1] == "  " + "x" * 30
