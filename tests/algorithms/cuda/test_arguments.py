"""Buffers, islands, epochs and error records, in Python."""

import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collbench.algorithms.cuda.arguments import (
    CONTROL_BYTES,
    EMPTY_WORDS,
    Args,
    Islands,
    first_count,
    halves,
    plan,
    read_error,
)  # fmt: skip
from collbench.algorithms.cuda.compile import KERNELS
from collbench.errors import UsageError


@given(
    kernel=st.sampled_from(KERNELS), world_size=st.integers(2, 16), size=st.integers(16, 8 << 20),
    dtype=st.sampled_from(sorted(EMPTY_WORDS)),
)  # fmt: skip
def test_a_rank_needs_at_most_three_times_all_messages(kernel: str, world_size: int, size: int, dtype: str) -> None:
    """Control block and buffers stay within 3 x n x message + 64 KiB, and the fills cover the buffers without a gap."""
    made = plan(kernel, world_size, dtype, size)
    assert made.region_bytes <= 3 * world_size * size + 65536
    at = CONTROL_BYTES
    for offset, length, _ in made.fills:
        assert offset == at
        assert length % 16 == 0
        at += length
    assert kernel == "one_stage_pull" or at == made.region_bytes


@given(st.integers(2, 16), st.data())
def test_islands_of_any_split_keep_the_bound(world_size: int, data: st.DataObject) -> None:
    """Even one rank alone beside all the others."""
    ranks = data.draw(st.permutations(range(world_size)))
    cuts = sorted(data.draw(st.sets(st.integers(1, world_size - 1), max_size=3)))
    groups = tuple(tuple(ranks[a:b]) for a, b in zip([0, *cuts], [*cuts, world_size], strict=True))
    assume(world_size == 2 or sum(len(group) == 1 for group in groups) <= 1)
    islands = Islands(groups)
    assert Islands.parse(islands.text) == islands
    size = 1 << 20
    assert plan("islands", world_size, "bfloat16", size, islands).region_bytes <= 3 * world_size * size + 65536


def test_islands_give_every_rank_its_view() -> None:
    """Rank 1 of 0,1,2;3,4: its group, the owners in it, and the owner of its chunk in the other group."""
    args = Args(rank=1)
    Islands(((0, 1, 2), (3, 4))).fill(args)
    assert (args.members, args.owners_mask, args.partners) == (0b00111, 0b00011, 0b10000)
    assert (args.groups, args.owners, args.largest) == (2, 2, 3)
    assert (list(args.group[:5]), list(args.index[:5])) == ([0, 0, 0, 1, 1], [0, 1, 2, 0, 1])


@pytest.mark.parametrize("text", ["", "0,1;1", "0,2", "0,x", "0,1;"])
def test_islands_that_are_none(text: str) -> None:
    """Every rank stands in exactly one group."""
    with pytest.raises(UsageError, match="expected"):
        Islands.parse(text)


def test_halves() -> None:
    """Without a topology: two groups of neighbours from four ranks on."""
    assert [halves(n).text for n in (2, 4, 5)] == ["0,1", "0,1;2,3", "0,1;2,3,4"]


@given(epoch=st.integers(0, (1 << 48) - 1), warps=st.integers(1, 1024), order=st.randoms(use_true_random=False))
def test_every_warp_of_a_call_reads_its_epoch(epoch: int, warps: int, order: object) -> None:
    """Warps add 65536 together, each after its own read: all read one epoch, whatever their order."""
    parts = [65536 - (warps - 1)] + [1] * (warps - 1)
    order.shuffle(parts)  # type: ignore[attr-defined]
    count = first_count(epoch)
    for part in parts:
        assert (count >> 16) % (1 << 48) == epoch
        count = (count + part) % (1 << 64)
    assert count == first_count((epoch + 1) % (1 << 48))


def test_no_error_record() -> None:
    """A clean control block holds none."""
    assert read_error(bytes(128)) is None


def test_error_record_in_words() -> None:
    """Who waited for whom, for what, in which call, how long."""
    body = struct.pack("<IIIIIIIIQQ", 1, 2, 3, 0b101, 7, 9, 11, 0, 1 << 33, 2_000_000_000)
    record = read_error(bytes(64) + body + bytes(64 - len(body)))
    assert str(record) == (
        "rank 3 waited 2.00 s for the start barrier from rank 0, 2 (call 8589934592, block 7, thread 9, place 11)"
    )
