"""Verdicts: what is caught, what is not, in which order, and the same from either side."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.gate.judge import judge_paired, judge_stored
from collbench.gate.sides import CellData, SessionSpread, Side
from collbench.gate.verdicts import CellVerdict, Outcome, Rules, Verdict
from collbench.results.records import Status

Array = NDArray[np.float64]
Make = Callable[..., Side]
Noisy = Callable[..., tuple[Array, Array]]
MIRROR = {Verdict.REGRESSED: Verdict.IMPROVED, Verdict.IMPROVED: Verdict.REGRESSED}


def verdicts(outcome: Outcome) -> dict[str, Verdict]:
    return {cell.cell_id: cell.verdict for cell in outcome.cells}


def changed(side: Side, **cells: CellData) -> Side:
    return replace(side, cells={**side.cells, **cells})


@pytest.mark.parametrize(
    ("effect", "verdict", "code"), [(0.0, "OK", 0), (0.08, "REGRESSED", 1), (-0.08, "IMPROVED", 0)]
)
def test_one_cell_is_judged_by_what_happened_to_it(
    effect: float, verdict: str, code: int, make_side: Make, make_noisy: Noisy
) -> None:
    base, current = make_noisy(1, effect=effect)

    outcome = judge_paired(make_side(base), make_side(current), Rules())

    assert outcome.cells[0].verdict == verdict
    assert {cell.verdict for cell in outcome.cells[1:]} == {Verdict.OK}
    assert outcome.exit_code(strict=True) == code


def test_a_change_below_the_least_effect_is_none_however_certain(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(1, sd=0.001, effect=0.02)

    outcome = judge_paired(make_side(base), make_side(current), Rules())

    assert outcome.cells[0].p_holm is not None
    assert outcome.cells[0].p_holm < 1e-6
    assert outcome.cells[0].verdict is Verdict.OK


def test_a_change_below_the_least_microseconds_is_none(make_side: Make) -> None:
    base = np.full((1, 8), 2.0) * np.exp(np.random.default_rng(0).normal(0, 0.002, (1, 8)))

    assert judge_paired(make_side(base), make_side(base * 1.1), Rules()).verdict is Verdict.OK
    assert judge_paired(make_side(base), make_side(base * 1.1), Rules(min_abs_us=0.1)).verdict is Verdict.REGRESSED


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000), effect=st.floats(-0.2, 0.2) | st.floats(-0.9, 9.0),
    sd=st.sampled_from([0.002, 0.02, 0.06, 0.2]),
    blocks=st.sampled_from([8, 13, 16]),
)  # fmt: skip
def test_swapping_the_sides_mirrors_every_verdict(
    make_side: Make, make_noisy: Noisy, seed: int, effect: float, sd: float, blocks: int
) -> None:
    base, current = make_noisy(seed, cells=4, blocks=blocks, sd=sd, effect=effect)

    there = judge_paired(make_side(base), make_side(current), Rules())
    back = judge_paired(make_side(current), make_side(base), Rules())

    assert verdicts(back) == {c: MIRROR.get(v, v) for c, v in verdicts(there).items()}


def test_the_order_of_the_cells_changes_nothing(make_side: Make, make_noisy: Noisy) -> None:
    base, current = map(make_side, make_noisy(2, cells=20, sd=0.03, effect=0.06))
    turned = replace(current, cells=dict(reversed(list(current.cells.items()))))

    assert judge_paired(base, turned, Rules()).cells == judge_paired(base, current, Rules()).cells


def test_a_verdict_of_an_early_look_stands(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(3, effect=0.1)
    current[0, 8:] = base[0, 8:]

    outcome = judge_paired(make_side(base), make_side(current), Rules())

    assert (outcome.cells[0].verdict, outcome.cells[0].look) == (Verdict.REGRESSED, 8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), sd=st.sampled_from([0.01, 0.03, 0.05]), effect=st.floats(0, 0.1))
def test_measuring_decided_cells_no_further_changes_no_verdict(
    make_side: Make, make_noisy: Noisy, seed: int, sd: float, effect: float
) -> None:
    """Look by look with the decided cells left out, and all launches of all cells at once: the same."""
    base, current = map(make_side, make_noisy(seed, cells=8, sd=sd, effect=effect))
    settled: dict[str, CellVerdict] = {}
    for look in Rules().looks:
        left = [c for c in base.cells if c not in settled]
        a, b = (_first(side, left, look) for side in (base, current))
        outcome = judge_paired(a, b, Rules(), settled=settled)
        settled = {c.cell_id: c for c in outcome.cells if c.verdict is not Verdict.INCONCLUSIVE}
        if len(settled) == len(base.cells):
            break

    whole = judge_paired(base, current, Rules())
    found = {cell.cell_id: cell for cell in outcome.cells}
    assert found == {cell.cell_id: cell for cell in whole.cells}
    assert outcome.shift == whole.shift


def _first(side: Side, cells: list[str], launches: int) -> Side:
    kept = {
        c: replace(side.cells[c], medians_us=side.cells[c].medians_us[:launches], iterations=(100,) * launches)
        for c in cells
    }
    return replace(side, cells=kept, launches=launches)


def test_a_common_movement_is_called_a_shift(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(4, cells=30)

    outcome = judge_paired(make_side(base), make_side(current * 1.1), Rules())

    assert outcome.shift == pytest.approx(1.1, abs=0.01)
    assert outcome.notes[0].startswith("machine-wide shift: more than half of the cells moved together, by about +")
    assert outcome.exit_code() == 1


def test_a_control_cell_that_moved_takes_every_verdict_away(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(5, effect=0.2)
    rules = Rules(controls=("cell000",))

    outcome = judge_paired(make_side(base), make_side(current), rules)

    assert outcome.exit_code() == 3
    assert set(verdicts(outcome).values()) == {Verdict.INVALID}
    assert outcome.faults[0].startswith("control cell cell000 moved by +")


def test_a_control_that_does_not_exist_guards_nothing(make_side: Make, make_noisy: Noisy) -> None:
    base, current = map(make_side, make_noisy(5))

    outcome = judge_paired(base, current, Rules(controls=("cell000", "copy*")))

    assert outcome.faults == ("--control copy* names no cell that was measured on both sides",)
    assert outcome.exit_code() == 3


def test_a_control_too_noisy_to_tell_is_said(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(5)
    base[0] *= np.exp(np.random.default_rng(5).normal(0, 0.5, 16))

    outcome = judge_paired(make_side(base), make_side(current), Rules(controls=("cell000",)))

    assert outcome.notes == ("control cell cell000 is inconclusive: whether the machine stayed as it was is not known",)
    assert outcome.exit_code(strict=True) == 0


def test_a_change_that_a_noisy_side_could_make_is_inconclusive_and_strict_says_so(
    make_side: Make, make_noisy: Noisy
) -> None:
    base, current = make_noisy(6, cells=1, sd=0.17, effect=0.25)

    outcome = judge_paired(make_side(base), make_side(current), Rules())

    assert judge_paired(make_side(base), make_side(current), Rules(max_noise=0.9)).verdict is Verdict.REGRESSED
    cell = outcome.cells[0]
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert re.fullmatch(
        r"noise: a side .* by \d+\.\d % .* up to \d+\.\d %; no change beyond that is proven", cell.reason
    )
    assert (outcome.exit_code(), outcome.exit_code(strict=True)) == (0, 4)


@pytest.mark.parametrize(("effect", "verdict"), [(5.24, Verdict.REGRESSED), (1 / 6.24 - 1, Verdict.IMPROVED)])
def test_noise_does_not_veto_a_change_that_it_cannot_make(
    effect: float, verdict: Verdict, make_side: Make, make_noisy: Noisy
) -> None:
    """3.87 -> 24.2 us, a side 17 % apart from itself: once called inconclusive, with exit code 0."""
    base, current = make_noisy(6, cells=1, sd=0.17, effect=effect)
    stored = replace(make_side(base), spread=SessionSpread(0.02, 8))

    for outcome in (
        judge_paired(make_side(base), make_side(current), Rules()), judge_stored(stored, make_side(current), Rules()),
    ):  # fmt: skip
        cell = outcome.cells[0]
        assert cell.noise is not None
        assert cell.noise > Rules().max_noise
        assert cell.verdict is verdict
        assert cell.reason.startswith("in spite of noise: a side differs from itself by ")
        assert outcome.exit_code() == (verdict is Verdict.REGRESSED)


@pytest.mark.parametrize(("change", "verdict"), [(0.39, Verdict.INCONCLUSIVE), (0.41, Verdict.REGRESSED)])
def test_the_near_end_of_the_interval_decides_under_noise(change: float, verdict: Verdict, make_side: Make) -> None:
    """Both sides wander alike, so that the interval is a point; two launches of a side are up to exp(0.4) apart."""
    base = 20 * np.exp([[0.0, 0.2, 0.0, 0.2, 0.2, 0.4, 0.2, 0.4]])
    current = base * np.exp(change)

    there, back = (judge_paired(make_side(a), make_side(b), Rules()) for a, b in ((base, current), (current, base)))

    assert there.cells[0].noise == pytest.approx(0.2)
    assert there.cells[0].verdict is verdict
    assert back.cells[0].verdict is MIRROR.get(verdict, verdict)


def test_noise_lets_no_cell_be_called_unchanged(make_side: Make) -> None:
    wander = np.exp(0.15 * np.array([[0.0, 1.0] * 4]))

    assert judge_paired(make_side(20 * wander), make_side(20 * wander), Rules()).verdict is Verdict.INCONCLUSIVE


def test_a_noisy_control_that_moved_by_more_than_noise_can_is_a_fault(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(6, sd=0.17, effect=5.0)

    outcome = judge_paired(make_side(base), make_side(current), Rules(controls=("cell000",)))

    assert outcome.faults[0].startswith("control cell cell000 moved by +")


@pytest.mark.parametrize("status", [Status.WRONG, Status.HUNG, Status.CRASHED])
def test_a_cell_that_broke_is_a_regression(status: Status, make_side: Make, make_noisy: Noisy) -> None:
    base, current = map(make_side, make_noisy(7))
    broken = changed(current, cell002=CellData(status, "rank 1: why"))

    there, back = judge_paired(base, broken, Rules()), judge_paired(broken, base, Rules())

    assert (there.cells[2].verdict, there.cells[2].reason) == (Verdict.REGRESSED, f"was ok, is {status}: rank 1: why")
    assert there.exit_code() == 1
    assert (back.cells[2].verdict, back.exit_code()) == (Verdict.IMPROVED, 0)


FAULTS = {
    "wrong on both": ({"cell001": CellData(Status.WRONG, "x")}, {"cell001": CellData(Status.WRONG, "x")}),
    "not run": ({}, {"cell001": CellData(Status.NOT_RUN, "budget")}),
    "no longer supported": ({}, {"cell001": CellData(Status.UNSUPPORTED, "no such kernel")}),
    "a launch lost": ({}, {"cell001": CellData(Status.OK, "", (20.0,) * 15, (100,) * 15)}),
    "other samples": ({}, {"cell001": CellData(Status.OK, "", (20.0,) * 16, (50,) * 16)}),
    "below the floor": ({}, {"cell001": CellData(Status.OK, "", (20.0,) * 16, (100,) * 16, "its floor is 2 us")}),
    "a cell more": ({}, {"cell999": CellData(Status.OK, "", (20.0,) * 16, (100,) * 16)}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_pass_counts_only_if_the_gate_looked(name: str, make_side: Make, make_noisy: Noisy) -> None:
    """Even beside a regression: invalid comes first, and the cell at fault is named."""
    base, current = map(make_side, make_noisy(8, effect=0.3))
    before, now = FAULTS[name]

    outcome = judge_paired(changed(base, **before), changed(current, **now), Rules())

    assert outcome.exit_code() == 3
    assert set(verdicts(outcome).values()) == {Verdict.INVALID}
    assert any(fault.startswith(("cell001: ", "cell999: ")) for fault in outcome.faults)


def test_unsupported_on_both_sides_is_listed_and_not_judged(make_side: Make, make_noisy: Noisy) -> None:
    base, current = map(make_side, make_noisy(9))
    without = {"cell003": CellData(Status.UNSUPPORTED, "needs NVLink")}

    outcome = judge_paired(changed(base, **without), changed(current, **without), Rules())

    assert outcome.not_compared == (("cell003", "unsupported on both sides: needs NVLink"),)
    assert "cell003" not in verdicts(outcome)
    assert outcome.exit_code(strict=True) == 0


def test_too_few_or_unbalanced_launches_are_no_verdict(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(10)

    few = judge_paired(make_side(base[:, :7]), make_side(current[:, :7]), Rules())
    lame = judge_paired(make_side(base), make_side(current[:, :15]), Rules())

    assert few.faults == ("7 of at least 8 pairs of launches were measured",)
    assert lame.exit_code() == 3


def test_problems_of_a_file_are_no_verdict(make_side: Make, make_noisy: Noisy) -> None:
    base, current = map(make_side, make_noisy(11))

    outcome = judge_paired(base, replace(current, problems=("samples.jsonl line 3: damaged",)), Rules())

    assert outcome.faults == ("side: samples.jsonl line 3: damaged",)


def test_another_machine_is_not_compared_unless_that_is_meant(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(12)
    hard = {"fabric": "pcie", "gpu": "X", "torch": "2.10.0", "nccl": "2.28.9"}
    sides = make_side(base), make_side(current, hard=hard)

    refused = judge_paired(*sides, Rules())
    allowed = judge_paired(*sides, Rules(allow_mismatch=("torch",)))

    assert refused.faults == ("torch differs: 2.9.0 in the base, 2.10.0 now; --allow-mismatch torch if that is meant",)
    assert allowed.exit_code() == 0
    assert allowed.notes == ("torch: 2.9.0 in the base, 2.10.0 now",)


def test_two_fabrics_are_never_compared(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(13)

    outcome = judge_paired(make_side(base), make_side(current, hard={"fabric": "shared-gpu"}), Rules())

    assert outcome.exit_code() == 3
    assert any("fabric differs: pcie in the base, shared-gpu now; never comparable" in f for f in outcome.faults)
    with pytest.raises(UsageError, match="never comparable"):
        Rules(allow_mismatch=("fabric",))


@pytest.mark.parametrize(
    "settings_", [{"alpha": 0.0}, {"alpha": float("nan")}, {"min_effect": 1.5}, {"looks": (4, 8)}, {"looks": (8, 8)},
                  {"looks": ()}, {"min_abs_us": -1.0}, {"max_noise": 0.0}],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(settings_: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Rules(**settings_)  # type: ignore[arg-type]  # on purpose


def test_a_stored_baseline_without_its_spread_judges_nothing(make_side: Make, make_noisy: Noisy) -> None:
    base, current = map(make_side, make_noisy(14, effect=2.0))

    outcome = judge_stored(base, current, Rules())

    assert set(verdicts(outcome).values()) == {Verdict.INCONCLUSIVE}
    assert "no between_session_sd in the base" in outcome.cells[0].reason
    assert outcome.exit_code(strict=True) == 4


def test_a_stored_baseline_with_its_spread_catches_what_stands_out(make_side: Make, make_noisy: Noisy) -> None:
    base, current = make_noisy(15, effect=0.3)
    known = replace(make_side(base), spread=SessionSpread(0.01, 10))

    outcome = judge_stored(known, make_side(current), Rules())

    assert outcome.cells[0].verdict is Verdict.REGRESSED
    assert Verdict.REGRESSED not in {cell.verdict for cell in outcome.cells[1:]}
    few = replace(known, spread=SessionSpread(0.01, 4))
    assert judge_stored(few, make_side(current), Rules()).verdict is Verdict.INCONCLUSIVE


def test_300_cells_and_16_blocks_are_judged_at_once(
    make_side: Make, make_noisy: Noisy, budget: Callable[..., Callable[..., Outcome]]
) -> None:
    base, current = map(make_side, make_noisy(16, cells=300))

    outcome = budget(1.5)(lambda: judge_paired(base, current, Rules()))

    assert len(outcome.cells) == 300
