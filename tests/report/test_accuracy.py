"""The model against a run: errors that were put in come out, and what was known is never mixed."""

import math
from pathlib import Path

import pytest

from collbench.contention.calibrate import calibrate, write_parameters
from collbench.report.accuracy import accuracy, errors, lines_without
from collbench.report.canvas import COLOURS
from collbench.report.predicted import predict_run
from collbench.report.svg import Styles
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.testing import SyntheticRun, synthetic_gpu_run, synthetic_run

FACTORS = {"push": 1.3, "one_stage_pull": 1.3, "nccl_ring_ll": 0.8, "nccl_auto": 1.0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SyntheticRun:
    return synthetic_gpu_run(
        tmp_path_factory.mktemp("accuracy") / "run", factors=FACTORS, sizes=(1024, 14336, 131072), launches=1
    )


def _found(path: Path) -> dict[str, object]:
    folder = RunFolder.open(path)
    found = accuracy(predict_run(folder), rows(folder.run, folder.samples()), Styles(COLOURS))
    shown: dict[str, object] = found["accuracy"]
    return shown


def _lines(path: Path) -> list[dict[str, str]]:
    table = _found(path)["table"]
    names = [name for name, _ in table.columns]  # type: ignore[attr-defined]
    return [dict(zip(names, line, strict=True)) for line in table.lines]  # type: ignore[attr-defined]


def test_a_factor_that_was_put_in_is_the_error(made: SyntheticRun) -> None:
    """Graph cells: chained ones take 1.3 or 0.8 times the prediction, calls alone 20 % more."""
    found = {(line["algorithms"], line["mode"]): line for line in _lines(made.path)}
    for cadence, more in (("chained", 1.0), ("isolated", 1.2)):
        ours, nccl = found["one- and two-stage", f"graph, {cadence}"], found["NCCL", f"graph, {cadence}"]
        assert ours["cells"] == "6"
        assert float(ours["bias"].rstrip("%")) / 100 == pytest.approx(-math.log(1.3 * more), abs=0.05)
        assert float(nccl["bias"].rstrip("%")) / 100 == pytest.approx(-math.log(0.8 * more), abs=0.05)
    assert {line["what was known"] for line in found.values()} == {"priors, that is other machines"}


def test_a_calibrated_run_has_both_splits_apart(made: SyntheticRun, tmp_path: Path) -> None:
    import shutil

    path = tmp_path / "run"
    shutil.copytree(made.path, path)
    told = predict_run(RunFolder.open(path))
    write_parameters(path, calibrate(told.evidence.probes, told.evidence.topology, 8, told.run.fabric))
    lines = _lines(path)

    assert [line["what was known"] for line in lines] == ["priors, that is other machines"] * 8 + [
        "probes of this machine"
    ] * 8
    assert [line["cells"] for line in lines[:8]] == [line["cells"] for line in lines[8:]]
    finding = _found(path)["figure"].finding  # type: ignore[attr-defined]
    assert finding.startswith("Known from probes of this machine: the median error of ")
    assert " chained cells is " in finding
    assert " isolated cells is " in finding


def test_what_cannot_be_predicted_is_not_scored(made: SyntheticRun) -> None:
    figure = _found(made.path)["figure"]

    assert "nccl_auto" not in [line[0] for line in figure.table.lines]  # type: ignore[attr-defined]
    assert figure.svg.count("<title>") == 36  # type: ignore[attr-defined]


def test_errors_are_of_logarithms() -> None:
    one = errors([2.0, 2.0, 2.0], [1.0, 2.0, 4.0], [0.1, 0.1, 0.1])

    assert one.median == pytest.approx(math.log(2))
    assert one.bias == 0.0
    assert one.coverage == pytest.approx(1 / 3)
    assert math.isnan(errors([1.0], [1.0]).coverage)


def test_the_line_is_drawn_through_other_sizes_only() -> None:
    """Three sizes on a line predict each other; one that is off is predicted where the line would have it."""
    same = {"algorithm": "a", "variant": "", "mode": "graph", "calls": 1, "dtype": "x", "op": "sum", "epilogue": ""}
    straight = [same | {"bytes": size, "p50_us": 5.0 + size / 100} for size in (100, 200, 400)]
    bent = [*straight, same | {"bytes": 800, "p50_us": 100.0}]

    assert all(told == pytest.approx(measured) for told, measured in lines_without(straight))
    assert lines_without(bent)[-1][0] == pytest.approx(13.0)
    assert lines_without(straight[:2]) == []


def test_ranks_on_processors_say_why_there_is_nothing(tmp_path: Path) -> None:
    found = _found(synthetic_run(tmp_path / "run", sizes=(1024,)).path)

    assert found["figure"] is None
    assert str(found["empty"]).startswith("No time is predicted: ranks on processors")
