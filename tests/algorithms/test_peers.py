"""Peers' records: where they run, what their own gates would have said, what they send."""

from dataclasses import replace

import pytest

from collbench.algorithms.base import registry, select
from collbench.algorithms.vllm import gate
from collbench.contention.traffic import Move
from collbench.results.records import Answer, Call, Collective, Fabric, Support
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine

SOFTWARE = {"torch": "2.11.0+cu130", "cuda-bindings": "13.5.0", "flashinfer": "0.7.4", "nvcc": "13.0.88"}
GPUS = Topology(tuple(Node(f"gpu{i}", NodeKind.GPU) for i in range(8)), ())
MACHINE = Machine(GPUS, Fabric.PCIE, 8, software=SOFTWARE, facts={"arch": "sm_90", "p2p": "ok"})
VLLM = ("vllm_one_stage", "vllm_two_stage")
FLASHINFER = ("flashinfer_pcie_push", "flashinfer_pcie_flat", "flashinfer_pcie_block", "flashinfer_pcie_ring")


def without(name: str) -> Machine:
    return replace(MACHINE, software={k: v for k, v in SOFTWARE.items() if k != name})


def support(name: str, where: Machine, call: Call) -> Support:
    return registry()[name].support(where, call)


def test_families_are_known_by_name() -> None:
    """Beside those of the packages' own Python interfaces."""
    assert set(VLLM) < {a.name for a in select("vllm", registry())}
    assert set(FLASHINFER) < {a.name for a in select("flashinfer", registry())}


@pytest.mark.parametrize("name", VLLM + FLASHINFER)
def test_runs_where_everything_is_there(name: str) -> None:
    """Eight ranks, the sizes of a decode step; headers given by hand need no package."""
    given = replace(without("flashinfer"), software={**without("flashinfer").software, "flashinfer-headers": "given"})
    for where in (MACHINE, given):
        for size in (1024, 14336, 43008, 131072):
            assert support(name, where, Call(size, 8)).answer is Answer.RUNS


@pytest.mark.parametrize("name", VLLM + FLASHINFER)
@pytest.mark.parametrize(
    ("where", "call", "reason", "remedy"),
    [
        (replace(MACHINE, topology=Topology((Node("cpu", NodeKind.SOCKET),), ())), Call(1024, 8), "no CUDA device", ""),
        (without("torch"), Call(1024, 8), "torch is not installed", "collbench[sweep]"),
        (without("cuda-bindings"), Call(1024, 8), "cuda-bindings is not installed", "collbench[cuda]"),
        (without("flashinfer"), Call(1024, 8), "headers of flashinfer-python", "pip install flashinfer-python"),
        (without("nvcc"), Call(1024, 8), "nvcc was not found", "CUDA_HOME"),
        (replace(MACHINE, software={**SOFTWARE, "flashinfer": "0.2.5"}), Call(1024, 8), "is older than 0.", "install"),
        (replace(MACHINE, facts={"arch": "sm_75"}), Call(1024, 8), "older than sm_80", ""),
        (replace(MACHINE, facts={"p2p": "ns"}), Call(1024, 8), "P2P is off", ""),
        (replace(MACHINE, hosts=2), Call(1024, 8), "ranks on 2 hosts", "one host"),
        (MACHINE, Call(1024, 5), "5 ranks", ""),
        (MACHINE, Call(1026, 8), "no multiple of 16", ""),
        (MACHINE, Call(16 << 20, 8), "more than 8 MiB", ""),
        (MACHINE, Call(1024, 8, dtype="int32"), "int32 is not one", ""),
    ],
)
def test_refusals_say_what_is_missing(name: str, where: Machine, call: Call, reason: str, remedy: str) -> None:
    """Every refusal names the missing part, and what brings it where there is something."""
    answer = support(name, where, call)
    assert not answer
    assert reason in answer.reason
    assert remedy in answer.remedy


def test_flashinfer_has_limits_of_its_own() -> None:
    """No float32, no 6 ranks, 16 bytes of each rank's share; the island kernel needs 8 ranks."""
    assert "float32" in support("flashinfer_pcie_push", MACHINE, Call(1024, 8, dtype="float32")).reason
    assert not support("flashinfer_pcie_push", MACHINE, Call(1024, 6))
    assert "16 bytes" in support("flashinfer_pcie_push", MACHINE, Call(112, 8)).reason
    assert support("flashinfer_pcie_push", MACHINE, Call(128, 8))
    assert not support("flashinfer_pcie_flat", MACHINE, Call(1024, 2))
    assert not support("flashinfer_pcie_block", MACHINE, Call(1024, 4))


def test_the_gate_of_vllm_is_told() -> None:
    """With over two ranks it launches nothing without NVLink everywhere; a run past that gate says so."""
    told = support("vllm_one_stage", MACHINE, Call(1024, 8)).reason
    assert "launches nothing for 8 ranks" in told
    assert "called past that gate" in told
    nvlink = replace(MACHINE, fabric=Fabric.NVLINK)
    assert gate(nvlink, Call((256 << 10) - 16, 8), "one_stage") == ""
    assert "two-stage" in gate(nvlink, Call(256 << 10, 8), "one_stage")
    assert gate(nvlink, Call(256 << 10, 4), "one_stage") == ""
    assert "one-stage" in gate(nvlink, Call(256 << 10, 4), "two_stage")
    assert gate(MACHINE, Call(1024, 2), "one_stage") == ""
    assert "one-stage" in gate(MACHINE, Call(1024, 2), "two_stage")


def sent(name: str, call: Call) -> dict[int, float]:
    """Bytes that leave each rank."""
    flows = [f for phase in registry()[name].traffic(call, GPUS).phases for f in phase.flows]
    assert {f.move for f in flows} == {Move.PULL if name in VLLM else Move.PUSH}
    return {rank: sum(f.bytes for f in flows if f.src == rank) for rank in range(call.world_size)}


@pytest.mark.parametrize(
    ("name", "ranks", "messages"),
    [
        ("vllm_one_stage", 8, 7), ("vllm_two_stage", 8, 14 / 8), ("flashinfer_pcie_push", 4, 3),
        ("flashinfer_pcie_push", 2, 1), ("flashinfer_pcie_push", 8, 7 / 4), ("flashinfer_pcie_flat", 8, 14 / 8),
        ("flashinfer_pcie_block", 8, 7 / 4), ("flashinfer_pcie_ring", 8, 7 / 4), ("flashinfer_pcie_ring", 4, 6 / 4),
    ],
)  # fmt: skip
def test_traffic_is_what_the_design_says(name: str, ranks: int, messages: float) -> None:
    """Every rank sends the same; islands of four send three shares twice, and one across."""
    assert sent(name, Call(4096, ranks)) == dict.fromkeys(range(ranks), pytest.approx(4096 * messages))


def test_a_ring_pass_is_one_stream_each_way() -> None:
    """In every phase each rank is the source of one flow and the destination of one."""
    for ranks in (4, 8):
        for phase in registry()["flashinfer_pcie_ring"].traffic(Call(4096, ranks), GPUS).phases:
            assert sorted(f.src for f in phase.flows) == sorted(f.dst for f in phase.flows) == list(range(ranks))


def test_barriers_of_eight_wait_for_writes_twice_and_the_last_one_frees_the_buffers() -> None:
    """Fence and release behind each step; behind the last a barrier with a release alone; in a ring one more fence."""
    for name, fences in (("flashinfer_pcie_block", [2, 2, 3]), ("flashinfer_pcie_ring", [2, 2, 2, 3, 2, 2, 3])):
        phases = registry()[name].traffic(Call(4096, 8), GPUS).phases
        assert [phase.fences for phase in phases] == fences
        assert [phase.syncs for phase in phases] == [1] * (len(phases) - 1) + [2]
    four = registry()["flashinfer_pcie_ring"].traffic(Call(4096, 4), GPUS)
    assert {(phase.syncs, phase.fences) for phase in four.phases} == {(1, None)}


def test_vllm_reads_sums_in_turn() -> None:
    one, two = (registry()[name].traffic(Call(4096, 8), GPUS) for name in ("vllm_one_stage", "vllm_two_stage"))
    assert [phase.turns for phase in (*one.phases, *two.phases)] == [1, 1, 7]
    assert registry()["vllm_forced_two_stage"].traffic(Call(4096, 8), GPUS) == two


def test_an_uneven_all_to_all_reads_its_table_and_part_after_part() -> None:
    even = Call(4096, 4, Collective.ALL_TO_ALL, "")
    uneven = replace(even, splits=(128,) * 16)
    push = registry()["push_all_to_all"]
    assert [push.traffic(call, GPUS).own_reads for call in (even, uneven)] == [0, 5]
