"""Runs k independent all-reduces in one: the runner of a plain algorithm on a joined message, or a library's own group.

A batch begins at every k-th slot: its launch carries all k out, and the launches behind it do nothing. Inputs of all
slots are there before the first launch of a sample, so that nothing is reduced too early, and every slot is verified.
"""

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Self

from collbench.algorithms.base import Proof, Ranks, Runner, registry
from collbench.algorithms.gloo_runner import GlooRunner
from collbench.algorithms.nccl_calls import NcclCalls
from collbench.algorithms.nccl_library import NcclLibrary
from collbench.algorithms.nccl_runner import NcclRunner
from collbench.results.records import Call

__all__ = ["Bucket", "Coalesced", "Grouped", "Joined"]


class Joined(Runner):
    """The runner of `base` on messages of k parts; slot i is part i % k of the inner slot i // k."""

    base: ClassVar[str] = ""
    batch: ClassVar[int] = 1

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        whole = replace(call, bytes=call.bytes * self.batch)
        self._inner = registry()[self.base].load_runner()(ranks, whole, self._inner_slots(slots))

    def _inner_slots(self, slots: int) -> int:
        return -(-slots // self.batch)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - whatever the inner runner says of its blocks
        if name in {"blocks", "threads", "blocks_per_sm", "unsigned_zeros"}:
            return getattr(object.__getattribute__(self, "_inner"), name, 0)
        return object.__getattribute__(self, name)

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"x": self._part(self._inner.inputs(i // self.batch)["x"], i)}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"y": self._part(self._inner.outputs(i // self.batch)["y"], i)}

    def _part(self, array: Any, i: int) -> Any:  # noqa: ANN401 - numpy or torch
        at = i % self.batch * self.call.count
        return array[at : at + self.call.count]

    def launch(self, i: int) -> None:
        """See `Runner`."""
        if i % self.batch == 0:
            self._inner.launch(i // self.batch)

    def failure(self) -> str:
        """See `Runner`."""
        return self._inner.failure()

    def proof(self) -> Proof:
        """What the inner runner proves, and how many messages a call of it has."""
        inner = self._inner.proof()
        return Proof(inner.reason, {**inner.evidence, "batch": f"{self.batch} messages in one call of {self.base}"})


class Bucket(Joined):
    """Messages lie apart: they are copied into one slot of the inner runner, and its result is copied back."""

    def _inner_slots(self, slots: int) -> int:
        del slots
        return 1

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            opening.enter_context(self._inner)
            rounded = -(-self.slots // self.batch) * self.batch
            like = self._inner.inputs(0)["x"]
            self._x, self._y = ([_zeros(like, self.call.count) for _ in range(rounded)] for _ in range(2))
            whole_x, whole_y = self._inner.inputs(0)["x"], self._inner.outputs(0)["y"]
            self._into = [self._part(whole_x, k) for k in range(self.batch)]
            self._from = [self._part(whole_y, k) for k in range(self.batch)]
            opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._x, self._y, self._into, self._from = [], [], [], []
        super().__exit__(kind, error, trace)

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"x": self._x[i]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"y": self._y[i]}

    def launch(self, i: int) -> None:
        """See `Runner`."""
        if i % self.batch:
            return
        for k, target in enumerate(self._into):
            target[...] = self._x[i + k]
        self._inner.launch(0)
        for k, source in enumerate(self._from):
            self._y[i + k][...] = source


class Grouped(NcclRunner):
    """k calls of `ncclAllReduce` in one group, which NCCL launches as one kernel."""

    batch: ClassVar[int] = 1
    described = "ncclAllReduce, several in one group,"
    estimated = False
    needs = ("ncclSend",)  # not called: it says that there is no way through torch.distributed

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, -(-slots // self.batch) * self.batch)

    def _bound_call(self, library: NcclLibrary, communicator: int, i: int) -> tuple[Any, ...]:
        if i == 0:
            self._calls = NcclCalls(library)
        return ("ncclAllReduce", *super()._bound_call(library, communicator, i))

    def _enqueue(self, i: int, stream: int) -> None:
        if i % self.batch == 0:
            self._calls.group(self._bound[i : i + self.batch], stream)


class Coalesced(GlooRunner):
    """`torch.distributed.all_reduce_coalesced` of k tensors, behind copies of the inputs, since it works in place."""

    batch: ClassVar[int] = 1

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, -(-slots // self.batch) * self.batch)

    def launch(self, i: int) -> None:
        """See `Runner`."""
        import torch.distributed as dist

        if i % self.batch:
            return
        tensors = self._y[i : i + self.batch]
        for target, source in zip(tensors, self._x[i : i + self.batch], strict=True):
            target.copy_(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch points at its coalescing manager, which gloo lacks
            dist.all_reduce_coalesced(tensors, group=self._group)


def _zeros(like: Any, count: int) -> Any:  # noqa: ANN401 - numpy or torch
    if hasattr(like, "new_zeros"):
        return like.new_zeros(count)
    import numpy as np

    return np.zeros(count, like.dtype)


_KINDS: Mapping[str, type[Runner]] = {"joined": Joined, "bucket": Bucket, "grouped": Grouped, "coalesced": Coalesced}


def __getattr__(name: str) -> type[Runner]:
    """The class for `BASE__KIND__K`, such as `host_ring__joined__2`.

    Raises:
        AttributeError: no such kind, or K is no number.
    """
    base, _, rest = name.partition("__")
    kind, _, batch = rest.partition("__")
    if kind not in _KINDS or not batch.isdigit():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return type(name, (_KINDS[kind],), {"base": base, "batch": int(batch)})
