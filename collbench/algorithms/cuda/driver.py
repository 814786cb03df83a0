"""The CUDA driver through cuda-bindings: every status becomes an exception that names the call."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

__all__ = [
    "IPC_HANDLE_BYTES", "DriverError", "Function", "Launcher", "call", "device_arch", "driver", "handle_bytes",
    "handle_from", "use_device",
]  # fmt: skip

IPC_HANDLE_BYTES = 64
"""CU_IPC_HANDLE_SIZE of cuda.h."""


class DriverError(RuntimeError):
    """A driver call failed: names the call and the driver's word for the status."""


def driver() -> Any:  # noqa: ANN401 - the module, imported lazily
    """The module `cuda.bindings.driver`.

    Raises:
        NotImplementedError: cuda-bindings is not installed; the text names the extra.
    """
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise NotImplementedError("cuda-bindings is not installed: pip install 'collbench[cuda]'") from error
    return bindings


def call(name: str, *values: Any) -> Any:  # noqa: ANN401 - whatever the driver call takes and gives
    """Call the driver; gives nothing, the one result, or the tuple of results.

    Raises:
        DriverError: the status is not success.
        MemoryError: it is out of memory.
    """
    status, *results = getattr(driver(), name)(*values)
    if int(status) != 0:
        word = f"{name}: {getattr(status, 'name', status)}"
        if "OUT_OF_MEMORY" in word:
            raise MemoryError(word)
        raise DriverError(word)
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def handle_bytes(pointer: int) -> bytes:
    """The IPC handle of the allocation that starts at a device address."""
    handle = call("cuIpcGetMemHandle", pointer)  # it owns the bytes that its address is of: a name keeps it until then
    return ctypes.string_at(handle.getPtr(), IPC_HANDLE_BYTES)


def handle_from(data: bytes) -> Any:  # noqa: ANN401 - a CUipcMemHandle
    """The handle that another process has sent."""
    handle = driver().CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), data, IPC_HANDLE_BYTES)
    return handle


class Function:
    """A kernel of a cubin, loaded into the current context."""

    def __init__(self, cubin: bytes, entry: str) -> None:
        self._module = call("cuModuleLoadData", cubin)
        self.handle = call("cuModuleGetFunction", self._module, entry.encode())

    def blocks_per_sm(self, threads: int) -> int:
        """Blocks of that many threads that fit on one multiprocessor."""
        return int(call("cuOccupancyMaxActiveBlocksPerMultiprocessor", self.handle, threads, 0))

    def close(self) -> None:
        """Unload it."""
        call("cuModuleUnload", self._module)


class Launcher:
    """Launches a function on a fixed grid with prepared parameters: one driver call per launch, nothing allocated.

    `records` holds one argument structure per slot; the driver copies it when it is launched or captured. With `pdl` a
    launch may begin while the kernel before it ends (the kernel waits for that itself).
    """

    def __init__(self, function: Function, blocks: int, threads: int, records: Any, *, pdl: bool = False) -> None:  # noqa: ANN401 - a ctypes array
        self._bindings = driver()
        self._function = function.handle
        self._grid = (blocks, threads)
        self._records = records
        pointers = ((ctypes.c_void_p * 1)(ctypes.addressof(record)) for record in records)
        self._parameters = list(pointers)
        self._addresses = [ctypes.addressof(pointer) for pointer in self._parameters]
        self._config = self._pdl_config() if pdl else None

    def _pdl_config(self) -> Any:  # noqa: ANN401 - a CUlaunchConfig
        bindings = self._bindings
        attribute = bindings.CUlaunchAttribute()
        attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config = bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._grid[0], 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self._grid[1], 1, 1
        config.sharedMemBytes = 0
        config.attrs, config.numAttrs = [attribute], 1
        return config

    def __call__(self, slot: int, stream: int) -> None:
        """Enqueue slot's call on the stream of that handle.

        Raises:
            DriverError: the driver refused the launch.
        """
        if self._config is not None:
            self._config.hStream = stream
            status = self._bindings.cuLaunchKernelEx(self._config, self._function, self._addresses[slot], 0)[0]
        else:
            blocks, threads = self._grid
            status = self._bindings.cuLaunchKernel(
                self._function, blocks, 1, 1, threads, 1, 1, 0, stream, self._addresses[slot], 0
            )[0]
        if status:
            raise DriverError(f"launch of slot {slot}: {status.name}")


@contextlib.contextmanager
def use_device(index: int = 0) -> Iterator[None]:
    """Make a device's primary context current."""
    call("cuInit", 0)
    device = call("cuDeviceGet", index)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    try:
        yield
    finally:
        call("cuDevicePrimaryCtxRelease", device)


def device_arch() -> str:
    """Compute capability of the current device: `sm_90`."""
    device = call("cuCtxGetDevice")
    names = ("MAJOR", "MINOR")
    attribute = driver().CUdevice_attribute
    major, minor = (
        call("cuDeviceGetAttribute", getattr(attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{name}"), device)
        for name in names
    )
    return f"sm_{major}{minor}"
