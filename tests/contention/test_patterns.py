"""Builders of the other patterns put the right bytes on the right pairs."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.contention import traffic
from collbench.contention.patterns import (
    all_gather,
    all_to_all,
    coalesced,
    half_ring,
    reduce_scatter,
    skewed_splits,
    through_host,
    tree,
    two_stage_in_turn,
)
from collbench.contention.traffic import Move, Schedule, ring, two_stage
from collbench.errors import UsageError
from collbench.results.records import Call, Collective

STEADY = settings(max_examples=60, deadline=None)  # a busy machine is no error of ours
S = 43_008


def sent(schedule: Schedule) -> Counter[int]:
    found: Counter[int] = Counter()
    for phase in schedule.phases:
        for flow in phase.flows:
            found[flow.src] += round(flow.bytes)
    return found


def received(schedule: Schedule) -> Counter[int]:
    found: Counter[int] = Counter()
    for phase in schedule.phases:
        for flow in phase.flows:
            found[flow.dst] += round(flow.bytes)
    return found


@pytest.mark.parametrize("build", [all_gather, reduce_scatter, all_to_all])
def test_even_patterns_move_all_but_the_own_shard(build: object) -> None:
    """7/8 S out of and into each of 8 ports."""
    schedule = build(Call(S, 8), Move.PULL)  # type: ignore[operator]  # three builders of one shape
    assert set(sent(schedule).values()) == set(received(schedule).values()) == {S * 7 // 8}
    assert {flow.move for flow in schedule.phases[0].flows} == {Move.PULL}


def test_only_a_reduce_scatter_sums() -> None:
    assert reduce_scatter(Call(S, 8)).reduce_bytes == S
    assert all_gather(Call(S, 8)).reduce_bytes == all_to_all(Call(S, 8)).reduce_bytes == 0


def test_splits_for_every_rank_alike() -> None:
    """Elements of 2 bytes to ranks 0, 1 and 2; nobody sends itself its part over a wire."""
    schedule = all_to_all(Call(120, 3, Collective.ALL_TO_ALL, splits=(40, 20, 0)))
    assert {(f.src, f.dst): f.bytes for f in schedule.phases[0].flows} == {
        (0, 1): 40, (1, 0): 80, (2, 0): 80, (2, 1): 40,
    }  # fmt: skip


def test_splits_of_each_rank() -> None:
    schedule = all_to_all(Call(120, 2, Collective.ALL_TO_ALL, splits=(7, 3, 5, 9)))
    assert {(f.src, f.dst): f.bytes for f in schedule.phases[0].flows} == {(0, 1): 6, (1, 0): 10}


@pytest.mark.parametrize("splits", [(1, 2), (1, 2, 3, 4), (1, 2, -3)])
def test_splits_that_do_not_fit(splits: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="splits for 3 ranks: give 3 or 9"):
        all_to_all(Call(120, 3, splits=splits))


@STEADY
@given(st.integers(0, 1 << 20), st.integers(1, 64), st.floats(0, 3))
def test_skewed_splits_keep_every_element(elements: int, world: int, exponent: float) -> None:
    """They sum up, are never negative, and with an exponent of zero differ by one at most."""
    splits = skewed_splits(elements, world, exponent)
    assert sum(splits) == elements
    assert len(splits) == world
    assert min(splits) >= 0
    if exponent == 0:
        assert max(splits) - min(splits) <= 1


def test_skew_makes_the_first_rank_the_busiest() -> None:
    splits = skewed_splits(12_000, 8, 1.0)
    assert splits[0] == pytest.approx(12_000 / sum(1 / k for k in range(1, 9)), abs=1)
    assert list(splits) == sorted(splits, reverse=True)
    into = received(all_to_all(Call(24_000, 8, splits=splits)))
    assert into[0] == max(into.values())


@pytest.mark.parametrize(("elements", "world", "exponent"), [(-1, 2, 1), (1, 0, 1), (1, 2, -1), (1, 2, float("nan"))])
def test_skew_that_is_none(elements: int, world: int, exponent: float) -> None:
    with pytest.raises(UsageError, match="out of range"):
        skewed_splits(elements, world, exponent)


def test_a_tree_on_one_host_is_the_chain() -> None:
    assert tree(Call(S, 8), [range(8)], 2.0, protocol="LL") == traffic.chain(Call(S, 8), 2.0, protocol="LL")


def test_a_tree_on_one_host_follows_the_order_given() -> None:
    flows = tree(Call(S, 3), [(2, 0, 1)]).phases[0].flows
    assert {(f.src, f.dst) for f in flows} == {(2, 0), (0, 2), (0, 1), (1, 0)}


@pytest.mark.parametrize("count", range(2, 18))
def test_trees_over_hosts(count: int) -> None:
    """Each tree joins all hosts; nobody has more than two children in one; every host moves about twice the message."""
    hosts = [(2 * h, 2 * h + 1) for h in range(count)]
    schedule = tree(Call(S, 2 * count), hosts)
    between = [f for f in schedule.phases[0].flows if f.src // 2 != f.dst // 2]
    assert len(between) == 2 * 2 * (count - 1)  # two trees, both directions
    assert {f.bytes for f in between} == {S / 2}
    assert {f.src % 2 for f in between} == {0}
    assert max(sent(Schedule((traffic.Phase(tuple(between)),))).values()) <= 3 * S
    reached, edges = {0}, {(f.src, f.dst) for f in between}
    for _ in range(count):
        reached |= {b for a, b in edges if a in reached}
    assert reached == {2 * h for h in range(count)}


def test_a_tree_grows_with_the_logarithm_of_hosts() -> None:
    steps = [tree(Call(S, n), [(r,) for r in range(n)]).phases[0].steps for n in (2, 4, 8, 16, 32)]
    assert steps == [2, 4, 6, 8, 10]


def test_a_tree_needs_every_rank_once() -> None:
    with pytest.raises(UsageError, match="every rank from 0 to 3 once"):
        tree(Call(S, 4), [(0, 1), (1, 2)])


def test_a_batch_moves_all_bytes_with_the_synchronisations_of_one_call() -> None:
    one, other = traffic.two_stage(Call(S, 8), Move.PULL), traffic.two_stage(Call(2 * S, 8), Move.PULL)
    batch = coalesced([one, other])
    assert sent(batch) == sent(one) + sent(other)
    assert [phase.syncs for phase in batch.phases] == [phase.syncs for phase in one.phases]
    assert batch.reduce_bytes == one.reduce_bytes + other.reduce_bytes
    assert batch.launches == 1


def test_a_batch_is_of_one_shape() -> None:
    with pytest.raises(UsageError, match="different algorithms"):
        coalesced([traffic.ring(Call(S, 8)), traffic.chain(Call(S, 8))])
    with pytest.raises(UsageError, match="no calls"):
        coalesced([])


def test_through_host_moves_the_same_bytes() -> None:
    schedule = traffic.ring(Call(S, 8))
    assert sent(through_host(schedule)) == sent(schedule)
    assert {f.move for f in through_host(schedule).phases[0].flows} == {Move.HOST}


def test_half_a_ring_is_half_of_one() -> None:
    call = Call(4096, 8)
    whole, half = ring(call), half_ring(call)
    assert half.phases[0].steps * 2 == whole.phases[0].steps
    assert [2 * flow.bytes for flow in half.phases[0].flows] == [flow.bytes for flow in whole.phases[0].flows]
    assert (half.reduce_bytes, half_ring(call, sums=True).reduce_bytes) == (0, whole.reduce_bytes)
    assert half_ring(Call(4096, 1)).phases[0].flows == ()


@pytest.mark.parametrize(("ranks", "turns"), [(2, 1), (8, 7)])
def test_a_gather_in_turn_moves_what_two_stages_move(ranks: int, turns: int) -> None:
    """It reads its peers one after the other, its own part too, and fences once, before its sums are read."""
    call = Call(4096, ranks)
    plain, found = two_stage(call, Move.PULL), two_stage_in_turn(call)
    assert [phase.flows for phase in found.phases] == [phase.flows for phase in plain.phases]
    assert [(phase.turns, phase.fences) for phase in found.phases] == [(1, 0), (turns, 1)]
    assert found.own_reads == 1
