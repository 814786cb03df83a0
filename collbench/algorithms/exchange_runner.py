"""Runs all-to-alls with torch.distributed, on gloo or NCCL: its own, and two emulations by other collectives."""

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from collbench.algorithms.base import Proof, Ranks, Runner
from collbench.algorithms.shapes import arrays_of, rows_of
from collbench.results.records import Call

__all__ = [
    "GlooAllToAll", "GlooByGather", "GlooByReduce", "NcclByGather", "NcclByReduce", "TorchExchange",
]  # fmt: skip


class TorchExchange(Runner):
    """`torch.distributed.all_to_all_single` with splits; subclasses say which backend."""

    backend: ClassVar[str] = "gloo"

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self.rows = rows_of(call)
        self.sent = list(self.rows[ranks.rank])
        self.got = [row[ranks.rank] for row in self.rows]
        self._x: list[Any] = []
        self._y: list[Any] = []
        self._kept: dict[str, Any] = {}
        self._group: Any = None
        self._dist: Any = None

    def __enter__(self) -> Self:
        import torch
        import torch.distributed as dist

        with contextlib.ExitStack() as opening:
            opening.callback(self._free)
            if self.backend == "nccl":
                _begin_on_gpu(torch, self.ranks.device)
            shape = arrays_of(self.call, self.ranks.rank)
            self._x = [self._zeros(torch, shape.inputs["x"]) for _ in range(self.slots)]
            self._y = [self._zeros(torch, shape.outputs["y"]) for _ in range(self.slots)]
            self._group, self._dist = self.ranks.process_group(self.backend), dist
            self._prepare(torch)
            self.launch(0)  # connections are made at the first call, which must not happen inside a capture
            if self.backend == "nccl":
                _wait(torch, self.ranks.deadline_s)
            opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._free()

    def _free(self) -> None:
        self._x, self._y, self._kept, self._group = [], [], {}, None

    def _zeros(self, torch: Any, count: int) -> Any:  # noqa: ANN401 - torch objects
        """Zeros.

        Raises:
            MemoryError: they could not be had, with the bytes asked for; torch has another error for each device.
        """
        try:
            return torch.zeros(count, dtype=getattr(torch, self.call.dtype), device=self.ranks.device)
        except RuntimeError as error:
            if "allocate" not in str(error):
                raise
            raise MemoryError(f"{count * self.call.itemsize} bytes asked for: {str(error).splitlines()[0]}") from error

    def _prepare(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        """Allocate what a launch needs beside the slots."""

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"x": self._x[i]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"y": self._y[i]}

    def launch(self, i: int) -> None:
        """See `Runner`."""
        self._dist.all_to_all_single(self._y[i], self._x[i], self.got, self.sent, group=self._group)

    def proof(self) -> Proof:
        """The backend that torch says the group has, and what NCCL's log says."""
        backend = str(self._dist.get_backend(self._group))
        evidence = {"backend": backend}
        if backend == "nccl":
            from collbench.algorithms.nccl_log import parse
            from collbench.algorithms.nccl_runner import start_log

            evidence |= parse(start_log().text()).evidence()
        return Proof("" if backend == self.backend else f"the process group's backend is {backend}", evidence)


class _ByGather(TorchExchange):
    """Everybody gets everything that everybody sends, and copies out what is for it: n times the bytes, one step."""

    def _prepare(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        most = max(sum(row) for row in self.rows)
        padded = None if sum(self.sent) == most else self._zeros(torch, most)
        gathered = self._zeros(torch, most * len(self.rows))
        me = self.ranks.rank
        starts = [k * most + sum(row[:me]) for k, row in enumerate(self.rows)]
        parts = [gathered[at : at + count] for at, count in zip(starts, self.got, strict=True)]
        self._kept = {"padded": padded, "gathered": gathered, "parts": parts}
        self._whole = _named(self._dist, "all_gather_single", "all_gather_into_tensor")

    def launch(self, i: int) -> None:
        """See `Runner`."""
        kept, source = self._kept, self._x[i]
        if kept["padded"] is not None:
            kept["padded"][: len(source)].copy_(source)
            source = kept["padded"]
        self._whole(kept["gathered"], source, group=self._group)
        for target, part in zip(self._y[i].split(self.got), kept["parts"], strict=True):
            target.copy_(part)


class _ByReduce(TorchExchange):
    """Parts are placed among zeros and summed at whom they are for: n times the bytes, one step."""

    def _prepare(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        n, me = len(self.rows), self.ranks.rank
        most = max(sum(row[k] for row in self.rows) for k in range(n))
        placed, result = self._zeros(torch, n * most), self._zeros(torch, most)
        starts = [k * most + sum(row[k] for row in self.rows[:me]) for k in range(n)]
        parts = [placed[at : at + count] for at, count in zip(starts, self.sent, strict=True)]
        self._kept = {"placed": placed, "result": result, "parts": parts}
        self._whole = _named(self._dist, "reduce_scatter_single", "reduce_scatter_tensor")

    def launch(self, i: int) -> None:
        """See `Runner`."""
        kept = self._kept
        for part, source in zip(kept["parts"], self._x[i].split(self.sent), strict=True):
            part.copy_(source)
        self._whole(kept["result"], kept["placed"], group=self._group)
        self._y[i].copy_(kept["result"][: len(self._y[i])])


class GlooAllToAll(TorchExchange):
    """Gloo's all-to-all."""


class GlooByGather(_ByGather):
    """Gloo's all-gather."""


class GlooByReduce(_ByReduce):
    """Gloo's reduce-scatter."""


class NcclByGather(_ByGather):
    """NCCL's all-gather."""

    backend = "nccl"


class NcclByReduce(_ByReduce):
    """NCCL's reduce-scatter."""

    backend = "nccl"


def _named(dist: Any, *names: str) -> Any:  # noqa: ANN401 - a function of torch.distributed
    """The function under the first of these names: 2.13 has new names, and warns of the old ones."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


def _begin_on_gpu(torch: Any, device: str) -> None:  # noqa: ANN401 - the module, imported lazily
    from collbench.algorithms.nccl_runner import start_log

    torch.cuda.set_device(device)
    start_log()


def _wait(torch: Any, deadline_s: float) -> None:  # noqa: ANN401 - the module, imported lazily
    from collbench.algorithms.cuda_buffers import wait_event

    event = torch.cuda.Event()
    event.record()
    wait_event(event, deadline_s, "the first call")
