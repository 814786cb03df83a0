"""Compute capability of a GPU from its model's name, for machines of which only that was written down."""

import re
from collections.abc import Mapping

__all__ = ["EARLY_SINCE", "arch_of", "arch_of_gpu", "starts_early"]

_ARCHS: Mapping[str, str] = {
    "GB300|B300": "sm_103",
    "GB200|B200": "sm_100",
    r"RTX PRO \d+|RTX 50[5-9]0": "sm_120",
    "GH200|H200|H100|H800|H20": "sm_90",
    r"L40S|L40|L20|L4|RTX 40[5-9]0|RTX \d+ ADA": "sm_89",
    r"A40|A16|A10G|A10|A2|RTX A\d+|RTX 30[5-9]0": "sm_86",
    "A100|A800|A30": "sm_80",
    "T4": "sm_75",
    "V100": "sm_70",
}
"""By whole words of the name (NVIDIA's list of compute capabilities, developer.nvidia.com/cuda-gpus)."""


EARLY_SINCE = 90
"""Compute capability from which on kernels may start early: programmatic dependent launch (CUDA programming guide)."""


def starts_early(gpu: Mapping[str, str]) -> bool:
    """Whether a GPU of these attributes of a topology may: no where they tell neither arch nor a known model."""
    return int("".join(c for c in arch_of_gpu(gpu) if c.isdecimal()) or 0) >= EARLY_SINCE


def arch_of_gpu(gpu: Mapping[str, str]) -> str:
    """That of a GPU of these attributes: as they say, else of its model; empty where neither is known."""
    return gpu.get("arch") or arch_of(gpu.get("model", ""))


def arch_of(model: str) -> str:
    """`sm_120` for `NVIDIA RTX PRO 6000 Blackwell Server Edition`; empty for what is not in the table."""
    name = model.upper().replace("-", " ")
    return next((arch for words, arch in _ARCHS.items() if re.search(rf"(?<!\S)(?:{words})(?!\S)", name)), "")
