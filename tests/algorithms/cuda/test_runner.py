"""The runner's own steps, with a driver and a torch that only record: what is laid out, launched, tuned and refused."""

import contextlib
import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.algorithms.base import registry
from collbench.algorithms.cuda import memory, runner, tuning
from collbench.algorithms.cuda.compile import SPEEDUPS, Variant
from collbench.algorithms.cuda.designs import collective_of
from collbench.algorithms.cuda.driver import DriverError
from collbench.algorithms.own_runners import Auto, Islands, OneStagePullBuffered, Push, PushAllGather, PushReduceScatter
from collbench.errors import UsageError
from collbench.results.records import Call, Collective


class Ranks:
    """Rank 0 of 2, whose peer does as it does."""

    rank, world_size, local_rank, local_world_size, device, deadline_s = 0, 2, 0, 2, "cuda:0", 0.05

    def exchange(self, value: Any) -> list[Any]:
        return [value, value]

    def barrier(self) -> None:
        return None

    def process_group(self, backend: str) -> Any:
        raise NotImplementedError(backend)


class Event:
    """A CUDA event that is always reached; each record is 400 us after the one before, less on a favoured grid."""

    clock = 0.0
    step_ms = 0.4

    def __init__(self, enable_timing: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        Event.clock += Event.step_ms
        self.at = Event.clock

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        return other.at - self.at


class Graph:
    """A graph that replays nothing."""

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"

    def capture_end(self) -> None:
        return None

    replay = reset = capture_end


class Tensor:
    """What torch makes of an address."""

    def __init__(self, pointer: Any, device: str) -> None:
        self.interface = pointer.__cuda_array_interface__
        self.device = device

    def view(self, dtype: str) -> "Tensor":
        self.dtype = dtype
        return self


class Launcher:
    """Keeps what would be launched."""

    made: list["Launcher"] = []  # noqa: RUF012 - cleared by the fixture

    def __init__(self, function: Any, blocks: int, threads: int, records: Any, *, pdl: bool = False) -> None:
        self.grid, self.records, self.pdl = (blocks, threads), records, pdl
        self.calls: list[tuple[int, int]] = []
        Event.step_ms = 0.2 if blocks == 2 else 0.4
        Launcher.made.append(self)

    def __call__(self, slot: int, stream: int) -> None:
        self.calls.append((slot, stream))


class Function:
    """A kernel of which two blocks fit on a multiprocessor."""

    def __init__(self, cubin: bytes, entry: str) -> None:
        assert entry == "collective"

    def blocks_per_sm(self, threads: int) -> int:
        return 1024 // threads

    def close(self) -> None:
        return None


def fake_torch(processors: int) -> Any:
    stream = SimpleNamespace(cuda_stream=77)
    properties = SimpleNamespace(multi_processor_count=processors, uuid="one")
    cuda = SimpleNamespace(
        set_device=lambda _: None, current_device=lambda: 0, default_stream=lambda: stream, Event=Event,
        current_stream=lambda: stream, Stream=lambda: stream, stream=lambda _: contextlib.nullcontext(),
        CUDAGraph=Graph, get_device_properties=lambda _: properties, get_device_capability=lambda _: (9, 0),
    )  # fmt: skip
    return SimpleNamespace(
        cuda=cuda, empty=lambda *_, **__: None, as_tensor=Tensor,
        bfloat16="bfloat16", _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 70 + index),
    )  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A driver on host memory; gives its blocks."""
    blocks: list[Any] = []

    def call(name: str, *values: Any) -> Any:
        if name == "cuMemAlloc":
            blocks.append(ctypes.create_string_buffer(values[0]))
            return ctypes.addressof(blocks[-1])
        if name == "cuMemsetD32":
            pointer, word, count = values
            ctypes.memmove(pointer, word.to_bytes(4, "little") * count, 4 * count)
        if name == "cuMemcpyHtoD":
            ctypes.memmove(values[0], values[1], values[2])
        if name == "cuMemcpyDtoH":
            values[0][:] = ctypes.string_at(values[1], values[2])
        return values[0] if name == "cuIpcOpenMemHandle" else None

    monkeypatch.setattr(memory, "call", call)
    monkeypatch.setattr(memory, "handle_bytes", lambda pointer: pointer.to_bytes(64, "little"))
    monkeypatch.setattr(memory, "handle_from", lambda data: int.from_bytes(data, "little"))
    monkeypatch.setattr(runner, "Launcher", Launcher)
    monkeypatch.setattr(runner, "Function", Function)
    made = SimpleNamespace(cubin=b"", registers=40, variant=SimpleNamespace(entry="collective"))
    monkeypatch.setattr(runner, "compile_kernel", lambda _: made)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(16))
    Launcher.made.clear()
    return blocks


def test_slots_lie_in_the_shared_region_behind_the_buffers(machine: list[Any]) -> None:
    """Inputs and outputs are views of it, aligned, apart from each other; the records point at them."""
    with Push(Ranks(), Call(1002, 2), 3) as push:
        spans = [t.interface["data"][0] for i in range(3) for t in (push.inputs(i)["x"], push.outputs(i)["y"])]
        assert len(set(spans)) == 6
        assert all(b - a >= 1002 for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False))
        assert push.inputs(0)["x"].interface["shape"] == (501,)
        record = Launcher.made[-1].records[2]
        base = ctypes.addressof(machine[0])
        assert (record.in_, record.out) == tuple(
            t.interface["data"][0] for t in (push.inputs(2)["x"], push.outputs(2)["y"])
        )
        assert record.in_offset == record.in_ - base
        assert (record.rank, record.bytes, record.deadline_ns) == (0, 1002, 2_000_000_000)
        assert list(record.base[:3]) == [base, base, 0]
        push.launch(2)
        assert Launcher.made[-1].calls[-1] == (2, 70)


def test_the_fastest_grid_of_the_slowest_rank_is_kept(machine: list[Any]) -> None:
    """All candidates stand in the evidence, with the kernel that each runs."""
    with OneStagePullBuffered(Ranks(), Call(16384, 2), 2) as pull:
        proof = pull.proof()
        assert pull.blocks == 2
        assert proof.reason == ""
        assert proof.evidence["kernel"].removesuffix("+pdl") == f"one_stage_pull_data 2x{pull.threads}"
        assert "one_stage_pull_flag" in proof.evidence["tuning"]


def test_a_speedup_is_left_out_when_asked_for(machine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """COLLBENCH_OWN_WITHOUT reaches the compiler and the evidence; another word is refused."""
    asked: list[Variant] = []
    made = SimpleNamespace(cubin=b"", registers=40, variant=SimpleNamespace(entry="collective"))

    def compiled(variant: Variant) -> Any:
        asked.append(variant)
        return made

    monkeypatch.setattr(runner, "compile_kernel", compiled)
    monkeypatch.setenv("COLLBENCH_OWN_WITHOUT", "early_load")
    with Push(Ranks(), Call(1024, 2), 1) as push:
        assert push.proof().evidence["without"] == "early_load"
    assert {variant.without for variant in asked} == {SPEEDUPS["early_load"]}
    monkeypatch.setenv("COLLBENCH_OWN_WITHOUT", "luck")
    with pytest.raises(UsageError, match="'luck': expected one of relaxed_polls, "):
        Push(Ranks(), Call(1024, 2), 1)


def test_early_start_is_tried_unless_it_is_switched_off(machine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """COLLBENCH_OWN_PDL=0 leaves programmatic dependent launch out; so does a card older than sm_90."""
    with Push(Ranks(), Call(1024, 2), 1) as push:
        assert {made.pdl for made in Launcher.made} == {False, True}
        assert "early start" not in push.proof().evidence
    for given, capability in (("0", (9, 0)), ("1", (8, 9))):
        Launcher.made.clear()
        monkeypatch.setenv("COLLBENCH_OWN_PDL", given)
        monkeypatch.setattr(sys.modules["torch"].cuda, "get_device_capability", lambda _, found=capability: found)
        with Push(Ranks(), Call(1024, 2), 1):
            assert {made.pdl for made in Launcher.made} == {False}


def test_early_start_that_makes_a_rank_give_up_is_left_out(machine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that expires in its trial, on a peer too, costs early start and nothing else; the evidence says so."""
    expired = "rank 1 waited 2.00 s for data of a peer from rank 0"

    class PeerGaveUp(Ranks):
        def exchange(self, value: Any) -> list[Any]:
            return [value, expired if value == "" and Launcher.made[-1].pdl else value]

    with Push(PeerGaveUp(), Call(1024, 2), 1) as push:
        evidence = push.proof().evidence
        assert evidence["early start"] == f"left out: {expired}"
        assert "+pdl" not in evidence["kernel"] + evidence["tuning"]
    monkeypatch.setattr(Push, "failure", lambda _: "rank 0 waited" if Launcher.made[-1].pdl else "")
    with Push(Ranks(), Call(1024, 2), 1) as push:
        assert push.proof().evidence["early start"] == "left out: rank 0 waited"


def test_early_start_that_a_driver_refuses_is_left_out(machine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was nobody's wish: a launch attribute that is not taken costs no cell."""

    class Refusing(Launcher):
        def __call__(self, slot: int, stream: int) -> None:
            if self.pdl:
                raise DriverError("launch of slot 0: CUDA_ERROR_NOT_SUPPORTED")
            super().__call__(slot, stream)

    monkeypatch.setattr(runner, "Launcher", Refusing)
    with Push(Ranks(), Call(1024, 2), 1) as push:
        evidence = push.proof().evidence
        assert evidence["early start"] == "left out: launch of slot 0: CUDA_ERROR_NOT_SUPPORTED"
        assert "+pdl" not in evidence["kernel"] + evidence["tuning"]


def test_a_given_launch_is_taken_as_it_is(machine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """COLLBENCH_OWN_LAUNCH skips the tuning."""
    monkeypatch.setenv("COLLBENCH_OWN_LAUNCH", "3x64")
    with Push(Ranks(), Call(1024, 2), 1) as push:
        assert (push.blocks, push.threads, len(Launcher.made)) == (3, 64, 1)
        assert "tuning" not in push.proof().evidence


def test_blocks_that_cannot_wait_together_are_not_launched(machine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that share a GPU share its multiprocessors; where not even one block of each fits, it says so."""
    del machine
    monkeypatch.setitem(sys.modules, "torch", fake_torch(0))
    with (
        pytest.raises(NotImplementedError, match="not one block of each of 2 ranks fits"),
        Push(Ranks(), Call(1024, 2), 1),
    ):
        pass


def test_an_expired_wait_is_the_reason(machine: list[Any]) -> None:
    """The error record becomes words; a rank that was stopped by a peer names it."""
    with Push(Ranks(), Call(1024, 2), 1) as push:
        base = ctypes.addressof(machine[0])
        ctypes.memmove(base + 8, (2).to_bytes(8, "little"), 8)
        assert push.failure() == "rank 1 gave up waiting and stopped all ranks"
        ctypes.memmove(base + 64, b"\1\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0", 16)
        assert push.proof().reason.startswith("rank 0 waited 0.00 s for data of a peer from rank 1")


def test_islands_come_from_the_environment(machine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank is its own group here: no members, one partner."""
    del machine
    monkeypatch.setenv("COLLBENCH_ISLANDS", "0;1")
    with Islands(Ranks(), Call(1024, 2), 1):
        record = Launcher.made[-1].records[0]
        assert (record.members, record.partners, record.owners) == (1, 2, 1)


def test_rows_to_normalise_come_with_residual_and_weight(machine: list[Any]) -> None:
    """Every slot has arrays of its own, and its record points at all five."""
    with Push(Ranks(), Call(14336 * 2, 2, epilogue="residual_rmsnorm"), 2) as push:
        given, out = push.inputs(1), push.outputs(1)
        assert {name: t.interface["shape"][0] for name, t in given.items()} == {
            "x": 14336, "residual": 14336, "weight": 7168,
        }  # fmt: skip
        assert list(out) == ["y", "residual_out"]
        record = Launcher.made[-1].records[1]
        told = [record.in_, record.residual, record.weight, record.out, record.residual_out]
        assert told == [t.interface["data"][0] for t in (*given.values(), *out.values())]
        assert (record.hidden, record.epsilon) == (7168, pytest.approx(1e-6))
        assert push.proof().evidence["kernel"].startswith("push_fused ")
        end = ctypes.addressof(machine[0]) + len(machine[0])
        assert max(address + 14336 * 2 for address in told) <= end


def test_parts_have_arrays_of_their_own_length(machine: list[Any]) -> None:
    """An all-gather puts in a part and gets all, a reduce-scatter the other way round."""
    del machine
    with PushAllGather(Ranks(), Call(1024, 2, Collective.ALL_GATHER, ""), 1) as gather:
        shapes = [t.interface["shape"][0] for t in (gather.inputs(0)["x"], gather.outputs(0)["y"])]
        assert shapes == [256, 512]
    with PushReduceScatter(Ranks(), Call(1024, 2, Collective.REDUCE_SCATTER), 1) as scatter:
        shapes = [t.interface["shape"][0] for t in (scatter.inputs(0)["x"], scatter.outputs(0)["y"])]
        assert shapes == [512, 256]


def test_auto_times_what_it_is_told_to_and_says_so(machine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One grid of each design, all grids of two; the evidence names every time and the choice."""
    del machine
    monkeypatch.setenv("COLLBENCH_AUTO", "push,two_stage_push,islands")
    with Auto(Ranks(), Call(16384, 2), 1) as auto:
        evidence = auto.proof().evidence
        assert {"push", "two_stage_push", "islands"} == {text.split()[0] for text in evidence["tuning"].split("; ")}
        assert evidence["kernel"] == evidence["tuning"].split("; ")[0].rsplit(" ", 2)[0]
        assert auto.blocks == 2  # the fake's fastest grid
    with Auto(Ranks(), Call(14336, 2, epilogue="residual_rmsnorm"), 1) as auto:
        assert {text.split()[0] for text in auto.proof().evidence["tuning"].split("; ")} == {
            "push_fused", "islands_fused",
        }  # fmt: skip


def test_two_designs_go_into_the_final() -> None:
    """The third after the heats gets no further grid; all ranks see the slowest one's time."""
    launches = [tuning.Launch(kernel, blocks, 64) for kernel in "abc" for blocks in (1, 2)]
    own = {("a", 1): 5.0, ("b", 1): 3.0, ("c", 1): 9.0, ("a", 2): 2.0, ("b", 2): 4.0, ("c", 2): 0.1}
    timed: list[tuning.Launch] = []

    def measure(launch: tuning.Launch) -> float:
        timed.append(launch)
        return own[launch.kernel, launch.blocks]

    choice = tuning.best_of_kernels(launches, measure, lambda us: [us, us + 1])
    assert (choice.launch.kernel, choice.launch.blocks) == ("a", 2)
    assert dict(choice.tried)[choice.launch] == 3.0
    assert not any(launch.kernel == "c" and launch.blocks == 2 for launch in timed)
    assert len(timed) == len(choice.tried) == 5


def test_few_plain_grids_are_tried_beside_those_that_start_early() -> None:
    """The two fastest again without early start, and what only fits without it; not grids of slow kernels."""
    early = [tuning.Launch(kernel, blocks, 64, pdl=True) for kernel in "abc" for blocks in (1, 2, 3)]
    plain = [tuning.Launch(kernel, blocks, 64) for kernel in "abc" for blocks in (1, 2, 3, 9)]
    slow = {"a": 0.0, "b": 1.5, "c": 9.0}
    timed: list[tuning.Launch] = []

    def measure(launch: tuning.Launch) -> float:
        timed.append(launch)
        return slow[launch.kernel] + (0.5 if launch.blocks == 9 else launch.blocks) + (0.0 if launch.pdl else 0.2)

    choice = tuning.best_early(early, plain, measure, lambda us: [us, us])
    assert choice.launch == tuning.Launch("a", 9, 64)
    assert [(la.kernel, la.blocks) for la in timed if not la.pdl] == [("a", 1), ("a", 2), ("a", 9), ("b", 9)]
    assert len(timed) == len(choice.tried)
    assert tuning.best_early([], plain[:4], measure, lambda us: [us, us]).launch == tuning.Launch("a", 9, 64)


def test_every_record_names_a_runner_that_is_there() -> None:
    """`module:Class` can be imported without torch and without a GPU."""
    for algorithm in registry().values():
        if algorithm.family == "own":
            found = algorithm.load_runner()
            assert issubclass(found, runner.OwnRunner)
            kernels = {collective_of(kernel) for kernel in found.kernels}
            assert kernels <= {algorithm.collective}
            assert kernels or algorithm.name == "auto"
