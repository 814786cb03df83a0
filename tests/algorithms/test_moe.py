"""All-to-alls as tokens of a mixture-of-experts dispatch, and FlashInfer's dispatch above a stand-in.

The stand-in has the real package's signatures (test_library_contracts compares them) and brings rows in an order of its
own; what a GPU would do is not shown.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.algorithms import flashinfer_moe_runner
from collbench.algorithms.moe_tokens import tokens_of, tokens_problem
from collbench.algorithms.routing import Skew
from collbench.algorithms.shapes import rows_of
from collbench.results.records import Call, Collective
from tests.algorithms.conftest import Forked, PipeRanks
from tests.algorithms.test_library_runners import FAKES, ROOT, _Meeting, judged, run

EVEN = Call(4 * 7168 * 2, 4, Collective.ALL_TO_ALL, "")
SKEWED = Skew.parse("dispatch:1:3").call(3 * 114_688, 4, "bfloat16")
SPARSE = replace(EVEN, bytes=96, world_size=3, dtype="float32", splits=(0, 16, 4, 28, 0, 0, 8, 8, 8))
NOTHING = replace(SPARSE, splits=(0, 0, 0, 0, 0, 20, 0, 0, 0))


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is importable here and in processes that are started."""
    monkeypatch.setenv("PYTHONPATH", f"{FAKES}:{ROOT}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(FAKES))


@pytest.mark.parametrize("call", [EVEN, SKEWED, SPARSE, NOTHING], ids=["even", "skewed", "sparse", "one part"])
def test_tokens_find_their_places(call: Call) -> None:
    """Sent by every rank and laid down by expert, `y` is what an all-to-all would have brought."""
    rows, n = rows_of(call), call.world_size
    plans = [tokens_of(call, rank) for rank in range(n)]
    width = plans[0].width
    assert {(plan.width, plan.most, plan.experts) for plan in plans} == {(width, plans[0].most, plans[0].experts)}
    for me, plan in enumerate(plans):
        assert len(plan.chosen) * width == sum(rows[me])
        got: list[Any] = [None] * (plan.came + 1)
        for source, sender in enumerate(plans):
            targets = [expert * n // plan.experts for expert in sender.chosen]
            assert targets == sorted(targets)
            for k, expert in enumerate(sender.chosen):
                if targets[k] == me:
                    assert plan.places[expert] < plan.came
                    got[plan.places[expert]] = (source, k - targets.index(me))
        wanted = [(source, j) for source in range(n) for j in range(rows[source][me] // width)]
        assert got == [*wanted, None]
        assert plan.places[plan.experts] == plan.came


def test_tokens_are_at_most_those_of_a_model() -> None:
    assert tokens_of(EVEN, 0).width == 7168
    assert tokens_of(replace(EVEN, bytes=1 << 20), 0).width == 4096
    assert tokens_of(SKEWED, 0).width == 7168
    assert tokens_of(NOTHING, 1).most == 1


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ((8, 8, 8, 8), ""), ((3, 3, 3, 3), ""), ((3, 6, 9, 3), "tokens of 16 to 14336 bytes"),
        ((7177, 0, 0, 7177), "no common divisor"),
    ],
)  # fmt: skip
def test_parts_without_a_common_measure_are_refused(splits: tuple[int, ...], words: str) -> None:
    reason = tokens_problem(Call(64, 2, Collective.ALL_TO_ALL, "", "bfloat16", splits))
    assert bool(reason) == bool(words)
    assert words in reason


@pytest.mark.parametrize("call", [EVEN, SKEWED, SPARSE, NOTHING], ids=["even", "skewed", "sparse", "one part"])
def test_the_dispatch_is_an_all_to_all(call: Call, forked: Forked, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (told,) = run(forked, [flashinfer_moe_runner.Dispatch], call, tmp_path).values()
    assert [(problem, error) for problem, _, error in told] == [("", "")] * call.world_size
    assert {"imported", "built get_nvlink_one_sided_alltoall_module", "tokens"} <= told[0][1].keys()


def test_consecutive_calls_take_turns_and_nothing_stays(forked: Forked, tmp_path: Path) -> None:
    """Between two workspaces, which the package would make one of if they were alike; both are gone behind it."""
    pytest.importorskip("torch")

    def body(ranks: PipeRanks) -> Any:
        meeting = _Meeting(ranks.rank, ranks.world_size, ranks.pipe, ranks.deadline_s, store=ranks.store)
        outcome = judged(meeting, flashinfer_moe_runner.Dispatch, SPARSE)
        from flashinfer.moe_ep.backends.split.comm.nvlink_one_sided import communication

        theirs = communication.NVLinkOneSidedAlltoAll
        state = {"round_owner": 1}
        with pytest.raises(RuntimeError, match="twice"):  # what was put aside is back
            communication.check_round_owner(None, state)
        return outcome[0], outcome[2], theirs.DISPATCHED[-4:], len(theirs.WORKSPACES)

    told = forked(3, body, deadline_s=60.0, store=str(tmp_path / "store"))
    assert [(one.error, one.value[:2], one.value[3]) for one in told] == [("", ("", ""), 0)] * 3
    for one in told:
        first, second, *again = one.value[2]
        assert first != second
        assert again == [first, second]


def test_a_dispatch_that_moves_nothing_is_wrong(
    forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("COLLBENCH_FAKE", "silent")
    (told,) = run(forked, [flashinfer_moe_runner.Dispatch], SKEWED, tmp_path).values()
    assert all("wrong or unwritten" in problem for problem, _, _ in told)


def test_a_machine_without_nvlink_is_a_refusal(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the package's own words, on every rank."""
    pytest.importorskip("torch")
    monkeypatch.setenv("COLLBENCH_FAKE", "closed")
    (told,) = run(forked, [flashinfer_moe_runner.Dispatch], replace(SPARSE, splits=()), tmp_path).values()
    (error,) = {error for _, _, error in told}
    assert error.startswith("FlashInfer: NVLink backends are not supported on EP ranks")
