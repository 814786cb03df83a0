"""Runs FlashInfer's all-reduces through its own Python interface. Read in flashinfer-python 0.7.4."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from collbench.algorithms.base import Ranks
from collbench.algorithms.epilogues import EPSILON
from collbench.algorithms.fusion_rows import rows_of_fusion
from collbench.algorithms.library_build import Request, Step
from collbench.algorithms.library_modules import FLASHINFER_COMM
from collbench.algorithms.library_runner import LibraryRunner
from collbench.algorithms.library_uses import Use
from collbench.results.records import Call

__all__ = [
    "USES", "CopyEngineIsland", "CopyEnginePiped", "CopyEngineRing", "CopyEngineRingMemop", "Fusion", "FusionEarly",
    "FusionOneShot", "FusionTwoShot", "VllmKernels", "Workspace",
]  # fmt: skip

_COMM, _AR, _PCIE, _VLLM = (
    FLASHINFER_COMM, f"{FLASHINFER_COMM}.trtllm_ar", f"{FLASHINFER_COMM}.pcie_ipc_ar", f"{FLASHINFER_COMM}.vllm_ar",
)  # fmt: skip
_FUSION_USES = (
    Use("flashinfer.comm.allreduce", "create_allreduce_fusion_workspace",
        ("backend", "world_size", "rank", "max_token_num", "hidden_dim", "dtype", "comm_backend", "group")),
    Use("flashinfer.comm.allreduce", "allreduce_fusion",
        ("input", "workspace", "pattern", "launch_with_pdl", "output", "residual_in", "residual_out", "norm_out",
         "rms_gamma", "rms_eps", "use_oneshot", "fp32_acc")),
    Use(_AR, "AllReduceFusionPattern.kAllReduce", called=False),
    Use(_AR, "AllReduceFusionPattern.kARResidualRMSNorm", called=False),
    Use("flashinfer.comm.comm_backend", "TorchDistBackend.__init__", ("group",), 1),
    Use(_AR, "get_trtllm_comm_module"), Use(_AR, "trtllm_destroy_ipc_workspace_for_all_reduce_fusion", (), 1),
)  # fmt: skip
_PCIE_USES = (
    Use(_PCIE, "PcieIpcAllReduceWorkspace.__init__", ("group", "max_numel", "dtype"), 1),
    Use(_PCIE, "PcieIpcAllReduceWorkspace.all_reduce", ("out", "config"), 2),
    Use(_PCIE, "PcieIpcAllReduceWorkspace.supports", (), 2),
    Use(_PCIE, "PcieIpcAllReduceWorkspace.prepare", ("dtype",), 2),
    Use(_PCIE, "PcieIpcAllReduceWorkspace.tuned_launch_config", (), 2),
    Use(_PCIE, "PcieIpcAllReduceWorkspace.rebind_stream", (), 1),
    Use(_PCIE, "PcieIpcAllReduceWorkspace.destroy", (), 1),
    Use("flashinfer.comm.pcie_ipc_policy", "IpcLaunchConfig", ("blocks", "threads", "variant")),
    Use("flashinfer.comm.pcie_ipc_policy", "IpcVariant.COPY_ENGINE_RING", called=False),
    Use("flashinfer.comm.pcie_ipc_policy", "IpcVariant.COPY_ENGINE_ISLAND", called=False),
    Use("flashinfer.comm.pcie_ipc_policy", "IpcVariant.COPY_ENGINE_RING_MEMOP", called=False),
    Use("flashinfer.comm.pcie_ipc_policy", "IpcVariant.COPY_ENGINE_RING_PIPED", called=False),
    Use(_PCIE, "get_pcie_ipc_comm_module"),
)  # fmt: skip
_VLLM_USES = (
    Use(_VLLM, "init_custom_ar", (), 4), Use(_VLLM, "all_reduce", (), 6), Use(_VLLM, "meta_size"),
    Use(_VLLM, "register_buffer", (), 2), Use(_VLLM, "get_graph_buffer_ipc_meta", (), 1),
    Use(_VLLM, "register_graph_buffers", (), 3), Use(_VLLM, "dispose", (), 1), Use(_VLLM, "get_vllm_comm_module"),
    Use("flashinfer.comm.cuda_ipc", "create_shared_buffer", (), 2),
    Use("flashinfer.comm.cuda_ipc", "free_shared_buffer", (), 2),
)  # fmt: skip
USES = (*_FUSION_USES, *_PCIE_USES, *_VLLM_USES)
"""Everything that is called here."""


class Fusion(LibraryRunner):
    """`allreduce_fusion` over a `trtllm` workspace, one-shot or two-shot as FlashInfer chooses."""

    one_shot: ClassVar[bool | None] = None
    early: ClassVar[bool] = False
    """Whether it asks for programmatic dependent launch, which is not its default."""

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._workspace: Any = None
        self._fusion: Any = None
        self._forget: Any = None
        self._arguments: list[dict[str, Any]] = []

    def request(self) -> Request:
        """See `LibraryRunner.request`."""
        return Request("FlashInfer", (_COMM,), _FUSION_USES, (Step(f"{_AR}:get_trtllm_comm_module"),))

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.inputs`; with an epilogue residual and weight too."""
        given = self._arguments[i]
        if not self.call.epilogue:
            return super().inputs(i)
        return {"x": self._x[i], "residual": given["residual_in"].view(-1), "weight": given["rms_gamma"]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner.outputs`; with an epilogue the new residual too."""
        if not self.call.epilogue:
            return super().outputs(i)
        return {"residual_out": self._arguments[i]["residual_out"].view(-1), "y": self._y[i]}

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        from flashinfer import comm
        from flashinfer.comm import trtllm_ar
        from flashinfer.comm.comm_backend import TorchDistBackend

        call, group = self.call, self.group
        rows = rows_of_fusion(call, two_shot=self.one_shot is False)
        if not rows:
            raise NotImplementedError(f"{call.count} elements cannot be cut into rows that its kernels take")
        hidden = call.count // rows
        self._fusion, self._forget = (
            comm.allreduce_fusion, trtllm_ar.trtllm_destroy_ipc_workspace_for_all_reduce_fusion,
        )  # fmt: skip
        self._workspace = comm.create_allreduce_fusion_workspace(
            backend="trtllm", world_size=call.world_size, rank=self.ranks.rank, max_token_num=rows, hidden_dim=hidden,
            dtype=getattr(torch, call.dtype), comm_backend=TorchDistBackend(group=group), group=group,
        )  # fmt: skip
        self._close.callback(self._free)
        pattern = comm.AllReduceFusionPattern
        self._arguments = [self._slot(torch, pattern, i, (rows, hidden)) for i in range(self.slots)]
        self._notes |= {"shape": f"{rows} x {hidden}", "launch_with_pdl": str(self.early)}

    def _slot(self, torch: Any, pattern: Any, i: int, shape: tuple[int, int]) -> dict[str, Any]:  # noqa: ANN401
        common = {
            "input": self._x[i].view(shape), "workspace": self._workspace, "launch_with_pdl": self.early,
            "use_oneshot": self.one_shot, "fp32_acc": True,
        }  # fmt: skip
        if not self.call.epilogue:
            return {**common, "pattern": pattern.kAllReduce, "output": self._y[i].view(shape)}
        like = self._x[i].view(shape)
        # its kernel leaves `output` alone here, but without one each call would allocate
        return {
            **common, "output": torch.empty_like(like), "pattern": pattern.kARResidualRMSNorm,
            "norm_out": self._y[i].view(shape), "rms_eps": EPSILON, "residual_in": torch.zeros_like(like),
            "residual_out": torch.zeros_like(like), "rms_gamma": torch.zeros_like(like[0]),
        }  # fmt: skip

    def _run(self, i: int) -> None:
        self._fusion(**self._arguments[i])

    def _free(self) -> None:
        self._arguments, workspace, self._workspace = [], self._workspace, None
        self.ranks.barrier()
        handles = workspace.ipc_handles
        workspace.destroy()
        self._forget(handles)  # the package keeps the memory by these, which destroy() leaves


class FusionEarly(Fusion):
    """With programmatic dependent launch, as vLLM 0.33.0 and SGLang 0.5.23 ask for in their servers."""

    early = True


class FusionOneShot(Fusion):
    """One push, forced."""

    one_shot = True


class FusionTwoShot(Fusion):
    """Pull and push, forced."""

    one_shot = False


class Workspace(LibraryRunner):
    """`PcieIpcAllReduceWorkspace`, by its own policy: what a former `tune()` found on this machine, else its seed."""

    variant: ClassVar[str] = ""
    on_sm120: ClassVar[bool] = False
    """Whether the variant needs what FlashInfer has on sm_12x only; its workspace says if it is there."""
    unsigned_zeros = True  # +0 says "not yet written", as in the kernels compiled from its header

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._workspace: Any = None
        self._config: Any = None

    def request(self) -> Request:
        """See `LibraryRunner.request`."""
        return Request("FlashInfer", (_COMM,), _PCIE_USES, (Step(f"{_PCIE}:get_pcie_ipc_comm_module"),))

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        from flashinfer.comm import PcieIpcAllReduceWorkspace
        from flashinfer.comm.pcie_ipc_policy import IpcLaunchConfig, IpcVariant

        group, dtype = self.group, getattr(torch, self.call.dtype)
        self._workspace = PcieIpcAllReduceWorkspace(group=group, max_numel=self.call.count, dtype=dtype)
        self._close.callback(self._free)
        shape = (1, self.call.count)
        if not self._workspace.supports(self._x[0].view(shape)):
            raise NotImplementedError(f"its workspace does not support {self.call.count} elements")
        if self.variant:
            if self.on_sm120 and not getattr(self._workspace, "memop_supported", True):
                raise NotImplementedError("this GPU has no flags that a copy stream writes: FlashInfer wants sm_12x")
            # on copy-engine variants `blocks` is the depth of the ring: one piece runs at every size that divides
            self._config = IpcLaunchConfig(blocks=1, threads=256, variant=getattr(IpcVariant, self.variant))
        else:
            self._workspace.prepare([shape], dtype=dtype)
            self._config = self._workspace.tuned_launch_config(self._x[0].view(shape))
        self._notes["launch"] = str(self._config)

    def _run(self, i: int) -> None:
        self._workspace.rebind_stream()  # we order the streams that we use
        self._workspace.all_reduce(self._x[i], out=self._y[i], config=self._config)

    def _free(self) -> None:
        workspace, self._workspace = self._workspace, None
        self.ranks.barrier()
        workspace.destroy()


class CopyEngineRing(Workspace):
    """The ring whose data the copy engines move."""

    variant = "COPY_ENGINE_RING"


class CopyEngineIsland(Workspace):
    """Two islands of four, moved by copy engines."""

    variant = "COPY_ENGINE_ISLAND"


class CopyEngineRingMemop(Workspace):
    """The ring with flags that the copy stream writes (sm_120)."""

    variant, on_sm120 = "COPY_ENGINE_RING_MEMOP", True


class CopyEnginePiped(Workspace):
    """The same in pieces (sm_120)."""

    variant, on_sm120 = "COPY_ENGINE_RING_PIPED", True


class VllmKernels(LibraryRunner):
    """vLLM's kernels behind FlashInfer's operators, with the dispatch that they have there."""

    silent = (
        "vLLM's dispatch in it launches nothing for more than two ranks unless it is told that NVLink joins all GPUs"
    )

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._ops: Any = None
        self._handle = 0
        self._staging = 0
        self._ctas = 36  # as vLLM starts them
        self._data: Any = None

    def request(self) -> Request:
        """See `LibraryRunner.request`."""
        return Request("FlashInfer", (_COMM,), _VLLM_USES, (Step(f"{_VLLM}:get_vllm_comm_module"),))

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        from flashinfer.comm import cuda_ipc, vllm_ar

        self._ops, group = vllm_ar, self.group
        full_nvlink = os.environ.get("COLLBENCH_FULL_NVLINK") == "1"
        size = max(self.call.bytes, 1 << 20)
        # their signals, and behind them the scratch of the two-stage kernel
        signals = cuda_ipc.create_shared_buffer(vllm_ar.meta_size() + size, group)
        self._close.callback(cuda_ipc.free_shared_buffer, signals, group)
        staging = cuda_ipc.create_shared_buffer(size, group)
        self._close.callback(cuda_ipc.free_shared_buffer, staging, group)
        self._clear(torch, signals[self.ranks.rank], vllm_ar.meta_size())
        sharing = 1
        if self.on_gpu:
            room, sharing = self._room(torch)
            self._ctas = min(self._ctas, room)  # one block on a multiprocessor, for all ranks here
        self._data = torch.zeros(1 << 20, dtype=torch.uint8, device=self.ranks.device)
        self.ranks.barrier()
        self._handle = vllm_ar.init_custom_ar(signals, self._data, self.ranks.rank, full_nvlink)
        self._close.callback(vllm_ar.dispose, self._handle)
        self._staging = staging[self.ranks.rank]
        vllm_ar.register_buffer(self._handle, staging)
        self._notes["full_nvlink"] = f"told {full_nvlink}" + (", of ranks that share a GPU" if sharing > 1 else "")

    def _clear(self, torch: Any, address: int, size: int) -> None:  # noqa: ANN401 - the module
        if not self.on_gpu:
            return
        from flashinfer.comm.cuda_ipc import cudart

        cudart.cudaMemset(address, 0, size)
        torch.cuda.synchronize()

    def _run(self, i: int) -> None:
        import torch

        captured = self.on_gpu and torch.cuda.is_current_stream_capturing()
        staging, room = (0, 0) if captured else (self._staging, self.call.bytes)
        self._ops.all_reduce(self._handle, self._x[i], self._y[i], staging, room, self._ctas)

    def captured(self) -> None:
        """Tell the peers where captured inputs lie."""
        import torch.distributed as dist

        mine = self._ops.get_graph_buffer_ipc_meta(self._handle)
        told: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(told, tuple(list(part) for part in mine), group=self.group)
        self._ops.register_graph_buffers(self._handle, [part[0] for part in told], [part[1] for part in told])
