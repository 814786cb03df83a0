"""The page's tables: nothing is missing, and a spreadsheet runs nothing of it."""

import csv
import io
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from collbench.report import tables
from collbench.results.records import Call, Cell, Fabric, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.testing import synthetic_run

FAILING = {"gloo": (Status.UNSUPPORTED, "needs torch"), "host_ring": (Status.HUNG, "no answer in /srv/joe/x")}


def _rows(tmp_path: Path) -> list[dict[str, Any]]:
    made = synthetic_run(tmp_path / "run", failing=FAILING)
    return rows(made.run, RunFolder.open(made.path).samples())


def test_every_cell_has_a_row_and_what_is_the_same_has_no_column(tmp_path: Path) -> None:
    found = _rows(tmp_path)
    columns, lines = tables.full(found)
    names = [name for name, _ in columns]

    assert len(lines) == len(found) == 48
    assert names[:5] == ["algorithm", "mode", "calls", "bytes", "p50_us"]
    assert "dtype" not in names
    assert tables.constants(found)["dtype"] == "bfloat16"
    assert dict(columns)["p50_us"] is True
    assert dict(columns)["status"] is False
    assert ["no answer in PATH" in line for line in lines].count(True) == 8


def test_failures_are_grouped_with_their_reason(tmp_path: Path) -> None:
    found = _rows(tmp_path)

    assert tables.failures(found) == [
        {"algorithm": "host_ring", "status": "hung", "reason": "no answer in PATH", "cells": "all 8 cells"},
        {"algorithm": "gloo", "status": "unsupported", "reason": "needs torch", "cells": "all 8 cells"},
    ]
    one = [row for row in found if row["algorithm"] != "gloo" or row["bytes"] > 1024]
    assert (
        tables.failures([*one, found[0] | {"algorithm": "gloo"}])[1]["cells"] == "6 of 7 cells (eager; 14K, 64K, 256K)"
    )


def test_csv_holds_every_row_and_field(tmp_path: Path) -> None:
    found = _rows(tmp_path)
    back = list(csv.DictReader(io.StringIO(tables.csv_text(found))))

    assert len(back) == len(found)
    assert [row["cell_id"] for row in back] == [row["cell_id"] for row in found]
    assert set(found[0]) - set(back[0]) == {"splits"}
    assert [float(row["p50_us"]) for row in back if row["p50_us"]] == [
        float(f"{row['p50_us']:.6g}") for row in found if row["p50_us"]
    ]
    assert "joe" not in tables.csv_text(found)


def test_a_formula_is_no_formula_in_csv() -> None:
    for text in ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)"):
        cell = Cell("a", Call(8, 2), Mode.EAGER, 1)
        run = Run("r", "", (), "0", Fabric.HOST, 2, 1, (cell,))
        (back,) = csv.DictReader(
            io.StringIO(tables.csv_text(rows(run, [Samples(cell.cell_id, 0, Status.WRONG, text)])))
        )
        assert back["reason"].startswith("'")


def test_the_link_decodes_to_the_csv(tmp_path: Path) -> None:
    found = _rows(tmp_path)
    head, _, body = tables.csv_link(found).partition(",")

    assert head == "data:text/csv;charset=utf-8"
    assert unquote(body) == tables.csv_text(found)
    assert not set('"<> \n#&') & set(body)
