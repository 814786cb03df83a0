"""More of the loaded libnccl than its all-reduce: groups, sends and receives, windows, settings per call, estimates.

Signatures and structures as in nccl.h of 2.27.5, 2.28.9, 2.30.7, 2.31.2 and 2.32.3; what a release lacks is named by
`missing`. All calls go through ctypes, so that no binding has to be installed: nccl4py wraps the same entry points.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from collbench.algorithms.nccl_library import DATA_TYPES, NcclLibrary

__all__ = ["SINCE", "CollConfig", "NcclCalls", "SimInfo", "missing"]

SINCE = {
    "ncclSend": (2, 7), "ncclMemAlloc": (2, 19), "ncclGroupSimulateEnd": (2, 22), "ncclCommWindowRegister": (2, 27),
    "ncclAlltoAll": (2, 28), "ncclAllReduceConfig": (2, 31),
}  # fmt: skip
"""First release with each entry point."""

_SUCCESS, _IN_PROGRESS = 0, 7
_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
_SIM_MAGIC, _API_MAGIC = 0x74685283, 0xCAFEBEEF
_UNSET = -(1 << 31)  # NCCL_CONFIG_UNDEF_INT
_WITH_EVENT = (2, 32)
"""From here on the per-call settings end with an event; before, they are that much shorter."""


class SimInfo(ctypes.Structure):
    """`ncclSimInfo_t`, unchanged since 2.22; time in microseconds (nccl's enqueue.cc; nccl4py's text says seconds)."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
        ("estimated_time", ctypes.c_float),
    )  # fmt: skip


class CollConfig(ctypes.Structure):
    """`ncclCollConfig_t` of 2.32; 2.31's lacks the last field."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("ext", ctypes.c_void_p),
        ("min_ctas", ctypes.c_int), ("max_ctas", ctypes.c_int), ("nvls_ctas", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int), ("selection", ctypes.c_char_p), ("force_selection", ctypes.c_int),
        ("cta_policy", ctypes.c_int), ("profiler_tag", ctypes.c_uint64), ("completion_event", ctypes.c_void_p),
    )  # fmt: skip

    @classmethod
    def selecting(cls, selection: str, version: tuple[int, ...]) -> "CollConfig":
        """Settings that allow one algorithm, such as `RING_LL`, and are an error where NCCL cannot follow."""
        size = ctypes.sizeof(cls) - (0 if version >= _WITH_EVENT else ctypes.sizeof(ctypes.c_void_p))
        return cls(
            size=size, magic=_API_MAGIC, version=_code(version), min_ctas=_UNSET, max_ctas=_UNSET, nvls_ctas=_UNSET,
            cga_cluster_size=_UNSET, selection=selection.encode(), force_selection=1, cta_policy=_UNSET,
        )  # fmt: skip


def missing(library: NcclLibrary, names: Iterable[str]) -> str:
    """Why these entry points cannot be used: the first that the library lacks, and since when NCCL has it."""
    for name in names:
        if not hasattr(library.handle, name):
            since, have = (".".join(map(str, version)) for version in (SINCE[name], library.version))
            return f"NCCL {have} has no {name}, which came with {since}"
    return ""


class NcclCalls:
    """The further calls of one library."""

    def __init__(self, library: NcclLibrary) -> None:
        self._library = library
        self._handle = library.handle

    def exchange(
        self, communicator: int, sends: Sequence[tuple[int, int, int]], receives: Sequence[tuple[int, int, int]],
        dtype: str,
    ) -> list[tuple[Any, ...]]:  # fmt: skip
        """Bound calls of an all-to-all: (address, elements, peer) of every send and receive; none for no elements."""
        comm, kind = ctypes.c_void_p(communicator), ctypes.c_int(DATA_TYPES[dtype])
        return [
            (name, ctypes.c_void_p(address), ctypes.c_size_t(count), kind, ctypes.c_int(peer), comm)
            for name, parts in (("ncclSend", sends), ("ncclRecv", receives)) for address, count, peer in parts if count
        ]  # fmt: skip

    def group(self, bound: Sequence[tuple[Any, ...]], stream: int) -> None:
        """Enqueue calls of (name, arguments but the stream) as one group.

        Raises:
            RuntimeError: NCCL refused one of them or the group, in NCCL's words; the group is ended.
        """
        where = ctypes.c_void_p(stream)
        self._check(self._handle.ncclGroupStart(), "ncclGroupStart", None)
        problem: RuntimeError | None = None
        for name, *arguments in bound:
            try:
                self._check(getattr(self._handle, name)(*arguments, where), name, arguments[-1])
            except RuntimeError as error:
                problem = error
                break
        code = self._handle.ncclGroupEnd()
        if problem is not None:
            raise problem
        self._check(code, "ncclGroupEnd", None)

    def call(self, name: str, arguments: Sequence[Any], stream: int, *behind: Any) -> None:  # noqa: ANN401 - ctypes
        """Enqueue one call; `behind` stands behind the stream.

        Raises:
            RuntimeError: NCCL refused it, in NCCL's words.
        """
        code = getattr(self._handle, name)(*arguments, ctypes.c_void_p(stream), *behind)
        self._check(code, name, arguments[-1])

    def allocate(self, size_bytes: int) -> int:
        """Address of device memory that can be a window.

        Raises:
            MemoryError: NCCL has not that much, with the bytes asked for.
        """
        address = ctypes.c_void_p()
        code = self._handle.ncclMemAlloc(ctypes.byref(address), ctypes.c_size_t(size_bytes))
        if code != _SUCCESS or not address.value:
            words = self._library.error_text(code, None)
            raise MemoryError(f"ncclMemAlloc: {size_bytes} bytes asked for: {words or 'no memory was given'}")
        return int(address.value)

    def free(self, address: int) -> None:
        """Give back what `allocate` gave."""
        self._handle.ncclMemFree(ctypes.c_void_p(address))

    def register_window(self, communicator: int, address: int, size_bytes: int) -> int:
        """Make memory a symmetric window; all ranks call it in the same order. Gives 0 where NCCL makes none.

        Raises:
            RuntimeError: NCCL refused it.
        """
        window, comm = ctypes.c_void_p(), ctypes.c_void_p(communicator)
        code = self._handle.ncclCommWindowRegister(
            comm, ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), ctypes.byref(window), ctypes.c_int(_SYMMETRIC)
        )
        self._check(code, "ncclCommWindowRegister", comm)
        return int(window.value or 0)

    def deregister_window(self, communicator: int, window: int) -> None:
        """Undo `register_window`."""
        self._handle.ncclCommWindowDeregister(ctypes.c_void_p(communicator), ctypes.c_void_p(window))

    def estimate_us(self, enqueue: Callable[[], None]) -> float | None:
        """NCCL's own estimate of one call, which is not run; None where this release has none or does not say.

        Only one call may be enqueued: up to 2.30 the estimate is of the last one.
        """
        if missing(self._library, ("ncclGroupSimulateEnd",)):
            return None
        info = SimInfo(ctypes.sizeof(SimInfo), _SIM_MAGIC, _code(self._library.version), -1.0)
        self._check(self._handle.ncclGroupStart(), "ncclGroupStart", None)
        try:
            enqueue()
        finally:
            code = self._handle.ncclGroupSimulateEnd(ctypes.byref(info))
        return float(info.estimated_time) if code == _SUCCESS and info.estimated_time > 0 else None

    def _check(self, code: int, name: str, communicator: Any) -> None:  # noqa: ANN401 - a ctypes pointer
        if code not in {_SUCCESS, _IN_PROGRESS}:
            raise RuntimeError(f"{name}: {self._library.error_text(code, communicator)}")


def _code(version: tuple[int, ...]) -> int:
    major, minor, patch = (*version, 0, 0)[:3]
    return major * 10_000 + minor * 100 + patch
