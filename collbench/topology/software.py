"""Versions of what is installed, and facts of the host, read without importing any of it."""

import importlib.metadata
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from collbench.topology import toolkit
from collbench.topology.sysfs_cpu import read_text

__all__ = ["host_facts", "versions"]

_NAMES: Mapping[str, tuple[str, ...]] = {
    "numpy": ("numpy",), "torch": ("torch",), "triton": ("triton",), "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "nvshmem": ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"), "cuda-core": ("cuda-core",),
    "cuda-bindings": ("cuda-bindings",),
    "nvrtc": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"),
    "cuda-runtime": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
    "nvidia-ml-py": ("nvidia-ml-py",), "nccl4py": ("nccl4py",), "vllm": ("vllm",), "sglang": ("sglang",),
    "flashinfer": ("flashinfer-python", "flashinfer"), "mscclpp": ("mscclpp",),
    "sgl-kernel": ("sglang-kernel", "sgl-kernel"),
    "tensorrt-llm": ("tensorrt-llm",), "b12x": ("b12x",), "cutlass-dsl": ("nvidia-cutlass-dsl",),
    "deep-ep": ("deep-ep", "deep_ep", "sgl-deep-ep"),
}  # fmt: skip
_CUDA_LINE = re.compile(r"^cuda\b[^=\n]*=\s*['\"](\d+(?:\.\d+)*)['\"]", re.MULTILINE)


def versions() -> dict[str, str]:
    """Versions by the names of `Machine.software`; what is not installed is absent.

    `cuda` is the runtime that torch was built for (none for a CPU build). `nccl` is that of the installed package: the
    library that a worker really loads is read there. `nvcc` and `flashinfer-headers` are found as `toolkit` finds them.
    """
    found = {"python": platform.python_version()}
    for name, packages in _NAMES.items():
        version = next(filter(None, map(_version, packages)), "")
        if version:
            found[name] = version
    found |= toolkit.versions()
    cuda = _cuda_of_torch() if "torch" in found else ""
    return found | ({"cuda": cuda} if cuda else {})


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package) or ""
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return ""


def _cuda_of_torch() -> str:
    """`torch.version.cuda`, from the text of the file that defines it."""
    try:
        place = importlib.metadata.distribution("torch").locate_file("torch/version.py")
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return ""
    match = _CUDA_LINE.search(read_text(Path(str(place))))
    return match[1] if match else ""


def host_facts(root: Path = Path("/")) -> dict[str, str]:
    """`host_arch`, `memory_gib` (of the host), `kernel` and `iommu` (`on`, `off`); what cannot be read is absent."""
    memory = re.search(r"^MemTotal:\s*(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    facts = {"host_arch": platform.machine(), "kernel": read_text(root / "proc/sys/kernel/osrelease")}
    facts["memory_gib"] = f"{int(memory[1]) / (1 << 20):.1f}" if memory else ""
    try:
        facts["iommu"] = "on" if any((root / "sys/class/iommu").iterdir()) else "off"
    except OSError:
        facts["iommu"] = ""
    return {name: value for name, value in facts.items() if value}
