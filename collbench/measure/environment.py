"""The environment that workers get: an allow-list of the user's variables, and what their algorithm needs.

The list stands in docs/design.md too. Everything else stays behind: NCCL's tools write the whole environment of rank 0
into their output, and a run folder is meant to be shown to colleagues.
"""

import os
from collections.abc import Mapping

__all__ = ["ALLOWED", "ALLOWED_PREFIXES", "worker_environment"]

ALLOWED = frozenset({
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER", "LOGNAME", "XDG_CACHE_HOME", "PYTHONPATH", "VIRTUAL_ENV",
    "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LD_PRELOAD", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS",
    # settings of libraries by name: with the start of theirs come keys of servers
    "VLLM_CUSTOM_ALLREDUCE_ALGO", "VLLM_SKIP_P2P_CHECK", "SGLANG_CUSTOM_ALLREDUCE_ALGO",
    "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB", "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PULL_SIZE_KB",
    "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB",
    # where libraries compile: what compilers search, how many of them run, and where the result stays
    "LIBRARY_PATH", "CPATH", "MAX_JOBS", "SGLANG_JIT_CACHE_DIR", "SGLANG_CACHE_DIR", "VLLM_CACHE_ROOT",
})  # fmt: skip
"""Variables that pass by name."""

ALLOWED_PREFIXES = (
    "CUDA_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "NVSHMEM_", "GLOO_", "OMP_", "NVIDIA_", "COLLBENCH_",
    "FLASHINFER_",
)  # fmt: skip
"""Variables that pass by the start of their name: the settings of what is measured."""

_ALWAYS = {
    # one thread per rank: ranks share the cores already
    "OMP_NUM_THREADS": "1",
    # NVLink multicast stays off in every environment that we build: a failed user of it can take a host's GPUs down
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


def worker_environment(given: Mapping[str, str] | None = None, *, preload: str = "") -> dict[str, str]:
    """The environment of a fork server: the allowed part of `given` (default: of this process), and our settings."""
    source = os.environ if given is None else given
    kept = {k: v for k, v in source.items() if k in ALLOWED or k.startswith(ALLOWED_PREFIXES)}
    if preload:
        kept["LD_PRELOAD"] = f"{preload}:{kept['LD_PRELOAD']}" if kept.get("LD_PRELOAD") else preload
    return {**kept, **_ALWAYS}
