"""Builders put the bytes on the wires that the patterns need."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.contention.traffic import (
    Move,
    Schedule,
    binomial_tree,
    chain,
    one_stage,
    recursive_doubling,
    ring,
    two_stage,
)
from collbench.results.records import Call
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology

S = 43_008


def two_switches() -> Topology:
    """Two switches of four GPUs each, joined by one link."""
    nodes = [Node(f"sw{s}", NodeKind.SWITCH) for s in range(2)] + [Node(f"gpu{g}", NodeKind.GPU) for g in range(8)]
    pairs = [("sw0", "sw1"), *((f"gpu{g}", f"sw{g // 4}") for g in range(8))]
    links = [Link(*ends, LinkKind.PCIE) for a, b in pairs for ends in ((a, b), (b, a))]
    return Topology(tuple(nodes), tuple(links))


def loads(schedule: Schedule) -> dict[tuple[str, str], float]:
    """Payload per link and direction in units of S."""
    topology, found = two_switches(), Counter[tuple[str, str]]()
    for phase in schedule.phases:
        for flow in phase.flows:
            for link in topology.route(topology.gpus[flow.src], topology.gpus[flow.dst]):
                found[link.src, link.dst] += flow.bytes / S  # type: ignore[assignment]  # a Counter of fractions
    return dict(found)


CALL = Call(S, 8)


@pytest.mark.parametrize(
    ("schedule", "port", "between"),
    [
        (one_stage(CALL, Move.PUSH), 7, 16),
        (one_stage(CALL, Move.PULL), 7, 16),
        (two_stage(CALL, Move.PULL, Move.PUSH), 1.75, 4),
        (recursive_doubling(CALL), 3, 4),
        (ring(CALL), 1.75, 1.75),
        (ring(CALL, channels=4), 1.75, 1.75),
        (chain(CALL), 2, 1),
    ],
)
def test_bytes_per_direction_are_those_of_the_table(schedule: Schedule, port: float, between: float) -> None:
    """Eight ranks on two switches: the busiest port and both directions between the switches, in units of S."""
    found = loads(schedule)
    ports = [load for (a, b), load in found.items() if a.startswith("gpu") or b.startswith("gpu")]
    assert max(ports) == pytest.approx(port)
    assert found["sw0", "sw1"] == found["sw1", "sw0"] == pytest.approx(between)


def test_flows_between_the_switches() -> None:
    """One-stage crosses with 16 flows each way, recursive doubling with 4, a ring with one per channel."""

    def crossing(schedule: Schedule) -> int:
        return max(sum(flow.src < 4 <= flow.dst for flow in phase.flows) for phase in schedule.phases)

    assert crossing(one_stage(CALL, Move.PUSH)) == 16
    assert crossing(recursive_doubling(CALL)) == 4
    assert crossing(ring(CALL)) == 1
    assert crossing(ring(CALL, channels=2)) == 2


@given(st.integers(1, 16), st.sampled_from([16, 1000, 43_008]))
def test_every_rank_can_know_every_input(world: int, size: int) -> None:
    """Following the flows phase by phase, each rank has heard of all ranks at the end, for every world size."""
    call = Call(size, world)
    for schedule in (
        one_stage(call, Move.PUSH), two_stage(call, Move.PUSH), ring(call), chain(call),
        recursive_doubling(call), binomial_tree(call),
    ):  # fmt: skip
        known = [{rank} for rank in range(world)]
        for phase in schedule.phases:
            for _ in range(phase.steps):
                before = [set(heard) for heard in known]
                for flow in phase.flows:
                    assert flow.src != flow.dst
                    assert flow.bytes > 0
                    known[flow.dst] |= before[flow.src]
        assert known == [set(range(world))] * world


@given(st.integers(2, 16))
def test_no_pattern_moves_less_than_an_all_reduce_must(world: int) -> None:
    """Some rank receives at least 2 (n-1)/n S, the least for an all-reduce that sums in the ranks."""
    call = Call(S, world)
    for schedule in (
        one_stage(call, Move.PUSH), two_stage(call, Move.PUSH), ring(call), chain(call),
        recursive_doubling(call), binomial_tree(call),
    ):  # fmt: skip
        received = [0.0] * world
        sent = [0.0] * world
        for phase in schedule.phases:
            for flow in phase.flows:
                received[flow.dst] += flow.bytes
                sent[flow.src] += flow.bytes
        assert max(received + sent) >= 2 * (world - 1) / world * S * (1 - 1e-12)


def test_steps_and_protocols() -> None:
    """Rings and chains take 2 (n-1) dependent hops; wire factor and protocol are passed on; one rank moves nothing."""
    low_latency = ring(CALL, 2, 2.0, protocol="LL")
    assert (low_latency.phases[0].steps, low_latency.wire_factor, low_latency.protocol) == (14, 2.0, "LL")
    assert chain(CALL).phases[0].steps == 14
    alone = Call(S, 1)
    for schedule in (one_stage(alone, Move.PUSH), two_stage(alone, Move.PUSH), ring(alone), chain(alone)):
        assert not any(phase.flows for phase in schedule.phases)
