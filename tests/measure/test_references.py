"""The known answers of every collective: what is right passes, what comes from a wrong place or too early does not."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collbench.algorithms.base import Runner
from collbench.algorithms.shapes import arrays_of
from collbench.measure.arrays import numpy_dtype
from collbench.measure.verify import Check, supported
from collbench.results.records import DTYPE_BYTES, Call, Collective

RANKS, SLOTS = 4, 2
EXCHANGES = (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.REDUCE_SCATTER, Collective.BARRIER)


class Rank(Runner):
    """Arrays of one rank; the tests carry the collective out by hand."""

    def __init__(self, call: Call, library: str, rank: int = 0) -> None:
        self.call = call
        shapes = arrays_of(call, rank)
        self._in, self._out = (
            [{name: array(call.dtype, count, library) for name, count in sizes.items()} for _ in range(SLOTS)]
            for sizes in (shapes.inputs, shapes.outputs)
        )

    def inputs(self, i: int) -> Mapping[str, Any]:
        return self._in[i]

    def outputs(self, i: int) -> Mapping[str, Any]:
        return self._out[i]

    def launch(self, i: int) -> None:
        del i


def array(dtype: str, count: int, library: str) -> Any:
    if library == "numpy":
        return np.zeros(count, numpy_dtype(dtype))
    import torch

    return torch.zeros(count, dtype=getattr(torch, dtype))


def call_of(collective: Collective, dtype: str, epilogue: str = "") -> Call:
    count = RANKS if collective is Collective.BARRIER else 128
    op = "sum" if collective in {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER} else ""
    return Call(count * DTYPE_BYTES[dtype], RANKS, collective, op, dtype, epilogue=epilogue)


def make(call: Call, library: str = "numpy") -> tuple[list[Rank], list[Check]]:
    ranks = [Rank(call, library) for _ in range(RANKS)]
    return ranks, [Check(runner, call, rank, seed=3) for rank, runner in enumerate(ranks)]


def carry_out(ranks: list[Rank], slot: int) -> None:
    call = ranks[0].call
    part = call.count // RANKS
    sent = [runner.inputs(slot)["x"] for runner in ranks]
    for me, runner in enumerate(ranks):
        y = runner.outputs(slot)["y"]
        for k in range(RANKS):
            if call.collective is Collective.ALL_TO_ALL:
                y[k * part : (k + 1) * part] = sent[k][me * part : (me + 1) * part]
            elif call.collective is not Collective.REDUCE_SCATTER:
                y[k * part : (k + 1) * part] = sent[k]
        if call.collective is Collective.REDUCE_SCATTER:
            y[:] = sum(x[me * part : (me + 1) * part] for x in sent[1:]) + sent[0][me * part : (me + 1) * part]


def run(ranks: list[Rank], checks: list[Check], turn: int, *, exact: bool) -> None:
    for check in checks:
        check.prepare(SLOTS, turn, exact=exact)
    for slot in range(SLOTS):
        carry_out(ranks, slot)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", list(DTYPE_BYTES))
@pytest.mark.parametrize("collective", EXCHANGES)
def test_what_is_right_passes(collective: Collective, dtype: str, library: str) -> None:
    """Integers and fractions; digests are given only where all ranks hold the same."""
    ranks, checks = make(call_of(collective, dtype), library)
    for turn, exact in enumerate((True, False)):
        run(ranks, checks, turn, exact=exact)
        findings = [check.judge() for check in checks]
        assert [f.reason for f in findings] == [""] * RANKS
        assert len({f.digest for f in findings}) == 1
        alike = collective in {Collective.ALL_GATHER, Collective.BARRIER}
        assert bool(findings[0].digest) is (alike and not exact)


@pytest.mark.parametrize("collective", EXCHANGES)
def test_an_unwritten_or_stale_output_is_found(collective: Collective) -> None:
    """Outputs of the check before are no answer to this one, nor is poison."""
    ranks, checks = make(call_of(collective, "bfloat16"))
    run(ranks, checks, 0, exact=True)
    stale = [runner.outputs(1)["y"] + 0 for runner in ranks]
    run(ranks, checks, 1, exact=True)
    for runner, old in zip(ranks, stale, strict=True):
        runner.outputs(1)["y"][:] = old
    assert all(check.judge().reason for check in checks)
    checks[0].prepare(SLOTS, 1, exact=True)
    assert "wrong or unwritten" in checks[0].judge().reason


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_TO_ALL])
def test_parts_in_a_wrong_order_are_found_and_named(collective: Collective) -> None:
    """A rank's part belongs where its number says."""
    ranks, checks = make(call_of(collective, "float32"))
    run(ranks, checks, 0, exact=True)
    y = ranks[2].outputs(0)["y"]
    y[32:64], y[64:96] = y[64:96] + 0, y[32:64] + 0
    assert checks[1].judge().reason == ""
    assert checks[2].judge().reason.startswith("slot 0 of 2: ")
    assert "first at 3" in checks[2].judge().reason


def test_a_barrier_that_one_rank_has_not_entered_is_found() -> None:
    """Its word is that of the check before, or none."""
    ranks, checks = make(call_of(Collective.BARRIER, "float32"))
    run(ranks, checks, 0, exact=False)
    ranks[0].outputs(1)["y"][3] = np.nan
    assert checks[0].judge().reason.startswith("slot 1 of 2: 1 of 1 elements wrong or unwritten, first at 3")


def test_an_output_of_another_length_is_found() -> None:
    """It says so instead of comparing."""
    ranks, checks = make(call_of(Collective.ALL_GATHER, "float32"))
    run(ranks, checks, 0, exact=True)
    ranks[0]._out[0] = {"y": np.zeros(64, np.float32)}
    assert checks[0].judge().reason == "slot 0 of 2: 64 elements, expected 128"


def normalise(ranks: list[Rank], slot: int, epsilon: float = 1e-6) -> None:
    """In float64, rounded at the end; the norm is taken of the rounded sums, as kernels do."""
    summed = sum(np.asarray(runner.inputs(slot)["x"], np.float64) for runner in ranks)
    for runner in ranks:
        given, out = runner.inputs(slot), runner.outputs(slot)
        out["residual_out"][:] = (summed + np.asarray(given["residual"], np.float64)).astype(out["y"].dtype)
        values = np.asarray(out["residual_out"], np.float64)
        scale = 1 / np.sqrt((values**2).mean() + epsilon)
        out["y"][:] = (values * scale * np.asarray(given["weight"], np.float64)).astype(out["y"].dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("exact", [True, False])
def test_normalised_rows_pass_within_rounding_only(dtype: str, exact: bool) -> None:  # noqa: FBT001 - pytest's
    """Residual and weight are the same on all ranks; one row, a scale that is off, a forgotten residual."""
    ranks, checks = make(call_of(Collective.ALL_REDUCE, dtype, "residual_rmsnorm"))
    for check in checks:
        check.prepare(SLOTS, 0, exact=exact)
    for slot in range(SLOTS):
        normalise(ranks, slot)
    assert [check.judge().reason for check in checks] == [""] * RANKS
    ranks[0].outputs(1)["y"][:] *= numpy_dtype(dtype).type(1.05 if exact else 1.25)
    assert checks[0].judge().reason.endswith("of y")
    ranks[1].outputs(0)["residual_out"][:] -= ranks[1].inputs(0)["residual"]
    assert checks[1].judge().reason.endswith("of residual_out")


def test_every_row_has_its_own_norm() -> None:
    """Two rows of 7168: a norm over both is found."""
    call = Call(2 * 7168 * 4, RANKS, dtype="float32", epilogue="residual_rmsnorm")
    ranks, checks = make(call)
    for check in checks:
        check.prepare(SLOTS, 0, exact=True)
    for slot in range(SLOTS):
        summed = sum(runner.inputs(slot)["x"] for runner in ranks)
        for runner in ranks:
            given, out = runner.inputs(slot), runner.outputs(slot)
            out["residual_out"][:] = summed + given["residual"]
            rows = out["residual_out"].reshape(2, 7168)
            out["y"][:] = (rows / np.sqrt((rows**2).mean(1, keepdims=True)) * given["weight"]).reshape(-1)
    assert checks[0].judge().reason == ""
    values = ranks[0].outputs(0)["residual_out"]
    ranks[0].outputs(0)["y"][:] = values / np.sqrt((values**2).mean()) * np.tile(ranks[0].inputs(0)["weight"], 2)
    assert checks[0].judge().reason


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_splits_are_checked_part_by_part(library: str) -> None:
    """Parts of different length, and ranks that send or get nothing."""
    pytest.importorskip(library)
    splits = (3, 0, 5, 1, 0, 0, 0, 0, 2, 7, 0, 0, 4, 1, 1, 0)
    call = Call(9 * 4, RANKS, Collective.ALL_TO_ALL, "", "float32", splits)
    rows = [splits[4 * r : 4 * r + 4] for r in range(RANKS)]
    ranks = [Rank(call, library, rank) for rank in range(RANKS)]
    checks = [Check(runner, call, rank, seed=3) for rank, runner in enumerate(ranks)]
    for check in checks:
        check.prepare(1, 7, exact=True)
    for me, runner in enumerate(ranks):
        at = 0
        for k, row in enumerate(rows):
            low = sum(row[:me])
            runner.outputs(0)["y"][at : at + row[me]] = ranks[k].inputs(0)["x"][low : low + row[me]]
            at += row[me]
    assert [check.judge().reason for check in checks] == [""] * RANKS
    ranks[0].outputs(0)["y"][8] = -1000
    assert "1 of 4 elements wrong or unwritten, first at 8" in checks[0].judge().reason


def test_splits_that_do_not_fit_are_not_timed() -> None:
    call = Call(64, RANKS, Collective.ALL_TO_ALL, "", "float32", (1,) * 4)
    assert not supported(call)
    assert supported(replace(call, splits=(1,) * 16))
    assert not supported(replace(call, collective=Collective.ALL_REDUCE, op="sum", splits=(1,) * 16))
