# ruff: noqa: N802, N815 - names of the driver's own calls
"""A GPU for workers that have none: a CUDA driver whose kernels the emulator plays, and as much of torch as probes use.

Memory is a file per allocation, which IPC handles name; kernels run to their end when they are launched, word by word,
while those of other ranks run in other processes. `COLLBENCH_EMULATED` is a folder with `probe.so`.
"""

import contextlib
import ctypes
import mmap
import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

FOLDER = Path(os.environ.get("COLLBENCH_EMULATED", "."))
WARP, FEW = 32, 2


class Status(int):
    """A status of the driver: zero is success."""

    name = "CUDA_SUCCESS"


class Handle:
    """`CUipcMemHandle`: the name of a file."""

    def __init__(self, name: str = "") -> None:
        self.data = ctypes.create_string_buffer(name.encode(), 64)

    def getPtr(self) -> int:
        return ctypes.addressof(self.data)


class Driver:
    """What `cuda.bindings.driver` has, as far as probes call it."""

    CUipcMemHandle = Handle
    CUlaunchConfig = SimpleNamespace
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)

    @staticmethod
    def CUlaunchAttribute() -> SimpleNamespace:
        return SimpleNamespace(value=SimpleNamespace())

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(FOLDER / "probe.so"))
        self.library.emulate.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64]
        self.mapped: dict[int, tuple[mmap.mmap, Path]] = {}
        self.captured: list[tuple[bytes, int, int]] | None = None
        self.launches = 0

    def _map(self, path: Path) -> int:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.mapped[address] = (memory, path)
        return address

    def cuMemAlloc(self, size: int) -> tuple[Status, int]:
        path = FOLDER / f"memory-{os.getpid()}-{len(self.mapped)}"
        with path.open("wb") as file:
            file.truncate(size)
        return Status(), self._map(path)

    def cuIpcGetMemHandle(self, address: int) -> tuple[Status, Handle]:
        return Status(), Handle(self.mapped[address][1].name)

    def cuIpcOpenMemHandle(self, handle: Handle, flags: int) -> tuple[Status, int]:
        return Status(), self._map(FOLDER / handle.data.value.decode())

    def cuMemFree(self, address: int) -> tuple[Status]:
        self.mapped[address][1].unlink()
        return (Status(),)

    def cuMemsetD32(self, address: int, word: int, count: int, stream: int = 0) -> tuple[Status]:
        ctypes.memmove(address, word.to_bytes(4, "little") * count, 4 * count)
        return (Status(),)

    cuMemsetD32Async = cuMemsetD32

    def cuMemcpyHtoD(self, address: int, data: bytes, size: int) -> tuple[Status]:
        ctypes.memmove(address, bytes(data), size)
        return (Status(),)

    def cuMemcpyDtoH(self, data: bytearray, address: int, size: int) -> tuple[Status]:
        data[:size] = ctypes.string_at(address, size)
        return (Status(),)

    def cuMemcpyAsync(self, target: int, source: int, size: int, stream: int) -> tuple[Status]:
        ctypes.memmove(target, source, size)
        return (Status(),)

    def cuModuleLoadData(self, cubin: bytes) -> tuple[Status, str]:
        return Status(), "module"

    def cuModuleGetFunction(self, module: str, entry: bytes) -> tuple[Status, str]:
        return Status(), entry.decode()

    def cuLaunchKernel(self, function: str, blocks: int, *rest: int) -> tuple[Status]:
        threads, parameters = rest[2], rest[7]
        record = ctypes.c_void_p.from_address(ctypes.c_void_p.from_address(parameters).value or 0)
        from collbench.algorithms.cuda.probes import ProbeArgs

        launch = (ctypes.string_at(ctypes.addressof(record), ctypes.sizeof(ProbeArgs)), blocks, threads)
        if self.captured is None:
            self.play(*launch)
        else:
            self.captured.append(launch)
        return (Status(),)

    def cuLaunchKernelEx(self, config: Any, function: str, parameters: int, extra: int) -> tuple[Status]:
        grid, block = (config.gridDimX, 1, 1), (config.blockDimX, 1, 1)
        return self.cuLaunchKernel(function, *grid, *block, 0, config.hStream, parameters, extra)

    def play(self, record: bytes, blocks: int, threads: int) -> None:
        """Run a kernel to its end; what moves data takes its step from the number of threads, so a few will do."""
        self.launches += 1
        held = ctypes.create_string_buffer(record, len(record))
        few = threads if threads <= WARP else FEW
        self.library.emulate(ctypes.addressof(held), blocks, few, os.getpid() * 1009 + self.launches)

    def __getattr__(self, name: str) -> Any:
        if name in {"cuCtxSynchronize", "cuIpcCloseMemHandle", "cuModuleUnload"}:
            return lambda *_: (Status(),)
        raise AttributeError(name)


class Event:
    """Launches end before they return, so an event is a time."""

    def __init__(self, enable_timing: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        return (other.at - self.at) * 1e3


class Stream:
    """Everything is in order already."""

    cuda_stream = 7

    def wait_event(self, event: Any) -> None:
        return None

    wait_stream = wait_event


class Graph:
    """Keeps what is launched between begin and end, and plays it."""

    def __init__(self) -> None:
        self.held: list[tuple[bytes, int, int]] = []

    def capture_begin(self, capture_error_mode: str) -> None:
        DRIVER.captured = []

    def capture_end(self) -> None:
        self.held, DRIVER.captured = DRIVER.captured or [], None

    def replay(self) -> None:
        for launch in self.held:
            DRIVER.play(*launch)

    def reset(self) -> None:
        self.held = []


DRIVER: Driver


def install() -> None:
    """Put driver and torch in place, and make probes short: the emulator plays some million steps a second."""
    global DRIVER  # noqa: PLW0603 - there is one driver in a process
    DRIVER = Driver()
    torch: Any = ModuleType("torch")
    torch.cuda = SimpleNamespace(
        set_device=lambda _: None, get_device_capability=lambda: (9, 0), synchronize=lambda: None, Stream=Stream,
        Event=Event, CUDAGraph=Graph, stream=lambda _: contextlib.nullcontext(), current_device=lambda: 0,
    )  # fmt: skip
    torch._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda _: Stream.cuda_stream)
    torch.empty = lambda *_, **__: None
    sys.modules["torch"] = torch
    from collbench.algorithms.cuda import driver, probes
    from collbench.measure import probe_cuda, probe_launches

    bindings: Any = driver
    bindings.driver = lambda: DRIVER
    kernel: Any = probes
    kernel.FLOW_BYTES = 1 << 12
    ours: Any = probe_cuda
    ours.FLOW_BYTES, ours.compile_probe = kernel.FLOW_BYTES, lambda arch, **_: SimpleNamespace(cubin=arch.encode())
    ours._ROUNDS = {
        probes.Op.BARRIER: 3, probes.Op.FLAG: 4, probes.Op.READ_CHAIN: 20, probes.Op.MESSAGE_PASSING: 40,
        probes.Op.TORN: 200,
    }  # fmt: skip
    ours._REPEATS, ours._MOST_ROUNDS = 2, 1
    launches: Any = probe_launches
    launches._REPEATS, launches._SHORT, launches._LONG = 2, 2, 202
    ours._DEADLINE_NS = int(os.environ.get("COLLBENCH_EMULATED_DEADLINE_MS") or 20_000) * 1_000_000


def bench(ranks: Any, spec: dict[str, Any]) -> Any:
    """`measure.worker.Bench` of one rank: the real one, above an emulated device.

    `COLLBENCH_EMULATED_FAULT`, `KIND RANK TASK`, makes one rank `die` or stay `away` at the first task of that kind.
    """
    install()
    from collbench.measure.probe_cuda import CudaProbes

    if spec["share_gpu"] and not Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "pid").exists():
        raise RuntimeError("no MPS daemon runs")
    made = CudaProbes(ranks, spec)
    kind, rank, task = (os.environ.get("COLLBENCH_EMULATED_FAULT") or "none -1 none").split()
    if ranks.rank == int(rank):
        _spoil(made, kind, task)
    return made


def _spoil(made: Any, kind: str, task: str) -> None:
    real, mark = made._run, FOLDER / "spoilt"

    def run(torch: Any, given: Any) -> Any:
        if given.name != task or mark.exists():
            return real(torch, given)
        mark.touch()
        if kind == "die":
            os._exit(7)
        return {}

    made._run = run
