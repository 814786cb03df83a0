"""Why: terms add up to the prediction, nothing beyond twice of it is explained, and an empty section says why."""

from dataclasses import replace
from pathlib import Path

import pytest

from collbench.contention.predict import TERMS
from collbench.report.canvas import COLOURS
from collbench.report.holding import LEAST_SHARE, holds_back
from collbench.report.measured import measured
from collbench.report.predicted import Predicted, predict_run
from collbench.report.reasons import chosen_sizes
from collbench.report.series import Panel, Point, Series, Spread
from collbench.report.svg import Styles
from collbench.report.wiring import wiring
from collbench.results.records import Mode
from collbench.results.store import RunFolder
from collbench.testing import synthetic_gpu_run, synthetic_run

FACTORS = {"one_stage_pull": 1.0, "push": 1.2, "staged_ring": 2.6, "nccl_auto": 1.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    made = synthetic_gpu_run(
        tmp_path_factory.mktemp("why") / "run", factors=FACTORS, sizes=(1024, 14336, 524288), launches=1, probed=False
    )
    return RunFolder.open(made.path)


@pytest.fixture(scope="module")
def told(folder: RunFolder) -> Predicted:
    return predict_run(folder)


@pytest.fixture(scope="module")
def shown(folder: RunFolder, told: Predicted) -> dict[str, object]:
    return measured(folder.run, folder.samples(), {}, told, Styles(COLOURS))


def test_terms_and_the_unexplained_add_up_to_what_was_measured(shown: dict[str, object]) -> None:
    (figure, *others) = shown["why"]["figures"]  # type: ignore[index]
    names = [name for name, _ in figure.table.columns]

    assert len(others) == 2
    assert "queueing" in names
    for line in figure.table.lines:
        row = dict(zip(names, line, strict=True))
        if row["sync"]:
            terms = sum(float(row[term]) for term in TERMS if term in row)
            assert terms + float(row["unexplained"]) == pytest.approx(float(row["measured"]), abs=0.2)


def test_beyond_twice_the_prediction_no_term_is_named(shown: dict[str, object]) -> None:
    for figure in shown["why"]["figures"]:  # type: ignore[index]
        names = [name for name, _ in figure.table.columns]
        (line,) = [dict(zip(names, one, strict=True)) for one in figure.table.lines if one[0] == "staged_ring"]

        assert not any(line[term] for term in TERMS if term in line)
        assert line["link that binds"] == ""
        assert float(line["unexplained"]) == pytest.approx(float(line["measured"]), rel=0.01)
        assert "not explained: staged_ring (above 2 times the prediction)" in figure.finding


def test_the_finding_names_the_largest_term_and_who_waits(shown: dict[str, object]) -> None:
    last = shown["why"]["figures"][-1]  # type: ignore[index]

    assert "waits most for a shared link" in last.finding
    assert "with 16 flows" in last.finding
    assert last.finding in last.svg.replace("&gt;", ">")
    assert "queueing" in last.svg


def test_what_the_model_cannot_predict_stands_in_no_bar(shown: dict[str, object]) -> None:
    assert all("nccl_auto" not in [line[0] for line in f.table.lines] for f in shown["why"]["figures"])  # type: ignore[index]


def test_the_link_of_the_fastest_at_the_largest_size_is_coloured(
    folder: RunFolder, told: Predicted, shown: dict[str, object]
) -> None:
    found = wiring(told.evidence.topology, told.best, shown["panels"], Styles(COLOURS))  # type: ignore[arg-type]

    assert " hot" in found["drawing"]
    assert "Coloured: " in found["drawing_finding"]
    assert "flows share it at" in found["drawing_finding"]
    targets = {line["target"] for line in found["bound"]}
    assert targets
    assert all(f'id="{target}"' in found["drawing"] for target in targets)
    assert not [line for line in found["bound"] if line["name"] == "staged_ring"]
    assert len(found["loads"]) == len(targets)
    assert all(f"#{target}:target" in found["drawing_css"] for target in targets)
    assert any(": 16 flows, " in text for text in found["loads"])


def test_a_link_holds_back_only_where_its_bytes_are_a_good_part_of_the_time(told: Predicted) -> None:
    """At the smallest size a port is 0.00 us of the time: nothing is blamed there, in the picture or in a table."""
    cells = {cell.cell_id: cell for cell in told.run.cells}
    small = min(cell.call.bytes for cell in cells.values())
    held = {cells[i].call.bytes for i, one in told.best.items() if holds_back(one)}

    assert held
    assert all(one.bottleneck for one in told.best.values())
    for cell_id, one in told.best.items():
        share = (one.terms_us["port"] + one.terms_us["queueing"] + one.terms_us["efficiency"]) / one.total_us
        assert holds_back(one) == (share >= LEAST_SHARE), cell_id
    assert not holds_back(replace(next(iter(told.best.values())), bottleneck=None))
    assert any(cells[i].call.bytes == small and not holds_back(one) for i, one in told.best.items())


def test_the_links_of_the_machine_stand_in_few_lines(told: Predicted) -> None:
    table = wiring(told.evidence.topology, told.best, [], Styles(COLOURS))["links"]

    assert len(table.lines) == 3
    assert table.lines[1][:5] == ["PCIe", "root0 - switch0, root1 - switch1", "Gen5 x16", "", "53.8"]


def test_ranks_on_processors_say_why_nothing_is_split(tmp_path: Path) -> None:
    made = synthetic_run(tmp_path / "run", sizes=(1024, 4096))
    host = RunFolder.open(made.path)
    why = measured(host.run, host.samples(), {}, predict_run(host), Styles(COLOURS))["why"]

    assert why["figures"] == []
    assert why["empty"] == (
        "No time is split into terms: ranks on processors wait for time slices and for each other, which the model "
        "does not know."
    )


def test_a_damaged_file_of_parameters_is_told_and_priors_take_its_place(tmp_path: Path) -> None:
    made = synthetic_gpu_run(tmp_path / "run", factors={"push": 1.0}, sizes=(1024,), launches=1, probed=False)
    (made.path / "parameters.json").write_text("{")
    found = predict_run(RunFolder.open(made.path))

    assert "predictions rest on priors" in " ".join(found.problems)
    assert found.best == found.priors != {}
    assert str(tmp_path) not in " ".join(found.problems)


def test_smallest_decode_and_largest_size_are_chosen() -> None:
    def panel(*sizes: int) -> Panel:
        points = tuple(Point(size, 1.0, Spread(1.0, 1.0), None, None, ()) for size in sizes)
        return Panel(str(Mode.GRAPH), "chained", (1,), {}, (Series("a", "", (1,), 0, points),))

    assert chosen_sizes(panel(1, 2, 16384, 1 << 20)) == [1, 16384, 1 << 20]
    assert chosen_sizes(panel(4096)) == [4096]
