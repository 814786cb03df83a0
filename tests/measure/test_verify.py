"""A check accepts the right answer and nothing else."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from collbench.algorithms.base import Runner
from collbench.measure.arrays import numpy_dtype
from collbench.measure.verify import Check, supported
from collbench.results.records import DTYPE_BYTES, Call, Collective

SLOTS = 3


class _Rank(Runner):
    """Buffers of one rank; the tests sum them by hand."""

    def __init__(self, call: Call, slots: int = SLOTS, library: str = "numpy") -> None:
        self.call, self.slots = call, slots
        self._x, self._y = ([_array(call, library) for _ in range(slots)] for _ in "xy")

    def inputs(self, i: int) -> Mapping[str, Any]:
        return {"x": self._x[i]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        return {"y": self._y[i]}

    def launch(self, i: int) -> None:
        del i


def _array(call: Call, library: str) -> Any:
    if library == "numpy":
        return np.zeros(call.count, numpy_dtype(call.dtype))
    import torch

    return torch.zeros(call.count, dtype=getattr(torch, call.dtype))


def make(dtype: str, library: str = "numpy", count: int = 100) -> tuple[list[_Rank], list[Check]]:
    call = Call(count * DTYPE_BYTES[dtype], 4, dtype=dtype)
    ranks = [_Rank(call, library=library) for _ in range(4)]
    return ranks, [Check(runner, call, rank, seed=5) for rank, runner in enumerate(ranks)]


def reduce(ranks: list[_Rank], order: list[int]) -> None:
    """Sum in the buffers' own dtype, in the given order of ranks."""
    for slot in range(SLOTS):
        total = ranks[order[0]].inputs(slot)["x"] + 0
        for rank in order[1:]:
            total = total + ranks[rank].inputs(slot)["x"]
        for runner in ranks:
            runner.outputs(slot)["y"][:] = total


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", list(DTYPE_BYTES))
@pytest.mark.parametrize("exact", [True, False])
def test_the_right_sum_passes_in_any_order(dtype: str, library: str, exact: bool) -> None:  # noqa: FBT001 - pytest's
    ranks, checks = make(dtype, library)
    for turn, order in enumerate(([0, 1, 2, 3], [3, 1, 0, 2])):
        for check in checks:
            check.prepare(SLOTS, turn, exact=exact)
        reduce(ranks, order)
        findings = [check.judge() for check in checks]
        assert [f.reason for f in findings] == [""] * 4
        assert len({f.digest for f in findings}) == 1


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", list(DTYPE_BYTES))
@pytest.mark.parametrize("exact", [True, False])
def test_an_output_that_was_never_written_is_found(dtype: str, library: str, exact: bool) -> None:  # noqa: FBT001
    ranks, checks = make(dtype, library)
    for check in checks:
        check.prepare(SLOTS, 0, exact=exact)
    reduce(ranks, [0, 1, 2, 3])
    checks[2].prepare(SLOTS, 0, exact=exact)
    assert "wrong or unwritten" in checks[2].judge().reason or "rounding bound" in checks[2].judge().reason


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_answer_of_an_earlier_check_is_not_right_again(library: str) -> None:
    ranks, checks = make("float32", library)
    for check in checks:
        check.prepare(SLOTS, 0, exact=True)
    reduce(ranks, [0, 1, 2, 3])
    stale = [ranks[0].outputs(slot)["y"] + 0 for slot in range(SLOTS)]
    for check in checks:
        check.prepare(SLOTS, 1, exact=True)
    for slot in range(SLOTS):
        ranks[0].outputs(slot)["y"][:] = stale[slot]
    assert checks[0].judge().reason


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_one_wrong_element_in_one_slot_is_found_and_named(library: str) -> None:
    ranks, checks = make("bfloat16", library)
    for check in checks:
        check.prepare(SLOTS, 0, exact=True)
    reduce(ranks, [0, 1, 2, 3])
    ranks[1].outputs(2)["y"][17] += 1
    assert checks[0].judge().reason == ""
    assert checks[1].judge().reason.startswith("slot 2 of 3: 1 of 100 elements wrong or unwritten, first at 17")


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_error_of_a_few_roundings_too_many_is_found(library: str) -> None:
    ranks, checks = make("float32", library)
    for check in checks:
        check.prepare(SLOTS, 0, exact=False)
    reduce(ranks, [0, 1, 2, 3])
    ranks[0].outputs(0)["y"][:] *= 1.0001
    assert "x the rounding bound" in checks[0].judge().reason
    ranks[1].outputs(0)["y"][17] += 1.0
    told = checks[1].judge().reason
    assert told.startswith("slot 0 of 3: 1 of 100 elements off by more than rounding explains, most at 17: ")
    ranks[2].outputs(0)["y"][23] = 3e38
    assert "off by more than rounding explains, most at 23: 3" in checks[2].judge().reason


def test_other_bits_give_another_digest() -> None:
    ranks, checks = make("float32")
    for check in checks:
        check.prepare(SLOTS, 0, exact=False)
    reduce(ranks, [0, 1, 2, 3])
    ranks[1].outputs(0)["y"][:] = np.nextafter(ranks[1].outputs(0)["y"], np.float32(9))
    assert checks[1].judge().reason == ""
    assert checks[0].judge().digest != checks[1].judge().digest


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("unsigned", [True, False])
def test_the_sign_of_a_zero_counts_unless_a_runner_says_otherwise(
    dtype: str, library: str, unsigned: bool, monkeypatch: pytest.MonkeyPatch  # noqa: FBT001 - pytest's
) -> None:  # fmt: skip
    """Where +0 means "not yet written", a sum of zero may be -0 on some ranks; every other bit counts as before."""
    monkeypatch.setattr(Check, "_judge_slot", lambda *_: "")  # the data has no sum of exactly zero
    ranks, checks = make(dtype, library)
    for runner, check in zip(ranks, checks, strict=True):
        runner.unsigned_zeros = unsigned
        check.prepare(SLOTS, 0, exact=False)
        for slot in range(SLOTS):
            runner.outputs(slot)["y"][:] = 1
            runner.outputs(slot)["y"][7] = 0
    ranks[1].outputs(0)["y"][7] = -0.0
    assert (checks[0].judge().digest == checks[1].judge().digest) is unsigned
    ranks[1].outputs(0)["y"][7] = 0
    assert checks[0].judge().digest == checks[1].judge().digest
    ranks[1].outputs(0)["y"][3] = -1
    assert checks[0].judge().digest != checks[1].judge().digest


def test_what_cannot_be_checked_is_not_timed() -> None:
    assert supported(Call(64, 2))
    assert not supported(Call(64, 2, op="max"))
    assert not supported(Call(64, 2, collective=Collective.P2P))
    assert not supported(Call(64, 2, collective=Collective.ALL_TO_ALL))  # with a sum
    assert not supported(Call(66, 4, Collective.ALL_TO_ALL, ""))  # parts of unequal size
    assert not supported(Call(64, 2, Collective.ALL_TO_ALL, "", splits=(4, 28)))
    assert not supported(Call(64, 2, epilogue="bias"))
    assert not supported(Call(16384, 2, epilogue="residual_rmsnorm"))  # no whole rows
    assert supported(Call(64, 2, Collective.ALL_TO_ALL, ""))
    assert supported(Call(64, 2, Collective.REDUCE_SCATTER))
    assert supported(Call(4, 2, Collective.BARRIER, ""))
    assert supported(Call(64, 2, epilogue="residual_rmsnorm"))
