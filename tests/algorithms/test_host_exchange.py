"""All-to-alls over shared memory: right for even parts and splits, ranks without anything, every number of ranks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collbench.algorithms.base import Runner, registry
from collbench.algorithms.host_exchange import ALGORITHMS, Pull, Push
from collbench.algorithms.routing import Skew
from collbench.contention.traffic import Move
from collbench.measure.verify import Check
from collbench.results.records import Call, Collective, Fabric
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

SLOTS = 3
HOST = Machine(Topology((), ()), Fabric.HOST, 4, facts={"host_arch": "x86_64"})
EVEN = Call(4 * 96, 4, Collective.ALL_TO_ALL, "", "bfloat16")


def verified(runner_class: type[Runner], call: Call, *, turns: int = 4) -> Callable[[Any], str]:
    def body(ranks: Any) -> str:
        with runner_class(ranks, call, SLOTS) as runner:
            check = Check(runner, call, ranks.rank, seed=5)
            for turn in range(turns):
                check.prepare(SLOTS, turn, exact=turn % 2 == 0)
                ranks.barrier()
                for slot in range(SLOTS):
                    runner.launch(slot)
                reason = check.judge().reason
                if reason:
                    return reason
        return ""

    return body


@pytest.mark.parametrize("runner_class", [Push, Pull])
@pytest.mark.parametrize(
    "call",
    [
        EVEN,
        replace(EVEN, dtype="int32"),
        replace(EVEN, splits=(0, 1, 2, 0, 0, 0, 0, 0, 5, 0, 33, 7, 129, 0, 1, 0)),
        replace(EVEN, splits=(0,) * 16),
        Skew.parse("dispatch:1").call(20_000, 4, "float16"),
        Skew.parse("combine:2:3").call(20_000, 4, "float32"),
    ],
)
def test_every_part_arrives(runner_class: type[Runner], call: Call, forked: Any) -> None:
    outcomes = forked(4, verified(runner_class, call))
    assert [(one.value, one.error) for one in outcomes] == [("", "")] * 4


@pytest.mark.parametrize("runner_class", [Push, Pull])
def test_one_rank_sends_to_itself(runner_class: type[Runner], forked: Any) -> None:
    (outcome,) = forked(1, verified(runner_class, Call(64, 1, Collective.ALL_TO_ALL, "", "float32")))
    assert outcome.value == ""


def test_parts_in_the_wrong_order_are_found(forked: Any) -> None:
    """The check would be worth nothing if a rank that swaps two senders' parts passed it."""

    class Swapped(Push):
        def launch(self, i: int) -> None:
            super().launch(i)
            self.y[i][...] = np.roll(self.y[i], 4)

    outcomes = forked(2, verified(Swapped, Call(64, 2, Collective.ALL_TO_ALL, "", "float32")))
    assert all("elements wrong" in one.value for one in outcomes)


def test_memory_that_cannot_be_had_says_how_much_was_asked_for(forked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collbench.algorithms.host_memory._available_bytes", lambda: 1 << 20)
    call = Call(8 << 20, 2, Collective.ALL_TO_ALL, "", "float32")
    for one in forked(2, verified(Push, call)):
        assert one.error.startswith("MemoryError")
        assert "32 MiB of shared memory asked for, 1 MiB available" in one.error


@pytest.mark.parametrize(
    ("machine", "call", "words"),
    [
        (HOST, replace(EVEN, collective=Collective.ALL_REDUCE, op="sum"), "it is an all_to_all"),
        (HOST, replace(EVEN, bytes=386), "not the same for every rank"),
        (HOST, replace(EVEN, splits=(1, 2, 3, 4)), "4 splits for 4 ranks: expected 16"),
        (HOST, replace(EVEN, bytes=16 << 20), "up to 8 MiB"),
        (replace(HOST, hosts=2), EVEN, "2 hosts"),
    ],
)
def test_refusals_say_why(machine: Machine, call: Call, words: str) -> None:
    for algorithm in ALGORITHMS:
        support = algorithm.support(machine, call)
        assert not support
        assert words in support.reason


def test_traffic_is_that_of_the_splits() -> None:
    """A hot rank's port carries what it gets, and nothing travels to oneself."""
    call = Skew.parse("dispatch:1").call(57344, 4, "bfloat16")
    for algorithm in ALGORITHMS:
        assert registry()[algorithm.name] is algorithm
        flows = algorithm.traffic(call, HOST.topology).phases[0].flows
        assert {flow.move for flow in flows} <= {Move.PUSH, Move.PULL}
        for flow in flows:
            assert flow.bytes == 2 * call.splits[4 * flow.src + flow.dst]
        assert sum(flow.bytes for flow in flows) == 2 * sum(
            n for k, n in enumerate(call.splits) if k // 4 != k % 4
        )  # fmt: skip
