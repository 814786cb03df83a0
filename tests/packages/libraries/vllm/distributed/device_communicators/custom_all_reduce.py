"""vLLM's class: closed for more than two ranks unless its platform says that NVLink joins them all."""

import logging
import os
from typing import Any

import libraries_fake

logger = logging.getLogger("vllm.custom_all_reduce")


class Platform:
    @classmethod
    def is_fully_connected(cls, device_ids: list[int]) -> bool:
        return bool(libraries_fake.FAULT != "closed")


current_platform = Platform()


def _can_p2p(rank: int, world_size: int) -> bool:
    return bool(libraries_fake.gate())


class CustomAllreduce:
    def __init__(self, group: Any, device: Any, max_size: int = 8 << 20, symm_mem_enabled: bool = False) -> None:
        import torch.distributed as dist

        self.group, self.disabled, self.max_size = group, True, max_size
        self.world_size = dist.get_world_size(group)
        if self.world_size > 2 and not current_platform.is_fully_connected([]):
            logger.warning("Custom allreduce is disabled: not supported on more than two PCIe-only GPUs")
            return
        if not _can_p2p(0, self.world_size):
            return
        self.disabled = False

    def should_custom_ar(self, inp: Any) -> bool:
        return not self.disabled and inp.numel() * inp.element_size() < self.max_size

    def all_reduce(self, inp: Any, *, out: Any = None, registered: bool = False) -> Any:
        assert not self.disabled
        assert os.environ.get("VLLM_CUSTOM_ALLREDUCE_ALGO", "1stage") in {"1stage", "2stage"}
        libraries_fake.into(out, inp, self.group)
        return out

    def register_graph_buffers(self) -> None:
        assert not self.disabled

    def close(self) -> None:
        self.group = None
