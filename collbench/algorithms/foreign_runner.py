"""What runners of other people's kernels share, however they come to them: slots of tensors, and a careful end."""

import contextlib
from abc import abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from collbench.algorithms.base import Ranks, Runner
from collbench.results.records import Call

__all__ = ["ForeignRunner"]


class ForeignRunner(Runner):
    """One collective of somebody else's on one rank.

    What is opened is freed by callbacks on `_close`, in reverse order, unless their kernels do not end: see `__exit__`.
    """

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self.blocks_per_sm = 0
        self._close = contextlib.ExitStack()
        self._x: list[Any] = []
        self._y: list[Any] = []
        self._notes: dict[str, str] = {}

    @abstractmethod
    def _drain(self, what: str) -> None:
        """Wait until the device is through; TimeoutError behind the deadline, with `what` in it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._x, self._y = [], []
        try:
            self._drain("the last calls")
        except (TimeoutError, RuntimeError):
            # their kernels wait without end: whoever frees memory now waits with them. The process's end frees it.
            self._close.pop_all()
            return
        self._close.__exit__(kind, error, trace)

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.inputs`."""
        return {"x": self._x[i]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.outputs`."""
        return {"y": self._y[i]}
