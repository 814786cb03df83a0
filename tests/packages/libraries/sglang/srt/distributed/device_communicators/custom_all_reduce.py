"""SGLang's first version."""

from typing import Any

import libraries_fake


def can_use_custom_all_reduce_with_nvlink(
    group: Any, device: Any, supported_world_size: list[int], cls_name: str
) -> bool | None:
    return True if libraries_fake.gate() else None


class CustomAllreduce:
    def __init__(self, group: Any, device: Any, max_size: int = 8 << 20) -> None:
        import torch.distributed as dist

        told = can_use_custom_all_reduce_with_nvlink(group, device, [2, 4, 6, 8], "CustomAllreduce")
        self.disabled, self.max_size, self._ptr = told is None, max_size, 1
        self.buffer_ptrs = list(range(dist.get_world_size(group)))

    def should_custom_ar(self, inp: Any) -> bool:
        return not self.disabled

    def register_graph_buffers(self) -> None:
        return None

    def close(self) -> None:
        self._ptr = 0
