"""k messages in one call: right for every slot, one inner call per k, and times that are per message."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.algorithms import batch_runner
from collbench.algorithms.base import Runner, registry
from collbench.algorithms.coalesced import ALGORITHMS, BATCHES
from collbench.measure.plan import Options, make_plan
from collbench.measure.verify import Check
from collbench.results.records import Call, Fabric, Mode
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

HOST = Machine(Topology((), ()), Fabric.HOST, 2, facts={"host_arch": "x86_64"})
CALL = Call(1024, 2, dtype="float32")


def verified(runner_class: type[Runner], call: Call, calls: int) -> Callable[[Any], list[str]]:
    def body(ranks: Any) -> list[str]:
        with runner_class(ranks, call, calls) as runner:
            check = Check(runner, call, ranks.rank, seed=5)
            reasons = []
            for turn in range(3):
                check.prepare(calls, turn, exact=turn != 1)
                ranks.barrier()
                for slot in range(calls):
                    runner.launch(slot)
                reasons.append(check.judge().reason)
            proof = runner.proof()
            return [*reasons, proof.reason]

    return body


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kind", ["host_one_stage_push__joined", "host_two_stage__joined", "host_two_stage__bucket"])
def test_every_message_of_a_batch_is_right(kind: str, batch: int, forked: Any) -> None:
    outcomes = forked(2, verified(getattr(batch_runner, f"{kind}__{batch}"), CALL, 2 * batch))
    assert [(one.value, one.error) for one in outcomes] == [([""] * 4, "")] * 2


@pytest.mark.parametrize("kind", ["joined", "bucket", "coalesced"])
def test_gloo_does_too(kind: str, forked: Any, tmp_path: Any) -> None:
    """Calls that are no multiple of k still end right: the last batch has room."""
    pytest.importorskip("torch")
    runner_class = getattr(batch_runner, f"gloo__{kind}__2")
    outcomes = forked(2, verified(runner_class, replace(CALL, dtype="bfloat16"), 3), store=str(tmp_path / "store"))
    assert [(one.value, one.error) for one in outcomes] == [([""] * 4, "")] * 2


def test_a_batch_that_leaves_a_message_out_is_found(forked: Any) -> None:
    class Forgetful(batch_runner.Joined):
        base, batch = "host_two_stage", 2

        def _part(self, array: Any, i: int) -> Any:
            return array[: self.call.count] if i % 2 else super()._part(array, i)

    for one in forked(2, verified(Forgetful, CALL, 4)):
        assert any("wrong" in reason for reason in one.value)


def test_one_inner_call_per_batch() -> None:
    """What is saved is launches: k - 1 of k launches do nothing."""
    launched: list[int] = []
    runner: Any = object.__new__(batch_runner.__getattr__("host_two_stage__joined__8"))
    runner._inner = SimpleNamespace(launch=launched.append)
    for slot in range(24):
        runner.launch(slot)
    assert launched == [0, 1, 2]


def test_nccls_group_has_k_calls() -> None:
    calls: list[int] = []
    runner: Any = object.__new__(batch_runner.__getattr__("nccl_auto__grouped__2"))
    runner._bound = [("ncclAllReduce", k) for k in range(4)]
    runner._calls = SimpleNamespace(group=lambda bound, stream: calls.append(len(bound) * 100 + stream))
    for slot in range(4):
        runner._enqueue(slot, 7)
    assert calls == [207, 207]


def test_only_known_kinds_exist() -> None:
    for name in ("gloo__joined__x", "gloo__welded__2", "gloo"):
        with pytest.raises(AttributeError):
            getattr(batch_runner, name)


def test_the_plan_rounds_calls_up_to_whole_batches() -> None:
    """122 calls are 61 pairs, and 16 batches of 8 with 6 calls more; one isolated call becomes one batch."""
    chosen = [registry()[f"host_two_stage_joined_{k}"] for k in BATCHES]
    plan = make_plan(Options(sizes=(1024,), modes=(Mode.EAGER,)), HOST, chosen)
    assert [cell.calls for cell in plan.cells] == [2, 122, 8, 128]


def test_support_and_traffic_are_those_of_the_joined_message() -> None:
    joined, plain = registry()["host_two_stage_joined_8"], registry()["host_two_stage"]
    assert joined.support(HOST, CALL)
    assert "up to 8 MiB" in joined.support(HOST, Call(2 << 20, 2, dtype="float32")).reason
    larger = plain.traffic(replace(CALL, bytes=8 * CALL.bytes), HOST.topology)
    assert joined.traffic(CALL, HOST.topology) == larger


def test_names_and_families() -> None:
    """They are asked for by name or family; a sweep that names nothing leaves them out."""
    assert {a.family for a in ALGORITHMS} == {"coalesced"}
    assert {a.batch for a in ALGORITHMS} == set(BATCHES)
    names = {a.name for a in ALGORITHMS}
    assert {"nccl_grouped_2", "gloo_coalesced_8", "push_joined_2", "nccl_ring_ll_bucket_2"} <= names
