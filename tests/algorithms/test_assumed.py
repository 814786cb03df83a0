"""What a machine is assumed to be when only its topology is known."""

from dataclasses import replace

import pytest

from collbench.algorithms import assumed
from collbench.algorithms.base import registry
from collbench.contention.traffic import Move
from collbench.results.records import Call, Fabric
from collbench.topology import catalog
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine


def topology(name: str) -> Topology:
    return catalog.load(catalog.find(name))


@pytest.mark.parametrize(("name", "p2p", "arch"), [
    ("two-flat-gen5-switches", "ok", "sm_120"), ("direct-4x4090-no-p2p", "off", "sm_89"),
    ("cube-mesh-8xv100", "ok", "sm_70"), ("two-arc-b70", "ok", "sm_90"),
])  # fmt: skip
def test_cards_are_known_by_their_names(name: str, p2p: str, arch: str) -> None:
    """Those of other vendors count as usual ones: it is their traffic that is asked for."""
    machine = assumed.assumed_machine(topology(name), Fabric.PCIE, 2)
    assert (machine.facts["p2p"], machine.facts["arch"]) == (p2p, arch)
    assert assumed.usual(machine).facts == {**machine.facts, "arch": "sm_90"}


def test_software_of_nvidia_is_foreign_on_other_cards_only() -> None:
    ring, push = registry()["nccl_ring_ll"], registry()["push"]
    assert assumed.why_foreign(ring, topology("two-arc-b70")) == "made for NVIDIA's GPUs, and these are Intel's"
    assert assumed.why_foreign(push, topology("two-arc-b70")) == ""
    assert assumed.why_foreign(ring, topology("nvswitch-8gpu")) == ""


@pytest.mark.parametrize("off", ["ns", "off", "disabled"])
def test_bytes_are_staged_where_the_machine_or_its_file_says_so(off: str) -> None:
    call = Call(4096, 4)
    flat, apart = topology("two-flat-gen5-switches"), topology("direct-4x4090-no-p2p")
    schedule = registry()["nccl_ring_ll"].traffic(call, flat)

    def moves(machine: Machine) -> set[Move]:
        return {flow.move for phase in assumed.staged(schedule, machine).phases for flow in phase.flows}

    healthy = Machine(flat, Fabric.PCIE, 4, facts={"p2p": "ok"})
    assert moves(healthy) == {Move.PUSH}
    assert moves(replace(healthy, facts={"p2p": off})) == {Move.HOST}
    assert moves(Machine(apart, Fabric.PCIE, 4)) == {Move.HOST}


@pytest.mark.parametrize(("name", "ranks", "said"), [
    ("four-switches-16gpu", 16, "CUDA maps at most 8 peers"), ("direct-4x4090-no-p2p", 4, "no peer access"),
    ("xgmi-mesh-8xmi355x", 8, "these GPUs are AMD's"),
])  # fmt: skip
def test_readers_are_told(name: str, ranks: int, said: str) -> None:
    (note,) = assumed.notes(topology(name), Fabric.PCIE, ranks)
    assert said in note


def test_where_nvlink_does_not_join_all_the_order_of_rings_counts() -> None:
    (note,) = assumed.notes(topology("cube-mesh-8xv100"), Fabric.MIXED, 8)
    assert "NCCL orders its own along NVLinks" in note


def test_an_ordinary_machine_needs_no_note() -> None:
    assert assumed.notes(topology("two-flat-gen5-switches"), Fabric.PCIE, 8) == ()
    assert assumed.notes(topology("four-switches-16gpu"), Fabric.PCIE, 9) == ()
