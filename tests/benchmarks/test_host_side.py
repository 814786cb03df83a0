"""What our own code costs on the host; .github/benchmarks.sh measures two revisions and hands the times to the gate."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.algorithms.floors import floors_of
from collbench.contention.fairshare import Usage, max_min
from collbench.gate.judge import judge_paired
from collbench.gate.sides import CellData, Side, side_of_run
from collbench.gate.verdicts import Rules
from collbench.interop.markdown import Source, markdown
from collbench.results.records import Mode, Status
from collbench.results.store import RunFolder
from collbench.testing import synthetic_run
from collbench.topology import catalog, nccl_xml, smi

Benchmark = Any

pytestmark = pytest.mark.slow


def test_solve_64_flows_over_40_links(benchmark: Benchmark) -> None:
    """An all-to-all of 8 ranks: max-min rates."""
    draw = np.random.default_rng(0)
    routes = [[(int(link), 1.0) for link in draw.choice(40, 4, replace=False)] for _ in range(64)]
    usage, capacity = Usage.of(routes, 40), draw.uniform(10, 60, 40)

    rates = benchmark(lambda: max_min(usage, capacity))

    assert rates.gbps.shape == (64,)


def test_parse_an_nccl_topology(benchmark: Benchmark, root: Path) -> None:
    topology = catalog.load(min((root / "topologies").glob("*8x*.toml")))
    text, _ = nccl_xml.render(topology)

    parsed = benchmark(lambda: nccl_xml.parse(text))

    assert len(parsed.gpus) == 8


def test_parse_a_matrix_of_nvidia_smi(benchmark: Benchmark) -> None:
    names = [f"GPU{i}" for i in range(8)]
    rows = [
        "\t".join([name, *("X" if i == j else "PIX" if i // 4 == j // 4 else "SYS" for j in range(8))])
        for i, name in enumerate(names)
    ]
    text = "\n".join(["\t" + "\t".join(names), *rows, ""])

    parsed = benchmark(lambda: smi.parse_matrix(text))

    assert len(parsed.gpus) == 8


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

    page = benchmark.pedantic(lambda: build(path), rounds=5, warmup_rounds=1)

    assert "<html" in page


def test_tables_of_500_cells(benchmark: Benchmark, tmp_path: Path) -> None:
    """A folder with five launches of 25 algorithms, as Markdown; the budget is two seconds."""
    costs = {f"algorithm_{i}": (3.0 + i, 0.1) for i in range(25)}
    sizes = [1024 << i for i in range(5)]
    modes = (Mode.EAGER, Mode.GRAPH)
    path = synthetic_run(tmp_path / "run", costs=costs, sizes=sizes, modes=modes, launches=5).path

    def made() -> str:
        with RunFolder.open(path) as folder:
            return markdown([Source(folder.run, folder.samples(), folder.evidence(), floors_of(folder.run))])

    page = benchmark.pedantic(made, rounds=3, warmup_rounds=1)

    assert page.count("\u00a0to\u00a0") == 500
