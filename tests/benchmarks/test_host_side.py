"""What our own code costs on the host; .github/workflows/benchmarks.yml hands the times to the gate."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.gate.judge import judge_paired
from collbench.gate.sides import CellData, Side, side_of_run
from collbench.gate.verdicts import Rules
from collbench.results.records import Status
from collbench.testing import synthetic_run

Benchmark = Any

pytestmark = pytest.mark.slow


def test_judge_300_cells(benchmark: Benchmark) -> None:
    draw = np.random.default_rng(0)

    def side() -> Side:
        medians = 20 * np.exp(draw.normal(0, 0.01, (300, 16)))
        cells = {f"c{i}": CellData(Status.OK, "", tuple(row), (100,) * 16) for i, row in enumerate(medians.tolist())}
        return Side("invented", cells, 16)

    base, current = side(), side()

    outcome = benchmark(lambda: judge_paired(base, current, Rules()))

    assert len(outcome.cells) == 300


def test_read_a_run(benchmark: Benchmark, tmp_path: Path) -> None:
    path = synthetic_run(tmp_path / "run", launches=5).path

    side = benchmark(lambda: side_of_run(path))

    assert side.launches == 5


def test_build_the_page(benchmark: Benchmark, tmp_path: Path) -> None:
    from collbench.report import build

    path = synthetic_run(tmp_path / "run").path

    page = benchmark.pedantic(lambda: build(path), rounds=5)

    assert "<html" in page
