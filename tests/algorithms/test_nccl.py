"""NCCL's rows: what they ask of a machine, what they send, how they call, and how an ignored setting is seen."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collbench.algorithms import nccl_runner
from collbench.algorithms.kernel_nodes import KernelNode
from collbench.algorithms.nccl import ALGORITHMS
from collbench.algorithms.nccl_library import DebugLog, NcclLibrary, find_library
from collbench.algorithms.nccl_log import Choice, NcclLog
from collbench.algorithms.nccl_runner import judge
from collbench.results.records import Answer, Call, Fabric
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine

BY_NAME = {algorithm.name: algorithm for algorithm in ALGORITHMS}
CALL = Call(14336, 8)


def machine(gpus: int = 8, nccl: str = "2.30.7", torch: str = "2.11.0+cu130", *, share: bool = False) -> Machine:
    """A machine with so many GPUs and eight ranks."""
    nodes = tuple(Node(f"gpu{i}", NodeKind.GPU) for i in range(gpus))
    software = {name: version for name, version in (("nccl", nccl), ("torch", torch)) if version}
    fabric = Fabric.SHARED_GPU if share else Fabric.PCIE
    return Machine(Topology(nodes, ()), fabric, 8, share_gpu=share, software=software)


def test_names_are_the_six_forced_rows_and_auto() -> None:
    """Other people's scripts read these names."""
    assert list(BY_NAME) == [
        "nccl_ring_ll", "nccl_ring_ll128", "nccl_ring_simple",
        "nccl_tree_ll", "nccl_tree_ll128", "nccl_tree_simple", "nccl_auto",
    ]  # fmt: skip
    assert {a.family for a in ALGORITHMS} == {"nccl"}
    for algorithm in ALGORITHMS:
        assert hasattr(nccl_runner, algorithm.runner.partition(":")[2])


@pytest.mark.parametrize(
    ("there", "call", "answer", "words"),
    [
        (machine(), CALL, Answer.RUNS, "NCCL 2.30.7"),
        (machine(torch=""), CALL, Answer.DOES_NOT_RUN, "torch is not installed"),
        (machine(gpus=0), CALL, Answer.DOES_NOT_RUN, "no CUDA device"),
        (machine(torch="2.13.0+cpu"), CALL, Answer.DOES_NOT_RUN, "CPU build"),
        (machine(gpus=1), CALL, Answer.DOES_NOT_RUN, "8 ranks on 1 GPU"),
        (machine(gpus=1, share=True), CALL, Answer.RUNS, "NCCL 2.30.7"),
        (machine(gpus=1, share=True, nccl="2.28.9"), CALL, Answer.DOES_NOT_RUN, "Duplicate GPU detected"),
        (machine(gpus=1, share=True, nccl="2.30.3"), CALL, Answer.RUNS, ""),
        (machine(gpus=8, share=True, nccl="2.28.9"), CALL, Answer.RUNS, ""),
        (machine(nccl=""), CALL, Answer.UNKNOWN, "not known"),
        (machine(), replace(CALL, op="max"), Answer.DOES_NOT_RUN, "only the sum"),
        (machine(), replace(CALL, world_size=1), Answer.DOES_NOT_RUN, "no peer"),
        (machine(), replace(CALL, epilogue="norm"), Answer.DOES_NOT_RUN, "no epilogue"),
    ],
)
def test_support_names_what_is_missing(there: Machine, call: Call, answer: Answer, words: str) -> None:
    """Each refusal says what is wrong; several ranks per GPU need NCCL 2.30.3."""
    support = BY_NAME["nccl_ring_ll"].support(there, call)
    assert support.answer is answer
    assert words in support.reason


def test_remedies_name_the_option_and_the_extra() -> None:
    """What to install is a command, not a hint."""
    old = BY_NAME["nccl_auto"].support(machine(gpus=1, share=True, nccl="2.28.9"), CALL)
    assert "--nccl PATH" in old.remedy
    assert "nvidia-nccl-cu13>=2.30.7" in old.remedy
    assert "collbench[sweep]" in BY_NAME["nccl_auto"].support(machine(torch=""), CALL).remedy


def test_a_forced_ll128_on_pcie_is_tried_with_a_word_of_warning() -> None:
    """It may be refused or wrong there; on NVLink it is NCCL's own choice."""
    pcie = BY_NAME["nccl_tree_ll128"].support(machine(), CALL)
    assert pcie
    assert pcie.answer is Answer.UNKNOWN
    assert "split" in pcie.reason
    assert "may refuse" in BY_NAME["nccl_ring_ll128"].support(machine(nccl="2.32.3"), CALL).reason
    assert BY_NAME["nccl_ring_ll128"].support(replace(machine(), fabric=Fabric.NVLINK), CALL).answer is Answer.RUNS


def test_environment_forces_logs_and_keeps_multicast_off() -> None:
    """Multicast stays off everywhere; the multi-rank mode and few blocks come with shared GPUs only."""
    plain = BY_NAME["nccl_tree_ll128"].environment(machine())
    assert (plain["NCCL_ALGO"], plain["NCCL_PROTO"]) == ("Tree", "LL128")
    assert plain["NCCL_NVLS_ENABLE"] == "0"
    assert plain["NCCL_DEBUG"] == "INFO"
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in plain
    shared = BY_NAME["nccl_auto"].environment(machine(gpus=1, share=True))
    assert shared["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert shared["NCCL_MAX_CTAS"] == "2"
    assert not {"NCCL_ALGO", "NCCL_PROTO"} & set(shared)


@pytest.mark.parametrize(
    ("name", "factor", "edges"),
    [("nccl_ring_ll", 2.0, 8), ("nccl_ring_ll128", 128 / 120, 8), ("nccl_tree_simple", 1.0, 14), ("nccl_auto", 2.0, 8)],
)
def test_traffic(name: str, factor: float, edges: int) -> None:
    """A ring has an edge per rank, a tree inside a node is a chain, and the protocol multiplies the bytes."""
    schedule = BY_NAME[name].traffic(CALL, machine().topology)
    assert schedule.wire_factor == pytest.approx(factor)
    assert sum(len(phase.flows) for phase in schedule.phases) == edges


RING_KERNEL = KernelNode("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2, 512)


@pytest.mark.parametrize(
    ("wanted", "choice", "kernels", "environment", "reason"),
    [
        (("Ring", "Simple"), Choice("Ring", "Simple"), (RING_KERNEL,), {}, ""),
        (("Tree", "LL"), Choice("Ring", "Simple"), (), {}, "NCCL ran Ring/Simple instead of Tree/LL"),
        (("Tree", "LL"), None, (RING_KERNEL,), {}, "NCCL ran the Ring kernel instead of Tree/LL"),
        (("Ring", "LL128"), None, (RING_KERNEL,), {}, ""),
        (("Tree", "LL"), None, (), {"NCCL_ALGO": "Ring"}, "NCCL read NCCL_ALGO=Ring instead of Tree"),
        (("", ""), Choice("NVLS", "Simple"), (), {}, ""),
    ],
)
def test_what_ran_is_judged_by_the_log_then_by_the_kernel(
    wanted: tuple[str, str],
    choice: Choice | None,
    kernels: tuple[KernelNode, ...],
    environment: Mapping[str, str],
    reason: str,
) -> None:
    """A setting that NCCL ignored is named with what ran instead."""
    assert judge(wanted, choice, kernels, NcclLog(environment=environment)) == reason


MAPS = """\
7f00-7f01 r-xp 00000000 08:01 11 /opt/a/libnccl.so.2
7f01-7f02 r--p 00001000 08:01 11 /opt/a/libnccl.so.2
7f02-7f03 r-xp 00000000 08:01 12 /opt/torch/lib/libtorch_cuda.so
7f03-7f04 rw-p 00000000 00:00 0
"""


def test_the_library_is_found_among_the_mapped_files() -> None:
    """One file is that one; of several the preloaded one; else the call goes another way."""
    assert find_library(MAPS) == "/opt/a/libnccl.so.2"
    two = MAPS + "7f05-7f06 r-xp 00000000 08:01 13 /opt/b/libnccl.so.2.30.7\n"
    assert find_library(two, "/opt/x.so:/opt/b/libnccl.so.2.30.7") == "/opt/b/libnccl.so.2.30.7"
    with pytest.raises(RuntimeError, match="2 libraries"):
        find_library(two)
    with pytest.raises(RuntimeError, match="none"):
        find_library("")


class FakeFunction:
    """A C function with attributes, like those of ctypes."""

    restype: Any = None

    def __init__(self, run: Any) -> None:
        self.run = run

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)


class FakeNccl:
    """A libnccl for two ranks that hold the same input: sums by doubling, and logs like 2.30 on rank 0."""

    def __init__(self, choice: str = "RING proto LL", code: int = 0) -> None:
        self.code = code
        self.choice = choice
        self.resets = 0
        self.ncclGetErrorString = FakeFunction(lambda _code: b"invalid usage")
        self.ncclGetLastError = FakeFunction(lambda _comm: b"no such algorithm")
        self.ncclGetVersion = FakeFunction(self._get_version)
        self.ncclAllReduce = FakeFunction(self._all_reduce)
        self.ncclResetDebugInit = FakeFunction(self._reset)

    def _get_version(self, out: Any) -> None:
        out._obj.value = 23007

    def _reset(self) -> None:
        self.resets += 1

    def _all_reduce(self, source: Any, target: Any, count: Any, _dtype: Any, _op: Any, comm: Any, _stream: Any) -> int:
        assert comm.value == 77
        x, y = (np.ctypeslib.as_array((ctypes.c_float * count.value).from_address(p.value)) for p in (source, target))
        y[:] = 2 * x
        if os.environ["NCCL_DEBUG"] == "INFO":
            line = f"{4 * count.value} Bytes -> Algo {self.choice} channel{{Lo..Hi}}={{0..1}}"
            with Path(os.environ["NCCL_DEBUG_FILE"]).open("a") as log:
                log.write(f"h:1:1 [0] NCCL INFO AllReduce: {line}\n")
        return self.code


class FakeRanks:
    """One rank that hears itself twice."""

    rank, world_size, local_rank, local_world_size, device, deadline_s = 0, 2, 0, 2, "cpu", 1.0
    has_pointer = True

    def exchange(self, value: Any) -> list[Any]:
        return [value, None if value is None or isinstance(value, list) else value]

    def barrier(self) -> None:
        pass

    def process_group(self, backend: str) -> Any:
        assert backend == "nccl"
        backend_object = SimpleNamespace(_comm_ptr=lambda: 77) if self.has_pointer else SimpleNamespace()
        return SimpleNamespace(_get_backend=lambda _device: backend_object)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    """A torch without a GPU whose CUDA calls do nothing, and the fake library in place of the loaded one."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    library = FakeNccl()
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, query=lambda: True))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_words: tensor.mul_(2))
    monkeypatch.setattr(NcclLibrary, "loaded", classmethod(lambda cls: cls("fake", library)))
    monkeypatch.setattr(nccl_runner, "capture_kernels", lambda _launch: (RING_KERNEL,))
    monkeypatch.setattr(nccl_runner, "_log", [])
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "")
    return library


def test_the_runner_calls_out_of_place_and_proves_it(fake: FakeNccl) -> None:
    """Inputs stay as they were; the proof names choice, call and kernel; then NCCL is told to be quiet."""
    with nccl_runner.RingLL(FakeRanks(), Call(64, 2, dtype="float32"), 3) as runner:
        runner.inputs(2)["x"].fill_(4)
        runner.launch(2)
        assert runner.inputs(2)["x"].tolist() == [4.0] * 16
        assert runner.outputs(2)["y"].tolist() == [8.0] * 16
        assert (runner.blocks, runner.threads) == (2, 512)
        proof = runner.proof()
        assert proof.reason == ""
        assert proof.evidence["choice"] == "Ring/LL"
        assert proof.evidence["channels_used"] == "2"
        assert proof.evidence["nccl_library"] == "2.30.7"
        assert "out of place" in proof.evidence["call"]
        assert RING_KERNEL.name in proof.evidence["kernel"]
        assert os.environ["NCCL_DEBUG"] == "WARN"
    with nccl_runner.TreeLL(FakeRanks(), Call(64, 2, dtype="float32"), 1) as runner:
        assert os.environ["NCCL_DEBUG"] == "INFO"
        assert runner.proof().reason == "NCCL ran Ring/LL instead of Tree/LL"
    assert fake.resets == 3


def test_without_the_communicator_it_calls_torch(fake: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older torch shows no communicator: a copy and an in-place all_reduce, said in the evidence."""
    monkeypatch.setattr(FakeRanks, "has_pointer", False)
    with nccl_runner.Auto(FakeRanks(), Call(64, 2, dtype="float32"), 1) as runner:
        runner.inputs(0)["x"].fill_(3)
        runner.launch(0)
        assert runner.outputs(0)["y"].tolist() == [6.0] * 16
        evidence = runner.proof().evidence
        assert "in place, behind a copy" in evidence["call"]
        assert evidence["choice"] == "not in NCCL's log"
        assert "one line per eager call" in evidence["log"]


def test_a_refused_call_says_why_in_nccls_words(fake: FakeNccl) -> None:
    """Result code and last error stand in one line."""
    fake.code = 5
    with pytest.raises(RuntimeError, match="ncclAllReduce: invalid usage; no such algorithm"):
        nccl_runner.RingLL(FakeRanks(), Call(64, 2, dtype="float32"), 1).__enter__()


def test_what_nccl_refuses_by_nature_is_not_a_crash(fake: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that NCCL will not run is NotImplementedError with NCCL's warning, whatever torch makes of it."""
    import torch.distributed as dist

    def refuse(*_arguments: Any, **_words: Any) -> None:
        with Path(os.environ["NCCL_DEBUG_FILE"]).open("a") as log:
            log.write("[2026-11-29] h:1:1 [0] init.cc:9 NCCL WARN Duplicate GPU detected : rank 1 and rank 0\n")
        raise dist.DistBackendError("NCCL error in: ...\nncclInvalidUsage")

    monkeypatch.setattr(dist, "all_reduce", refuse)
    with pytest.raises(NotImplementedError, match="Duplicate GPU detected"):
        nccl_runner.RingLL(FakeRanks(), Call(64, 2, dtype="float32"), 1).__enter__()


def test_the_log_leaves_no_file_and_survives_being_cut(fake: FakeNccl) -> None:
    """It is an anonymous file; what was read before NCCL opened it anew is kept."""
    log = DebugLog()
    path = Path(os.environ["NCCL_DEBUG_FILE"])
    assert path.parent == Path("/proc/self/fd")
    path.write_text("first\n")
    assert log.quiet(NcclLibrary("fake", fake))
    with path.open("r+b") as late:
        late.seek(100)
        late.write(b"second\n")
    assert log.text() == "first\nsecond\n"


@pytest.mark.gpu
def test_nccl_on_real_gpus() -> None:
    """On two GPUs the sweep is the test: seven rows, eager and captured, all right."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("fewer than two CUDA devices")
    command = [sys.executable, "-m", "collbench", "sweep", "--nproc", "2", "--algorithms", "nccl", "-b", "1K", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert {row["algorithm"] for row in rows} == set(BY_NAME)
    assert {row["status"] for row in rows if "ll128" not in row["algorithm"]} == {"ok"}
