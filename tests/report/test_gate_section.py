"""A run's page shows the verdicts of the gate that looked at it, and of no other."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.gate.judge import judge_stored
from collbench.gate.sides import SessionSpread, side_of_run
from collbench.gate.verdicts import Outcome, Rules
from collbench.report import build
from collbench.testing import synthetic_run

COSTS = {"host_ring": (46.0, 0.12), "host_tree": (24.0, 0.30)}
TITLE = '<h2 id="gate">'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 4 cells and 6 launches, in a folder of its own as a pair's launch is."""
    return synthetic_run(tmp_path / "gate" / "00-candidate", costs=COSTS, sizes=(1024, 65536), launches=6).path


def outcome_of(run: Path) -> Outcome:
    side = side_of_run(run)
    return judge_stored(replace(side, spread=SessionSpread(0.005, 10)), side, Rules())


def keep(path: Path, outcome: Outcome) -> None:
    path.write_text(json.dumps(outcome.as_dict()), encoding="utf-8")


def test_no_gate_no_section(run: Path) -> None:
    assert TITLE not in build(run)


def test_verdicts_in_the_run_are_a_section_with_a_forest_plot(run: Path) -> None:
    outcome = outcome_of(run)
    keep(run / "gate.json", outcome)

    page = build(run)

    assert page.count(TITLE) == 1
    assert f"OK: {len(outcome.cells)} cells" in page
    assert page.count('class="band"') == len(outcome.cells)
    assert build(run, outcome) == page


def test_a_gates_own_page_opens_with_its_verdict(run: Path) -> None:
    outcome = replace(outcome_of(run), notes=("kernel: 6, 7",))

    page = build(run, outcome, verdict_first=True)

    assert re.search(r"<title>collbench gate: OK; ", page)
    assert re.findall(r"<h1>(.*?)</h1>", page) == [
        f"OK: {len(outcome.cells)} cells ({len(outcome.cells)} OK), 6 launches a side, stored"
    ]
    assert page.index("kernel: 6, 7") < page.index(TITLE) < page.index('<h2 id="fastest">')
    assert page.count("kernel: 6, 7") == 1
    assert "<h1>host_tree is fastest" in build(run, outcome)


def test_the_worst_cell_stands_below_the_headline(run: Path) -> None:
    side = side_of_run(run)
    slower = {c: replace(d, medians_us=tuple(2 * us for us in d.medians_us)) for c, d in side.cells.items()}
    outcome = judge_stored(replace(side, spread=SessionSpread(0.005, 10)), replace(side, cells=slower), Rules())

    page = build(run, outcome, verdict_first=True)

    assert re.search(r'</h1>\n<p class="gain">host_\w+ \d+ x\d+: \S+ -&gt; \S+ us, \+100.0 % \(95 % interval ', page)


def test_verdicts_beside_the_run_count_if_they_name_it(run: Path) -> None:
    outcome = outcome_of(run)
    beside = run.parent / "gate.json"

    keep(beside, outcome)
    assert TITLE in build(run)

    keep(beside, replace(outcome, record={"runs": ["another"]}))
    assert TITLE not in build(run)


@pytest.mark.parametrize("where", ["in", "beside"])
def test_a_damaged_file_is_said_and_the_page_is_made(where: str, run: Path) -> None:
    folder = run if where == "in" else run.parent
    (folder / "gate.json").write_text('{"rows": "<script>alert(1)</script>', encoding="utf-8")

    page = build(run)

    assert '<p class="bad">gate.json: not JSON (' in page
    assert "damaged; make it anew" in page
    assert "<script>alert" not in page
    assert str(run.parent) not in page
