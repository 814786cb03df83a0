"""The routing model: whole rows, the same on every machine, even on average, skewed where asked to."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.algorithms.routing import TOP_K, Skew, route
from collbench.errors import UsageError
from collbench.results.records import Cell, Mode


@given(st.integers(1, 6), st.integers(1, 16), st.floats(0, 3), st.integers(0, 99))
def test_every_token_goes_to_as_many_experts(tokens: int, ranks: int, exponent: float, seed: int) -> None:
    """Nothing is lost and nothing is made: each rank sends top-k rows per token."""
    rows = route(tokens, ranks, exponent, seed)
    assert len(rows) == ranks
    assert all(sum(row) == TOP_K * tokens and min(row) >= 0 for row in rows)


def test_known_counts() -> None:
    """Cells of two machines are comparable only if both route alike: these numbers may never change."""
    assert route(1, 4, 1.0, 0) == ((0, 2, 2, 4), (3, 2, 1, 2), (0, 4, 0, 4), (1, 3, 0, 4))


def test_popularity_makes_one_rank_hot() -> None:
    """With many tokens chance evens out: alike experts load ranks alike, popular ones do not."""
    loads = {z: [sum(column) for column in zip(*route(100, 8, z, 1), strict=True)] for z in (0.0, 1.0)}
    assert max(loads[0.0]) < 1.2 * 800
    assert max(loads[1.0]) > 1.4 * 800


def test_combine_is_dispatch_reversed() -> None:
    there, back = (Skew.parse(f"{kind}:1:5").call(57344, 4, "bfloat16") for kind in ("dispatch", "combine"))
    assert there.bytes == back.bytes
    for a, b in itertools.product(range(4), range(4)):
        assert there.splits[4 * a + b] == back.splits[4 * b + a]
    assert {sum(there.splits[4 * r : 4 * r + 4]) for r in range(4)} == {there.count}


@pytest.mark.parametrize("text", ["even", "dispatch-z0-s0", "combine-z1.25-s7"])
def test_names_are_read_again(text: str) -> None:
    assert Skew.parse(text).name == text


def test_short_forms() -> None:
    assert Skew.parse("dispatch").name == "dispatch-z0-s0"
    assert Skew.parse("combine:1.50:3").name == "combine-z1.5-s3"


@pytest.mark.parametrize("text", ["", "uneven", "dispatch:", "dispatch:-1", "dispatch:1:x", "even:1", "dispatch:1e3"])
def test_other_words_are_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="expected even, dispatch or combine"):
        Skew.parse(text)


def test_a_size_below_one_row_is_one_row() -> None:
    assert Skew.parse("dispatch").call(2, 2, "bfloat16").bytes == 2 * TOP_K


def test_the_name_of_a_cell_holds_the_skew() -> None:
    call = Skew.parse("dispatch:1").call(1024, 2, "float32")
    cell = Cell("a", call, Mode.EAGER, 1, skew="dispatch-z1-s0")
    assert cell.cell_id == "all_to_all/a/-/-/float32/1024/2/eager/1/out/warm/-/dispatch-z1-s0"
    assert Cell.from_row(cell.row()) == cell


def test_nobody_to_send_to() -> None:
    with pytest.raises(UsageError, match="0 tokens"):
        route(0, 2, 0.0, 0)
