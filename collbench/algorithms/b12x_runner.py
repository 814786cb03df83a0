"""Runs b12x's all-reduces by its own classes: a plan, prepared by a session, then called. Read in b12x 1.5.1.

A session compiles a plan's kernels where it is prepared; the first call of each plan is ours, so that a wait for a peer
that does not come has our deadline. An instance changes its kernels for good when it is captured, so that there are two
of them: one is never captured and serves eager calls.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from collbench.algorithms.b12x import shape_of
from collbench.algorithms.base import Ranks
from collbench.algorithms.epilogues import EPSILON
from collbench.algorithms.library_build import BUILD_S, Request, together
from collbench.algorithms.library_modules import B12X_API
from collbench.algorithms.library_runner import LibraryRunner
from collbench.algorithms.library_uses import Use
from collbench.results.records import Call

__all__ = ["USES", "AllReduce", "FusedPush", "OneshotPull", "OneshotPush", "TwoShot"]

_PCIE = "b12x.comm.pcie"
_ALL, _TWO, _DECLARE = f"{_PCIE}.pcie_allreduce", f"{_PCIE}.pcie_twoshot_bf16", f"{_PCIE}._preparation"
_ONESHOT, _SESSION, _TYPES = f"{_PCIE}._oneshot_preparation", "b12x.preparation.session", "b12x.preparation.types"
_COMMON_USES = (
    Use(B12X_API, "is_supported", (), 1),
    Use(_SESSION, "PreparationSession.__init__", ("device", "autotune", "compile_workers"), 1),
    Use(_SESSION, "PreparationSession.prepare", (), 2), Use(_SESSION, "PreparationSession.freeze", (), 1),
    Use(_SESSION, "PreparationSession.close", (), 1),
    Use(_TYPES, "Plan.request", ("name", "prepare_call"), 1), Use(_TYPES, "PreparedCall", ("run", "owners")),
    Use(f"{_PCIE}._tuning", "PcieQuery", ("surface", "world_size", "rank", "topology", "call", "setup")),
)  # fmt: skip
_ALL_USES = (
    Use(B12X_API, "AllReduce", called=False),
    Use(_ALL, "PCIeAllReduce.from_exchange_group",
        ("exchange_group", "device", "eager_buffer_bytes", "max_size", "single_channel")),
    Use(_ALL, "PCIeAllReduce.plan", ("operation",), 2),
    Use(_ALL, "PCIeAllReduce.all_reduce", ("plan", "out"), 2),
    Use(_ALL, "PCIeAllReduce.all_reduce_fused_add_rms_norm", ("plan", "out", "residual_out"), 5),
    Use(_ALL, "PCIeAllReduce.capture", (), 1), Use(_ALL, "PCIeAllReduce.close", (), 1),
    Use(_ONESHOT, "_prepare_plain_call", ("inp", "out"), 1),
    Use(_ONESHOT, "_prepare_fused_call", ("inp", "residual", "weight", "out", "residual_out", "epsilon"), 1),
)  # fmt: skip
_TWO_USES = (
    Use(B12X_API, "PCIeTwoShotBF16", called=False),
    Use(_TWO, "PCIeTwoShotBF16.from_exchange_group", ("exchange_group", "device", "max_rows", "row_elems")),
    Use(_TWO, "PCIeTwoShotBF16.accepts", (), 2), Use(_TWO, "PCIeTwoShotBF16.all_reduce", ("plan", "out"), 2),
    Use(_TWO, "PCIeTwoShotBF16.capture", ("plan",), 1), Use(_TWO, "PCIeTwoShotBF16.close", (), 1),
    Use(_DECLARE, "query_from_runtime", ("surface", "call"), 1), Use(_DECLARE, "plan", ("runtime",), 1),
)  # fmt: skip
USES = (*_COMMON_USES, *_ALL_USES, *_TWO_USES)
"""Everything that is called here. Two names are private: vLLM's fork prepares its calls by them."""

_KEPT = 400
_Made = TypeVar("_Made")


@dataclass(slots=True)
class _Lane:
    """An instance of b12x's with the plan that it is called by."""

    runtime: Any
    plan: Any = None


class AllReduce(LibraryRunner):
    """`AllReduce` on one channel, as vLLM's fork opens it, with its own choice; with an epilogue its fused call."""

    ways: ClassVar[tuple[str, ...]] = ()
    """What its query may say of the kernel of a captured call, by the beginning; empty where b12x chooses."""

    prepare_s: ClassVar[float] = BUILD_S

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._lanes: list[_Lane] = []
        self._session: Any = None
        self._given: list[tuple[Any, ...]] = []
        self._taken: list[dict[str, Any]] = []

    def request(self) -> Request:
        """See `LibraryRunner.request`. Kernels are compiled by the session, for each rank its own."""
        return Request("b12x", (B12X_API,), (*_COMMON_USES, *_ALL_USES))

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.inputs`; with an epilogue residual and weight too."""
        if not self.call.epilogue:
            return super().inputs(i)
        return {"x": self._x[i], "residual": self._given[i][1].view(-1), "weight": self._given[i][2]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.outputs`; with an epilogue the new residual too."""
        if not self.call.epilogue:
            return super().outputs(i)
        return {"residual_out": self._taken[i]["residual_out"].view(-1), "y": self._y[i]}

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        from b12x.comm import pcie

        device = torch.device(self.ranks.device)
        if not all(self.ranks.exchange(bool(pcie.is_supported(device)))):
            raise NotImplementedError("b12x: its is_supported() says no: it wants two visible GPUs of sm_120 or sm_121")
        for i in range(self.slots):
            self._cut(torch, i)
        self._close.callback(self._free)
        for _ in range(2):
            self._lanes.append(_Lane(self._agreed(partial(self._made, pcie, device))))
        for lane in self._lanes:
            lane.plan = self._agreed(partial(self._declared, pcie, lane.runtime))
        self._note_ways()
        try:
            self._prepare(device)
            self._call_first()
        except TimeoutError:
            self._close.pop_all()  # they are freed by all ranks together, and one of them is stuck
            raise
        self._close.enter_context(self._capturing(self._lanes[1]))

    def _cut(self, torch: Any, i: int) -> None:  # noqa: ANN401 - the module
        """What a call of slot i is given, and where it writes."""
        x, y = (tensors[i].view(shape_of(self.call)) for tensors in (self._x, self._y))
        if not self.call.epilogue:
            self._given.append((x,))
            self._taken.append({"out": y})
            return
        self._given.append((x, torch.zeros_like(x), torch.zeros_like(x[0]), EPSILON))
        self._taken.append({"out": y, "residual_out": torch.zeros_like(x)})

    def _agreed(self, work: Callable[[], _Made]) -> _Made:
        """Do something that all ranks do together; if it fails on one, all end with what b12x said."""
        made: list[_Made] = []
        said = ""
        try:
            made.append(work())
        except Exception as error:  # noqa: BLE001 - whatever a library raises is its reason
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:_KEPT]
        told = next(filter(None, self.ranks.exchange(said)), "")
        if told:
            raise MemoryError(told) if "out of memory" in told.lower() else NotImplementedError(f"b12x: {told}")
        return made[0]

    def _made(self, pcie: Any, device: Any) -> Any:  # noqa: ANN401 - theirs
        return pcie.AllReduce.from_exchange_group(
            exchange_group=self.group, device=device, eager_buffer_bytes=self.call.bytes, max_size=self.call.bytes,
            single_channel=True,
        )  # fmt: skip

    def _declared(self, pcie: Any, runtime: Any) -> Any:  # noqa: ANN401 - theirs
        """A plan for this call. It raises what `AllReduce.should_allreduce` is for, which asks its pool in vain."""
        del pcie
        operation = "all_reduce_fused_add_rms_norm" if self.call.epilogue else "all_reduce"
        return runtime.plan(self._given[0][0], operation=operation)

    def _note_ways(self) -> None:
        """What b12x has chosen, from its own query.

        Raises:
            NotImplementedError: it is something else than this runner is for.
        """
        asked = self._lanes[1].plan.query.call
        told = {key: str(asked[key]) for key in ("transport", "eager_transport", "mode", "operation") if key in asked}
        way = next(iter(told.values()), "nothing")
        if self.ways and not way.startswith(self.ways):
            raise NotImplementedError(f"b12x chose {way}, not {' or '.join(self.ways)}")
        self._notes |= {"shape": " x ".join(map(str, self._given[0][0].shape)), **told}

    def _prepare(self, device: Any) -> None:  # noqa: ANN401 - a torch.device
        """Compile and load, in this process: a kernel has its rank as a constant, so nobody compiles for others.

        Raises:
            NotImplementedError: some rank's session could not, on all ranks alike.
            TimeoutError: a rank did not end it in time.
        """
        from b12x.preparation import PreparationSession

        self._session = PreparationSession(device=device, autotune=False, compile_workers=0)
        requests = [
            lane.plan.request(name=f"collbench {name}", prepare_call=self._prepared)
            for name, lane in zip(("eager", "graph"), self._lanes, strict=True)
        ]
        begin, what = time.monotonic(), "b12x compiled and loaded its kernels"
        try:
            together(self.ranks, lambda: self._session.prepare(requests), what, self.prepare_s)
        except NotImplementedError as error:
            raise NotImplementedError(f"b12x: {error}") from error
        self._session.freeze()  # whatever it would compile from here on is an error
        self._notes["built by PreparationSession"] = f"{time.monotonic() - begin:.1f} s"

    def _prepared(self, state: Any) -> Any:  # noqa: ANN401 - theirs
        """Tell a plan's state what it will be called with. Its trial run is left to `_call_first`."""
        from b12x.comm.pcie import _oneshot_preparation as module
        from b12x.preparation import PreparedCall

        x, *others = self._given[0]
        if others:
            residual, weight, epsilon = others
            bound = module._prepare_fused_call(  # noqa: SLF001 - there is no other name for it
                state, inp=x, residual=residual, weight=weight, epsilon=epsilon, **self._taken[0]
            )
        else:
            bound = module._prepare_plain_call(state, inp=x, **self._taken[0])  # noqa: SLF001 - the same
        return PreparedCall(run=_nothing, owners=(bound,))

    def _call_first(self) -> None:
        """The first call of each, outside of any capture: all ranks have their kernels."""
        for lane in self._lanes:
            self._call(lane, 0)
        self._drain("b12x's first calls")

    def _capturing(self, lane: _Lane) -> contextlib.AbstractContextManager[Any]:
        """What b12x wants to be open around captures."""
        entered: contextlib.AbstractContextManager[Any] = lane.runtime.capture()
        return entered

    def _call(self, lane: _Lane, i: int) -> None:
        call = lane.runtime.all_reduce_fused_add_rms_norm if self.call.epilogue else lane.runtime.all_reduce
        call(*self._given[i], plan=lane.plan, **self._taken[i])

    def _is_capturing(self) -> bool:
        import torch

        return self.on_gpu and torch.cuda.is_current_stream_capturing()

    def _run(self, i: int) -> None:
        self._call(self._lanes[self._is_capturing()], i)

    def _free(self) -> None:
        """Plans before the memory that they use; behind the graphs, which the clock has destroyed."""
        lanes, self._lanes, session, self._session = self._lanes, [], self._session, None
        self._given, self._taken = [], []
        self.ranks.barrier()
        if session is not None:
            session.close()
        for lane in lanes:
            lane.runtime.close()


def _nothing() -> None:
    """A trial run that does nothing."""


class OneshotPull(AllReduce):
    """Pull at every size: its push of two ranks and its owners at eight are off in the environment."""

    ways = ("pull", "stage_pull")


class OneshotPush(AllReduce):
    """The push of two ranks, in graphs."""

    ways = ("tp2_remote_push",)


class FusedPush(AllReduce):
    """The fused all-reduce pushing, by its variable in the environment."""

    ways = ("stage_push",)


class TwoShot(AllReduce):
    """`PCIeTwoShotBF16`: pulls its share, then the sums. A row is a vector here, so that one kernel fits all sizes."""

    row: ClassVar[int] = 8

    def request(self) -> Request:
        """See `LibraryRunner.request`."""
        return Request("b12x", (B12X_API,), (*_COMMON_USES, *_TWO_USES))

    def _made(self, pcie: Any, device: Any) -> Any:  # noqa: ANN401 - theirs
        return pcie.PCIeTwoShotBF16.from_exchange_group(
            exchange_group=self.group, device=device, max_rows=self.call.count // self.row, row_elems=self.row
        )

    def _declared(self, pcie: Any, runtime: Any) -> Any:  # noqa: ANN401 - theirs
        given = {"inp": self._given[0][0], **self._taken[0]}
        if not runtime.accepts(given["inp"]):
            raise ValueError(f"PCIeTwoShotBF16 accepts no {self.call.bytes} bytes")
        query = pcie.query_from_runtime(runtime, surface="PCIeTwoShotBF16.all_reduce", call=given)
        return pcie.plan(query, runtime=runtime)

    def _prepared(self, state: Any) -> Any:  # noqa: ANN401 - theirs
        from b12x.preparation import PreparedCall

        del state  # it was told all by the query
        return PreparedCall(run=_nothing)

    def _capturing(self, lane: _Lane) -> contextlib.AbstractContextManager[Any]:
        entered: contextlib.AbstractContextManager[Any] = lane.runtime.capture(plan=lane.plan)
        return entered
