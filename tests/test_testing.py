"""Invented runs keep the truth that they promise."""

from pathlib import Path

import pytest

from collbench.algorithms.cell_predictions import predictor
from collbench.errors import UsageError
from collbench.results.probes import read_probes
from collbench.results.records import Fabric, Mode, Status
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.testing import synthetic_gpu_run

FACTORS = {"push": 1.5, "nccl_auto": 1.0}


def test_a_gpu_run_is_the_models_prediction_times_a_factor(tmp_path: Path) -> None:
    """Captured chains exactly; eager calls take 4 us more, a call alone 20 %."""
    made = synthetic_gpu_run(tmp_path / "run", factors=FACTORS, sizes=(14336,), launches=1, iterations=2, probed=False)
    predicted = {cell: one.total_us for cell in made.run.cells if (one := predictor(made.run)(cell))}
    cells = {(cell.algorithm, cell.mode, cell.calls): cell for cell in made.run.cells}
    chained, alone = cells["push", Mode.GRAPH, 122], cells["push", Mode.EAGER, 1]

    assert made.run.fabric is Fabric.PCIE
    assert made.truth_us[chained.cell_id] == pytest.approx(1.5 * predicted[chained])
    assert made.truth_us[alone.cell_id] == pytest.approx(1.2 * (1.5 * predicted[alone] + 4.0))


def test_the_samples_are_drawn_around_the_truth(tmp_path: Path) -> None:
    made = synthetic_gpu_run(tmp_path / "run", factors=FACTORS, sizes=(1024, 14336), launches=5, probed=False)

    for row in rows(made.run, RunFolder.open(made.path).samples()):
        assert row["status"] == Status.OK
        assert row["launches"] == 5
        assert row["p50_us"] == pytest.approx(made.truth_us[row["cell_id"]], rel=0.03)


def test_its_probes_are_those_of_a_real_run_and_the_same_each_time(tmp_path: Path) -> None:
    one, two = (
        read_probes(synthetic_gpu_run(tmp_path / name, factors=FACTORS, sizes=(1024,), launches=1, iterations=2).path)
        for name in "ab"
    )

    assert one == two
    assert {probe.name for probe in one[0]} >= {"launch", "flag", "bandwidth.copy", "bandwidth.load"}
    assert len([p for p in one[0] if p.name == "bandwidth.copy" and p.pattern == "solo"]) == 56


def test_an_unknown_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no machine file"):
        synthetic_gpu_run(tmp_path / "run", topology="no-such-machine")
