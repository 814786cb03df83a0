"""NCCL's own estimate: floors and crossovers as its source gives them, and what variants of published rows say."""

import pytest

from collbench.contention.nccl_tuner import Tuner, half_ring_schedule, schedule
from collbench.contention.predict import Model
from collbench.contention.published import Latency, nccl_choice
from collbench.contention.traffic import ring
from collbench.results.records import Call, Mode
from collbench.topology import catalog
from collbench.topology.classes import class_topology
from collbench.topology.graph import Topology


def machine(name: str, generation: int, ranks: int) -> Topology:
    found = class_topology(name, generation, ranks)
    assert found is not None
    return found


def tuner(name: str, generation: int, ranks: int) -> Tuner:
    return Tuner.of(machine(name, generation, ranks), ranks)


FLAT = tuner("1sock-2switch-flat(4gpu/sw)", 5, 8)
HOPPER = tuner("nvswitch", 5, 8)


def row(size: int, variant: str = "v") -> Latency:
    return Latency("x", "m", 8, "1sock-2switch-flat(4gpu/sw)", 5, "nccl", variant, Mode.GRAPH, size, 1.0, "high")


def test_floors() -> None:
    """Ring LL on PCIe 12.6 us with 4 ranks and 20.6 with 8, ring Simple 88.2; on NVLink 15."""
    assert tuner("1switch-4gpu", 5, 4).estimate_us(1, "ring", "LL") == pytest.approx(12.6, abs=0.01)
    assert FLAT.estimate_us(1, "ring", "LL") == pytest.approx(20.6, abs=0.01)
    assert FLAT.estimate_us(1, "ring", "Simple") == pytest.approx(88.2, abs=0.01)
    assert HOPPER.estimate_us(1, "ring", "LL") == pytest.approx(15.0, abs=0.01)


def test_bandwidths_are_those_that_nccl_counts_on() -> None:
    """48 GB/s for 16 lanes of Gen5 and half as much a generation before; 18 links of 20.6 GB/s on Hopper."""
    assert FLAT.gbps == 48.0
    assert tuner("1switch-4gpu", 3, 4).gbps == 12.0
    assert HOPPER.gbps == pytest.approx(18 * 20.6)
    assert (HOPPER.nvlink, FLAT.nvlink) == (4, 0)


def test_ll_moves_no_more_than_141_gbps_on_hopper() -> None:
    more = HOPPER.estimate_us(2 << 20, "ring", "LL") - HOPPER.estimate_us(1 << 20, "ring", "LL")
    assert (1 << 20) * 14 / 8 / more / 1e3 == pytest.approx(141.0)


def test_trees_are_corrected_by_size() -> None:
    """At 1 MiB a tree with LL reaches half of its bandwidth, at 256 B all of it."""
    tenths = {256: 1.0, 1 << 20: 0.5}
    for size, share in tenths.items():
        wire = FLAT.estimate_us(size, "tree", "LL") - FLAT.estimate_us(0, "tree", "LL")
        assert wire == pytest.approx(size * 2 / (48.0 * 0.92 / 3.8 * share) / 1e3)


def test_choice_by_size() -> None:
    """On PCIe LL first and Simple above 1.8 MB, LL128 never; on NVLink LL128 between them."""
    assert FLAT.fastest(1024) == ("ring", "LL")
    assert FLAT.fastest(1 << 20) == ("ring", "LL")
    assert FLAT.fastest(2 << 20) == ("ring", "Simple")
    assert {FLAT.fastest(1 << k)[1] for k in range(8, 28)} == {"LL", "Simple"}
    assert [HOPPER.fastest(1 << k)[1] for k in (10, 23, 30)] == ["LL", "LL128", "Simple"]


def test_what_a_variant_says_counts() -> None:
    assert nccl_choice(FLAT, row(64 << 20)) == ("ring", "Simple")
    assert nccl_choice(FLAT, row(1024, "ring no XML (2 ch, Simple, type SYS)")) == ("ring", "Simple")
    assert nccl_choice(FLAT, row(1024, "tree, LL"))[0] == "tree"


def test_a_variant_may_name_protocols_by_size() -> None:
    """Beyond the last size that a plugin's variant names, the plugin takes Simple, whatever NCCL's table says."""
    tuned, upper = "tuner plugin LL<=448K, LL128 448K-3M", "tuner plugin (LL to 576K)"
    for size, one, other in ((448 << 10, "LL", "LL"), (512 << 10, "LL128", "LL"), (1 << 20, "LL128", "Simple")):
        assert nccl_choice(FLAT, row(size, tuned))[1] == one
        assert nccl_choice(FLAT, row(size, upper))[1] == other
    assert nccl_choice(FLAT, row(4 << 20, tuned))[1] == "Simple"


def test_schedules_are_the_models_own() -> None:
    call = Call(43_008, 8)
    assert schedule(call, "ring", "LL") == ring(call, wire_factor=2.0, protocol="LL")
    assert schedule(call, "tree", "LL128").phases[0].label == "chain"


@pytest.mark.parametrize(("name", "limited"), [("nvswitch-8gpu", True), ("two-flat-gen5-switches", False)])
def test_the_model_limits_ll_on_nvlink_only(name: str, *, limited: bool) -> None:
    """What LL moves at most is a parameter of its own there; terms still add up."""
    found = Model(catalog.load(catalog.find(name))).predict(schedule(Call(4 << 20, 8), "ring", "LL"))
    assert any(part.startswith("nccl.gbps.LL") for part in found.parts) is limited
    assert sum(found.terms_us.values()) == pytest.approx(found.total_us)
    assert sum(part.us for part in found.parts.values()) == pytest.approx(found.total_us)
    other = Model(catalog.load(catalog.find(name))).predict(schedule(Call(4 << 20, 8), "ring", "Simple"))
    assert other.total_us < found.total_us


@pytest.mark.parametrize(
    ("size", "protocol", "factor"), [(16_384, "LL", 2.0), (8 << 20, "LL128", 128 / 120), (64 << 20, "Simple", 1.0)]
)
def test_an_all_gather_is_one_way_round_the_ring(size: int, protocol: str, factor: float) -> None:
    """On eight H200: hops of one round, by which NCCL chooses too."""
    call = Call(size, 8)
    found = half_ring_schedule(call, catalog.load(catalog.find("nvswitch-8xh200")))
    assert (found.protocol, found.wire_factor, found.phases[0].steps) == (protocol, factor, 7)
    assert found.phases[0].flows[0].bytes == size * 7 / 8
