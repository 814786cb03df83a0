"""Runs all-to-alls with NCCL's own calls: sends and receives in one group, and `ncclAlltoAll`."""

import itertools
from typing import Any

from collbench.algorithms.cuda_buffers import make_slots, stride_of
from collbench.algorithms.nccl_calls import NcclCalls
from collbench.algorithms.nccl_library import NcclLibrary
from collbench.algorithms.nccl_runner import NcclRunner
from collbench.algorithms.shapes import arrays_of, part_of, rows_of

__all__ = ["AllToAll", "SendRecv"]


class SendRecv(NcclRunner):
    """One group of sends and receives per call, with even parts or splits; nothing is sent where a split is 0."""

    logged = "SendRecv"
    described = "ncclSend and ncclRecv in one group,"
    estimated = False
    needs = ("ncclSend",)

    def _allocate(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        shape, itemsize = arrays_of(self.call, self.ranks.rank), self.call.itemsize
        dtype, device = getattr(torch, self.call.dtype), self.ranks.device
        for count, slots in ((shape.inputs["x"], self._x), (shape.outputs["y"], self._y)):
            block = torch.zeros(self.slots * stride_of(count, itemsize), dtype=dtype, device=device)
            slots.extend(make_slots(self.slots, count, itemsize, block))

    def _bound_call(self, library: NcclLibrary, communicator: int, i: int) -> tuple[Any, ...]:
        if i == 0:
            self._calls = NcclCalls(library)
        rows, me, itemsize = rows_of(self.call), self.ranks.rank, self.call.itemsize
        sent, got = rows[me], [row[me] for row in rows]
        x, y = self._x[i].data_ptr(), self._y[i].data_ptr()
        sends = [(x + at * itemsize, count, peer) for peer, (at, count) in enumerate(_placed(sent))]
        receives = [(y + at * itemsize, count, peer) for peer, (at, count) in enumerate(_placed(got))]
        return tuple(self._calls.exchange(communicator, sends, receives, self.call.dtype))

    def _enqueue(self, i: int, stream: int) -> None:
        self._calls.group(self._bound[i], stream)


class AllToAll(NcclRunner):
    """`ncclAlltoAll`, which takes equal parts only."""

    logged = "AlltoAll"
    described = "ncclAlltoAll"
    estimated = False
    needs = ("ncclAlltoAll",)

    def _bound_call(self, library: NcclLibrary, communicator: int, i: int) -> tuple[Any, ...]:
        if i == 0:
            self._calls = NcclCalls(library)
        x, y, count, dtype, _, comm = library.bind(
            self._x[i].data_ptr(), self._y[i].data_ptr(), part_of(self.call), self.call.dtype, communicator
        )
        return x, y, count, dtype, comm

    def _enqueue(self, i: int, stream: int) -> None:
        self._calls.call("ncclAlltoAll", self._bound[i], stream)


def _placed(counts: "tuple[int, ...] | list[int]") -> list[tuple[int, int]]:
    """(start, elements) of parts that lie behind each other."""
    return list(zip(itertools.accumulate(counts, initial=0), counts, strict=False))
