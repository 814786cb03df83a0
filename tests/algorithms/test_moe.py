"""All-to-alls as tokens of a mixture-of-experts dispatch, FlashInfer's and DeepEP's above stand-ins.

The stand-ins have the real packages' signatures (test_library_contracts compares them), and FlashInfer's brings rows in
an order of its own; what a GPU would do is not shown.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.algorithms import deepep_runner, flashinfer_moe_runner
from collbench.algorithms.base import registry
from collbench.algorithms.moe_tokens import tokens_of, tokens_problem
from collbench.algorithms.routing import Skew
from collbench.algorithms.shapes import rows_of
from collbench.results.records import Answer, Call, Collective, Fabric
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine
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
    # half of 7,176 elements has no whole pair of vectors
    assert tokens_of(replace(EVEN, world_size=1, splits=(14352,)), 0).width == 4784


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ((8, 8, 8, 8), ""), ((0, 0, 0, 0), ""), ((14352, 7176, 7176, 0), ""), ((4, 4, 4, 4), "rows would have 8 bytes"),
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


PAIR = Skew.parse("dispatch:1:3").call(3 * 114_688, 2, "bfloat16")
DEEPEP = (PAIR, SKEWED, EVEN, replace(PAIR, splits=(0, 64, 0, 128)))


@pytest.mark.parametrize("call", DEEPEP, ids=["pair", "skewed", "even", "to one"])
def test_deepep_s_dispatch_is_an_all_to_all(call: Call, forked: Forked, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (told,) = run(forked, [deepep_runner.IntranodeDispatch], call, tmp_path).values()
    assert [(problem, error) for problem, _, error in told] == [("", "")] * call.world_size
    assert {"imported", "tokens", "buffer"} <= told[0][1].keys()


@pytest.mark.parametrize(
    ("fault", "words"),
    [("closed", "PCIe GPUs only have pairwise NVLink connections"), ("raises", "in another order")],
)
def test_deepep_s_refusals(
    fault: str, words: str, forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its assertions say, and an order that is not the senders'; nothing stays open."""
    pytest.importorskip("torch")
    monkeypatch.setenv("COLLBENCH_FAKE", fault)

    def body(ranks: PipeRanks) -> Any:
        meeting = _Meeting(ranks.rank, ranks.world_size, ranks.pipe, ranks.deadline_s, store=ranks.store)
        _, _, error = judged(meeting, deepep_runner.IntranodeDispatch, PAIR)
        import deep_ep

        return error, deep_ep.Buffer.open

    told = forked(2, body, deadline_s=60.0, store=str(tmp_path / "store"))
    assert [(one.error, one.value[1]) for one in told] == [("", 0)] * 2
    assert all(words in one.value[0] for one in told)


def test_deepep_that_brings_something_else_is_wrong(
    forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("COLLBENCH_FAKE", "silent")
    (told,) = run(forked, [deepep_runner.IntranodeDispatch], PAIR, tmp_path).values()
    assert all("wrong or unwritten" in problem for problem, _, _ in told)


SOFTWARE = {"torch": "2.14.1+cu130", "nvcc": "13.0.88", "flashinfer": "0.7.4", "deep-ep": "0.1.2.post1"}
NODE = Topology(tuple(Node(f"gpu{i}", NodeKind.GPU) for i in range(2)), ())
JOINED = Machine(NODE, Fabric.NVLINK, 2, software=SOFTWARE, facts={"arch": "sm_90", "p2p": "ok"})
NAMES = ("flashinfer_moe_dispatch", "deepep_intranode_dispatch")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("machine", "call", "answer", "words"),
    [
        (JOINED, PAIR, Answer.RUNS, ""),
        (replace(JOINED, fabric=Fabric.PCIE), PAIR, Answer.DOES_NOT_RUN, "needs NVLink between all GPUs"),
        (replace(JOINED, software={"torch": "2.14.1", "nvcc": "13.0.88"}), PAIR, Answer.DOES_NOT_RUN, "not installed"),
        (replace(JOINED, software=SOFTWARE | {"torch": "2.14.1+cpu"}), PAIR, Answer.DOES_NOT_RUN, "is a CPU build"),
        (replace(JOINED, hosts=2, ranks=4), replace(EVEN, world_size=4), Answer.DOES_NOT_RUN, "2 hosts"),
        (JOINED, Call(14_336, 2), Answer.DOES_NOT_RUN, "it is an all_to_all"),
        (JOINED, replace(PAIR, splits=(3, 6, 9, 3)), Answer.DOES_NOT_RUN, "no common divisor"),
        (JOINED, replace(PAIR, dtype="int32"), Answer.DOES_NOT_RUN, "int32"),
        (
            replace(JOINED, ranks=2, topology=Topology(NODE.nodes[:1], ()), share_gpu=True),
            PAIR,
            Answer.UNKNOWN,
            "one GPU",
        ),
    ],
)
def test_what_stands_in_the_way(name: str, machine: Machine, call: Call, answer: Answer, words: str) -> None:
    support = registry()[name].support(machine, call)
    assert support.answer is answer, support
    assert words in support.reason


def test_each_has_rules_of_its_own() -> None:
    """FlashInfer's other releases were not read, and DeepEP's kernels want pairs of vectors and 2, 4 or 8 ranks."""
    flashinfer, deepep = (registry()[name].support for name in NAMES)
    old, ampere = SOFTWARE | {"flashinfer": "0.6.12"}, {"arch": "sm_80", "p2p": "ok"}
    assert flashinfer(replace(JOINED, software=old), PAIR).answer is Answer.UNKNOWN
    assert flashinfer(replace(JOINED, facts=ampere), PAIR).answer is Answer.UNKNOWN
    assert "not 8.0" in deepep(replace(JOINED, facts=ampere), PAIR).reason
    assert "multiples of 32" in deepep(JOINED, replace(PAIR, splits=(8, 8, 8, 8))).reason
    assert flashinfer(JOINED, replace(PAIR, splits=(8, 8, 8, 8)))
    three = replace(JOINED, ranks=3, topology=Topology(tuple(Node(f"gpu{i}", NodeKind.GPU) for i in range(3)), ()))
    assert "2, 4, 8 ranks, not 3" in deepep(three, Skew.parse("dispatch").call(114_688, 3, "bfloat16")).reason


def test_what_they_send_is_the_all_to_all() -> None:
    """Parts for others, once; FlashInfer launches five kernels around it, DeepEP two with two barriers between them."""
    flashinfer, deepep = (registry()[name].traffic(PAIR, NODE) for name in NAMES)
    for schedule in (flashinfer, deepep):
        (phase,) = schedule.phases
        assert [flow.bytes for flow in phase.flows] == [PAIR.splits[1] * 2, PAIR.splits[2] * 2]
    assert (flashinfer.launches, flashinfer.phases[0].syncs, flashinfer.own_reads) == (5, 1, 9)
    assert (deepep.launches, deepep.phases[0].syncs) == (2, 3)
