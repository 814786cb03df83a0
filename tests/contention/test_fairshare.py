"""Max-min rates and the fluid clock obey their laws."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.contention.fairshare import Usage, max_min, run
from collbench.errors import InvalidError

STEADY = settings(max_examples=60, deadline=None)  # a busy machine is no error of ours
Network = tuple[Usage, np.ndarray[Any, Any]]


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Up to 6 links and 12 flows, each over 1 to 4 links."""
    links = draw(st.integers(1, 6))
    route = st.lists(st.integers(0, links - 1), min_size=1, max_size=4, unique=True)
    routes = draw(st.lists(route, min_size=1, max_size=12))
    coefficient = st.sampled_from([1.0, 1.0, 0.5, 0.0857])
    rows = [[(link, draw(coefficient)) for link in one] for one in routes]
    capacity = draw(st.lists(st.floats(0.5, 100), min_size=links, max_size=links))
    return Usage.of(rows, links), np.array(capacity)


def sizes(count: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(1, 1e6), min_size=count, max_size=count)


def loads(usage: Usage, gbps: Any) -> Any:
    return np.bincount(usage.link, usage.coefficient * gbps[usage.flow], usage.links)


@STEADY
@given(networks(), st.data())
def test_no_link_carries_more_than_it_can_and_none_idles(network: Network, data: st.DataObject) -> None:
    """Every flow is held back by a full link, on which no other flow has a higher rate for its weight."""
    usage, capacity = network
    weights = np.array(
        data.draw(st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=usage.flows, max_size=usage.flows))
    )
    rates = max_min(usage, capacity, weights)
    load = loads(usage, rates.gbps)
    assert (load <= capacity * (1 + 1e-9)).all()
    for flow in range(usage.flows):
        link = rates.bottleneck[flow]
        assert load[link] == pytest.approx(capacity[link])
        sharing = usage.flow[usage.link == link]
        level = rates.gbps / weights
        assert level[flow] >= level[sharing].max() * (1 - 1e-9)


@STEADY
@given(networks(), st.data())
def test_the_order_of_flows_and_links_does_not_matter(network: Network, data: st.DataObject) -> None:
    usage, capacity = network
    size = np.array(data.draw(sizes(usage.flows)))
    order = np.array(data.draw(st.permutations(range(usage.flows))))
    names = np.array(data.draw(st.permutations(range(usage.links))))
    rows: list[list[tuple[int, float]]] = [[] for _ in order]
    for link, flow, cost in zip(usage.link, usage.flow, usage.coefficient, strict=True):
        rows[int(np.flatnonzero(order == flow)[0])].append((int(names[link]), float(cost)))
    shuffled = run(Usage.of(rows, usage.links), capacity[np.argsort(names)], size[order])
    assert shuffled.finish_us == pytest.approx(run(usage, capacity, size).finish_us[order], rel=1e-9)


@STEADY
@given(networks(), st.data())
def test_times_are_proportional_to_bytes(network: Network, data: st.DataObject) -> None:
    usage, capacity = network
    size = np.array(data.draw(sizes(usage.flows)))
    whole = run(usage, capacity, size)
    assert run(usage, capacity, 3 * size).finish_us == pytest.approx(3 * whole.finish_us, rel=1e-9)
    assert run(usage, 2 * capacity, size).finish_us == pytest.approx(whole.finish_us / 2, rel=1e-9)


@STEADY
@given(networks(), st.data())
def test_makespan_is_never_below_the_busiest_link(network: Network, data: st.DataObject) -> None:
    """All bytes of each link need their time; the last event ends the last flow; each flow ends within the makespan."""
    usage, capacity = network
    size = np.array(data.draw(sizes(usage.flows)))
    fluid = run(usage, capacity, size)
    busiest = (loads(usage, size) / capacity).max() / 1e3
    assert fluid.makespan_us >= busiest * (1 - 1e-9)
    assert fluid.finish_us.max() == fluid.makespan_us
    assert 1 <= fluid.events <= usage.flows


@STEADY
@given(networks(), st.data())
def test_merging_ends_changes_little(network: Network, data: st.DataObject) -> None:
    """It is an approximation for thousands of flows; with a dozen it stays within the part that may be merged."""
    usage, capacity = network
    size = np.array(data.draw(sizes(usage.flows)))
    exact, merged = run(usage, capacity, size), run(usage, capacity, size, merge=0.01)
    assert merged.makespan_us == pytest.approx(exact.makespan_us, rel=0.02)
    assert merged.events <= exact.events


@STEADY
@given(networks(), st.data())
def test_a_flow_with_more_bytes_never_ends_earlier(network: Network, data: st.DataObject) -> None:
    """That flow; others may, since a flow that waits elsewhere lets them pass."""
    usage, capacity = network
    size = np.array(data.draw(sizes(usage.flows)))
    flow = data.draw(st.integers(0, usage.flows - 1))
    more = size.copy()
    more[flow] *= data.draw(st.floats(1, 10))
    before, after = run(usage, capacity, size).finish_us[flow], run(usage, capacity, more).finish_us[flow]
    assert after >= before * (1 - 1e-9)


def test_one_flow_more_on_one_link_never_lets_the_others_end_earlier() -> None:
    """On a single shared link; on several links a flow that waits elsewhere may let others pass."""
    alone = run(Usage.of([[(0, 1.0)]] * 3, 1), 10.0, [1e4, 2e4, 3e4]).finish_us
    beside = run(Usage.of([[(0, 1.0)]] * 4, 1), 10.0, [1e4, 2e4, 3e4, 1.5e4]).finish_us
    assert (beside[:3] > alone).all()


def test_a_case_by_hand() -> None:
    """Flows of 100, 100 and 60 KB over links of 10 and 4 GB/s: the second gets the narrow link alone from 30 us on."""
    usage = Usage.of([[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)]], 2)
    assert max_min(usage, [10, 4]).gbps == pytest.approx([8, 2, 2])
    fluid = run(usage, [10, 4], [100e3, 100e3, 60e3])
    assert fluid.finish_us == pytest.approx([12.5, 40, 30])
    assert fluid.bottleneck.tolist() == [0, 1, 1]
    assert fluid.events == 3


def test_a_cap_on_a_flow_is_a_link_of_its_own() -> None:
    usage = Usage.of([[(0, 1.0), (1, 1.0)], [(0, 1.0)]], 2)
    assert max_min(usage, [10, 3]).gbps == pytest.approx([3, 7])


def test_links_without_a_limit_hold_nobody_back() -> None:
    usage = Usage.of([[(0, 1.0)], [(0, 1.0), (1, 1.0)], []], 2)
    rates = max_min(usage, [np.inf, 5.0])
    assert rates.gbps.tolist() == [np.inf, 5, np.inf]
    assert rates.bottleneck.tolist() == [-1, 1, -1]
    assert run(usage, [np.inf, 5.0], 1e4).finish_us == pytest.approx([0, 2, 0])


def test_flows_without_bytes_end_at_once() -> None:
    fluid = run(Usage.of([[(0, 1.0)], [(0, 1.0)]], 1), 10.0, [0, 1e4])
    assert fluid.finish_us == pytest.approx([0, 1])
    assert run(Usage.of([], 1), 10.0, []).makespan_us == 0


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("nan")])
def test_capacity_that_is_none(capacity: float) -> None:
    with pytest.raises(InvalidError, match=r"capacity .*above zero"):
        max_min(Usage.of([[(0, 1.0)]], 1), capacity)


@pytest.mark.parametrize("size", [-1.0, float("nan"), float("inf")])
def test_sizes_that_are_none(size: float) -> None:
    with pytest.raises(InvalidError, match="sizes"):
        run(Usage.of([[(0, 1.0)]], 1), 10.0, size)


def test_weights_must_be_above_zero() -> None:
    with pytest.raises(InvalidError, match="weight 0"):
        max_min(Usage.of([[(0, 1.0)]], 1), 10.0, [0.0])


def switches(count: int, per: int) -> Usage:
    """All pairs of GPUs below `count` switches that meet in one place."""
    n = count * per
    rows = []
    for src in range(n):
        for dst in range(n):
            if src != dst:
                up = [(2 * n + src // per, 1.0), (2 * n + count + dst // per, 1.0)] if src // per != dst // per else []
                rows.append([(src, 1.0), *up, (n + dst, 1.0)])
    return Usage.of(rows, 2 * (n + count))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_merging_ends_of_64_gpus_is_within_half_a_percent(seed: int) -> None:
    """4,032 flows of different size: uniform, and with a heavy tail."""
    usage, dice = switches(8, 8), np.random.default_rng(seed)
    size = dice.uniform(1e4, 1e6, usage.flows) if seed == 1 else dice.pareto(1.2, usage.flows) * 1e4 + 1e3
    exact, merged = run(usage, 54.0, size), run(usage, 54.0, size, merge=0.015)
    assert merged.makespan_us == pytest.approx(exact.makespan_us, rel=0.005)
    assert exact.events == usage.flows
