"""Names that verdicts depend on, and typos."""

import dataclasses

import pytest

from collbench.algorithms import base
from collbench.doctor import packages
from collbench.doctor.packages import asked, check
from collbench.errors import UsageError
from collbench.results.records import Call, Support
from collbench.topology.machine import Machine


def test_every_name_that_a_rule_can_ask_for_is_found() -> None:
    """Those of the rules that stand behind another one too: NCCL behind torch, CUDA behind the driver."""
    wanted = {
        "torch",
        "nccl",
        "cuda",
        "driver",
        "flashinfer",
        "vllm",
        "sglang",
        "sgl-kernel",
        "nvcc",
        "nvshmem",
        "b12x",
        "cutlass-dsl",
    }
    assert wanted <= asked()
    assert "numpy" not in asked()


def test_rules_of_other_packages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(machine: Machine, call: Call) -> Support:
        del call
        return Support.yes() if (machine.version("theirs") or ()) > (1,) else Support.no("too old")

    one = dataclasses.replace(base.registry()["gloo"], support=theirs)
    monkeypatch.setattr(packages, "registry", lambda: {"their_ring": one})
    check(["theirs"], "--with")


@pytest.mark.parametrize(
    ("word", "told"), [("torhc", "torch"), ("Torch", "torch"), ("flashinfer-python", "flashinfer"), ("vlm", "vllm")]
)
def test_the_nearest_name_is_offered(word: str, told: str) -> None:
    with pytest.raises(UsageError, match=rf"no rule knows '{word}'; did you mean {told}\?"):
        check([word], "--with")


def test_without_a_near_name_all_are_told() -> None:
    with pytest.raises(UsageError, match=r"known are b12x, .*, torch, vllm, word$"):
        check(["zzz"], "--compare", ["word"])
