"""What the runners of the host family share: arrays, flags, waiting, cutting a message into pieces."""

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from collbench.algorithms.base import Proof, Ranks, Runner
from collbench.algorithms.host_memory import HostMemory
from collbench.algorithms.shapes import arrays_of
from collbench.results.records import Call

__all__ = ["SEGMENT", "Array", "HostRunner", "chunks", "pieces", "segments"]

Array = NDArray[Any]

SEGMENT = 1 << 15
"""Elements that are moved and summed at once: 128 KiB of float32, so that a sum stays in the second-level cache."""

_PAD = 32
"""Elements to which rows and chunks are padded: 128 bytes of a 4-byte type, so that ranks write lines of their own."""


class HostRunner(Runner):
    """A collective over `HostMemory`; `launch` returns when this rank has its result.

    Numbers travel and are summed as float32 (int32 for int32) and are rounded to the call's dtype once, at the end.
    Inputs are copied first: when `launch` returns they may be overwritten.

    Each launch is an epoch: flags rise from one to the next and are never taken back. Every algorithm argues why a rank
    in epoch e cannot overwrite what a peer still reads in epoch e-1. After an error in `launch` the runner is unusable.
    """

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self.rank = ranks.rank
        self.world = ranks.world_size
        self.epoch = 0
        self.dtype = _dtype(call.dtype)
        self.wire = np.dtype(np.int32 if call.dtype == "int32" else np.float32)
        self.exact = self.dtype == self.wire
        self.row = -(-call.count // _PAD) * _PAD
        self._open = contextlib.ExitStack()

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of shared data that the algorithm needs."""

    @abstractmethod
    def prepare(self) -> None:
        """Make every view that `launch` uses."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            shape = arrays_of(self.call, self.rank)
            self.x = [np.zeros(shape.inputs["x"], self.dtype) for _ in range(self.slots)]
            self.y = [np.zeros(shape.outputs["y"], self.dtype) for _ in range(self.slots)]
            self.scratch: Array = np.zeros(self.row, self.wire)
            # a sum beyond the range of a 16-bit type is inf, as on a GPU, and no reason to warn
            opening.enter_context(np.errstate(over="ignore", invalid="ignore"))
            self.memory = opening.enter_context(HostMemory.open(self.ranks, self.world + 1, self.size_bytes))
            self.publish, self.flags = self.memory.publish, self.memory.flags
            self._peers = tuple((peer, self.memory.index(peer)) for peer in range(self.world) if peer != self.rank)
            self.prepare()
            self.ranks.barrier()
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept = {"ranks", "call", "slots", "_open"}
        for name in [name for name in self.__dict__ if name not in kept]:
            del self.__dict__[name]  # views keep the mapping alive
        self._open.close()

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"x": self.x[i]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"y": self.y[i]}

    def proof(self) -> Proof:
        """Host algorithms run what they are: there is nothing between them and the memory."""
        return Proof(evidence={"memory": "memfd", "numpy": np.__version__, "sums": str(self.wire)})

    def shared(self, at: int, rows: int, dtype: "np.dtype[Any]") -> Array:
        """`rows` padded rows of shared data from row `at` on; each row has room for the message in the wire's type."""
        width = self.row * self.wire.itemsize // dtype.itemsize
        array = self.memory.array(at * self.row * self.wire.itemsize, (rows, width), dtype)
        return array[:, : self.call.count]

    def await_all(self, value: int, phase: str) -> None:
        """Wait until all peers' flags are at least `value`."""
        flags = self.flags
        for peer, index in self._peers:
            if flags[index] < value:
                self.await_slowly(peer, value, peer, phase)

    def await_one(self, line: int, value: int, peer: int, phase: str) -> None:
        """Wait until one flag is at least `value`; `peer` is who raises it."""
        if self.flags[self.memory.index(line)] < value:
            self.await_slowly(line, value, peer, phase)

    def await_slowly(self, line: int, value: int, peer: int, phase: str) -> None:
        """The part of waiting that costs time anyway."""
        self.memory.wait(line, value, f"rank {self.rank} waited for rank {peer} ({type(self).__name__}, {phase})")

    def total(self, parts: Array, out: Array) -> None:
        """Sum the rows of `parts` into `out` in an order that depends on the shape alone, rounding once."""
        if self.exact:
            np.add.reduce(parts, axis=0, out=out)
        else:
            held = self.scratch[: out.size]
            np.add.reduce(parts, axis=0, out=held)
            out[...] = held


def pieces(array: Array, bounds: Sequence[tuple[int, int]]) -> tuple[Array, ...]:
    """Views of the last axis."""
    return tuple(array[..., low:high] for low, high in bounds)


def segments(low: int, high: int) -> list[tuple[int, int]]:
    """Cut a range into pieces of at most `SEGMENT` elements."""
    return [(at, min(at + SEGMENT, high)) for at in range(low, high, SEGMENT)]


def chunks(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut `count` elements into `parts` ranges on lines of their own; the last ones may be short or empty."""
    each = -(-count // (parts * _PAD)) * _PAD
    return [(min(part * each, count), min((part + 1) * each, count)) for part in range(parts)]


def _dtype(name: str) -> "np.dtype[Any]":
    if name == "bfloat16":
        import ml_dtypes

        brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return brain
    return np.dtype(name)
