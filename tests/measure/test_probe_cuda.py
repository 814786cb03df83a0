"""The GPU bench's own steps, with a driver and a torch that only record: arguments, epochs, rounds, failures."""

import contextlib
import struct
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.algorithms.cuda.probes import AT_DATA, AT_RESULT, FLOW_BYTES, Op
from collbench.measure import probe_cuda
from collbench.measure.probe_cuda import CudaProbes
from collbench.measure.probe_plan import Task, plan_probes
from collbench.measure.probes import fold
from collbench.results.records import Status
from collbench.topology import catalog

BASES = (1 << 40, 2 << 40, 3 << 40, 4 << 40)


class Ranks:
    """One rank of four; all exchange the same values."""

    world_size, local_rank, device, deadline_s = 4, 0, "cuda:0", 1.0

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def exchange(self, value: Any) -> list[Any]:
        return [value] * 4

    def barrier(self) -> None:
        return None

    def phase(self, name: str) -> None:
        return None


class Event:
    """Each record is 1 ms after the one before."""

    clock = 0.0

    def __init__(self, enable_timing: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        Event.clock += 1.0
        self.at = Event.clock

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        return other.at - self.at


class Stream:
    """A stream that does nothing."""

    cuda_stream = 7

    def wait_event(self, event: Any) -> None:
        return None

    wait_stream = wait_event


class Graph:
    """A graph whose kernels take 2 us each, those that start early 0.4 us, and each read 0.1 us more."""

    launched = 0.0

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.us = -Graph.launched

    def capture_end(self) -> None:
        self.us += Graph.launched

    def replay(self) -> None:
        Event.clock += 1e-3 * self.us

    def reset(self) -> None:
        return None


class Device:
    """What was launched, and the result that the next launch leaves."""

    def __init__(self) -> None:
        self.launched: list[Any] = []
        self.grids: list[tuple[int, int]] = []
        self.early: list[bool] = []
        self.capability = (9, 0)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.result = [1000, 201000, 2, 50, 0, 1, 9, 0]
        self.abort = 0

    def ops(self) -> list[Op]:
        return [Op(args.op) for args in self.launched]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that records, under the bench."""
    made = Device()

    class Launcher:
        def __init__(self, function: Any, blocks: int, threads: int, records: Any, *, pdl: bool = False) -> None:
            assert function.pdl == pdl, "a kernel that does not wait, or waits for nothing"
            self.args, self.grid, self.pdl = records[0], (blocks, threads), pdl

        def __call__(self, slot: int, stream: int) -> None:
            made.launched.append(self.args)
            Graph.launched += (0.4 if self.pdl else 2.0) + 0.1 * self.args.rounds * (self.args.op == Op.READ_CHAIN)
            made.early.append(self.pdl)
            made.grids.append(self.grid)

    class Region(contextlib.AbstractContextManager["Region"]):
        bases = BASES

        def __init__(self, ranks: Any, size: int) -> None:
            assert size >= AT_DATA + 5 * FLOW_BYTES

        def write(self, offset: int, data: bytes) -> None:
            return None

        def read(self, offset: int, size: int) -> bytes:
            whole = struct.pack("<Q", made.abort).ljust(AT_RESULT, b"\0") + struct.pack("<8Q", *made.result)
            return whole[offset : offset + size]

        def __exit__(self, *args: object) -> None:
            return None

    cuda = SimpleNamespace(
        set_device=lambda _: None, get_device_capability=lambda: made.capability, synchronize=lambda: None,
        Stream=Stream, Event=Event, CUDAGraph=Graph, stream=lambda _: contextlib.nullcontext(),
        current_device=lambda: 0,
    )  # fmt: skip
    raw = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 7 + index)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=raw, empty=lambda *_, **__: None))
    monkeypatch.setattr(probe_cuda, "Launcher", Launcher)
    monkeypatch.setattr(probe_cuda, "SharedRegion", Region)
    monkeypatch.setattr(probe_cuda, "Function", lambda built, _: SimpleNamespace(close=lambda: None, pdl=built))
    monkeypatch.setattr(probe_cuda, "compile_probe", lambda _, *, pdl: SimpleNamespace(cubin=pdl))
    monkeypatch.setattr(probe_cuda, "call", lambda name, *values: made.calls.append((name, values)))
    return made


def ask(task: Task, rank: int = 0, turn: int = 1) -> dict[str, Any]:
    return CudaProbes(Ranks(rank), {}).answer({"op": "probe", "task": task.as_dict(), "turn": turn})  # type: ignore[arg-type]


def test_every_task_of_a_plan_is_answered(device: Device) -> None:
    """Folded with the other ranks' answers, each gives a number."""
    topology = catalog.load(catalog.find("one-plx-4xv100"))
    tasks = [*plan_probes(4, topology, "cuda"), *plan_probes(4, topology, "cuda", litmus=True)]
    for turn, task in enumerate(tasks, 1):
        probe = fold(task, [ask(task, rank, turn) for rank in range(4)])
        assert probe.status is Status.OK, (task, probe)
        assert probe.value is not None


def test_launches_are_the_slope_of_two_chains(device: Device) -> None:
    """What a replay costs beside its kernels falls out."""
    assert ask(Task("launch"))["answer"]["us"] == [pytest.approx(2.0)] * 7


def test_launches_by_the_host_are_counted_over_a_chain(device: Device) -> None:
    """1 ms between the two events, for 122 empty kernels, nine times of which two warm up."""
    assert ask(Task("launch_eager"))["answer"]["us"] == [pytest.approx(1000 / 122)] * 7
    assert device.ops() == [Op.EMPTY] * 122 * 9
    assert device.early == [True] * 122 * 9, "as our runners launch on such a GPU"


def test_an_early_start_is_what_is_left_of_a_launch_behind_a_kernel_that_takes_time(device: Device) -> None:
    """1.6 of 2 us are saved, however long the kernels take; nothing below what events can tell."""
    assert ask(Task("launch_early"))["answer"]["us"] == [pytest.approx(0.4)] * 7
    met = [args for args, early in zip(device.launched, device.early, strict=True) if early]
    assert len(met) == 240
    assert {(args.op, args.mask, args.rounds) for args in met} == {(Op.BARRIER, 0b1111, 1)}
    device.capability = (8, 9)
    told = ask(Task("launch_early"))
    assert (told["failed"], told["reason"]) == (
        "unsupported", "programmatic dependent launch needs compute capability 9.0",
    )  # fmt: skip
    device.early.clear()
    assert ask(Task("launch_eager"))["answer"]["us"] == [pytest.approx(1000 / 122)] * 7
    assert not any(device.early)


def test_kernels_of_a_chain_meet_at_rising_epochs(device: Device) -> None:
    """Each above all that were before it, behind flags that a lower barrier took back; the same on all ranks."""
    assert ask(Task("launch_meet"))["answer"]["us"] == [pytest.approx(2.0)] * 7
    epochs = [args.epoch for args in device.launched if args.op == Op.BARRIER]
    assert len(epochs) == 20 + 220 + 2 * 9 * 2
    short, long = epochs[:20], epochs[20 + 18 : 20 + 18 + 220]
    for chain in (short, long):
        assert chain == [*range(chain[0], chain[0] + len(chain))]
    lower, met = epochs[20:22]
    assert epochs[20:38] == [lower, met] * 9
    assert lower < met < short[0]
    assert short[-1] < long[0]
    device.launched.clear()
    ask(Task("launch_meet"), rank=3)
    assert [args.epoch for args in device.launched if args.op == Op.BARRIER] == epochs


def test_a_captured_barrier_alone_is_timed_behind_one_at_which_ranks_meet(device: Device) -> None:
    """One graph, and before each replay a barrier at a lower epoch than both; the same epochs on all ranks.

    Between the events are 1 ms and one kernel of 2 us.
    """
    assert ask(Task("launch_alone"))["answer"]["us"] == [pytest.approx(1002.0)] * 7
    barriers = [args for args in device.launched if args.op == Op.BARRIER]
    assert {args.mask for args in barriers} == {0b1111}
    alone, *before = [args.epoch for args in barriers]
    assert before == [*sorted(set(before))] * 9
    assert max(before) < alone
    assert device.ops().count(Op.EMPTY) == 220
    device.launched.clear()
    ask(Task("launch_alone"), rank=1)
    assert [args.epoch for args in device.launched if args.op == Op.BARRIER] == [alone, *before]
    device.result[:] = [0] * 8
    device.abort = 3
    assert "rank 2 gave up waiting" in ask(Task("launch_alone"))["reason"]


def test_latencies_are_times_of_one_step(device: Device) -> None:
    """200 us: 199 round trips of two flights, or 500 reads."""
    assert ask(Task("flag", ((0, 1),)))["answer"]["us"] == [pytest.approx(200 / 199 / 2)] * 7
    assert ask(Task("read_chain", ((1, 0),)))["answer"]["us"] == [pytest.approx(200 / 500)] * 7
    assert ask(Task("flag", ((1, 2),)))["answer"] == {}, "a rank that is not meant does nothing"
    assert [args.peer for args in device.launched] == [1] * 14


def test_ranks_of_a_task_meet_at_the_same_epochs(device: Device) -> None:
    """Also where one moves data and the other only owns it; and no two tasks share one."""
    epochs = []
    for rank in (0, 1):
        device.launched.clear()
        assert ask(Task("bandwidth", ((0, 1),), "store"), rank)["answer"] is not None
        epochs.append([args.epoch for args in device.launched if args.op == Op.BARRIER])
        assert all(args.mask == 0b11 for args in device.launched if args.op == Op.BARRIER)
    assert epochs[0] == epochs[1]
    assert len(set(epochs[0])) == len(epochs[0]) == 8
    device.launched.clear()
    ask(Task("bandwidth", ((0, 1),), "store"), turn=2)
    assert min(args.epoch for args in device.launched) > max(epochs[0])


def test_data_go_to_the_slot_of_their_source(device: Device) -> None:
    """Stores: own data into a slot of each destination; loads: each source's data."""
    ask(Task("bandwidth", ((0, 1), (0, 2)), "store"))
    args = next(args for args in device.launched if args.op == Op.STORE)
    assert list(args.to[:2]) == [base + AT_DATA + FLOW_BYTES for base in BASES[1:3]]
    assert device.grids[1] == (32, 512)
    device.launched.clear()
    ask(Task("bandwidth", ((3, 0),), "load"))
    args = next(args for args in device.launched if args.op == Op.LOAD)
    assert args.from_[0] == BASES[3] + AT_DATA
    ask(Task("bandwidth", ((0, 3),), "copy"))
    copies = [values for name, values in device.calls if name == "cuMemcpyAsync"]
    assert copies[0][:3] == (BASES[3] + AT_DATA + FLOW_BYTES, BASES[0] + AT_DATA, FLOW_BYTES)


def test_rounds_follow_the_first_repeat(device: Device) -> None:
    """One round took 1 ms, so two fill the 2 ms that are aimed at: bytes say so."""
    answer = ask(Task("bandwidth", ((0, 1),), "store"))["answer"]
    assert answer["bytes"] == 2 * FLOW_BYTES
    assert answer["end"] == [pytest.approx(1e-3)] * 7


@pytest.mark.parametrize(("missing", "abort", "words"), [(2, 0, "waited 2 s for rank 1"), (0, 4, "rank 3 gave up")])
def test_an_expired_deadline_is_a_hang(device: Device, missing: int, abort: int, words: str) -> None:
    """Whoever waited in vain says for whom; the others say who gave up. No time is made of it."""
    device.result[4], device.abort = missing, abort
    for task in (Task("flag", ((0, 1),)), Task("barrier"), Task("bandwidth", ((0, 1),), "load")):
        answer = ask(task)
        assert answer["failed"] == "hung"
        assert words in answer["reason"]


def test_litmus_counts_what_the_reader_saw(device: Device) -> None:
    reader = ask(Task("litmus_message", ((1, 0),)))["answer"]
    assert (reader["violations"], reader["looks"]) == (2, 50)
    assert "without fences 2 of 50" in reader["detail"]
    assert [args.fenced for args in device.launched] == [1, 0]
    assert ask(Task("litmus_message", ((0, 1),)))["answer"] == {}
    assert "1 within 8 bytes" in ask(Task("litmus_torn", ((1, 0),)))["answer"]["detail"]


def test_a_task_that_nobody_knows_is_unsupported(device: Device) -> None:
    assert ask(Task("nonsense", ((0, 1),)))["failed"] == "unsupported"
