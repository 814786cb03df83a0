"""Published copies: flows of a pattern, fair shares, and losses that are learnt from other machines only."""

import math

import pytest

from collbench.contention.bandwidths import Copies, bandwidth_scores, flows_of, losses_of_others
from collbench.contention.published import Bandwidth
from collbench.topology import catalog

FLAT = catalog.load(catalog.find("two-flat-gen5-switches"))


def copies(text: str, total: float, kind: str = "sparse", board: str = "one", direction: str = "write") -> Copies:
    row = Bandwidth("x", "nobody's", "CE copy", direction, "p", total, 50.0)
    return Copies(row, FLAT, tuple(flows_of(text)), kind, board)


@pytest.mark.parametrize(
    ("text", "count"), [("0>4 1>5", 2), ("shift 3", 8), ("all 4", 12), ("all 8", 56), ("cross", 16)]
)
def test_patterns(text: str, count: int) -> None:
    flows = flows_of(text)
    assert len(set(flows)) == count
    assert all(a != b for a, b in flows)


@pytest.mark.parametrize(("k", "links"), [(1, 8), (2, 6), (3, 4), (4, 2)])
def test_the_shift_test_of_two_flat_switches(k: int, links: float) -> None:
    """Of 8 flows, k cross each way and share the uplink; the others run at the port's rate."""
    assert copies(f"shift {k}", 1.0).plain_gbps == pytest.approx(links * 50, rel=1e-6)
    assert copies(f"shift {k}", 1.0).gbps({"duplex": 0.9}) == pytest.approx(links * 45, rel=1e-6)


def test_the_busiest_link_alone() -> None:
    assert copies("0>4 1>5", 1.0).busiest_gbps == pytest.approx(50)
    assert copies("0>1 2>3", 1.0).busiest_gbps == pytest.approx(100)


def test_what_a_row_is_a_witness_of() -> None:
    assert copies("0>1 2>3", 90.0).witness is None, "one direction, one peer: no loss"
    kind, factor = copies("0>4 4>0", 90.0).witness or ("", 0.0)
    assert kind == "duplex"
    assert factor == pytest.approx(0.9)
    kind, factor = copies("all 4", 120.0, "dense", direction="read").witness or ("", 0.0)
    assert kind == "dense read"
    assert factor == pytest.approx(0.6)
    assert copies("all 8", 150.0, "dense").witness is None, "the uplink holds it back, not the ports"


def test_losses_come_from_other_boards_only() -> None:
    rows = [copies("0>4 4>0", 90.0, board="one"), copies("0>4 4>0", 80.0, board="two")]
    rows += [copies("0>4 4>0", 80.0, board="two"), copies("all 4", 110.0, "dense", "two")]
    assert losses_of_others("one", rows) == {"duplex": pytest.approx(0.8), "dense write": pytest.approx(0.55)}
    assert losses_of_others("two", rows) == {"duplex": pytest.approx(0.9)}
    assert losses_of_others("two", rows[1:]) == {}


def test_a_row_without_a_solo_flow_is_left_out_and_counted() -> None:
    from collections import Counter

    left_out: Counter[str] = Counter()
    name = "ASUS ESC8000A-E13P"
    good = Bandwidth("a", name, "CE copy", "write", "2 flows same chip diff GPU", 100.0, 53.5)
    bad = Bandwidth("b", name, "CE copy", "write", "2 flows same chip diff GPU", 100.0, math.nan)
    scores = bandwidth_scores([good, bad], left_out)
    assert {score.n for score in scores} == {1}
    assert sum(left_out.values()) == 1
