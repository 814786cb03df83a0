"""What a decode step takes with each algorithm, on the page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.doctor.described import Described
from collbench.report.worth import worth
from collbench.results.records import Cell, Mode, Samples, Status
from collbench.results.store import RunFolder
from collbench.testing import host_machine, synthetic_run
from collbench.topology.machine import Machine
from collbench.workload import RunTimes, advise, find, load

COSTS = {"nccl_ring_ll": (20.0, 0.1), "push": (4.0, 0.5)}


def story() -> Machine:
    """8 GPUs on PCIe."""
    return Described("sm_120", 8, "pcie", "ok", {"torch": "2.13.0"}).machine()


def of(tmp_path: Path, **words: object) -> dict[str, object] | None:
    """The section of a made-up run on those GPUs."""
    made = synthetic_run(tmp_path / "run", **({"costs": COSTS, "modes": (Mode.GRAPH,), "machine": story()} | words))  # type: ignore[arg-type]
    folder = RunFolder.open(made.path)
    found: dict[str, object] | None = worth(folder.run, folder.samples())["worth"]
    return found


def test_the_sentence_compares_with_what_runs_by_default(tmp_path: Path) -> None:
    """122 calls of 4 x 0.7 + 7 us and of 20 x 0.7 + 1.4 us: 1.20 ms and 1.88 ms, tokens from both."""
    found = of(tmp_path, noise=0.0)
    assert found
    assert found["sentence"] == (
        "The 122 all-reduces of 14336 bytes of a decode step take 1.20 ms with push and 1.88 ms with nccl_ring_ll: "
        "+7 % tokens per second where the rest of a step takes 8.71 ms."
    )
    assert "No interval: one launch." in str(found["note"])


def test_without_links_no_tokens_are_promised(tmp_path: Path) -> None:
    found = of(tmp_path, machine=host_machine(8), modes=(Mode.EAGER,))
    assert found
    assert "tokens" not in str(found["sentence"])
    assert "Fabric host has no links" in str(found["note"])


def test_intervals_from_five_launches_on(tmp_path: Path) -> None:
    found = of(tmp_path, launches=5)
    assert found
    assert "Brackets: 95 %" in str(found["note"])
    assert "[" in str(found["lines"])


def test_each_server_is_told_what_is_best_for_it(tmp_path: Path) -> None:
    """The same sentences as of `advise`."""
    costs = {**COSTS, "flashinfer_pcie_push": (2.0, 0.1), "flashinfer_pcie_workspace": (10.0, 0.5)}
    found = of(tmp_path, costs=costs)
    assert found
    choices = found["choices"]
    assert isinstance(choices, list)
    told = {choice["text"].partition(" ")[0]: choice for choice in choices}
    assert set(told) == {"vLLM", "SGLang", "NCCL:"}
    assert "which starts flashinfer_pcie_workspace" in told["vLLM"]["text"]
    assert told["SGLang"]["settings"] == [("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1", "SGLang 0.5.23", "")]
    assert "NCCL_ALGO" in str(told["NCCL:"]["settings"])


def test_calls_with_an_epilogue_are_called_so(tmp_path: Path) -> None:
    """Nothing is then saved by fusing once more."""
    made = synthetic_run(tmp_path / "run", costs=COSTS, modes=(Mode.GRAPH,), machine=story(), noise=0.0)
    fused = {cell.cell_id: fused_cell(cell) for cell in made.run.cells}
    run = replace(made.run, cells=tuple(fused.values()))
    samples = [replace(one, cell_id=fused[one.cell_id].cell_id) for one in RunFolder.open(made.path).samples()]
    found = worth(run, samples)["worth"]
    assert found
    assert found["sentence"].startswith("The 122 all-reduces with residual_rmsnorm fused behind of 14336 bytes")
    assert "That time holds residual_rmsnorm too, which the calls here hold already." in found["note"]
    times = RunTimes(run, samples)
    advice = advise(load(find("moe-61-decode")), times)
    assert (times.epilogue, advice.fusion_us) == ("residual_rmsnorm", {})
    assert any("hold that work once more" in text for text in advice.cautions)
    both = RunTimes(replace(run, cells=(*run.cells, *made.run.cells)), [*samples, *RunFolder.open(made.path).samples()])
    assert both.epilogue == "", "plain cells are taken where there are some, and never beside others"
    assert "epilogue none" in both.notes[0]


def fused_cell(cell: Cell) -> Cell:
    return replace(cell, call=replace(cell.call, epilogue="residual_rmsnorm"))


def test_the_calculators_data_cannot_leave_its_element(tmp_path: Path) -> None:
    """A name is somebody else's text: no `<` of it reaches the page, and the curves stay what they were."""
    evil = "</script><script>alert(1)</script>"
    found = of(tmp_path, costs={evil: (5.0, 0.1), "b": (6.0, 0.1)})
    assert found
    data = str(found["data"])
    assert "<" not in data
    curves = json.loads(data)
    assert [size for size, _ in curves["b"]] == [1024, 14336, 65536, 262144]


def test_a_run_without_the_sizes_of_a_step_has_no_section(tmp_path: Path) -> None:
    """Nothing is extrapolated."""
    assert of(tmp_path, sizes=(1024, 2048)) is None


def test_a_run_without_an_ok_cell_has_no_section(tmp_path: Path) -> None:
    assert of(tmp_path, failing=dict.fromkeys(COSTS, (Status.CRASHED, "it died"))) is None


@pytest.mark.parametrize("status", [Status.WRONG, Status.HUNG])
def test_a_cell_that_was_wrong_once_has_no_time(tmp_path: Path, status: Status) -> None:
    """One bad launch among good ones takes the cell out."""
    made = synthetic_run(tmp_path / "run", costs=COSTS, modes=(Mode.GRAPH,), machine=story(), launches=2)
    folder = RunFolder.open(made.path)
    bad = {cell.cell_id for cell in folder.run.cells if cell.algorithm == "push"}
    samples = [
        replace(one, status=status, reason="x", latency_us=()) if one.launch and one.cell_id in bad else one
        for one in folder.samples()
    ]
    found = worth(folder.run, [one for one in samples if isinstance(one, Samples)])["worth"]
    assert [line["algorithm"] for line in found["lines"]] == ["nccl_ring_ll"]
