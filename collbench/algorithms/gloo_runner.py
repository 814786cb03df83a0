"""Runs all-reduces with gloo."""

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from collbench.algorithms.base import Proof, Ranks, Runner
from collbench.results.records import Call

__all__ = ["GlooRunner"]


class GlooRunner(Runner):
    """`launch(i)` copies `x` into `y` and sums `y` in place, since gloo has no other way; it returns with the result.

    Arrays are CPU tensors. torch is imported on entry.
    """

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._x: list[Any] = []
        self._y: list[Any] = []
        self._group: Any = None
        self._all_reduce: Any = None

    def __enter__(self) -> Self:
        import torch
        import torch.distributed as dist

        with contextlib.ExitStack() as opening:
            opening.callback(self._free)
            dtype = getattr(torch, self.call.dtype)
            self._x = [torch.zeros(self.call.count, dtype=dtype) for _ in range(self.slots)]
            self._y = [torch.zeros(self.call.count, dtype=dtype) for _ in range(self.slots)]
            self._group, self._all_reduce = self.ranks.process_group("gloo"), dist.all_reduce
            opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._free()

    def _free(self) -> None:
        self._x, self._y, self._group = [], [], None

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"x": self._x[i]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"y": self._y[i]}

    def launch(self, i: int) -> None:
        """See `Runner`."""
        self._y[i].copy_(self._x[i])
        self._all_reduce(self._y[i], group=self._group)

    def proof(self) -> Proof:
        """The backend that torch says the group has; anything else ran instead of gloo."""
        import torch.distributed as dist

        backend = str(dist.get_backend(self._group))
        return Proof("" if backend == "gloo" else f"the process group's backend is {backend}", {"backend": backend})
