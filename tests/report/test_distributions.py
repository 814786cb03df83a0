"""How iterations spread: quantiles are of folds, drift and stragglers that were put in are found."""

from pathlib import Path

import numpy as np
import pytest

from collbench.report.canvas import COLOURS
from collbench.report.distributions import distributions, drift
from collbench.report.series import Panel, panels, spreads
from collbench.report.stragglers import last_matrix, last_ranks
from collbench.report.svg import Styles
from collbench.results.records import Mode, Samples
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.testing import synthetic_run


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Panel, list[Samples]]:
    made = synthetic_run(
        tmp_path_factory.mktemp("spread") / "run", costs={"a": (5.0, 0.01), "b": (9.0, 0.01)}, modes=(Mode.GRAPH,),
        calls=(122,), launches=3, iterations=120,
    )  # fmt: skip
    samples = RunFolder.open(made.path).samples()
    (panel,) = panels(rows(made.run, samples), spreads(samples))
    return panel, samples


def test_the_table_has_the_quantiles_of_the_fold(measured: tuple[Panel, list[Samples]]) -> None:
    panel, samples = measured
    figure, _ = distributions(panel, samples, Styles(COLOURS))["spread"]["figures"]
    cell = panel.series[0].points[0]
    fold = np.concatenate([np.max(s.latency_us, axis=0) for s in samples if s.cell_id == cell.cell_id])
    line = figure.table.lines[0]

    assert line[:2] == ["a", "1K"]
    assert float(line[2]) == pytest.approx(np.median(fold), abs=0.006)
    assert float(line[4]) == pytest.approx(np.quantile(fold, 0.99), abs=0.006)
    assert line[6] == "360"
    assert "the longest tail is" in figure.finding.lower()
    assert "p99 is in effect" not in figure.note
    assert figure.svg.count("<title>") == 2 * len(figure.table.lines)


def test_drift_is_found_and_needs_iterations() -> None:
    rising = [np.linspace(10.0, 13.0, 60)] * 3

    assert drift(rising) == pytest.approx(12.5 / 10.5 - 1, abs=0.01)
    assert drift([np.full(60, 5.0)]) == 0.0
    assert drift([np.arange(1.0, 5.0)]) is None


def test_launches_are_told_apart(measured: tuple[Panel, list[Samples]]) -> None:
    panel, samples = measured
    _, order = distributions(panel, samples, Styles(COLOURS))["spread"]["figures"]
    alone = [one for one in samples if one.launch == 0]
    _, one = distributions(panel, alone, Styles(COLOURS))["spread"]["figures"]

    assert [line[1] for line in order.table.lines] == ["3", "3"]
    assert "between launches by up to" in order.finding
    assert "between launches" not in one.finding
    assert [line[-1] for line in one.table.lines] == ["", ""]


def test_a_straggler_is_named() -> None:
    draw = np.random.default_rng(1)
    even = draw.uniform(1.0, 2.0, (4, 400))
    slow = even.copy()
    slow[2] += 0.5
    quiet, loud = last_matrix({"a": [even]}), last_matrix({"a": [even], "b": [slow]})

    assert quiet is not None
    assert loud is not None
    assert quiet["finding"].startswith("No rank stands out: at most, rank ")
    assert loud["finding"].startswith("b waits most for one rank: rank 2 is the last in ")
    assert [len(cells) for _, cells in loud["lines"]] == [4, 4]


def test_ranks_that_are_equally_slow_share_an_iteration() -> None:
    assert last_ranks([np.ones((4, 10))]).tolist() == [0.25] * 4
    assert last_ranks([np.array([[1.0, 5.0], [2.0, 5.0]])]).tolist() == [0.25, 0.75]


def test_nothing_measured_shows_nothing() -> None:
    assert distributions(None, [], Styles(COLOURS)) == {"spread": None}
    assert last_matrix({}) is None
    assert last_matrix({"a": [np.ones((1, 5))]}) is None


def test_single_iterations_make_a_page(tmp_path: Path) -> None:
    made = synthetic_run(tmp_path / "run", costs={"a": (5.0, 0.01)}, sizes=(1024,), iterations=1, calls=(1,))
    samples = RunFolder.open(made.path).samples()
    (panel,) = panels(rows(made.run, samples), spreads(samples))
    first, order = distributions(panel, samples, Styles(COLOURS))["spread"]["figures"]

    assert "Below 100 iterations p99 is in effect the slowest one." in first.note
    assert "too few iterations" in order.finding
