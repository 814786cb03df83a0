"""Shared buffers: numbers, here."""

from typing import Any

LIVE: set[tuple[int, ...]] = set()


def create_shared_buffer(size_in_bytes: int, group: Any = None) -> list[int]:
    import torch.distributed as dist

    made = [1000 * len(LIVE) + rank for rank in range(dist.get_world_size(group))]
    LIVE.add(tuple(made))
    return made


def free_shared_buffer(pointers: list[int], group: Any = None) -> None:
    LIVE.remove(tuple(pointers))
