"""All-to-alls over torch.distributed: right on gloo with splits, and refusals of the others in words."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from collbench.algorithms import exchange_runner, nvshmem_runner
from collbench.algorithms.all_to_all import ALGORITHMS
from collbench.algorithms.base import Runner, known_systems, registry
from collbench.algorithms.routing import Skew
from collbench.measure.verify import Check
from collbench.results.records import Answer, Call, Collective, Fabric
from collbench.topology import catalog
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine

BY_NAME = {algorithm.name: algorithm for algorithm in ALGORITHMS}
EVEN = Call(96, 3, Collective.ALL_TO_ALL, "", "float32")
GPUS = Topology(tuple(Node(f"gpu{i}", NodeKind.GPU) for i in range(3)), ())


def machine(nccl: str = "2.30.7", torch: str = "2.11.0+cu130") -> Machine:
    software = {name: version for name, version in (("nccl", nccl), ("torch", torch)) if version}
    return Machine(GPUS, Fabric.PCIE, 3, software=software)


HAS_NVSHMEM = {"torch": "2.11.0+cu130", "nvshmem": "3.4.5"}


def verified(runner_class: type[Runner], call: Call) -> Callable[[Any], str]:
    def body(ranks: Any) -> str:
        with runner_class(ranks, call, 2) as runner:
            check = Check(runner, call, ranks.rank, seed=5)
            for turn in range(3):
                check.prepare(2, turn, exact=True)
                ranks.barrier()
                for slot in range(2):
                    runner.launch(slot)
                reason = check.judge().reason or runner.proof().reason
                if reason:
                    return reason
        return ""

    return body


@pytest.mark.parametrize("name", ["GlooAllToAll", "GlooByGather", "GlooByReduce"])
@pytest.mark.parametrize(
    "call",
    [
        EVEN,
        replace(EVEN, dtype="bfloat16", splits=(0, 4, 1, 7, 0, 0, 2, 2, 2)),
        replace(EVEN, dtype="int32", splits=(0, 0, 0, 0, 0, 5, 0, 0, 0)),
        Skew.parse("combine:1").call(3000, 3, "float16"),
    ],
)
def test_gloo_brings_every_part_to_its_place(name: str, call: Call, forked: Any, tmp_path: Any) -> None:
    pytest.importorskip("torch")
    outcomes = forked(3, verified(getattr(exchange_runner, name), call), store=str(tmp_path / "store"))
    assert [(one.value, one.error) for one in outcomes] == [("", "")] * 3


def test_no_memory_says_how_much_was_asked_for() -> None:
    torch = pytest.importorskip("torch")
    call = Call(96, 2, Collective.ALL_TO_ALL, "", "float32", (1 << 46,) * 4)

    class Ranks:
        rank, world_size, device, deadline_s = 0, 2, "cpu", 1.0

    runner = exchange_runner.GlooAllToAll(Ranks(), call, 1)  # type: ignore[arg-type]  # what is asked for comes first
    with pytest.raises(MemoryError, match=f"{8 << 46} bytes asked for"):
        runner._zeros(torch, 2 << 46)


def test_consecutive_calls_over_nvshmem_take_turns_between_their_splits() -> None:
    """A call of torch's ends by writing where its peers write at the start of the next."""
    told: list[tuple[Any, ...]] = []

    class One:
        rank = 0

    runner = nvshmem_runner.AllToAllVdev(One(), EVEN, 5)  # type: ignore[arg-type]  # no group is needed
    runner._x, runner._y, runner._came = list("abcde"), list("ABCDE"), ["even", "odd"]
    runner._op = lambda *arguments: told.append(arguments)
    for slot in range(5):
        runner.launch(slot)
    assert [(x, y, came) for x, y, _, came, _ in told] == list(
        zip("abcde", "ABCDE", ["even", "odd", "even", "odd", "even"], strict=True)
    )


@pytest.mark.parametrize(
    ("name", "there", "call", "answer", "words"),
    [
        ("nccl_all_to_all", machine(), EVEN, Answer.RUNS, "every fabric"),
        ("nccl_all_to_all", machine(), replace(EVEN, splits=(1,) * 9), Answer.RUNS, ""),
        ("nccl_all_to_all", machine(nccl="2.6.4"), EVEN, Answer.DOES_NOT_RUN, "no sends and receives"),
        ("nccl_all_to_all", machine(nccl=""), EVEN, Answer.UNKNOWN, "was not said"),
        ("nccl_all_to_all", machine(torch=""), EVEN, Answer.DOES_NOT_RUN, "torch is not installed"),
        ("nccl_all_to_all_native", machine(), replace(EVEN, splits=(1,) * 9), Answer.DOES_NOT_RUN, "equal parts"),
        ("nccl_all_to_all_native", machine(nccl="2.27.5"), EVEN, Answer.DOES_NOT_RUN, "no all-to-all of its own"),
        ("nccl_all_to_all_native", machine(nccl="2.28.9"), EVEN, Answer.RUNS, ""),
        ("torch_all_to_all_vdev", machine(), EVEN, Answer.UNKNOWN, "NVSHMEM"),
        ("torch_all_to_all_vdev", replace(machine(), software=HAS_NVSHMEM), EVEN, Answer.UNKNOWN, "on PCIe"),
        (
            "torch_all_to_all_vdev",
            replace(machine(), software=HAS_NVSHMEM, fabric=Fabric.NVLINK),
            EVEN,
            Answer.UNKNOWN,
            "one cell of eight came out wrong",
        ),
        ("gloo_all_to_all", machine(torch=""), EVEN, Answer.DOES_NOT_RUN, "torch is not installed"),
        ("gloo_all_to_all", machine(), replace(EVEN, bytes=100), Answer.DOES_NOT_RUN, "not the same for every rank"),
        ("gloo_all_to_all", machine(), replace(EVEN, splits=(1,)), Answer.DOES_NOT_RUN, "expected 9"),
    ],
)
def test_support(name: str, there: Machine, call: Call, answer: Answer, words: str) -> None:
    support = BY_NAME[name].support(there, call)
    assert (support.answer, words in support.reason) == (answer, True), support


def test_emulations_send_everything_to_everybody() -> None:
    """Each rank's data n - 1 times, padded to the most that any rank sends or gets."""
    call = Skew.parse("dispatch:1").call(30_000, 3, "bfloat16")
    plain, gathered, reduced = (
        sum(flow.bytes for phase in BY_NAME[name].traffic(call, GPUS).phases for flow in phase.flows)
        for name in ("nccl_all_to_all", "nccl_all_gather_select", "nccl_reduce_scatter_place")
    )
    assert gathered == pytest.approx(6 * call.bytes)
    assert reduced > gathered > plain


def test_emulations_are_nccls_rings_between_copies() -> None:
    """A copy per part, one for uneven rows before a gather, one for the result of a reduce-scatter; n - 1 hops."""
    uneven, even = Skew.parse("combine:1").call(30_000, 3, "bfloat16"), Call(30_000, 3, Collective.ALL_TO_ALL, "")
    for name, call, launches in (
        ("nccl_all_gather_select", even, 4), ("nccl_all_gather_select", uneven, 5),
        ("nccl_reduce_scatter_place", even, 5), ("nccl_reduce_scatter_place", uneven, 5),
    ):  # fmt: skip
        sent = BY_NAME[name].traffic(call, catalog.load(catalog.find("nvswitch-8xh200")))
        assert (sent.launches, sent.phases[0].steps, sent.protocol) == (launches, 2, "LL"), name
        assert len(sent.phases[0].flows) == 3


def test_deepep_is_known_with_reasons() -> None:
    support = known_systems()["deepep_low_latency"].support(machine(), EVEN)
    assert (bool(support), bool(support.reason), bool(support.remedy)) == (False, True, True)
    assert not set(known_systems()) & set(registry())


def test_torchs_signatures_are_those_that_are_called() -> None:
    """A change of an interface is noticed by name, not by a traceback on somebody's machine."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    def names(function: Any) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert names(dist.all_to_all_single)[:5] == ["output", "input", "output_split_sizes", "input_split_sizes", "group"]
    for new, old in (
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
    ):
        function = exchange_runner._named(dist, new, old)
        assert [name.split("_")[0] for name in names(function)[:2]] == ["output", "input"]
        assert "group" in names(function)
    assert names(dist.all_reduce_coalesced)[:3] == ["tensors", "op", "group"]
    schema = str(torch.ops.symm_mem.all_to_all_vdev.default._schema)
    assert schema == (
        "symm_mem::all_to_all_vdev(Tensor input, Tensor(a!) out, Tensor in_splits, Tensor(a!) out_splits_offsets, "
        "str group_name) -> ()"
    )
    import torch.distributed._symmetric_memory as symmetric

    assert {"set_backend", "empty", "rendezvous", "is_nvshmem_available"} <= set(dir(symmetric))
