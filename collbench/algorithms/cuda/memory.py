"""Device memory that the ranks of one host share through CUDA IPC, freed in the right order also after errors."""

import base64
import contextlib
import time
from types import TracebackType
from typing import Any, Self

from collbench.algorithms.base import Ranks
from collbench.algorithms.cuda.driver import DriverError, call, handle_bytes, handle_from

__all__ = ["AT_CLOSED", "GRANULE", "SharedRegion"]

GRANULE = 2 << 20
"""Regions are multiples of this: smaller allocations share a block of the driver's, and an IPC handle maps it all."""

AT_CLOSED = 3072
"""Offset of the words in a control block by which peers say that they have unmapped it; one of 8 bytes per rank."""

_LAZY_PEER_ACCESS = 1
_LEAVE_S = 5.0
_PAUSE_S = 0.001
_MOMENT_S = 0.1
"""Between a peer's word and its unmapping lie two driver calls."""


class SharedRegion:
    """One allocation per rank, mapped into every rank: a context manager that needs a current CUDA context.

    Entered: `bases[k]` is the address at which rank k's region stands here; all bytes are zero. Left: this rank unmaps
    its peers' regions; then all ranks meet, then each frees its own. After an error there is no meeting, since a peer
    may be anywhere: every rank leaves a word in a peer's control block just before it unmaps it, and a region is freed
    when all its words are there and a moment has passed. If a word does not come within 5 s (a peer died or hangs),
    the memory is left to the end of the process, since freeing what a peer still maps is undefined.
    """

    def __init__(self, ranks: Ranks, size: int) -> None:
        self.ranks = ranks
        self.size = -(-size // GRANULE) * GRANULE
        self.bases: tuple[int, ...] = ()
        self._own = 0
        self._opened: dict[int, int] = {}

    def __enter__(self) -> Self:
        try:
            self._open()
        except (DriverError, MemoryError):
            # every rank has been told and is here: peers that mapped nothing could leave no word
            self._unmap()
            self.ranks.barrier()
            self._free()
            raise
        except BaseException:
            self._unmap()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del error, trace
        self._unmap()
        if kind is None:
            with contextlib.suppress(TimeoutError):
                self.ranks.barrier()
                self._free()
        self._free_when_left()

    def write(self, offset: int, data: bytes) -> None:
        """Copy bytes into this rank's region."""
        call("cuMemcpyHtoD", self._own + offset, data, len(data))

    def read(self, offset: int, size: int) -> bytes:
        """Copy bytes out of this rank's region; waits for the default stream only."""
        data = bytearray(size)
        call("cuMemcpyDtoH", data, self._own + offset, size)
        return bytes(data)

    def fill(self, offset: int, size: int, word: int) -> None:
        """Set `size` bytes (a multiple of 4) to a repeated 4-byte word."""
        if size:
            call("cuMemsetD32", self._own + offset, word, size // 4)

    def _open(self) -> None:
        handle = self._try(self._export)
        told = self.ranks.exchange(handle)
        self._refuse(told, "allocate")
        mapped = self._try(lambda: self._map([base64.b64decode(entry["handle"]) for entry in told]))
        self._refuse(self.ranks.exchange(mapped), "map")
        self.bases = tuple(
            self._own if rank == self.ranks.rank else self._opened[rank] for rank in range(self.ranks.world_size)
        )

    def _export(self) -> dict[str, str]:
        self._own = int(call("cuMemAlloc", self.size))
        self.fill(0, self.size, 0)
        call("cuCtxSynchronize")
        return {"handle": base64.b64encode(handle_bytes(self._own)).decode()}

    def _map(self, handles: list[bytes]) -> dict[str, str]:
        for rank, handle in enumerate(handles):
            if rank != self.ranks.rank:
                self._opened[rank] = int(call("cuIpcOpenMemHandle", handle_from(handle), _LAZY_PEER_ACCESS))
        return {}

    @staticmethod
    def _try(step: Any) -> dict[str, str]:  # noqa: ANN401 - a function without arguments
        """Do a step; an error is told to all ranks, so that none waits for one that has given up."""
        try:
            result: dict[str, str] = step()
        except (DriverError, MemoryError) as error:
            return {"error": str(error), "memory": str(isinstance(error, MemoryError))}
        return result

    def _refuse(self, told: list[dict[str, str]], verb: str) -> None:
        for rank, entry in enumerate(told):
            if "error" in entry:
                text = f"rank {rank} cannot {verb} {self.size} shared bytes: {entry['error']}"
                raise MemoryError(text) if entry["memory"] == "True" else DriverError(text)

    def _unmap(self) -> None:
        opened, self._opened, self.bases = self._opened, {}, ()
        for base in opened.values():
            with contextlib.suppress(DriverError, MemoryError):  # a context that has failed frees everything itself
                call("cuMemsetD32", base + AT_CLOSED + 8 * self.ranks.rank, 1, 1)
                call("cuCtxSynchronize")
                call("cuIpcCloseMemHandle", base)

    def _free(self) -> None:
        own, self._own = self._own, 0
        with contextlib.suppress(DriverError, MemoryError):
            if own:
                call("cuMemFree", own)

    def _free_when_left(self) -> None:
        with contextlib.suppress(DriverError, MemoryError):
            if self._own and self._peers_have_left(self._own):
                time.sleep(_MOMENT_S)
                self._free()

    def _peers_have_left(self, own: int) -> bool:
        limit = time.monotonic() + min(_LEAVE_S, self.ranks.deadline_s)
        n, me = self.ranks.world_size, self.ranks.rank
        while time.monotonic() < limit:
            data = bytearray(8 * n)
            call("cuMemcpyDtoH", data, own + AT_CLOSED, len(data))
            if all(data[8 * rank] for rank in range(n) if rank != me):
                return True
            time.sleep(_PAUSE_S)
        return False
