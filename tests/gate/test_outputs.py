"""Every form of the result: complete, bounded, and text stays text whatever a cell is called."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from junitparser import JUnitXml

from collbench.gate.judge import judge_paired
from collbench.gate.junit import junit
from collbench.gate.markdown import MAX_SUMMARY_BYTES, annotations, markdown
from collbench.gate.names import change, headline, interval, short_names
from collbench.gate.sides import CellData, Side
from collbench.gate.text import text
from collbench.gate.verdicts import CellVerdict, GateMode, Outcome, Rules, Verdict
from collbench.results.records import Status

HOSTILE = "x\x1b[31m<script>alert(1)</script>|`[a](http://evil)@all ]]>&\u202e::error::%0A,:\n\x00"


@pytest.fixture
def outcome(make_side: Callable[..., Side], make_noisy: Callable[..., Any]) -> Outcome:
    """One cell slower, one broken with a hostile reason, one not compared, one of a hostile name."""
    base, current = map(make_side, make_noisy(1, effect=0.2))
    without = CellData(Status.UNSUPPORTED, HOSTILE)
    before = {**base.cells, HOSTILE: base.cells["cell001"], "none": without}
    now = {**current.cells, HOSTILE: current.cells["cell001"], "none": without}
    now["cell003"] = CellData(Status.CRASHED, HOSTILE)
    return judge_paired(replace(base, cells=before), replace(current, cells=now), Rules())


def many(count: int, verdict: Verdict, name: str = "cell") -> Outcome:
    cells = tuple(CellVerdict(f"{name}{i}", verdict, name, 1.0, 2.0, 2.0, 1.9, 2.1) for i in range(count))
    return Outcome(GateMode.PAIRED, Rules(), cells, blocks=8)


def test_the_table_has_every_cell_worst_first_without_controls(outcome: Outcome) -> None:
    lines = text(outcome).splitlines()

    rows = [line for line in lines if line.startswith(tuple(Verdict)) and "cells (" not in line]
    assert [line.split()[0] for line in rows] == ["REGRESSED"] * 2 + ["OK"] * 5
    assert all(c.isprintable() for line in lines for c in line)
    assert "was ok, is crashed: x[31m<script>" in text(outcome)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_table_fits_the_terminal(width: int, outcome: Outcome) -> None:
    assert max(map(len, text(outcome, width).splitlines())) <= width


def test_on_a_terminal_a_reason_is_whole_and_stands_once_for_all_that_share_it() -> None:
    why = "no between_session_sd in the base: collbench calibrate-gate learns it from 5 unchanged runs"
    cells = tuple(
        CellVerdict(f"all_reduce/{name}/-/sum/float32/{size}/2/eager/8/out/warm/-/-", verdict, reason, 1.0, 2.0)
        for name in ("ring", "tree")
        for size, verdict, reason in (
            (1024, Verdict.INCONCLUSIVE, why), (2048, Verdict.INCONCLUSIVE, why), (4096, Verdict.OK, ""),
        )
    )  # fmt: skip

    told = " ".join(text(Outcome(GateMode.STORED, Rules(), cells, blocks=1), 80).split())
    alone = text(Outcome(GateMode.STORED, Rules(), cells[:2], blocks=1), 200).splitlines()

    assert told.startswith("INCONCLUSIVE: 6 cells (4 INCONCLUSIVE, 2 OK), 1 launch a side, stored verdict cell")
    assert told.endswith(f"INCONCLUSIVE, ring (2 of 3 cells), tree (2 of 3 cells): {why}")
    assert alone[-1] == f"INCONCLUSIVE, all 2 cells: {why}"
    assert text(Outcome(GateMode.STORED, Rules(), cells)).count(why) == 4  # a script reads a row by itself


def test_an_interval_is_shown_at_80_characters(outcome: Outcome) -> None:
    told = text(replace(outcome, cells=tuple(c for c in outcome.cells if c.cell_id != HOSTILE)), 80)

    assert "95 % interval" in told
    assert "change is the geometric mean of the ratios within pairs" in " ".join(told.split())


def test_faults_of_cells_are_said_once_per_algorithm_and_reason() -> None:
    """On a terminal, in Markdown and in annotations; the JSON has each."""
    ids = [f"all_reduce/ring/-/sum/float32/{1 << k}/2/eager/8/out/warm/-/-" for k in range(30)]
    ids += ["all_reduce/tree/-/sum/float32/8/2/eager/8/out/warm/-/-"]
    cells = tuple(CellVerdict(one, Verdict.INVALID, "only the base side has it") for one in ids)
    faults = ("kernel differs", *(f"{cell.cell_id}: {cell.reason}" for cell in cells[:-1]))
    found = Outcome(GateMode.STORED, Rules(), cells, faults, not_compared=((f"{ids[0]}x", "no CUDA device"),))

    told = "ring (30 of 30 cells): only the base side has it"
    assert text(found, 200).splitlines()[1:3] == ["fault: kernel differs", f"fault: {told}"]
    assert text(found, 200).splitlines()[-1] == "31 cells without times not listed; --json has all"
    assert text(found).count("only the base side has it") == 1 + 31
    assert markdown(found).count("only the base side has it") == 1
    assert annotations(found) == [
        "::error title=collbench%3A no verdict::kernel differs", f"::error title=collbench%3A no verdict::{told}",
    ]  # fmt: skip
    assert len(found.as_dict()["faults"]) == 31
    assert text(replace(found, cells=cells[:1]), 200).endswith("1 cell without times not listed; --json has all")


def test_the_headline_has_the_launches_of_both_sides() -> None:
    found = Outcome(GateMode.STORED, Rules(), (), blocks=1, record={"launches": [5, 1]})

    assert headline(found).endswith(", 5 launches of the base and 1 of the current, stored")
    damaged: Any
    for damaged in ("x", [5], [5, "x"], None, {}):
        assert headline(replace(found, record={"launches": damaged})).endswith(", 1 launch a side, stored")
    assert headline(replace(found, mode=GateMode.PAIRED)).endswith(", 1 pair of launches")


def test_json_has_every_number_and_is_strict(outcome: Outcome) -> None:
    data = json.loads(json.dumps(outcome.as_dict(), allow_nan=False))

    row = next(row for row in data["rows"] if row["cell_id"] == "cell000")
    assert (data["kind"], data["verdict"], data["counts"]["REGRESSED"]) == ("gate", "REGRESSED", 2)
    assert row["p_holm"] < row["level"]
    assert len(row["base_us"]) == len(row["current_us"]) == 8
    assert row["low"] < row["ratio"] < row["high"]


def test_junit_is_well_formed_and_complete(outcome: Outcome) -> None:
    """One case per cell and one for the comparison; another parser agrees on the counts."""
    xml = junit(outcome)

    (suite,) = JUnitXml.fromstring(xml.encode())
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (9, 2, 0, 1)
    names = [str(case.get("name")).strip() for case in ET.fromstring(xml).iter("testcase")]  # noqa: S314 - our own text
    assert names[0] == "comparison"
    assert "x[31m<script>alert(1)</script>|`[a](http://evil)@all ]]>&::error::%0A,:" in names


def test_junit_of_no_verdict_is_an_error() -> None:
    (suite,) = JUnitXml.fromstring(junit(Outcome(GateMode.PAIRED, Rules(), (), ("base: \x00 damaged",))).encode())

    assert (suite.tests, suite.errors) == (1, 1)
    (several,) = JUnitXml.fromstring(junit(Outcome(GateMode.PAIRED, Rules(), (), ("a", "b <&"))).encode())
    (case,) = several
    assert [(error.message, error.text) for error in case.result] == [("a (and 1 more)", "a\nb <&")]
    (nothing,) = JUnitXml.fromstring(junit(Outcome(GateMode.PAIRED, Rules(), ())).encode())
    assert nothing.errors == 1


def test_markdown_stays_text(outcome: Outcome) -> None:
    page = markdown(outcome)

    assert "<script" not in page
    assert re.search(r"(?<!\\)\[a\]\(", page) is None
    assert "http://evil" not in page
    assert " @all" not in page.replace("\\@", "")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "verdict" not in line]
    assert len(rows) == 7
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 8 for row in rows)


@pytest.mark.slow
def test_markdown_is_below_a_mebibyte_and_counts_what_it_leaves_out() -> None:
    page = markdown(many(5000, Verdict.REGRESSED, "<&" * 2000))

    assert len(page.encode()) < MAX_SUMMARY_BYTES
    assert "4800 more cells are left out" in page


def test_at_most_ten_annotations_and_the_last_one_counts_the_rest() -> None:
    lines = annotations(many(12, Verdict.REGRESSED))

    assert len(lines) == 10
    assert lines[-1] == "::error title=collbench%3A more::3 more; the summary lists them"
    assert annotations(many(12, Verdict.OK)) == []
    assert annotations(Outcome(GateMode.PAIRED, Rules(), ())) != []


def test_an_annotation_is_one_command_whatever_it_says(outcome: Outcome) -> None:
    """`::`, line breaks, percent and comma cannot end a title or begin a second command."""
    hostile = replace(outcome.cells[0], cell_id=HOSTILE, reason=HOSTILE, ratio=None)

    (line,) = annotations(replace(outcome, cells=(hostile,)))

    title, data = re.fullmatch(r"::error title=([^:,]*)::(.*)", line).groups()  # type: ignore[union-attr]  # matches
    assert "%2C" in title
    assert "%250A" in data
    assert not any(c in line for c in "\n\r\x00\x1b")


def test_no_change_has_no_sign_of_its_own() -> None:
    cell = CellVerdict("a", Verdict.OK, "", 1.0, 1.0, 0.9999, 0.9996, 1.012)

    assert (change(cell), interval(cell)) == ("+0.0 %", "+0.0 .. +1.2 %")


def test_short_names_keep_what_differs() -> None:
    ids = [f"all_reduce/{a}/-/sum/float32/{b}/2/eager/8/out/warm/-/-" for a in ("ring", "tree") for b in (1024, 2048)]

    assert list(short_names(ids).values()) == ["ring 1024", "ring 2048", "tree 1024", "tree 2048"]
    assert short_names(["a", "b/c"]) == {"a": "a", "b/c": "b/c"}


def test_outputs_need_no_torch(root: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; import collbench.gate.junit, collbench.gate.judge, "
    code += "collbench.gate.pairs, collbench.gate.markdown, collbench.interop.exports"
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)
