"""What the GPU clocks count and what they leave out, shown on a device made of Python with a clock of its own."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collbench.algorithms.base import Runner
from collbench.measure.cuda_clock import EagerClock, GraphClock, clocks_and_throttle, is_throttled
from collbench.measure.trial import Trial
from collbench.measure.verify import Check
from collbench.results.records import Call

LAUNCH_US = 5.0


class Device:
    """Runs what is enqueued at once, in order, on a clock in microseconds; while capturing it records instead."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.captured: list[Callable[[], None]] | None = None
        self.stuck = False
        self.live_graphs = 0
        self.modes: list[str] = []

    def enqueue(self, work: Callable[[], None]) -> None:
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    def spend(self, us: float) -> None:
        self.now_us += us


class FakeEvent:
    """An event on the device's clock."""

    device: Device

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = self.device.now_us

    def query(self) -> bool:
        return not self.device.stuck

    def elapsed_time(self, other: "FakeEvent") -> float:
        return (other.at - self.at) / 1000


class FakeGraph:
    """Holds what was enqueued while it captured."""

    device: Device

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def capture_begin(self, *, capture_error_mode: str) -> None:
        self.device.modes.append(capture_error_mode)
        self.device.captured = []
        self.device.live_graphs += 1

    def capture_end(self) -> None:
        self.work, self.device.captured = self.device.captured or [], None

    def replay(self) -> None:
        for work in self.work:
            work()

    def reset(self) -> None:
        self.device.live_graphs -= 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A module `torch` whose GPU is a `Device`."""
    made = Device()
    FakeEvent.device = FakeGraph.device = made
    stream = SimpleNamespace(wait_stream=lambda _other: None)
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        Stream=lambda: stream, current_stream=lambda: stream, stream=lambda _s: contextlib.nullcontext(),
        Event=FakeEvent, CUDAGraph=FakeGraph, _sleep=lambda cycles: made.spend(cycles / 2000),
        get_device_properties=lambda _d: SimpleNamespace(clock_rate=2_000_000), synchronize=lambda: None,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made  # type: ignore[return-value]


class FakeRunner(Runner):
    """Adds one; each launch takes 5 us on the device. `broken` makes captured launches do nothing."""

    def __init__(self, device: Device, slots: int, *, broken: bool = False) -> None:
        ranks: Any = SimpleNamespace(device="cuda:0", deadline_s=0.05)
        super().__init__(ranks, Call(16, 2, dtype="float32"), slots)
        self.device, self.broken = device, broken
        self.x = np.zeros((slots, 4), np.float32)
        self.y = np.zeros((slots, 4), np.float32)
        self.launched: list[int] = []

    def inputs(self, i: int) -> dict[str, Any]:
        return {"x": self.x[i]}

    def outputs(self, i: int) -> dict[str, Any]:
        return {"y": self.y[i]}

    def launch(self, i: int) -> None:
        self.launched.append(i)
        capturing = self.device.captured is not None

        def work() -> None:
            self.device.spend(LAUNCH_US)
            if not (self.broken and capturing):
                self.y[i] = self.x[i] + 1

        self.device.enqueue(work)


def test_eager_counts_its_calls_only(device: Device) -> None:
    """A sample is its k calls; the call at which ranks meet, and the barrier, are outside."""
    meetings: list[float] = []
    runner = FakeRunner(device, 3)
    with EagerClock(runner, 3, lambda: meetings.append(device.now_us)) as clock:
        assert clock.samples(4) == pytest.approx([LAUNCH_US] * 4)
    assert len(meetings) == 4
    assert runner.launched == [0, 0, 1, 2] * 4


def test_graph_counts_its_calls_only(device: Device) -> None:
    """Spin, meeting call and poison are outside; more samples than fit into the launch queue come in portions."""
    meetings: list[float] = []
    runner = FakeRunner(device, 2)
    with GraphClock(runner, 2, lambda: meetings.append(device.now_us)) as clock:
        assert clock.samples(120) == pytest.approx([LAUNCH_US] * 120)
        assert device.live_graphs == 2
    assert device.live_graphs == 0
    assert device.modes == ["thread_local"] * 2
    assert len(meetings) == 3
    assert (runner.y == 1).all()


def test_a_captured_call_that_does_nothing_is_seen(device: Device) -> None:
    """The meeting call cannot stand in for the timed ones: slot 0 is poisoned behind it."""
    runner = FakeRunner(device, 1, broken=True)
    with GraphClock(runner, 1, lambda: None) as clock:
        clock.samples(3)
    assert not (runner.y == 1).any()


class Copies(FakeRunner):
    """An all-reduce over one rank. `idle(work)`, asked whenever the device runs a launch, may keep it from working."""

    def __init__(self, device: Device, slots: int, idle: Callable[["Copies", int], bool]) -> None:
        super().__init__(device, slots)
        self.call = Call(16, 1, dtype="float32")
        self.ranks.__dict__.update(
            rank=0, world_size=1, local_world_size=1, exchange=lambda value: [value], phase=lambda _: None
        )
        self.idle, self.ran = idle, 0

    def launch(self, i: int) -> None:
        def work() -> None:
            self.device.spend(LAUNCH_US)
            self.ran += 1
            if not self.idle(self, i):
                self.y[i] = self.x[i]

        self.device.enqueue(work)


@pytest.mark.parametrize("kind", [EagerClock, GraphClock])
@pytest.mark.parametrize(
    ("slots", "idle", "found"),
    [
        (1, lambda _runner, _slot: False, False),
        (4, lambda _runner, _slot: False, False),
        (1, lambda runner, _slot: runner.ran > 60, True),
        (4, lambda runner, _slot: runner.ran > 60, True),
        (4, lambda runner, _slot: runner.ran > 60 and runner.ran % 2 == 0, True),
        (4, lambda runner, slot: not np.isnan(runner.y[slot, 0]), True),
    ],
    ids=["never", "never", "gated off", "gated off", "every second", "works on poison only"],
)
def test_launches_on_a_device_that_do_nothing_are_found(
    device: Device, kind: type[EagerClock | GraphClock], slots: int, idle: Any, found: bool  # noqa: FBT001 - a table
) -> None:  # fmt: skip
    """What was captured once is judged at replays between the timed ones; right launches pass with all samples."""
    runner = Copies(device, slots, idle)
    with kind(runner, slots, lambda: None) as clock:
        ranks: Any = runner.ranks
        trial = Trial(clock, Check(runner, runner.call, 0, seed=3), ranks, itertools.count(1), 3)
        done = trial.time({"warmup": 2, "iterations": 60, "seconds": 0.1, "least": 3, "most": 60})
    assert bool(done.problem) is found
    assert len(done.samples) == (0 if found else 60)


@pytest.mark.parametrize("kind", [EagerClock, GraphClock])
def test_a_device_that_does_not_answer_is_a_timeout(device: Device, kind: type[EagerClock | GraphClock]) -> None:
    """Nothing waits without end, and graphs are destroyed on that way out too."""
    with kind(FakeRunner(device, 1), 1, lambda: None) as clock:
        device.stuck = True
        with pytest.raises(TimeoutError, match=r"did not end within 0\.05 s"):
            clock.samples(2)
    assert device.live_graphs == 0


def test_a_launch_that_fails_ends_the_capture(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is left outside of a capture, and the launch's own error comes through."""
    runner = FakeRunner(device, 1)

    def fail(_slot: int) -> None:
        if device.captured is not None:
            raise RuntimeError("NCCL refused")

    monkeypatch.setattr(runner, "launch", fail)
    with pytest.raises(RuntimeError, match="NCCL refused"), GraphClock(runner, 1, lambda: None):
        pass
    assert device.captured is None


class FakeNvml:
    """A card that tells its clock and a power cap, and nothing else."""

    class NVMLError(Exception):
        """NVML's error."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        pass

    nvmlShutdown = nvmlInit  # noqa: N815 - NVML's name

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802 - NVML's name
        if uuid != "GPU-1":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetClockInfo(self, _handle: str, kind: int) -> int:  # noqa: N802 - NVML's name
        if kind == self.NVML_CLOCK_MEM:
            raise self.NVMLError
        return 1980

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: str) -> int:  # noqa: N802 - NVML's name
        return self.bits


@pytest.mark.parametrize(("bits", "text", "slow"), [(0x4, "software power cap", True), (0x1, "none", False)])
def test_throttling(bits: int, text: str, slow: bool) -> None:  # noqa: FBT001 - a table
    """A power cap throttles, an idle clock does not; what NVML does not tell is left out."""
    facts = clocks_and_throttle("GPU-1", FakeNvml(bits))
    assert facts == {"sm_clock_mhz": "1980", "throttle": text}
    assert is_throttled(facts) is slow
    assert clocks_and_throttle("GPU-2", FakeNvml(bits)) == {}


@pytest.mark.gpu
def test_a_real_copy_is_timed_both_ways() -> None:
    """On a GPU, copying 1 MiB takes more than nothing and less than a millisecond, eager and captured."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")

    class Copy(Runner):
        """Copies x to y."""

        def __init__(self) -> None:
            ranks: Any = SimpleNamespace(device="cuda:0", deadline_s=10)
            super().__init__(ranks, Call(1 << 20, 2), 4)
            self.x, self.y = (torch.zeros(4, 1 << 19, dtype=torch.bfloat16, device="cuda:0") for _ in range(2))

        def inputs(self, i: int) -> dict[str, Any]:
            return {"x": self.x[i]}

        def outputs(self, i: int) -> dict[str, Any]:
            return {"y": self.y[i]}

        def launch(self, i: int) -> None:
            self.y[i].copy_(self.x[i])

    for kind in (EagerClock, GraphClock):
        with kind(Copy(), 4, lambda: None) as clock:
            assert all(0 < us < 1000 for us in clock.samples(60)[10:])
