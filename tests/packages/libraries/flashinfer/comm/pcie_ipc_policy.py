"""Variants and launches."""

from dataclasses import dataclass
from enum import IntEnum


class IpcVariant(IntEnum):
    UNSTAGED = 0
    STAGED_RING = 2
    COPY_ENGINE_RING = 4
    COPY_ENGINE_ISLAND = 5
    COPY_ENGINE_RING_MEMOP = 6
    COPY_ENGINE_RING_PIPED = 7


@dataclass(frozen=True)
class IpcLaunchConfig:
    blocks: int
    threads: int
    variant: IpcVariant
