"""The floor is what the fabric cannot beat, and says what it does not know."""

from dataclasses import replace

import pytest

from collbench.contention.floor import floor
from collbench.contention.parameters import priors
from collbench.contention.patterns import through_host
from collbench.contention.traffic import Move, Phase, Schedule, chain, one_stage, recursive_doubling, ring, two_stage
from collbench.results.records import Call, Fabric, Mode
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology

CALL = Call(43_008, 8)


def box(*, gbps: float | None = 50.0, between: float | None = 50.0, latency: float | None = 0.1) -> Topology:
    """Two switches of four GPUs each, joined by one link."""
    nodes = [Node(f"sw{s}", NodeKind.SWITCH) for s in range(2)] + [Node(f"gpu{g}", NodeKind.GPU) for g in range(8)]
    pairs = [("sw0", "sw1", between), *((f"gpu{g}", f"sw{g // 4}", gbps) for g in range(8))]
    links = [
        Link(*ends, LinkKind.PCIE, capacity_gbps=capacity, latency_us=latency)
        for a, b, capacity in pairs
        for ends in ((a, b), (b, a))
    ]
    return Topology(tuple(nodes), tuple(links))


def pcie(schedule: Schedule, topology: Topology) -> float:
    return floor(schedule, topology, Fabric.PCIE, Mode.GRAPH, ranks=8).us


def test_one_stage_by_hand() -> None:
    """Launch 0.5 + three hops of 0.1 + 16 S over 50 GB/s between the switches; a pull needs the way twice."""
    busy = 16 * 43_008 / 50e3
    limit = floor(one_stage(CALL, Move.PUSH), box(), Fabric.PCIE, Mode.GRAPH, ranks=8)
    assert limit.us == pytest.approx(0.5 + 0.3 + busy)
    assert "busiest link sw0 -> sw1" in limit.text or "busiest link sw1 -> sw0" in limit.text
    assert pcie(one_stage(CALL, Move.PULL), box()) == pytest.approx(0.5 + 0.6 + busy)


@pytest.mark.parametrize(("fabric", "ranks", "launch", "left"), [
    (Fabric.PCIE, 8, 0.5, 0.2), (Fabric.NVLINK, 8, 0.5, 0.2), (Fabric.SHARED_GPU, 8, 1.2, 0.05),
    (Fabric.SHARED_GPU, 2, 0.75, 0.05),
])  # fmt: skip
def test_of_an_early_launch_only_what_must_show_counts(fabric: Fabric, ranks: int, launch: float, left: float) -> None:
    late = one_stage(Call(1024, ranks), Move.PUSH)
    early = replace(late, early=True)
    both = [floor(one, box(), fabric, Mode.GRAPH, ranks=ranks).us for one in (late, early)]
    assert both[0] - both[1] == pytest.approx(launch * (1 - left))


@pytest.mark.parametrize(("ranks", "us"), [(8, 2.02), (2, 1.26)])
def test_what_was_seen_of_early_launches_on_one_h200_is_above_the_floor(ranks: int, us: float) -> None:
    """`one_stage_pull_buffered`, 1,024 B, captured chains, 2026-11-30: the fastest of that day."""
    schedule = replace(one_stage(Call(1024, ranks), Move.PULL), early=True)
    assert floor(schedule, box(), Fabric.SHARED_GPU, Mode.GRAPH, ranks=ranks).us < us


def test_the_port_binds_where_the_switches_are_joined_well() -> None:
    """With ten times the link between the switches, 7 S through a port is the busiest."""
    assert pcie(one_stage(CALL, Move.PUSH), box(between=500.0)) == pytest.approx(0.8 + 7 * 43_008 / 50e3)


def test_two_phases_add_their_paths_and_protocols_their_bytes() -> None:
    """Two-stage has two paths and 4 S between the switches; LL doubles the bytes of a ring."""
    assert pcie(two_stage(CALL, Move.PUSH), box()) == pytest.approx(0.5 + 2 * 0.3 + 4 * 43_008 / 50e3)
    big = Call(1 << 24, 8)
    plain, doubled = pcie(ring(big), box()), pcie(ring(big, 1, 2.0), box())
    assert doubled - plain == pytest.approx(1.75 * (1 << 24) / 50e3)


def test_pipelined_hops_hide_behind_bytes() -> None:
    """A ring's 14 hops bound small messages (mean hop (6 x 0.2 + 2 x 0.3) / 8), its bytes large ones, never both."""
    small, big = pcie(ring(Call(1024, 8)), box()), pcie(ring(Call(1 << 24, 8)), box())
    assert small == pytest.approx(0.5 + 14 * (6 * 0.2 + 2 * 0.3) / 8)
    assert big == pytest.approx(0.5 + 0.2 + 1.75 * (1 << 24) / 50e3)
    assert pcie(chain(Call(1024, 8)), box()) == pytest.approx(0.5 + 14 * (12 * 0.2 + 2 * 0.3) / 14)


def test_a_phase_between_some_pairs_counts_its_shortest_hop() -> None:
    """Distance 1, 2 and 4: 0.2 + 0.2 + 0.3 us, since only the shortest flow is sure to delay what follows."""
    free = box(gbps=None, between=None)
    assert pcie(recursive_doubling(CALL), free) == pytest.approx(0.5 + 0.7)


def test_links_without_numbers_do_not_bind_and_are_named() -> None:
    """Unknown capacities and latencies count as nothing, and the text says how many there are."""
    limit = floor(one_stage(CALL, Move.PUSH), box(gbps=None, between=None, latency=None), Fabric.PCIE, Mode.EAGER)
    assert limit.us == 0.5
    assert "18 of 18 links have no capacity" in limit.text
    assert "no latency" in limit.text
    partly = floor(one_stage(CALL, Move.PUSH), box(between=None), Fabric.PCIE, Mode.EAGER)
    assert "2 of 18 links have no capacity" in partly.text
    assert "busiest link gpu" in partly.text or "busiest link sw0 -> gpu" in partly.text


def below_a_processor(latency: float | None) -> Topology:
    """Four GPUs at one processor, which routes between them too."""
    nodes = [Node("socket0", NodeKind.SOCKET), *(Node(f"gpu{g}", NodeKind.GPU) for g in range(4))]
    ends = [pair for g in range(4) for pair in ((f"gpu{g}", "socket0"), ("socket0", f"gpu{g}"))]
    return Topology(tuple(nodes), tuple(Link(*pair, LinkKind.PCIE, latency_us=latency) for pair in ends))


def test_a_forecast_takes_the_models_latencies_where_the_topology_has_none() -> None:
    """Two links of 0.15 us; a measured cell gets none of it, since priors are no bound."""
    push, bare = one_stage(Call(1024, 4), Move.PUSH), below_a_processor(None)
    told = floor(push, bare, Fabric.PCIE, Mode.GRAPH, known=priors())
    assert told.us == pytest.approx(0.5 + 2 * priors()["latency.pcie"].value)
    assert "8 of 8 links have no latency and take the model's" in told.text
    assert floor(push, bare, Fabric.PCIE, Mode.GRAPH).us == 0.5
    known = floor(push, below_a_processor(0.4), Fabric.PCIE, Mode.GRAPH, known=priors())
    assert known.us == pytest.approx(0.5 + 0.8)


def test_staging_has_both_ways_and_the_memory_in_its_floor() -> None:
    """The request may be on its way before the data are there, so it is not in the floor."""
    ways, load = below_a_processor(0.4), 2 * priors()["latency.memory"].value
    hops = ring(Call(16, 4))
    staged = floor(through_host(hops), ways, Fabric.PCIE, Mode.GRAPH, known=priors())
    assert staged.us == pytest.approx(0.5 + 6 * (0.4 + load + 0.4))
    assert staged.us > floor(hops, ways, Fabric.PCIE, Mode.GRAPH, known=priors()).us


def test_what_the_topology_cannot_answer_is_left_out_with_a_reason() -> None:
    """More ranks than GPUs, or GPUs that nothing joins: only the launch counts."""
    many = floor(one_stage(Call(1024, 16), Move.PUSH), box(), Fabric.NETWORK, Mode.GRAPH)
    assert (many.us, "16 ranks, but the topology has 8 GPUs" in many.text) == (0.5, True)
    apart = Topology((Node("a", NodeKind.GPU), Node("b", NodeKind.GPU)), ())
    lost = floor(one_stage(Call(1024, 2), Move.PUSH), apart, Fabric.PCIE, Mode.GRAPH)
    assert (lost.us, "no route" in lost.text) == (0.5, True)


def test_shared_gpu_and_host_have_launch_and_one_flag_flight() -> None:
    """Links are not used there; two launches cost twice; one rank has no floor."""
    schedule = one_stage(CALL, Move.PUSH)
    shared = floor(schedule, box(), Fabric.SHARED_GPU, Mode.GRAPH, ranks=8)
    assert shared.us == pytest.approx(1.58)
    twice = floor(replace(schedule, launches=2), box(), Fabric.SHARED_GPU, Mode.GRAPH, ranks=8)
    assert twice.us == pytest.approx(2.78)
    assert 0 < floor(schedule, box(), Fabric.HOST, Mode.EAGER, ranks=8).us <= 0.02
    assert floor(schedule, box(), Fabric.PCIE, Mode.EAGER, ranks=8, device="cpu").us <= 0.02
    assert floor(Schedule((Phase(()),)), box(), Fabric.HOST, Mode.EAGER, ranks=1).us == 0


@pytest.mark.parametrize(("ranks", "seen_us"), [(8, 4.61), (8, 4.65), (2, 2.04), (2, 2.36)])
def test_the_fastest_that_was_seen_on_a_shared_gpu_is_above_the_floor(ranks: int, seen_us: float) -> None:
    """Verified one-stage kernels at 1 KiB on one H200 under MPS are not flagged."""
    assert floor(one_stage(Call(1024, ranks), Move.PULL), box(), Fabric.SHARED_GPU, Mode.GRAPH).us < seen_us


def test_nvlink_is_bound_by_its_wires_and_not_by_what_nccl_counts_on() -> None:
    """Eight B300 that pull 16 MiB from seven peers took 150 us: 783 GB/s into each, of 900 on the wires."""
    nodes = [Node("nvswitch", NodeKind.NVSWITCH), *(Node(f"gpu{g}", NodeKind.GPU) for g in range(8))]
    ends = [pair for g in range(8) for pair in ((f"gpu{g}", "nvswitch"), ("nvswitch", f"gpu{g}"))]
    links = [Link(*pair, LinkKind.NVLINK, 5, 18, capacity_gbps=721.8, latency_us=0.15) for pair in ends]
    call = Call(16 << 20, 8)
    limit = floor(one_stage(call, Move.PULL), Topology(tuple(nodes), tuple(links)), Fabric.NVLINK, Mode.GRAPH, ranks=8)
    assert 0.5 + 7 * call.bytes / 900e3 < limit.us < 150
