"""What the runners of libraries import, and what fork servers import for them: one list per library and its server.

A list goes from light to heavy. What stands before a library's own modules takes most of the time of their import and
touches no GPU by itself: it stays imported where a release of the library turns out to initialise CUDA.
"""

__all__ = [
    "B12X", "B12X_API", "DEEPEP", "FLASHINFER", "FLASHINFER_COMM", "FLASHINFER_MOE", "SGLANG", "SGLANG_V1", "SGLANG_V2",
    "SGL_KERNEL", "SGL_KERNEL_OPS", "VLLM", "VLLM_ALL_REDUCE",
]  # fmt: skip

VLLM_ALL_REDUCE = "vllm.distributed.device_communicators.custom_all_reduce"
SGLANG_V1 = "sglang.srt.distributed.device_communicators.custom_all_reduce"
SGLANG_V2 = "sglang.srt.distributed.device_communicators.custom_all_reduce_v2"
SGL_KERNEL_OPS = "sgl_kernel.allreduce"
B12X_API = "b12x.comm.pcie.api"
FLASHINFER_COMM = "flashinfer.comm"
FLASHINFER_MOE = "flashinfer.moe_ep.backends.split.comm.nvlink_one_sided.communication"

VLLM = ("torch._dynamo", "torch._inductor.lowering", VLLM_ALL_REDUCE)
"""vLLM 0.33.0: torch's compiler is 1.4 of 1.7 s."""

SGLANG = ("torch._dynamo", "torch.distributed.tensor", "transformers", SGLANG_V2, SGL_KERNEL_OPS, SGLANG_V1)
"""SGLang 0.5.23."""

SGL_KERNEL = (SGL_KERNEL_OPS,)
"""sglang-kernel alone, which needs no SGLang."""

FLASHINFER = ("torch.export", FLASHINFER_COMM, FLASHINFER_MOE)
"""FlashInfer 0.7.4."""

DEEPEP = ("deep_ep",)
"""sgl-deep-ep 0.1.2.post1; its import was not seen: it wants a newer NCCL than the torch that was at hand."""

B12X = ("cutlass.cute", B12X_API)
"""b12x 1.5.1 over nvidia-cutlass-dsl 4.8.0: 1.6 s, touches no CUDA and leaves no thread (seen without a GPU)."""
