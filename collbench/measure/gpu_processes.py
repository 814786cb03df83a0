"""GPUs of this host and the processes on each, by NVML: asked in a process of its own, since a driver can hang."""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["GpuProcesses", "ask", "query"]

_MOST_GPUS = 1024
"""More than any host has: a larger number is no answer."""
_MOST_PIDS = 1 << 22
"""Process ids of Linux end here (PID_MAX_LIMIT)."""


@dataclass(frozen=True, slots=True)
class GpuProcesses:
    """One GPU by NVML's index, and the ids of the compute processes on it; empty where the driver cannot tell."""

    index: int
    uuid: str = ""
    pids: tuple[int, ...] = ()


def ask(deadline_s: float = 10.0, command: "tuple[str, ...] | None" = None) -> tuple[GpuProcesses, ...]:
    """The GPUs in NVML's order; none where there is no driver. `command` replaces the process (tests).

    Raises:
        InvalidError: no answer in time, or one that cannot be; the message says how to go on without the GPUs.
    """
    from collbench.errors import InvalidError
    from collbench.topology import child
    from collbench.topology.graph import TopologyError

    command = command or (sys.executable, "-m", "collbench.measure.gpu_processes")
    try:
        return _read(child.output(command, deadline_s, name="NVML"))
    except TopologyError as error:
        told = str(error)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        told = f"NVML: its answer cannot be: {error}"
    raise InvalidError(f"{told[:400]}; CUDA_VISIBLE_DEVICES= before the command leaves the GPUs out")


def _read(text: str) -> tuple[GpuProcesses, ...]:
    rows = json.loads(text)
    found = tuple(GpuProcesses(_whole(row["index"], _MOST_GPUS), str(row["uuid"]), _pids(row["pids"])) for row in rows)
    if [gpu.index for gpu in found] != list(range(len(found))):
        raise ValueError("GPUs are not numbered from 0 on")
    return found


def _pids(values: Any) -> tuple[int, ...]:  # noqa: ANN401 - whatever the library gave
    return tuple(_whole(value, _MOST_PIDS) for value in values)


def _whole(value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]!r}, expected a whole number up to {most}")
    return value


def query(library: Any) -> tuple[GpuProcesses, ...]:  # noqa: ANN401 - pynvml has no types
    """Ask pynvml or its like; none where it does not start, as without a driver.

    Raises:
        ValueError, TypeError, AttributeError: the library's answers are none.
    """
    try:
        library.nvmlInit()
    except library.NVMLError:
        return ()
    try:
        count = _whole(library.nvmlDeviceGetCount(), _MOST_GPUS)
        return tuple(_gpu(library, index) for index in range(count))
    except library.NVMLError:
        return ()
    finally:
        library.nvmlShutdown()


def _gpu(library: Any, index: int) -> GpuProcesses:  # noqa: ANN401 - see query
    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
        uuid = library.nvmlDeviceGetUUID(handle)
    except library.NVMLError:
        return GpuProcesses(index)
    uuid = uuid.decode("utf-8", "replace") if isinstance(uuid, bytes) else str(uuid)
    try:
        users = library.nvmlDeviceGetComputeRunningProcesses(handle)
    except library.NVMLError:
        return GpuProcesses(index, uuid)
    return GpuProcesses(index, uuid, tuple(sorted({_whole(user.pid, _MOST_PIDS) for user in users})))


def _main() -> int:
    """What the child process does: ask, print JSON. Dies with its parent."""
    import contextlib
    import ctypes
    import signal

    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    try:
        import pynvml

        text = json.dumps([asdict(gpu) for gpu in query(pynvml)])
    except Exception as error:  # noqa: BLE001 - a library that fails in any way has no answer
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
