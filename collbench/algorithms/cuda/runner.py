"""Runs our own kernels: one shared region per rank holds control block, protocol buffers and all slots."""

import contextlib
import os
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from collbench.algorithms.base import Proof, Ranks, Runner
from collbench.algorithms.cuda import chain_time
from collbench.algorithms.cuda.arguments import (
    CONTROL_BYTES,
    MAX_BLOCKS,
    Args,
    Islands,
    first_count,
    halves,
    max_threads,
    plan,
    read_error,
)  # fmt: skip
from collbench.algorithms.cuda.compile import Variant, compile_kernel, left_out
from collbench.algorithms.cuda.driver import DriverError, Function, Launcher
from collbench.algorithms.cuda.memory import SharedRegion
from collbench.algorithms.cuda.tensors import stream_getter, tensor_at
from collbench.algorithms.cuda.tuning import Choice, Launch, best_early, candidates, parse_launch, work_items
from collbench.algorithms.cuda_buffers import ALIGNMENT
from collbench.algorithms.epilogues import EPSILON, hidden_size
from collbench.algorithms.shapes import arrays_of
from collbench.results.records import Call
from collbench.topology.models import EARLY_SINCE

__all__ = ["OwnRunner"]

DEADLINE_S = 2.0
"""Default of `COLLBENCH_OWN_DEADLINE_S`: how long a kernel waits for a peer."""

_SLOW_US = 500.0  # a call this slow at first says that the ranks' kernels do not run together: nothing to tune
_HEAD_BYTES = 128
_FIELDS = {"x": "in_", "y": "out", "residual": "residual", "weight": "weight", "residual_out": "residual_out"}


class OwnRunner(Runner):
    """One design on one rank. `kernels` names the device functions among which the tuning chooses."""

    kernels: ClassVar[tuple[str, ...]] = ()
    fused: ClassVar[tuple[str, ...]] = ()
    """The same for a call with residual and RMSNorm behind it."""

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self.blocks_per_sm = 0
        self._close = contextlib.ExitStack()
        self._functions: dict[tuple[str, bool], Function] = {}
        self._region: SharedRegion | None = None
        self._launcher: Launcher | None = None
        self._stream: Any = None
        self._arrays = arrays_of(call, ranks.rank)
        self._tensors: dict[str, list[Any]] = {}
        self._offsets: dict[str, list[int]] = {}
        self._names = self._kernel_names()
        self._choice = Choice(Launch("", 0, 0))
        given = os.environ.get("COLLBENCH_ISLANDS")
        self._islands = Islands.parse(given) if given else halves(call.world_size)
        self._notes: dict[str, str] = {}
        self._without = left_out(self._notes)

    def __enter__(self) -> Self:
        import torch

        with contextlib.ExitStack() as stack:
            self._close = stack
            torch.cuda.set_device(self.ranks.device)
            torch.empty(1, device=self.ranks.device)  # makes the context
            self._stream = stream_getter(torch, torch.cuda.current_device())
            self._open(torch)
            self._choice = self._choose(torch)
            self._use(self._choice.launch)
            self._close = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._launcher, self._tensors = None, {}
        with contextlib.suppress(TimeoutError, RuntimeError):
            self._drain("the last calls")  # a kernel that waits in vain ends by its own deadline
        self._close.__exit__(kind, error, trace)

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.inputs`."""
        return {name: self._tensors[name][i] for name in self._arrays.inputs}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.outputs`."""
        return {name: self._tensors[name][i] for name in self._arrays.outputs}

    def launch(self, i: int) -> None:
        """See `Runner.launch`."""
        self._launcher(i, self._stream())  # type: ignore[misc]  # set on entry

    def failure(self) -> str:
        """Who waited for whom, if a deadline expired in a kernel, here or on a peer; else empty."""
        if self._region is None or not self._region.bases:
            return ""
        head = self._region.read(0, _HEAD_BYTES)
        record = read_error(head)
        if record is not None:
            return str(record)
        abort = int.from_bytes(head[8:16], "little")
        return f"rank {abort - 1} gave up waiting and stopped all ranks" if abort else ""

    def proof(self) -> Proof:
        """The grid, and how it was chosen."""
        launch = self._choice.launch
        evidence = {"kernel": launch.text, "islands": self._islands.text, **self._notes}
        if self._choice.tried:
            evidence["tuning"] = self._choice.evidence
        return Proof(self.failure(), evidence)

    # --- memory ---------------------------------------------------------------------------------------------------

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        plans = [self._plan(kernel) for kernel in self._names]
        at = buffers = -(-max(p.region_bytes for p in plans) // ALIGNMENT) * ALIGNMENT
        counts = {**self._arrays.inputs, **self._arrays.outputs}
        for name, count in counts.items():
            stride = -(-count * self.call.itemsize // ALIGNMENT) * ALIGNMENT
            self._offsets[name] = [at + i * stride for i in range(self.slots)]
            at += self.slots * stride
        self._region = self._close.enter_context(SharedRegion(self.ranks, at))
        own = self._region.bases[self.ranks.rank]
        for name, count in counts.items():
            made = [tensor_at(torch, own + place, self.call, count, self.ranks.device) for place in self._offsets[name]]
            self._tensors[name] = made
        self._notes["shared_bytes"] = f"{buffers} and {self.slots} slots of {(at - buffers) // self.slots}"

    def _kernel_names(self) -> tuple[str, ...]:
        """Device functions of this call, the one to fall back on first."""
        return self.fused if self.call.epilogue else self.kernels

    def _plan(self, kernel: str) -> Any:  # noqa: ANN401 - a Plan
        call = self.call
        return plan(kernel, call.world_size, call.dtype, call.bytes, self._islands)

    def _records(self, kernel: str) -> Any:  # noqa: ANN401 - a ctypes array
        region, rank, call = self._region, self.ranks.rank, self.call
        assert region is not None  # noqa: S101 - set on entry
        records = (Args * self.slots)()
        deadline = float(os.environ.get("COLLBENCH_OWN_DEADLINE_S", DEADLINE_S))
        for i, record in enumerate(records):
            record.base[: call.world_size] = region.bases
            record.rank, record.bytes, record.cap = rank, call.bytes, self._plan(kernel).cap
            record.in_offset, record.data = self._offsets["x"][i], CONTROL_BYTES
            for name, places in self._offsets.items():
                setattr(record, _FIELDS[name], region.bases[rank] + places[i])
            record.hidden, record.epsilon = hidden_size(call), EPSILON
            record.deadline_ns = int(deadline * 1e9)
            self._islands.fill(record)
        return records

    def _reset(self, kernel: str) -> None:
        """Prepare the control block and the buffers of a kernel, when no rank runs anything."""
        assert self._region is not None  # noqa: S101 - set on entry
        self._drain("the calls before")
        self.ranks.barrier()
        self._region.fill(0, 3072, 0)
        self._region.fill(4096, CONTROL_BYTES - 4096, 0)
        self._region.write(0, struct.pack("<Q", first_count(1)))
        for offset, size, word in self._plan(kernel).fills:
            self._region.fill(offset, size, word)
        self._drain("clearing the buffers")
        self.ranks.barrier()

    def _drain(self, what: str) -> None:
        chain_time.drain(self.ranks.deadline_s, what)

    # --- grid -----------------------------------------------------------------------------------------------------

    def _choose(self, torch: Any) -> Choice:  # noqa: ANN401 - the module, imported lazily
        sharing = self._ranks_on_this_gpu(torch)
        given = os.environ.get("COLLBENCH_OWN_LAUNCH")
        if given:
            return Choice(parse_launch(given, self._names))
        plain = self._grids(torch, sharing, pdl=False)
        if not plain:
            raise NotImplementedError(f"not one block of each of {sharing} ranks fits on this GPU together")
        self._use(plain[0])
        if max(self.ranks.exchange(chain_time.eager_us(self.launch, self.ranks.deadline_s))) > _SLOW_US:
            self._notes["tuning"] = f"skipped: a call took more than {_SLOW_US:g} us"
            return Choice(plain[0])
        early = self._grids(torch, sharing, pdl=True) if self._may_start_early(torch) else []
        if early and not self._starts_early(early[0]):
            early = []
        return best_early(early, plain, self._graph_us, self.ranks.exchange)

    def _grids(self, torch: Any, sharing: int, *, pdl: bool) -> list[Launch]:  # noqa: ANN401 - the module
        return [grid for kernel in self._names for grid in self._candidates(torch, kernel, sharing, pdl=pdl)]

    def _candidates(self, torch: Any, kernel: str, sharing: int, *, pdl: bool) -> list[Launch]:  # noqa: ANN401 - module
        function = self._function(torch, kernel, pdl=pdl)
        processors = int(torch.cuda.get_device_properties(self.ranks.device).multi_processor_count)
        call, kept = self.call, 2 if pdl else 1  # with pdl the next kernel's blocks wait beside this one's

        def most(threads: int) -> int:
            return min(MAX_BLOCKS, function.blocks_per_sm(threads) * processors // (sharing * kept))

        items = work_items(kernel, call.world_size, call.bytes, self._islands.owners)
        grids = candidates(items, most, max_threads(call.world_size), call.world_size)
        return [Launch(kernel, grid.blocks, grid.threads, pdl) for grid in grids]

    def _may_start_early(self, torch: Any) -> bool:  # noqa: ANN401 - the module, imported lazily
        """Whether programmatic dependent launch is there; `COLLBENCH_OWN_PDL=0` leaves it out."""
        major, minor = torch.cuda.get_device_capability(self.ranks.device)
        return os.environ.get("COLLBENCH_OWN_PDL") != "0" and 10 * major + minor >= EARLY_SINCE

    def _starts_early(self, launch: Launch) -> bool:
        """Try it once: if a driver refuses it, or any rank gives up waiting, no rank uses it, and evidence says so."""
        trouble = ""
        try:
            self._graph_us(launch)
        except (DriverError, TimeoutError) as error:
            trouble = str(error) or "a call did not end"
        told = next((text for text in self.ranks.exchange(trouble) if text), "")
        if told:
            self._notes["early start"] = f"left out: {told}"
        return not told

    def _ranks_on_this_gpu(self, torch: Any) -> int:  # noqa: ANN401 - the module, imported lazily
        uuid = str(torch.cuda.get_device_properties(self.ranks.device).uuid)
        return len([other for other in self.ranks.exchange(uuid) if other == uuid])

    def _function(self, torch: Any, kernel: str, *, pdl: bool) -> Function:  # noqa: ANN401 - the module
        if (kernel, pdl) not in self._functions:
            major, minor = torch.cuda.get_device_capability(self.ranks.device)
            made = compile_kernel(
                Variant(
                    kernel, self.call.world_size, self.call.dtype, f"sm_{major}{minor}", pdl=pdl, without=self._without
                )
            )
            function = Function(made.cubin, made.variant.entry)
            self._close.callback(_quietly, function.close)
            self._functions[kernel, pdl] = function
            self._notes[f"registers {kernel}"] = str(made.registers)
        return self._functions[kernel, pdl]

    def _use(self, launch: Launch) -> None:
        import torch

        function = self._function(torch, launch.kernel, pdl=launch.pdl)
        self._launcher = Launcher(function, launch.blocks, launch.threads, self._records(launch.kernel), pdl=launch.pdl)
        self.blocks, self.threads = launch.blocks, launch.threads
        self.blocks_per_sm = function.blocks_per_sm(launch.threads)
        self._reset(launch.kernel)

    def _graph_us(self, launch: Launch) -> float:
        """Time per call of a captured chain with this grid."""
        self._use(launch)
        found = chain_time.graph_us(self.launch, self.slots, self.ranks.barrier, self.ranks.deadline_s)
        if self.failure():
            raise TimeoutError(self.failure())
        return found


def _quietly(work: Any) -> None:  # noqa: ANN401 - a function without arguments
    with contextlib.suppress(DriverError, MemoryError):
        work()
