"""Taking times on a GPU with CUDA events, eager or captured, each sample from a start at which the ranks are together.

Ranks come together on the device: one untimed call of the same collective runs before the start event, and no rank
leaves it much before the others. That call writes slot 0, whose output is poisoned again before the timed calls: what
is verified afterwards was written by them.

A captured sample is enqueued behind a spin kernel, so that the host is ahead of the device and its launch time is not
in the number by accident. An eager sample is not: what a program pays to launch call by call belongs to it.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from collbench.algorithms.base import Runner
from collbench.algorithms.cuda_buffers import wait_event
from collbench.measure.arrays import kind_of
from collbench.measure.clock import Clock

__all__ = ["EagerClock", "GraphClock", "clocks_and_throttle", "is_throttled"]

_CHUNK = 50
"""Samples enqueued before waiting: the launch queue holds 1024 entries, and a full one blocks the host without end."""

_WARMUPS = 2
_FIRST_SPIN_US = 300.0
_LEAST_SPIN_US = 30.0
_MOST_SPIN_US = 3000.0
_SPIN_MARGIN = 4.0
_DEFAULT_MHZ = 2000.0

_REASONS: Mapping[int, str] = {
    0x4: "software power cap", 0x8: "hardware slowdown", 0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown", 0x80: "hardware power brake",
}  # fmt: skip
"""Bits of NVML's clock event reasons that mean that the card runs slower than it would (nvml.h)."""


class _CudaClock(Clock):
    """Keeps the stream on which everything is timed. Waiting for the device always has a deadline."""

    def __init__(self, runner: Runner, calls: int, align: Callable[[], None]) -> None:
        super().__init__(runner, calls, align)
        self._stream: Any = None

    def __enter__(self) -> Self:
        import torch

        # inputs were written on the current stream
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._stream = None

    def _align_call(self) -> None:
        """The untimed call at which ranks meet, and the poison that makes the timed calls write slot 0 again."""
        self.runner.launch(0)
        for array in self.runner.outputs(0).values():
            kind_of(array).poison(array)

    def _timed_pair(self) -> tuple[Any, Any]:
        import torch

        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def _wait(self, event: Any, what: str) -> None:  # noqa: ANN401 - a torch.cuda.Event
        wait_event(event, self.runner.ranks.deadline_s, what)

    def _us_per_call(self, start: Any, end: Any) -> float:  # noqa: ANN401 - torch.cuda.Event
        return float(start.elapsed_time(end)) * 1000 / self.calls


class EagerClock(_CudaClock):
    """Launches call by call; host launch time is in the number where the host is slower than the device."""

    def samples(self, iterations: int) -> list[float]:
        """See `Clock.samples`."""
        import torch

        launch, slots = self.runner.launch, range(self.calls)
        taken = []
        with torch.cuda.stream(self._stream):
            for _ in range(iterations):
                start, end = self._timed_pair()
                self.align()
                self._align_call()
                start.record()
                for slot in slots:
                    launch(slot)
                end.record()
                self._wait(end, f"{self.calls} eager calls")
                taken.append(self._us_per_call(start, end))
        return taken


class GraphClock(_CudaClock):
    """Replays one CUDA graph of all calls. Entered: warmed up eagerly, captured; left: the graphs are destroyed."""

    def __init__(self, runner: Runner, calls: int, align: Callable[[], None]) -> None:
        super().__init__(runner, calls, align)
        self._graphs: list[Any] = []
        self._spin_us = _FIRST_SPIN_US
        self._mhz = _DEFAULT_MHZ

    def __enter__(self) -> Self:
        import torch

        super().__enter__()
        khz = getattr(torch.cuda.get_device_properties(self.runner.ranks.device), "clock_rate", 0)
        self._mhz = khz / 1000 if khz else _DEFAULT_MHZ
        try:
            with torch.cuda.stream(self._stream):
                self._warm_up(torch)
                self._graphs = [self._capture(torch, self._align_call), self._capture(torch, self._all_calls)]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        graphs, self._graphs = self._graphs, []
        for graph in graphs:
            # a graph of a communicator must be gone before the communicator is; after a fault this may fail again
            with contextlib.suppress(RuntimeError):
                graph.reset()
        super().__exit__(kind, error, trace)

    def samples(self, iterations: int) -> list[float]:
        """See `Clock.samples`."""
        import torch

        taken: list[float] = []
        with torch.cuda.stream(self._stream):
            while len(taken) < iterations:
                self.align()
                count = min(_CHUNK, iterations - len(taken))
                begin = time.perf_counter()
                pairs = [self._enqueue(torch) for _ in range(count)]
                self._adapt((time.perf_counter() - begin) * 1e6 / count)
                self._wait(pairs[-1][1], f"{count} replays of {self.calls} captured calls")
                taken += [self._us_per_call(start, end) for start, end in pairs]
        return taken

    def _enqueue(self, torch: Any) -> tuple[Any, Any]:  # noqa: ANN401 - the module, imported lazily
        meet, work = self._graphs
        start, end = self._timed_pair()
        torch.cuda._sleep(int(self._spin_us * self._mhz))  # noqa: SLF001 - torch's own spin kernel has no public name
        meet.replay()
        start.record()
        work.replay()
        end.record()
        return start, end

    def _adapt(self, enqueue_us: float) -> None:
        """Spin for a few times what the host needs to enqueue a sample: then it is always ahead of the device."""
        self._spin_us = min(_MOST_SPIN_US, max(_LEAST_SPIN_US, _SPIN_MARGIN * enqueue_us))

    def _warm_up(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        for _ in range(_WARMUPS):
            self._align_call()
        done = torch.cuda.Event()
        done.record()
        self._wait(done, "the warm-up before the capture")

    def _capture(self, torch: Any, work: Callable[[], None]) -> Any:  # noqa: ANN401 - a torch.cuda.CUDAGraph
        graph = torch.cuda.CUDAGraph()
        # thread_local: NCCL's watchdog thread queries events, which the default mode takes for an error of the capture
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        self.runner.captured()
        return graph

    def _all_calls(self) -> None:
        for slot in range(self.calls):
            self.runner.launch(slot)


def clocks_and_throttle(uuid: str, nvml: Any) -> dict[str, str]:  # noqa: ANN401 - the module pynvml, or a test's
    """Clocks, throttle reasons and link of a GPU now, for the record; asked under load, since idle cards step down.

    `uuid` is NVML's (`GPU-...`). What NVML does not tell is left out; nothing is raised.
    """
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return {}
    asked: dict[str, Callable[[], Any]] = {
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "power_w": lambda: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "pcie_generation_now": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "pcie_width_now": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "throttle": lambda: _reasons(int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
    }
    told = {}
    for name, ask in asked.items():
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            told[name] = str(ask())
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlShutdown()
    return told


def is_throttled(facts: Mapping[str, str]) -> bool:
    """Whether `clocks_and_throttle` saw the card run slower than it would: the cell's flag `throttled`."""
    return facts.get("throttle", "none") != "none"


def _reasons(bits: int) -> str:
    return ", ".join(text for bit, text in _REASONS.items() if bits & bit) or "none"
