"""Memory shared between the processes of one host that has no name anywhere, and flags in it.

Rank 0 makes an anonymous file (memfd), the others open it through `/proc/PID/fd/FD`. Nothing stands in /dev/shm, so
nothing is left behind when all ranks are killed; docs/decisions/0002-anonymous-host-memory.md says why.

Memory ordering
---------------
Data are published by message passing: the writer stores the data, then its flag; the reader loads the flag, then the
data. That is right on x86-64 and only argued for it (`HostMemory.open` refuses other processors):

- Each flag is an aligned 8-byte integer on a cache line of its own, written by one rank only and only ever raised.
  `memoryview` of format `q` loads and stores it with one 8-byte move, which is atomic.
- Ordinary stores become visible in program order, loads are performed in program order, and a store never overtakes an
  earlier load. So a raised flag means that the data before it are there, and that its owner has done all the reading
  that preceded it. No algorithm here needs a store to be ordered before a later load of another line.
- Data are written by numpy loops or memcpy. Two kinds of stores in there are weaker: string moves, whose stores may be
  reordered among themselves but not with a later store, and non-temporal stores, which glibc's memcpy uses for copies
  above a share of the last-level cache and which may overtake. glibc ends them with `sfence`; `publish` does not rely
  on that: it takes and releases a lock, whose locked instruction drains the write-combining buffers.
- The interpreter's loads and stores are function calls apart, so the compiler that built it cannot reorder them.

Source: Intel SDM volume 3, sections "Guaranteed Atomic Operations", "Memory Ordering in P6 and More Recent Processor
Families", "Fast-String Operation and Out-of-Order Stores", "Buffering of Write Combining Memory Locations"; AMD's
manual (volume 2, "Memory System") promises the same. tests/algorithms/test_host_memory.py has a litmus test.
"""

import contextlib
import mmap
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from collbench.algorithms.base import Ranks

__all__ = ["LINE", "HostMemory"]

LINE = 128
"""Bytes between flags: two cache lines, because the prefetcher of x86-64 processors fetches lines in pairs."""

_STRIDE = LINE // 8
_LOOKS = 32
"""Looks at a flag, each followed by a yield, between two looks at the clock."""

_PAGE = 4096


class HostMemory:
    """Shared memory of all ranks of one host, `lines` flags first, then `size_bytes` of data; zeros at the start.

    Use it as a context manager: it is unmapped on exit, and gone when the last process that maps it has gone.
    """

    def __init__(self, descriptor: int, lines: int, size_bytes: int, deadline_s: float) -> None:
        self._data_at = -(-lines * LINE // _PAGE) * _PAGE
        self._deadline_s = deadline_s
        self._map: mmap.mmap | None = mmap.mmap(descriptor, self._data_at + size_bytes)
        self._flags = memoryview(self._map)[: lines * LINE].cast("q")
        lock = threading.Lock()
        self._drain: tuple[Callable[[], Any], Callable[[], Any]] = (lock.acquire, lock.release)

    @classmethod
    def open(cls, ranks: "Ranks", lines: int, size_bytes: int) -> "HostMemory":
        """Make the memory at rank 0 and open it at the others. All ranks call it together, and fail together.

        Raises:
            MemoryError: the host has less memory available than is asked for.
            RuntimeError: some rank could not open it, or this is not x86-64 Linux; the message names the rank.
            TimeoutError: a rank did not come within `ranks.deadline_s`.
        """
        total = -(-lines * LINE // _PAGE) * _PAGE + size_bytes
        descriptor, told, problem = -1, None, ""
        try:
            if ranks.rank == 0:
                descriptor, problem = _attempt(lambda: _create(total))
                told = _identity(descriptor) if descriptor >= 0 else None
            offer = ranks.exchange([told, problem])[0]
            if ranks.rank != 0 and offer[0] is not None:
                descriptor, problem = _attempt(lambda: _reach(offer[0]))
            memory = cls(descriptor, lines, size_bytes, ranks.deadline_s) if descriptor >= 0 else None
            _agree(ranks, problem)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if memory is None:
            raise RuntimeError("shared memory: rank 0 gave no memory and no reason")
        return memory

    def array(self, offset: int, shape: tuple[int, ...], dtype: "DTypeLike") -> "NDArray[Any]":
        """A numpy array over the data, `offset` bytes from their start, row by row."""
        if self._map is None:
            raise RuntimeError("shared memory: closed already")
        return np.ndarray(shape, dtype, buffer=self._map, offset=self._data_at + offset)

    @property
    def flags(self) -> memoryview:
        """The flags as int64; flag i stands at index `HostMemory.index(i)`. For loads where a call is too slow."""
        return self._flags

    @staticmethod
    def index(line: int) -> int:
        """Index of a flag in `flags`."""
        return line * _STRIDE

    def publish(self, line: int, value: int) -> None:
        """Raise this rank's flag behind everything that it has written: see the module's argument."""
        acquire, release = self._drain
        acquire()
        release()
        self._flags[line * _STRIDE] = value

    def wait(self, line: int, value: int, who: str) -> None:
        """Yield the processor until a flag is at least `value`.

        Yielding is the only way of waiting: with more ranks than cores, spinning costs whole time slices and sleeping
        costs more than the collective.

        Raises:
            TimeoutError: the flag was not raised within the deadline; `who` says who waited for whom.
        """
        flags, index, give_way = self._flags, line * _STRIDE, os.sched_yield
        started = 0.0
        while True:
            for _ in range(_LOOKS):
                if flags[index] >= value:
                    return
                give_way()
            now = time.monotonic()
            started = started or now
            if now - started > self._deadline_s:
                raise TimeoutError(f"{who}: no answer within {self._deadline_s:g} s (flag {flags[index]} of {value})")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the memory; arrays over it that still live keep it mapped until they go."""
        if self._map is not None:
            self._flags.release()
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None


def _attempt(action: Callable[[], int]) -> tuple[int, str]:
    try:
        return action(), ""
    except (OSError, MemoryError, RuntimeError) as error:
        return -1, f"{type(error).__name__}: {error}"


def _create(size: int) -> int:
    if platform.machine() != "x86_64" or not hasattr(os, "memfd_create"):
        raise RuntimeError("memory ordering argued for x86-64 Linux only")
    if size > (available := _available_bytes()):
        raise MemoryError(f"{size >> 20} MiB of shared memory asked for, {available >> 20} MiB available on this host")
    descriptor = os.memfd_create(f"collbench-{secrets.token_hex(8)}", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - a line of procfs, not a file of ours
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62


def _identity(descriptor: int) -> list[int]:
    status = os.fstat(descriptor)
    return [os.getpid(), descriptor, status.st_dev, status.st_ino]


def _reach(told: list[int]) -> int:
    pid, number, device, inode = told
    descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != (device, inode):
        os.close(descriptor)
        raise RuntimeError(f"/proc/{pid}/fd/{number} is not rank 0's memory: are the ranks in different containers?")
    return descriptor


def _agree(ranks: "Ranks", problem: str) -> None:
    for rank, text in enumerate(ranks.exchange(problem)):
        if text:
            kind = MemoryError if text.startswith("MemoryError") else RuntimeError
            raise kind(f"shared memory, rank {rank}: {text}")
