"""Names as FlashInfer offers them."""

from flashinfer.comm.allreduce import allreduce_fusion, create_allreduce_fusion_workspace
from flashinfer.comm.pcie_ipc_ar import PcieIpcAllReduceWorkspace
from flashinfer.comm.trtllm_ar import AllReduceFusionPattern

__all__ = [
    "AllReduceFusionPattern", "PcieIpcAllReduceWorkspace", "allreduce_fusion", "create_allreduce_fusion_workspace",
]  # fmt: skip
