"""Runs other people's collectives through their own Python interface: what all such runners share.

Their library is brought up apart (`library_build`), then imported here. A call that enqueues no kernel is refused
before anything is timed, and the outputs are poisoned and verified like everybody's.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self
from unittest import mock

from collbench.algorithms import preloaded
from collbench.algorithms.base import Proof, Ranks
from collbench.algorithms.cuda_buffers import make_slots, stride_of, wait_event
from collbench.algorithms.foreign_runner import ForeignRunner
from collbench.algorithms.kernel_nodes import KernelNode, capture_kernels
from collbench.algorithms.library_build import Request, import_together, prepare
from collbench.results.records import Call

__all__ = ["LibraryRunner", "asked", "said"]

_GATE_RAISES = (AssertionError, LookupError, RuntimeError, ValueError)
"""What gates raise where ranks share a GPU, or outside of a server: they look for peers by device index."""

_GPU_NAME = re.compile(r"GPU-[0-9a-fA-F-]{8,}")


class LibraryRunner(ForeignRunner):
    """One call of a library on one rank. Inputs and outputs are plain tensors; the group is gloo's.

    Subclasses say what is brought up (`request`), open it (`_open`) and call it (`_run`). Whatever `_open` makes is
    freed by callbacks on `self._close`, together on all ranks.
    """

    silent: ClassVar[str] = "its own rules keep the kernel off"
    """Why a call may enqueue nothing, for the reason of the cell."""

    no_peers: ClassVar[tuple[str, ...]] = ()
    """Parts of names of kernels that wait for nobody, however many blocks they have."""

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self.kernels: tuple[KernelNode, ...] = ()
        self._group: Any = None

    def request(self) -> Request:
        """What is brought up before the ranks import it."""
        raise NotImplementedError

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        raise NotImplementedError

    def _run(self, i: int) -> None:
        raise NotImplementedError

    @property
    def group(self) -> Any:  # noqa: ANN401 - a torch ProcessGroup
        """The ranks as a group of gloo's, made once."""
        if self._group is None:
            self._group = self.ranks.process_group("gloo")
        return self._group

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU; tests put libraries of their own in place and have none."""
        return self.ranks.device != "cpu"

    def __enter__(self) -> Self:
        import torch

        with contextlib.ExitStack() as stack:
            self._close = stack
            asked = self.request()
            self._notes |= prepare(self.ranks, asked) | preloaded.evidence()  # before CUDA is touched: it may fork
            if self.on_gpu:
                torch.cuda.set_device(self.ranks.device)
            import_together(self.ranks, asked.modules)
            self._allocate(torch)
            self._open(torch)
            self._drain("opening the library")
            self.ranks.barrier()
            self._read_kernels()
            self._close = stack.pop_all()
        return self

    def launch(self, i: int) -> None:
        """See `Runner.launch`."""
        self._run(i)

    def proof(self) -> Proof:
        """The kernels that a call enqueues, read from a captured one, and what the library said of itself."""
        kernels = "; ".join(kernel.text for kernel in self.kernels)
        return Proof("", {**self._notes, **({"kernel": kernels} if kernels else {})})

    def _allocate(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        count, itemsize = self.call.count, self.call.itemsize
        room, dtype = self.slots * stride_of(count, itemsize), getattr(torch, self.call.dtype)
        self._x, self._y = (
            make_slots(self.slots, count, itemsize, torch.zeros(room, dtype=dtype, device=self.ranks.device))
            for _ in range(2)
        )

    def _room(self, torch: Any) -> tuple[int, int]:  # noqa: ANN401 - the module
        """Multiprocessors that each rank may fill so that all ranks on this GPU fit, and how many ranks those are."""
        device = torch.cuda.get_device_properties(self.ranks.device)
        sharing = self.ranks.exchange(str(device.uuid)).count(str(device.uuid))
        return int(device.multi_processor_count) // sharing, sharing

    def _drain(self, what: str) -> None:
        if not self.on_gpu:
            return
        import torch

        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        wait_event(event, self.ranks.deadline_s, what)

    def _read_kernels(self) -> None:
        """The kernels of one call, and how many blocks of theirs wait for peers.

        Raises:
            NotImplementedError: on some rank the call enqueues none, so that nothing would be measured.
        """
        seen: int | None = None
        if self.on_gpu:
            try:
                self.kernels = capture_kernels(lambda: self._run(0))
                seen = len(self.kernels)
            except (RuntimeError, OSError) as error:
                self._notes["kernel"] = f"not read: {type(error).__name__}: {str(error)[:200]}"
            self.captured()
        if 0 in self.ranks.exchange(seen):
            raise NotImplementedError(f"a call enqueues no kernel: {self.silent}")
        waiting = [kernel for kernel in self.kernels if not any(part in kernel.name for part in self.no_peers)]
        largest = max(waiting, key=lambda kernel: kernel.blocks, default=None)
        if largest is not None:
            self.blocks, self.threads, self.blocks_per_sm = largest.blocks, largest.threads, largest.blocks_per_sm

    def _note_gate(self, gate: Callable[[], bool]) -> None:
        """Keep as evidence what a gate says that is passed, with the warning that `said` kept of it."""
        verdict = asked(gate)
        self._notes["gate"] = f"{verdict}: {self._notes.pop('warned', '')}".rstrip(": ")

    def _past_attribute(self, where: Any, name: str, value: Any) -> None:  # noqa: ANN401 - theirs
        """Put something of ours in place of `where.name` until this runner is closed: a call past a gate."""
        self._close.enter_context(mock.patch.object(where, name, value))


def asked(gate: Callable[[], bool]) -> str:
    """What a gate says, in one word, or what it raised instead: `open`, `closed`, `none: raised AssertionError: ...`.

    Names of GPUs that stand in an error are cut: where ranks share a GPU they see it under such a name.
    """
    try:
        return "open" if gate() else "closed"
    except _GATE_RAISES as error:
        told = _GPU_NAME.sub("GPU-...", str(error).strip().partition("\n")[0])
        return f"none: raised {type(error).__name__}: {told[:200]}".rstrip(": ")


@contextlib.contextmanager
def said(logger: str, into: dict[str, str]) -> Iterator[None]:
    """Keep the last warning of a logger as evidence `warned`: gates explain themselves there."""
    import logging

    class _Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            into["warned"] = record.getMessage()[:300]

    keeper, source = _Keeper(logging.WARNING), logging.getLogger(logger)
    source.addHandler(keeper)
    try:
        yield
    finally:
        source.removeHandler(keeper)
