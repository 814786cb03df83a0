"""The kernel of microbenchmarks: its argument record, what lies where in a region, and what it leaves as a result."""

import ctypes
import random
import struct
from dataclasses import dataclass
from enum import IntEnum

from collbench.algorithms.cuda.compile import PROBE, Compiled, Variant, compile_kernel

__all__ = [
    "AT_DATA", "CHAIN_LINES", "FLOW_BYTES", "MESSAGES", "Op", "ProbeArgs", "Result", "chain", "compile_probe",
    "read_result", "region_bytes",
]  # fmt: skip

MAX_RANKS = 16
FLOW_BYTES = 8 << 20
"""Bytes of one flow; a flow is repeated within a measurement."""

AT_RESULT, RESULT_BYTES, AT_CHAIN = 128, 64, 16 << 10
AT_DATA = 4 << 20
"""Offset of what a rank sends; behind it one slot per rank for what it gets."""

CHAIN_LINES, _LINE = 2048, 128
MESSAGES = 4096
"""Messages of one litmus: 256 bytes each from 1 MiB on."""


class Op(IntEnum):
    """`enum Op` of probes.cuh."""

    EMPTY = 0
    BARRIER = 1
    FLAG = 2
    READ_CHAIN = 3
    LOAD = 4
    STORE = 5
    MESSAGE_PASSING = 6
    TORN = 7


class ProbeArgs(ctypes.Structure):
    """`struct ProbeArgs` of probes.cuh, field by field."""

    _fields_ = (
        ("base", ctypes.c_uint64 * MAX_RANKS), ("from_", ctypes.c_uint64 * MAX_RANKS),
        ("to", ctypes.c_uint64 * MAX_RANKS), ("deadline_ns", ctypes.c_uint64), ("epoch", ctypes.c_uint64),
        ("vectors", ctypes.c_uint64), ("start", ctypes.c_uint64), ("op", ctypes.c_uint32), ("rank", ctypes.c_uint32),
        ("peer", ctypes.c_uint32), ("mask", ctypes.c_uint32), ("rounds", ctypes.c_uint32),
        ("blocks_per_flow", ctypes.c_uint32), ("first", ctypes.c_uint32), ("fenced", ctypes.c_uint32),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """What a launch left: times in ns, counts of a litmus, and the rank that was waited for in vain."""

    begin_ns: int
    end_ns: int
    violations: int
    looks: int
    missing: int | None
    halves: int
    changes: int


def read_result(data: bytes) -> Result:
    """From the bytes at `AT_RESULT`."""
    begin, end, violations, looks, missing, halves, changes, _ = struct.unpack("<8Q", data)
    return Result(begin, end, violations, looks, missing - 1 if missing else None, halves, changes)


def chain(seed: int = 1) -> tuple[int, bytes]:
    """A closed walk over lines of 128 bytes in random order: the first line's offset, and the bytes at `AT_CHAIN`."""
    order = list(range(CHAIN_LINES))
    random.Random(seed).shuffle(order)  # noqa: S311 - an order of reads
    data = bytearray(CHAIN_LINES * _LINE)
    for here, following in zip(order, [*order[1:], order[0]], strict=True):
        struct.pack_into("<Q", data, here * _LINE, AT_CHAIN + following * _LINE)
    return AT_CHAIN + order[0] * _LINE, bytes(data)


def region_bytes(world_size: int) -> int:
    """Bytes of a rank's region."""
    return AT_DATA + (1 + world_size) * FLOW_BYTES


def compile_probe(arch: str, *, pdl: bool = False) -> Compiled:
    """The kernel for an arch (`sm_90`); with `pdl` it waits for the kernel before it, as ours do that start early.

    Raises:
        CompileError: NVRTC is not installed, or it refuses the source.
    """
    return compile_kernel(Variant(PROBE, 2, "float32", arch, pdl=pdl))
