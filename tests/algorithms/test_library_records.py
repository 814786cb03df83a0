"""Records of libraries: with their gates and past them, what stands in the way, what their workers are told."""

from dataclasses import replace

import pytest

from collbench.algorithms.base import known_systems, registry
from collbench.algorithms.fusion_rows import blocks_of_two_shot
from collbench.contention.traffic import Move
from collbench.results.records import Answer, Call, Collective, Fabric, Support
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine

SOFTWARE = {
    "torch": "2.14.1+cu130", "nvcc": "13.0.88", "flashinfer": "0.7.4", "vllm": "0.33.0", "sglang": "0.5.23",
    "sgl-kernel": "0.3.21",
}  # fmt: skip
GPUS = Topology(tuple(Node(f"gpu{i}", NodeKind.GPU) for i in range(8)), ())
PCIE = Machine(GPUS, Fabric.PCIE, 8, software=SOFTWARE, facts={"arch": "sm_120", "p2p": "ok"})
NVLINK = replace(PCIE, fabric=Fabric.NVLINK, facts={"arch": "sm_90", "p2p": "ok"})
GATED = ("vllm_custom_all_reduce", "sglang_custom_all_reduce")
PUSHED = ("sglang_forced_one_shot_push", "sglang_forced_two_shot_push")
FORCED = ("vllm_forced_one_stage", "vllm_forced_two_stage", *PUSHED, "sglang_classic_one_stage")
FUSION = (
    "flashinfer_trtllm_fusion", "flashinfer_trtllm_fusion_pdl", "flashinfer_trtllm_one_shot",
    "flashinfer_trtllm_two_shot",
)  # fmt: skip
COPIES = ("flashinfer_pcie_copy_ring", "flashinfer_pcie_copy_island")
LIBRARIES = sorted(
    name for name, one in registry().items() if "_library_runner:" in one.runner or "mscclpp_runner:" in one.runner
)


def support(name: str, where: Machine, call: Call) -> Support:
    return registry()[name].support(where, call)


def without(machine: Machine, name: str) -> Machine:
    return replace(machine, software={k: v for k, v in machine.software.items() if k != name})


def test_all_libraries_get_time_to_open() -> None:
    """So do kernels that nvcc compiles from a header; nothing else needs it."""
    slow = {name for name, algorithm in registry().items() if algorithm.opening_s}
    assert set(LIBRARIES) <= slow
    assert slow - set(LIBRARIES) == {
        "vllm_one_stage", "vllm_two_stage", "flashinfer_pcie_push", "flashinfer_pcie_flat", "flashinfer_pcie_block",
        "flashinfer_pcie_ring", "flashinfer_moe_dispatch", "deepep_intranode_dispatch",
        "b12x_all_reduce", "b12x_oneshot_pull", "b12x_oneshot_push", "b12x_fused_push", "b12x_twoshot_bf16",
    }  # fmt: skip
    assert set(LIBRARIES) == {
        *GATED, *FORCED, *FUSION, *COPIES, "sglang_forced_one_shot_pull", "sglang_forced_two_shot_pull",
        "flashinfer_pcie_workspace", "flashinfer_pcie_copy_ring_memop", "flashinfer_pcie_copy_ring_piped",
        "flashinfer_vllm", "mscclpp_one_shot_packet",
    }  # fmt: skip
    assert not set(LIBRARIES) & set(known_systems())


@pytest.mark.parametrize("name", [*GATED, *FORCED, *FUSION])
def test_runs_on_nvlink(name: str) -> None:
    assert support(name, NVLINK, Call(14_336, 8)).answer is Answer.RUNS


@pytest.mark.parametrize("name", GATED)
def test_gates_are_closed_on_pcie(name: str) -> None:
    """With more than two ranks; two go through."""
    told = support(name, PCIE, Call(14_336, 8))
    assert (told.answer, "without full NVLink" in told.reason) == (Answer.DOES_NOT_RUN, True)
    assert told.remedy
    assert told.source
    assert support(name, replace(PCIE, ranks=2), Call(14_336, 2)).answer is Answer.RUNS


@pytest.mark.parametrize("name", FORCED)
def test_past_the_gate_the_gate_is_told(name: str) -> None:
    """It runs, and the reason is the gate's own."""
    told = support(name, PCIE, Call(14_336, 8))
    assert told.answer is Answer.RUNS
    assert "without full NVLink" in told.reason
    assert told.reason.endswith("called past that gate")
    assert support(name, NVLINK, Call(14_336, 8)).reason == ""


def test_pulls_that_add_to_semaphores_of_peers_stay_off_on_pcie() -> None:
    for name in ("sglang_forced_one_shot_pull", "sglang_forced_two_shot_pull"):
        assert "atomic" in support(name, PCIE, Call(14_336, 8)).reason
        assert support(name, NVLINK, Call(14_336, 8))


def test_kernels_that_would_launch_nothing_are_refused() -> None:
    told = support("flashinfer_vllm", PCIE, Call(14_336, 8))
    assert (bool(told), "output untouched" in told.reason) == (False, True)
    assert support("flashinfer_vllm", NVLINK, Call(14_336, 8)).answer is Answer.RUNS
    environment = registry()["flashinfer_vllm"].environment
    assert [environment(machine)["COLLBENCH_FULL_NVLINK"] for machine in (PCIE, NVLINK)] == ["0", "1"]


def test_ranks_on_one_gpu_count_as_joined() -> None:
    """They reach each other's memory; servers never share one, so their gates stay closed."""
    gpu = Topology(GPUS.nodes[:1], ())
    shared = replace(NVLINK, topology=gpu, fabric=Fabric.SHARED_GPU, share_gpu=True)
    told = registry()["flashinfer_vllm"].environment(shared)
    assert told["COLLBENCH_FULL_NVLINK"] == told["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] == "1"
    for name in LIBRARIES:
        answer = support(name, replace(shared, software={**SOFTWARE, "sgl-kernel": "0.4.3"}), Call(16_384, 8))
        closed = name in GATED or name.endswith(("memop", "piped"))
        assert answer.answer is (Answer.DOES_NOT_RUN if closed else Answer.RUNS), (name, answer)


def test_the_environment_names_the_kernel() -> None:
    """The libraries' own variables, in the workers of the forced records only."""
    told = {name: registry()[name].environment(PCIE) for name in (*GATED, *FORCED)}
    assert told["vllm_forced_one_stage"]["VLLM_CUSTOM_ALLREDUCE_ALGO"] == "1stage"
    assert told["vllm_forced_two_stage"]["VLLM_CUSTOM_ALLREDUCE_ALGO"] == "2stage"
    assert told["sglang_classic_one_stage"]["SGLANG_CUSTOM_ALLREDUCE_ALGO"] == "1stage"
    assert not any("ALGO" in key for name in GATED for key in told[name])


@pytest.mark.parametrize("name", COPIES)
def test_copy_engines_want_shapes(name: str) -> None:
    """Four or eight ranks, sizes that divide; flags of the copy stream on sm_12x only."""
    assert support(name, PCIE, Call(16_384, 8)).answer is Answer.RUNS
    assert not support(name, replace(PCIE, ranks=2), Call(16_384, 2))
    assert not support(name, PCIE, Call(16_384 + 16, 8))
    assert not support("flashinfer_pcie_copy_ring_memop", NVLINK, Call(16_384, 8))
    assert support("flashinfer_pcie_copy_ring_memop", PCIE, Call(16_384, 8)).answer is Answer.RUNS
    assert not support("flashinfer_pcie_copy_ring_piped", PCIE, Call(1024, 8))


def test_two_shot_fusion_wants_tokens() -> None:
    """With RMSNorm behind it 14,336 bytes are one token; without it they are cut into more than there are ranks."""
    fused = Call(14_336, 8, epilogue="residual_rmsnorm")
    assert support("flashinfer_trtllm_one_shot", NVLINK, fused).answer is Answer.RUNS
    assert "more than 8 tokens" in support("flashinfer_trtllm_two_shot", NVLINK, fused).reason
    assert support("flashinfer_trtllm_two_shot", NVLINK, Call(14_336, 8)).answer is Answer.RUNS


@pytest.mark.parametrize(
    ("version", "answer"),
    [("0.3.21", Answer.RUNS), ("0.4.3", Answer.RUNS), ("0.4.4", Answer.DOES_NOT_RUN), ("0.4.10", Answer.DOES_NOT_RUN)],
)
def test_operators_of_mscclpp_by_release(version: str, answer: Answer) -> None:
    machine = replace(NVLINK, software={**SOFTWARE, "sgl-kernel": version})
    assert support("mscclpp_one_shot_packet", machine, Call(14_336, 8)).answer is answer
    assert not support("mscclpp_one_shot_packet", NVLINK, Call(14_336, 4))


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_is_missing_is_named(name: str) -> None:
    """Each refusal in one line, on a machine where all else is right."""
    call = Call(16_384, 8)
    where = PCIE if name.endswith(("memop", "piped")) else NVLINK
    package = name.partition("_")[0]
    package = {"mscclpp": "sgl-kernel"}.get(package, package)
    cases = {
        f"{package} is not installed": (without(where, package), call),
        "is a CPU build": (replace(where, software={**SOFTWARE, "torch": "2.14.1+cpu"}), call),
        "torch is not installed": (without(where, "torch"), call),
        "only the sum": (where, replace(call, op="max")),
        "only the sum of": (where, Call(16_384, 8, Collective.ALL_GATHER, "")),
        "no epilogue polish": (where, replace(call, epilogue="polish")),
        "is not one of its element types": (where, replace(call, dtype="int32")),
        "ranks on 2 hosts": (replace(where, hosts=2), call),
        "P2P is off": (replace(where, facts={**where.facts, "p2p": "off"}), call),
    }
    for reason, (machine, asked) in cases.items():
        told = support(name, machine, asked)
        assert not told, reason
        assert reason in told.reason


@pytest.mark.parametrize("name", [n for n in LIBRARIES if n.startswith("flashinfer") or "shot_pu" in n])
def test_what_compiles_wants_a_compiler(name: str) -> None:
    where = PCIE if name.endswith(("memop", "piped")) else NVLINK
    assert "nvcc was not found" in support(name, without(where, "nvcc"), Call(16_384, 8)).reason


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_record_sends_something(name: str) -> None:
    assert registry()[name].traffic(Call(16_384, 8), GPUS).phases


@pytest.mark.parametrize(
    ("ranks", "size", "phases", "protocol"),
    [(2, 1 << 20, 1, "sentinel"), (8, 1024, 3, "sentinel"), (8, 32 << 10, 7, "barriers"), (4, 1024, 2, "barriers")],
)
def test_the_workspace_sends_what_its_seed_starts(ranks: int, size: int, phases: int, protocol: str) -> None:
    """As seen on a GPU with 8 ranks and 1 KiB: its policy took its push, not a ring."""
    sent = registry()["flashinfer_pcie_workspace"].traffic(Call(size, ranks), GPUS)
    assert (len(sent.phases), sent.protocol) == (phases, protocol)


@pytest.mark.parametrize(
    ("size", "ranks", "blocks"), [(1024, 2, 2), (14_336, 2, 2), (65_536, 2, 16), (14_336, 8, 2), (65_536, 8, 4)]
)
def test_two_shot_fusion_sets_the_flags_of_blocks_that_are_not_there(size: int, ranks: int, blocks: int) -> None:
    """Grids as evidence of captured launches has them; 256 flags over them in each of two barriers."""
    call = Call(size, ranks)
    assert blocks_of_two_shot(call) == blocks
    sent = registry()["flashinfer_trtllm_two_shot"].traffic(call, GPUS)
    assert [phase.stores for phase in sent.phases] == [256 // blocks - 1] * 2
    assert [(phase.syncs, phase.fences, phase.flows[0].move) for phase in sent.phases] == [
        (1, 1, Move.PULL), (1, 1, Move.PUSH),
    ]  # fmt: skip


def test_one_shot_fusion_reads_before_it_pushes() -> None:
    for name in ("fusion", "fusion_pdl", "one_shot"):
        sent = registry()[f"flashinfer_trtllm_{name}"].traffic(Call(1024, 8), GPUS)
        assert (len(sent.phases), sent.phases[0].stores, sent.own_reads) == (1, 0, 3)
