"""What a server is told: its own all-reduce is switched off only where it was measured, and is the slower one."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from collbench.results.records import Mode, Status
from collbench.results.store import RunFolder
from collbench.testing import synthetic_run
from collbench.topology import catalog
from collbench.workload import Advice, ModelTimes, RunTimes, advise, find, load
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
) -> Advice:
    """Advice from a made-up run; those in `only` ended ok at these sizes alone, and elsewhere as `why` says."""
    alone = {name: (a / CHAINED, b / CHAINED) for name, (a, b) in costs.items()}
    made = synthetic_run(path / "run", costs=alone, modes=(Mode.GRAPH,), calls=(122,), sizes=sizes, noise=0.0)
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


@pytest.mark.parametrize(
    ("vllm_us", "told"), [(3.0, "is not slower than nccl_auto"), (6.1, "is not slower"), (9.0, "")]
)
def test_a_default_is_switched_off_only_where_it_is_slower(vllm_us: float, told: str, tmp_path: Path) -> None:
    """Within 5 % it stays on as well; SGLang's was not measured at all, so nothing is said to set."""
    advice = _advice(tmp_path, {"push": (2.0, 0.0), "nccl_auto": (6.0, 0.0), _VLLM: (vllm_us, 0.0)})

    assert advice.servable == "nccl_auto"
    assert [one.where for one in advice.settings if one.text == _OFF] == ([] if told else ["vLLM"])
    assert any(told in text for text in advice.remarks if text.startswith("vLLM")) if told else len(advice.remarks) == 1
    assert f"{_SGLANG}, was not measured at 14336 bytes" in advice.remarks[-1]


def test_a_default_that_was_measured_elsewhere_only_is_told_with_its_time(tmp_path: Path) -> None:
    costs = {"push": (2.4, 0.0), "nccl_auto": (6.0, 0.0), _SGLANG: (1.65, 0.0)}
    advice = _advice(tmp_path, costs, {_SGLANG: (1024,)})

    assert not any(one.text == _OFF for one in advice.settings)
    assert "was not measured at 14336 bytes (at 1024 it takes 1.65 us, nccl_auto 6.00)" in advice.remarks[-1]


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
