"""torch's symmetric-memory rows: what they need, what they launch, and how the runner keeps its inputs."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.algorithms import symmetric_memory_runner
from collbench.algorithms.kernel_nodes import KernelNode
from collbench.algorithms.symmetric_memory import ALGORITHMS, Launch, launch_size
from collbench.results.records import Answer, Call, Fabric
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine

BY_NAME = {algorithm.name: algorithm for algorithm in ALGORITHMS}
CALL = Call(14336, 8)


def machine(gpus: int = 8, *, share: bool = False, torch: str = "2.11.0+cu130", **facts: str) -> Machine:
    """A machine with so many GPUs of sm_90 and eight ranks."""
    nodes = tuple(Node(f"gpu{i}", NodeKind.GPU) for i in range(gpus))
    fabric = Fabric.SHARED_GPU if share else Fabric.NVLINK
    return Machine(
        Topology(nodes, ()), fabric, 8, share_gpu=share, software={"torch": torch}, facts={"arch": "sm_90", **facts}
    )


def test_names() -> None:
    """Other people's scripts read these names."""
    assert list(BY_NAME) == ["symm_one_shot", "symm_two_shot", "symm_multimem"]
    for algorithm in ALGORITHMS:
        assert hasattr(symmetric_memory_runner, algorithm.runner.partition(":")[2])


@pytest.mark.parametrize(
    ("name", "there", "call", "answer", "words"),
    [
        ("symm_one_shot", machine(), CALL, Answer.RUNS, ""),
        ("symm_one_shot", machine(1, share=True), CALL, Answer.RUNS, ""),
        ("symm_one_shot", machine(1), CALL, Answer.DOES_NOT_RUN, "8 ranks on 1 GPU"),
        ("symm_one_shot", machine(torch="2.8.0"), CALL, Answer.DOES_NOT_RUN, "older than 2.9"),
        ("symm_one_shot", machine(), replace(CALL, dtype="float16"), Answer.DOES_NOT_RUN, "float16"),
        ("symm_one_shot", machine(), replace(CALL, bytes=14338), Answer.DOES_NOT_RUN, "multiple of 4"),
        ("symm_one_shot", machine(), replace(CALL, world_size=128), Answer.DOES_NOT_RUN, "signal pad"),
        ("symm_one_shot", machine(arch="sm_75"), CALL, Answer.DOES_NOT_RUN, "sm_75 cannot add bfloat16"),
        ("symm_one_shot", machine(p2p="ns"), CALL, Answer.DOES_NOT_RUN, "P2P is off"),
        ("symm_one_shot", machine(p2p_atomics="ns"), CALL, Answer.UNKNOWN, "compare-and-swap"),
        ("symm_one_shot", machine(1, share=True, p2p_atomics="ns"), CALL, Answer.RUNS, ""),
        ("symm_one_shot", replace(machine(), hosts=2), CALL, Answer.DOES_NOT_RUN, "ranks on 2 hosts"),
        ("symm_two_shot", machine(), CALL, Answer.RUNS, ""),
        ("symm_two_shot", machine(), replace(CALL, world_size=6), Answer.DOES_NOT_RUN, "2, 4 and 8 ranks"),
        ("symm_multimem", machine(), CALL, Answer.DOES_NOT_RUN, "TORCH_SYMM_MEM_DISABLE_MULTICAST=1"),
        ("symm_multimem", machine(arch="sm_80"), CALL, Answer.DOES_NOT_RUN, "sm_80 has no NVLink multicast"),
        ("symm_multimem", machine(1, share=True), CALL, Answer.DOES_NOT_RUN, "these ranks share one"),
        ("symm_multimem", machine(multicast="no"), CALL, Answer.DOES_NOT_RUN, "no multicast on this device"),
    ],
)
def test_support_names_the_missing_thing(name: str, there: Machine, call: Call, answer: Answer, words: str) -> None:
    """Before anything is allocated: device, dtype, size, pad, peers, atomics, hosts, world size, multicast."""
    support = BY_NAME[name].support(there, call)
    assert support.answer is answer
    assert words in support.reason


def test_environment() -> None:
    """Multicast is off always; overlapping devices are allowed where ranks share a GPU."""
    plain, shared = (BY_NAME["symm_one_shot"].environment(m) for m in (machine(), machine(1, share=True)))
    assert plain["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == shared["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES" not in plain
    assert shared["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("kind", "size", "dtype", "world", "launch"),
    [
        ("one_shot", 1024, "bfloat16", 8, Launch(1, 64)),
        ("one_shot", 14336, "bfloat16", 8, Launch(2, 512)),
        ("one_shot", 1 << 20, "bfloat16", 8, Launch(24, 512)),
        ("one_shot", 4 * 1001, "float32", 8, Launch(2, 512)),  # 4-byte vectors: 1001 of them
        ("two_shot", 1024, "bfloat16", 8, Launch(1, 32)),
        ("two_shot", 1 << 20, "bfloat16", 8, Launch(8, 1024)),
        ("two_shot", 1 << 24, "float32", 2, Launch(24, 1024)),
        ("multimem", 1 << 20, "bfloat16", 8, Launch(8, 1024)),
    ],
)
def test_grids(kind: str, size: int, dtype: str, world: int, launch: Launch) -> None:
    """One vector per thread until the largest grid, in whole warps, as torch's launch code computes."""
    assert launch_size(kind, Call(size, world, dtype=dtype)) == launch


def test_traffic() -> None:
    """One-shot pulls whole messages behind two barriers; two-shot pulls eighths twice and copies first."""
    topology = machine().topology
    one = BY_NAME["symm_one_shot"].traffic(CALL, topology)
    assert sum(f.bytes for p in one.phases for f in p.flows if f.dst == 0) == 7 * 14336
    assert [p.syncs for p in one.phases] == [2]
    two = BY_NAME["symm_two_shot"].traffic(CALL, topology)
    assert sum(f.bytes for p in two.phases for f in p.flows if f.dst == 0) == pytest.approx(2 * 7 / 8 * 14336)
    assert ([p.syncs for p in two.phases], two.launches) == ([1, 2], 2)
    cast = BY_NAME["symm_multimem"].traffic(CALL, topology)
    assert sum(f.bytes for p in cast.phases for f in p.flows if f.dst == 0) == pytest.approx(14336)


class FakeRanks:
    """One rank of two; counts barriers."""

    rank, world_size, local_rank, local_world_size, device, deadline_s = 0, 2, 0, 2, "cpu", 1.0

    def __init__(self) -> None:
        self.barriers = 0

    def exchange(self, value: Any) -> list[Any]:
        return [value, value]

    def barrier(self) -> None:
        self.barriers += 1

    def process_group(self, backend: str) -> Any:
        assert backend == "gloo"
        return SimpleNamespace(group_name="0")


@pytest.fixture
def symmetric(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch without a GPU: operations double their input, and two-shot overwrites it as the real one does."""
    torch = pytest.importorskip("torch")
    import torch.distributed._symmetric_memory as module

    state = SimpleNamespace(multicast=0, error="", kernels=(KernelNode("one_shot_all_reduce_kernel", 3, 512, 2),))

    def one_shot(x: Any, op: str, group: str, out: Any) -> None:
        assert (op, group) == ("sum", "0")
        out.copy_(2 * x)

    def two_shot(x: Any, op: str, group: str, out: Any) -> None:
        one_shot(x, op, group, out)
        x.copy_(out)

    def rendezvous(_block: Any, _group: Any) -> Any:
        if state.error:
            raise RuntimeError(state.error)
        return SimpleNamespace(multicast_ptr=state.multicast)

    operations = SimpleNamespace(
        one_shot_all_reduce_out=SimpleNamespace(default=one_shot),
        two_shot_all_reduce_out=SimpleNamespace(default=two_shot),
        multimem_one_shot_all_reduce_out=SimpleNamespace(default=one_shot),
    )
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, query=lambda: True))
    monkeypatch.setattr(torch.ops, "symm_mem", operations, raising=False)
    monkeypatch.setattr(module, "enable_symm_mem_for_group", lambda _name: None)
    monkeypatch.setattr(module, "empty", lambda size, dtype, device: torch.empty(size, dtype=dtype, device=device))
    monkeypatch.setattr(module, "rendezvous", rendezvous)
    monkeypatch.setattr(symmetric_memory_runner, "capture_kernels", lambda _launch: state.kernels)
    return state


@pytest.mark.parametrize("kind", [symmetric_memory_runner.OneShot, symmetric_memory_runner.TwoShot])
def test_inputs_survive_repeated_calls(symmetric: SimpleNamespace, kind: type[Any]) -> None:
    """A slot gives the same sum twice, although two-shot overwrites what it reads; slots are aligned and apart."""
    ranks = FakeRanks()
    with kind(ranks, Call(4 * 10, 2, dtype="float32"), 3) as runner:
        for slot in range(3):
            runner.inputs(slot)["x"].fill_(slot + 1)
        for slot in (0, 1, 2, 1):
            runner.launch(slot)
        assert [runner.outputs(i)["y"].tolist() for i in range(3)] == [[2.0 * (i + 1)] * 10 for i in range(3)]
        assert runner.inputs(1)["x"].tolist() == [2.0] * 10
        first, second = (runner.inputs(i)["x"].data_ptr() for i in (0, 1))
        assert (second - first) % 256 == 0
        assert (runner.blocks, runner.threads, runner.blocks_per_sm) == (3, 512, 2)
        assert "one_shot_all_reduce_kernel<<<3, 512>>>" in runner.proof().evidence["kernel"]
    assert ranks.barriers == 1


def test_a_launch_without_an_all_reduce_is_no_proof(symmetric: SimpleNamespace) -> None:
    """A kernel that is gated off and only copies is told by the name of what ran."""
    symmetric.kernels = (KernelNode("vectorized_copy", 1, 32),)
    with symmetric_memory_runner.OneShot(FakeRanks(), CALL, 1) as runner:
        assert runner.proof().reason == "torch launched vectorized_copy instead of an all-reduce"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "CUDASymmetricMemoryAllocator::rendezvous: detected allocations from overlapping devices",
            "ALLOW_OVERLAPPING",
        ),
        ("pidfd_getfd failed: Operation not permitted", "ptrace"),
    ],
)
def test_known_refusals_are_unsupported(symmetric: SimpleNamespace, error: str, words: str) -> None:
    """What torch refuses by nature is NotImplementedError that says what it means; anything else stays an error."""
    symmetric.error = error
    with pytest.raises(NotImplementedError, match=words):
        symmetric_memory_runner.OneShot(FakeRanks(), CALL, 1).__enter__()
    symmetric.error = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        symmetric_memory_runner.OneShot(FakeRanks(), CALL, 1).__enter__()


def test_multimem_without_an_address_is_unsupported(symmetric: SimpleNamespace) -> None:
    """Seen before the first launch, not in it."""
    with pytest.raises(NotImplementedError, match="no multicast address"):
        symmetric_memory_runner.Multimem(FakeRanks(), CALL, 1).__enter__()
    symmetric.multicast = 1 << 40
    with symmetric_memory_runner.Multimem(FakeRanks(), CALL, 1) as runner:
        assert runner.proof().evidence["multicast"] == "on"
