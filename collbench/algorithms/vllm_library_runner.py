"""Runs vLLM's custom all-reduce through its own class, with its gates and past them. Read in vLLM 0.33.0."""

import os
from typing import Any, ClassVar

from collbench.algorithms.base import Ranks
from collbench.algorithms.library_build import Request, Step
from collbench.algorithms.library_modules import VLLM_ALL_REDUCE
from collbench.algorithms.library_runner import LibraryRunner, said
from collbench.algorithms.library_uses import Use
from collbench.results.records import Call

__all__ = ["USES", "Forced", "Gated"]

_MODULE, _OPS = VLLM_ALL_REDUCE, "vllm._custom_ops"
_ALGO = "VLLM_CUSTOM_ALLREDUCE_ALGO"

USES = (
    Use(_MODULE, "CustomAllreduce.__init__", ("group", "device", "symm_mem_enabled"), 1),
    Use(_MODULE, "CustomAllreduce.should_custom_ar", (), 2),
    Use(_MODULE, "CustomAllreduce.all_reduce", ("out", "registered"), 2),
    Use(_MODULE, "CustomAllreduce.register_graph_buffers", (), 1),
    Use(_MODULE, "CustomAllreduce.close", (), 1),
    Use(_MODULE, "_can_p2p", (), 2),
    Use(_MODULE, "current_platform", called=False),
    Use(_OPS, "meta_size"),
)
"""Everything that is called here, and what stands in for a gate."""


class Gated(LibraryRunner):
    """`CustomAllreduce` as a server starts it: what its gates refuse is `unsupported` with what they said."""

    forced: ClassVar[bool] = False

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._communicator: Any = None

    def request(self) -> Request:
        """See `LibraryRunner.request`; `meta_size` says whether the operators were built for this torch and CUDA."""
        return Request("vLLM", (_MODULE,), USES, (Step(f"{_OPS}:meta_size"),))

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        from vllm.distributed.device_communicators import custom_all_reduce as module

        self._ask(torch, module)
        if self.forced:
            self._force(module)
        self._communicator = self._made(torch, module, symm_mem_enabled=not self.forced)
        self._close.callback(self._free)
        if self._communicator.disabled:
            raise NotImplementedError(f"vLLM keeps it off: {self._notes.get('warned', 'it said no reason')}")
        if not self.forced and not self._communicator.should_custom_ar(self._x[0]):
            raise NotImplementedError(f"vLLM's gate refuses {self.call.bytes} bytes per call")
        self._notes["algorithm"] = os.environ.get(_ALGO, "as its dispatch chooses")

    def _ask(self, torch: Any, module: Any) -> None:  # noqa: ANN401 - modules
        """What the gates would have said, for the record, where they are passed."""
        if not self.forced:
            return
        made: list[Any] = []

        def gate() -> bool:
            made.append(self._made(torch, module, symm_mem_enabled=True))
            return not made[0].disabled and bool(made[0].should_custom_ar(self._x[0]))

        self._note_gate(gate)
        for communicator in made:
            communicator.close()
        self.ranks.barrier()

    def _made(self, torch: Any, module: Any, *, symm_mem_enabled: bool) -> Any:  # noqa: ANN401 - modules
        """With `symm_mem_enabled` it has the size table of a server whose symmetric memory is on, the default."""
        with said(module.logger.name, self._notes):
            device = torch.device(self.ranks.device)
            return module.CustomAllreduce(group=self.group, device=device, symm_mem_enabled=symm_mem_enabled)

    def _force(self, module: Any) -> None:  # noqa: ANN401 - a module
        """NVLink everywhere and P2P, as far as this class is told; the kernel that runs is fixed by the environment."""
        where = type(module.current_platform) if not isinstance(module.current_platform, type) else None
        target = where or module.current_platform
        self._past_attribute(target, "is_fully_connected", classmethod(lambda _platform, _ids: True))
        self._past_attribute(module, "_can_p2p", lambda _rank, _world_size: True)

    def _run(self, i: int) -> None:
        import torch

        captured = self.on_gpu and torch.cuda.is_current_stream_capturing()
        self._communicator.all_reduce(self._x[i], out=self._y[i], registered=captured)

    def captured(self) -> None:
        """Tell the peers where captured inputs lie, as vLLM does when it leaves its `capture`."""
        self._communicator.register_graph_buffers()

    def _free(self) -> None:
        communicator, self._communicator = self._communicator, None
        self.ranks.barrier()
        communicator.close()


class Forced(Gated):
    """The same past the gates; the gates' verdict stands in the evidence."""

    forced = True
