"""What a server is told: its own all-reduce is switched off only where it was measured, and is the slower one."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from collbench.doctor.described import Described
from collbench.results.records import Mode, Status
from collbench.results.store import RunFolder
from collbench.testing import synthetic_run
from collbench.topology import catalog
from collbench.workload import Advice, ModelTimes, RunTimes, advise, find, load
from collbench.workload.servers import Choice
from collbench.workload.settings import WORKSPACE
from collbench.workload.short import interpolated, short, usual

_OFF = "--disable-custom-all-reduce"
CHAINED = 0.7
"""What a call of a chain costs of one alone in made-up runs."""
_VLLM, _SGLANG = "vllm_custom_all_reduce", "sglang_custom_all_reduce"


def _advice(
    path: Path,
    costs: Mapping[str, tuple[float, float]],
    only: Mapping[str, tuple[int, ...]] | None = None,
    why: Status = Status.NOT_RUN,
    sizes: tuple[int, ...] = (1024, 14336),
    arch: str = "sm_120",
) -> Advice:
    """Advice from a made-up run; those in `only` ended ok at these sizes alone, and elsewhere as `why` says."""
    machine = Described(arch, 2, "nvlink", "ok", {"torch": "2.13.0"}).machine()
    alone = {name: (a / CHAINED, b / CHAINED) for name, (a, b) in costs.items()}
    made = synthetic_run(
        path / "run", costs=alone, modes=(Mode.GRAPH,), calls=(122,), sizes=sizes, noise=0.0, machine=machine
    )
    cells = {cell.cell_id: cell for cell in made.run.cells}
    samples = []
    for one in RunFolder.open(made.path).samples():
        cell = cells[one.cell_id]
        if only and cell.algorithm in only and cell.call.bytes not in only[cell.algorithm]:
            from collbench.results.records import Samples

            samples.append(Samples(one.cell_id, one.launch, why, "no time was left"))
        else:
            samples.append(one)
    return advise(load(find("moe-61-decode")), RunTimes(made.run, samples))


def _told(advice: Advice, where: str) -> Choice:
    return next(one for one in advice.choices if one.where == where)


@pytest.mark.parametrize(("vllm_us", "off"), [(3.0, False), (6.1, False), (9.0, True)])
def test_a_default_is_switched_off_only_where_it_is_slower(vllm_us: float, off: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    """Within 5 % it stays on as well; SGLang's was not measured at all, so nothing is said to set."""
    advice = _advice(tmp_path, {"push": (2.0, 0.0), "nccl_auto": (6.0, 0.0), _VLLM: (vllm_us, 0.0)})
    vllm = _told(advice, "vLLM")

    assert [one.text for one in vllm.settings] == ([_OFF] if off else [])
    assert vllm.algorithm == ("nccl_auto" if off else _VLLM)
    assert advice.servable == ("nccl_auto" if off else _VLLM if vllm_us < 6 else "nccl_auto")
    assert ("set nothing" in vllm.text) is not off
    assert ("no clear gain" in vllm.text) == (vllm_us == 6.1)
    assert f"{_SGLANG}, was not measured at 14336 bytes" in _told(advice, "SGLang").text


def test_a_setting_is_judged_by_what_it_starts_and_against_the_servers_default(tmp_path: Path) -> None:
    """FlashInfer's push with the best grid beats SGLang's default; the workspace, which is what starts, does not."""
    costs = {
        "push": (1.88, 0.0), _SGLANG: (2.55, 0.0), _VLLM: (4.65, 0.0), "flashinfer_pcie_push": (2.0, 0.0),
        WORKSPACE: (2.6, 0.0), "nccl_auto": (7.4, 0.0),
    }  # fmt: skip
    advice = _advice(tmp_path, costs)
    vllm, sglang = _told(advice, "vLLM"), _told(advice, "SGLang")

    assert (advice.servable, sglang.settings) == (_SGLANG, ())
    assert "set nothing. The default, sglang_custom_all_reduce, takes 2.55 us" in sglang.text
    assert "would start flashinfer_pcie_workspace, 2.60 us" in sglang.text
    assert [one.text for one in vllm.settings] == ["VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1"]
    assert "starts flashinfer_pcie_workspace, 2.60 us; the default, vllm_custom_all_reduce, takes 4.65 us" in vllm.text
    assert "size its workspace for decode" in vllm.text
    assert "flashinfer_pcie_push" not in "".join(one.text for one in advice.choices)


def test_what_a_setting_starts_and_nobody_measured_is_not_advised(tmp_path: Path) -> None:
    costs = {"push": (1.88, 0.0), _VLLM: (4.65, 0.0), "flashinfer_pcie_push": (2.0, 0.0)}
    vllm = _told(_advice(tmp_path, costs), "vLLM")

    assert vllm.settings == ()
    assert "flashinfer_pcie_workspace, which PCIE_IPC settings start, was not measured" in vllm.text


@pytest.mark.parametrize("measured", [False, True])
def test_on_cards_of_its_table_vllm_runs_flashinfers_fusion(measured: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    """There its own all-reduce being slower says nothing on what it starts by itself."""
    costs = {"push": (1.88, 0.0), _VLLM: (4.65, 0.0), WORKSPACE: (2.6, 0.0)}
    costs |= {"flashinfer_trtllm_fusion_pdl": (2.45, 0.0)} if measured else {}
    vllm = _told(_advice(tmp_path, costs, arch="sm_90"), "vLLM")

    assert vllm.settings == ()
    assert "without FlashInfer it is vllm_custom_all_reduce, 4.65 us" in vllm.text
    assert ("set nothing" if measured else "was not measured at 14336 bytes, so nothing is advised") in vllm.text


def test_a_default_that_was_measured_elsewhere_only_is_told_with_its_time(tmp_path: Path) -> None:
    costs = {"push": (2.4, 0.0), "nccl_auto": (6.0, 0.0), _SGLANG: (1.65, 0.0)}
    advice = _advice(tmp_path, costs, {_SGLANG: (1024,)})

    assert not any(one.text == _OFF for one in advice.settings)
    assert "was not measured at 14336 bytes (at 1024 it takes 1.65 us, nccl_auto 6.00)" in _told(advice, "SGLang").text


def test_who_led_elsewhere_and_has_no_time_here_is_in_the_first_sentence(tmp_path: Path) -> None:
    costs = {"push": (2.4, 0.0), "nccl_auto": (6.0, 0.0), _SGLANG: (1.65, 0.0)}
    advice = _advice(tmp_path, costs, {_SGLANG: (1024,)})

    assert advice.steps[0].algorithm == "push"
    assert f"Who is the fastest at 14336 bytes is open: not run there, though the fastest elsewhere: {_SGLANG}" in (
        short(advice)
    )
    assert "takes 1.65 us and push 2.40" in short(advice)


def test_who_cannot_take_the_size_leaves_nothing_open(tmp_path: Path) -> None:
    costs = {"push": (2.4, 0.0), "nccl_auto": (6.0, 0.0), _SGLANG: (1.65, 0.0)}

    assert _advice(tmp_path, costs, {_SGLANG: (1024,)}, Status.UNSUPPORTED).open == ""


def test_times_between_measured_sizes_are_called_so_in_the_first_sentence(tmp_path: Path) -> None:
    advice = _advice(tmp_path, {"push": (2.4, 0.0), "nccl_auto": (6.0, 0.0)}, sizes=(4096, 16384))

    assert "(interpolated between 4096 and 16384 bytes)" in short(advice)
    assert interpolated(None) == ""


def test_the_model_advises_nothing_on_a_servers_own_and_compares_with_nccls_fastest() -> None:
    """The same baseline and count as the page of the same machine; equal traffic is one other, not several."""
    from collbench.doctor.forecasts import diagnose

    topology = catalog.load(catalog.find("two-flat-gen5-switches"))
    advice = advise(
        load(find("moe-61-decode")), ModelTimes(topology, None, lambda forecast: diagnose(forecast).verdicts)
    )
    first = [step for step in advice.steps if step.batch == advice.steps[0].batch]
    default = usual(first)

    assert not any(one.text == _OFF for one in advice.settings)
    assert default is not None
    assert default.step_us == min(step.step_us for step in first if step.algorithm.startswith("nccl_"))
    assert f"against {default.algorithm}" in short(advice)
    near = [
        step for step in first[1:] if step.interval_us and step.interval_us[0] <= (first[0].interval_us or (0, 0))[1]
    ]
    kinds = {(step.step_us, step.interval_us) for step in near}
    assert f"intervals of {len(kinds)} others ({len(near)} names" in short(advice)
