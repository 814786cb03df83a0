"""NCCL's kernels on symmetric memory: what it estimates and picks, and what the model makes of them."""

import pytest

from collbench.algorithms.base import registry
from collbench.contention.nccl_symmetric import Kernel, estimate_us, pick, schedule
from collbench.contention.nccl_tuner import Tuner
from collbench.contention.predict import Model
from collbench.contention.traffic import multicast
from collbench.results.records import Call
from collbench.topology import catalog
from collbench.topology.classes import class_topology

LL, STAGES, SWITCH = Kernel(True, False), Kernel(False, False), Kernel(False, True)
HOPPER, BLACKWELL, DOMAIN = (Tuner(n, "nvlink", gbps, nvlink) for n, gbps, nvlink in (
    (8, 370.8, 4), (8, 721.8, 5), (32, 721.8, 5),
))  # fmt: skip


def test_floors_are_nccls() -> None:
    """4.5 and 7.8 us on Hopper, 11 and 19.5 on Blackwell; NCCL's smooth maximum adds a third of a microsecond."""
    for tuner, ll, other in ((HOPPER, 4.5, 7.8), (BLACKWELL, 11.0, 19.5)):
        for kernel, least in ((LL, ll), (STAGES, other), (SWITCH, other)):
            found = estimate_us(tuner, 1, kernel)
            assert found is not None
            assert found[0] == pytest.approx(least + 0.313, abs=0.01)
            assert found[1] == 1, "one block is enough"


def test_bytes_go_at_the_peak() -> None:
    """64 MiB through the switch on 8 Hopper: (1 + 1/8) S at 480 GiB/s."""
    found = estimate_us(HOPPER, 64 << 20, SWITCH)
    assert found is not None
    assert found[0] == pytest.approx(7.8 - 1 + (64 << 20) * 1.125 / (480 * (1 << 30) / 1e6), rel=0.03)


def test_no_kernels_elsewhere() -> None:
    assert estimate_us(Tuner(8, "pcie", 48.0), 1024, LL) is None
    assert pick(Tuner(8, "nvlink", 300.0, 3), 1024) is None


def test_choice_by_size_and_ranks() -> None:
    """LL while everybody's bytes are few, then the switch; two ranks have no use for it."""
    sizes = {size: found[0] for size in (1 << k for k in range(10, 24)) if (found := pick(DOMAIN, size))}
    assert [sizes[size] for size in (1024, 8192, 16_384, 1 << 22)] == [LL, LL, SWITCH, SWITCH]
    two = pick(Tuner(2, "nvlink", 721.8, 5), 64 << 20)
    assert two is not None
    assert two[0] == STAGES


def test_without_multicast_the_switch_sums_nothing() -> None:
    """As under NCCL_NVLS_ENABLE=0, which every sweep sets."""
    kernels = [found[0] for size in (1024, 1 << 22) if (found := pick(HOPPER, size, multicasts=False))]
    assert kernels == [LL, STAGES]


def test_the_algorithm_of_that_name_has_nccls_base() -> None:
    """Seen on two H200: 3.7 us for 1 KiB, captured, of which a push with flags explains 1.4."""
    topology = catalog.load(catalog.find("two-h200-nvlink"))
    small, large = (registry()["nccl_symmetric"].traffic(Call(size, 2), topology) for size in (1024, 1 << 22))
    assert (small.protocol, large.protocol) == ("SymmetricLL", "Symmetric")
    assert Model(topology).predict(small).terms_us["protocol"] > 2.3
    pcie = catalog.load(catalog.find("two-flat-gen5-switches"))
    assert registry()["nccl_symmetric"].traffic(Call(1024, 2), pcie).protocol == "flag in every 8 bytes"


@pytest.mark.parametrize("kernel", [LL, STAGES, SWITCH])
@pytest.mark.parametrize(("generation", "card"), [(5, HOPPER), (6, BLACKWELL)])
def test_the_model_starts_from_nccls_floors(kernel: Kernel, generation: int, card: Tuner) -> None:
    topology = class_topology("nvswitch", generation, 8)
    assert topology is not None
    found = Model(topology, ranks=8).predict(schedule(Call(16, 8), kernel))
    floor = estimate_us(card, 16, kernel)
    assert floor is not None
    assert found.total_us == pytest.approx(floor[0], rel=0.06)
    assert found.terms_us["sync"] == 0.0, "it is part of NCCL's base"
    assert sum(part.us for part in found.parts.values()) == pytest.approx(found.total_us)


def test_multicast_loads_a_port_with_the_message_and_one_share() -> None:
    found = multicast(Call(8000, 8))
    for end in ("src", "dst"):
        loads = [sum(f.bytes for f in found.phases[0].flows if getattr(f, end) == rank) for rank in range(8)]
        assert loads == [9000.0] * 8
    assert not multicast(Call(8000, 1)).phases[0].flows
