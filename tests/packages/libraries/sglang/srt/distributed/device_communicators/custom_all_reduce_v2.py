"""SGLang's second version: it returns a tensor of its own."""

import logging
from typing import Any

import libraries_fake

from sglang.kernels.ops.communication.all_reduce import AllReduceAlgo

__all__ = ["AllReduceAlgo", "CustomAllReduceV2", "can_use_custom_all_reduce_v2"]

logger = logging.getLogger("sglang.custom_all_reduce_v2")


def can_use_custom_all_reduce_v2(group: Any, device: Any) -> bool:
    if libraries_fake.FAULT == "closed":
        logger.warning("CustomAllReduceV2 is disabled because it's not supported on more than two PCIe-only GPUs")
    return bool(libraries_fake.gate())


class CustomAllReduceV2:
    def __init__(
        self,
        group: Any,
        device: Any,
        max_size: int = 16 << 20,
        *,
        max_push_size: int | None = None,
        max_pull_blocks: int | None = None,
        max_push_blocks: int | None = None,
    ) -> None:
        import torch.distributed as dist

        self.group, self.max_size = group, max_size
        self.slot = 64 << 10 if max_push_size is None else max_push_size
        self.world_size = dist.get_world_size(group)
        self.disabled = not can_use_custom_all_reduce_v2(group=group, device=device)
        self.override_algo: Any = None

    def should_custom_ar(self, inp: Any) -> bool:
        return not self.disabled and inp.numel() * inp.element_size() <= self.max_size

    def custom_all_reduce(self, input: Any) -> Any:
        import torch

        nbytes = input.numel() * input.element_size()
        need = {"ONE_SHOT_PUSH": nbytes, "TWO_SHOT_PUSH": 32 * -(-nbytes // (16 * self.world_size))}
        forced = getattr(self.override_algo, "name", "")
        assert need.get(forced, 0) <= self.slot, f"slice escapes the {self.slot}-byte push slot"
        out = torch.empty_like(input)
        libraries_fake.into(out, input, self.group)
        return out

    def close(self) -> None:
        self.group = None
