"""Virtual ranks: the collective of several ranks in one cooperative kernel on one GPU, for tests."""

import contextlib
import ctypes
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from collbench.algorithms.cuda.arguments import (
    CONTROL_BYTES,
    Args,
    ErrorRecord,
    Islands,
    Plan,
    first_count,
    halves,
    plan,
    read_error,
)  # fmt: skip
from collbench.algorithms.cuda.compile import Variant, compile_kernel
from collbench.algorithms.cuda.designs import FUSED, collective_of, granule
from collbench.algorithms.cuda.driver import DriverError, Function, call, device_arch, use_device
from collbench.algorithms.epilogues import EPSILON
from collbench.results.records import DTYPE_BYTES, Collective

__all__ = ["Outcome", "Setting", "Step", "VirtualRanks", "device_arch", "fill_records", "read_wrong", "use_device"]

NOBODY = 0xFFFFFFFF
_AT_BLOCK_EPOCH, _BLOCK_EPOCHS = 2048, 64
_COUNTERS = 128  # bytes per rank, as in virtual.cuh
_POLL_S = 0.0005


class Step(ctypes.Structure):
    """`struct Step` of virtual.cuh: one call of all ranks."""

    _fields_ = (
        ("bytes", ctypes.c_uint32), ("blocks", ctypes.c_uint32), ("delay_ns", ctypes.c_uint32),
        ("seed", ctypes.c_uint32), ("in_offset", ctypes.c_uint64), ("out_offset", ctypes.c_uint64),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """What is played: kernel, world size, element type, largest message, grid of one rank, first epoch, deadline.

    `broken` builds without one rule of safety, `without` without one of what makes it fast (numbers of common.cuh).
    """

    kernel: str
    world_size: int
    dtype: str
    most_bytes: int
    blocks: int = 4
    threads: int = 128
    epoch: int = 1
    deadline_s: float = 2.0
    broken: int = 0
    without: int = 0
    islands: Islands | None = None

    def variant(self, arch: str) -> Variant:
        """The build that plays it."""
        return Variant(
            self.kernel, self.world_size, self.dtype, arch, virtual=True, broken=self.broken, without=self.without
        )

    @property
    def groups(self) -> Islands:
        """The islands in use."""
        return self.islands or halves(self.world_size)

    @property
    def plan(self) -> Plan:
        """Buffers of one rank."""
        return plan(self.kernel, self.world_size, self.dtype, self.most_bytes, self.groups)

    @property
    def slot_bytes(self) -> int:
        """Room of an input or an output."""
        return -(-self.most_bytes // 256) * 256

    @property
    def in_offset(self) -> int:
        """Where a rank's input stands in its region; its output follows at `in_offset + slot_bytes`."""
        return -(-self.plan.region_bytes // 256) * 256

    @property
    def region_bytes(self) -> int:
        """One rank's memory."""
        return self.in_offset + (5 if self.kernel in FUSED else 2) * self.slot_bytes

    @property
    def hidden(self) -> int:
        """Elements of a row of fused kernels: several rows fit, and a thread handles several vectors of one."""
        row = 4096 if self.most_bytes > 4 * 4096 else 256
        return row // DTYPE_BYTES[self.dtype]

    @property
    def granule(self) -> int:
        """Bytes of which every message is a multiple."""
        return granule(self.kernel, self.world_size, self.dtype, self.hidden)

    def output_bytes(self, size_bytes: int) -> int:
        """Bytes of the output of a call."""
        return size_bytes // (self.world_size if collective_of(self.kernel) is Collective.REDUCE_SCATTER else 1)

    def input_bytes(self, size_bytes: int) -> int:
        """Bytes of the input of a call."""
        gathers = collective_of(self.kernel) in {Collective.ALL_GATHER, Collective.BARRIER}
        return size_bytes // (self.world_size if gathers else 1)

    def elements(self, steps: Sequence[Step]) -> int:
        """Elements that all ranks look at when these calls are checked."""
        return self.world_size * sum(self.output_bytes(int(step.bytes)) // DTYPE_BYTES[self.dtype] for step in steps)

    def step(self, size_bytes: int, blocks: int, seed: int = 0, delay_ns: int = 0) -> Step:
        """One call."""
        size = max(1, size_bytes // self.granule) * self.granule
        if collective_of(self.kernel) is Collective.BARRIER:
            size = self.granule
        return Step(size, min(blocks, self.blocks), delay_ns, seed, self.in_offset, self.in_offset + self.slot_bytes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a play showed: elements looked at, elements off, the first of these, expired waits, seconds."""

    checked: int
    wrong: int
    first: str
    errors: tuple[ErrorRecord, ...]
    seconds: float


def fill_records(setting: Setting, bases: Sequence[int]) -> Any:  # noqa: ANN401 - a ctypes array
    """Arguments of every rank, whose regions start at `bases`."""
    records = (Args * setting.world_size)()
    for rank, record in enumerate(records):
        record.base[: len(bases)] = list(bases)
        record.rank, record.cap, record.data = rank, setting.plan.cap, CONTROL_BYTES
        record.deadline_ns = int(setting.deadline_s * 1e9)
        record.hidden, record.epsilon = setting.hidden, EPSILON
        setting.groups.fill(record)
    return records


def read_wrong(data: bytes, world_size: int) -> tuple[int, int, str]:
    """Elements looked at and wrong over all ranks, and words about the first of some rank (layout of virtual.cuh)."""
    checked, total, first = 0, 0, ""
    for rank in range(world_size):
        count, claimed, at, index, found, expected, seen = struct.unpack_from("<QIIIIIxxxxQ", data, rank * _COUNTERS)
        total, checked = total + count, checked + seen
        if claimed and not first:
            first = f"rank {rank}, call {at - 1}, element {index}: bits {found:#x}, expected {expected:#x}"
    return checked, total, first


class VirtualRanks:
    """The ranks of one `Setting`; a context manager that needs a current CUDA context."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._close = contextlib.ExitStack()
        self._slab = self._records = self._wrong = self._counters = 0

    def __enter__(self) -> Self:
        s = self.setting
        with contextlib.ExitStack() as stack:
            self._close = stack
            made = compile_kernel(s.variant(device_arch()))
            self._function = Function(made.cubin, made.variant.entry)
            stack.callback(self._function.close)
            self._slab = self._allocate(s.world_size * s.region_bytes)
            self._records = self._upload(bytes(fill_records(s, self._bases)))
            self._wrong, self._counters = (self._allocate(_COUNTERS * s.world_size) for _ in range(2))
            self.reset()
            self._close = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close.__exit__(kind, error, trace)

    @property
    def _bases(self) -> list[int]:
        return [self._slab + rank * self.setting.region_bytes for rank in range(self.setting.world_size)]

    def reset(self) -> None:
        """Clear control blocks and buffers; the next call has the setting's epoch."""
        count = first_count(self.setting.epoch)
        for base in self._bases:
            call("cuMemsetD32", base, 0, CONTROL_BYTES // 4)
            _write(base, struct.pack("<Q", count))
            _write(base + _AT_BLOCK_EPOCH, struct.pack("<Q", count) * _BLOCK_EPOCHS)
            for offset, size, word in self.setting.plan.fills:
                if size:
                    call("cuMemsetD32", base + offset, word, size // 4)

    def play(self, steps: Sequence[Step], *, fill: bool = True, absent: int = NOBODY) -> Outcome:
        """Run calls one behind the other. With `fill` the kernel makes exact data and checks it, fresh in every call.

        Raises:
            TimeoutError: the kernel has not ended within what all deadlines together allow.
            DriverError: it does not fit on the GPU, or failed.
        """
        s = self.setting
        for pointer in (self._wrong, self._counters):
            call("cuMemsetD32", pointer, 0, _COUNTERS * s.world_size // 4)
        array = (Step * len(steps))(*steps)
        place = self._upload(bytes(array))
        begin = time.monotonic()
        values = (self._records, place, len(steps), s.blocks, self._counters, self._wrong, int(fill), absent)
        self._launch(values)
        seconds = time.monotonic() - begin
        counts = read_wrong(_read(self._wrong, _COUNTERS * s.world_size), s.world_size)
        records = (read_error(_read(base, 128)) for base in self._bases)
        return Outcome(*counts, tuple(record for record in records if record), seconds)

    def run(self, inputs: Sequence[bytes], size: int, blocks: int, poison: int = 0xFFFFFFFF) -> list[bytes]:
        """One call of `size` bytes with the ranks' own bytes; gives their outputs, which start poisoned."""
        s = self.setting
        for base, data in zip(self._bases, inputs, strict=True):
            _write(base + s.in_offset, data)
            call("cuMemsetD32", base + s.in_offset + s.slot_bytes, poison, s.slot_bytes // 4)
        outcome = self.play([s.step(size, blocks)], fill=False)
        if outcome.errors:
            raise TimeoutError(str(outcome.errors[0]))
        return [_read(base + s.in_offset + s.slot_bytes, s.output_bytes(size)) for base in self._bases]

    def _launch(self, values: tuple[int, ...]) -> None:
        s = self.setting
        pointer, word = ctypes.c_void_p, ctypes.c_uint32
        kinds = (pointer, pointer, word, word, pointer, pointer, word, word)
        call(
            "cuLaunchCooperativeKernel", self._function.handle, s.world_size * s.blocks, 1, 1, s.threads, 1, 1, 0, 0,
            (values, kinds),
        )  # fmt: skip
        limit = time.monotonic() + 60 + 20 * s.deadline_s
        event = call("cuEventCreate", 0)
        try:
            call("cuEventRecord", event, 0)
            while (state := _event_state(event)) != "CUDA_SUCCESS":
                if state != "CUDA_ERROR_NOT_READY":
                    raise DriverError(f"virtual ranks of {s.kernel}: {state}")
                if time.monotonic() > limit:
                    raise TimeoutError(f"virtual ranks of {s.kernel} did not end: a wait without a deadline")
                time.sleep(_POLL_S)
        finally:
            with contextlib.suppress(DriverError):
                call("cuEventDestroy", event)

    def _allocate(self, size: int) -> int:
        pointer = int(call("cuMemAlloc", max(size, 4)))
        self._close.callback(_free, pointer)
        return pointer

    def _upload(self, data: bytes) -> int:
        pointer = self._allocate(len(data))
        _write(pointer, data)
        return pointer


def _event_state(event: Any) -> str:  # noqa: ANN401 - a CUevent
    from collbench.algorithms.cuda.driver import driver

    return str(driver().cuEventQuery(event)[0].name)


def _write(pointer: int, data: bytes) -> None:
    call("cuMemcpyHtoD", pointer, data, len(data))


def _read(pointer: int, size: int) -> bytes:
    data = bytearray(size)
    call("cuMemcpyDtoH", data, pointer, size)
    return bytes(data)


def _free(pointer: int) -> None:
    with contextlib.suppress(DriverError):
        call("cuMemFree", pointer)
