"""The ranks."""

from dataclasses import dataclass
from typing import Any


@dataclass
class BootstrapConfig:
    world_size: int
    rank: int
    stream: int = 0
    auto_bootstrap: bool = True
    process_group: Any = None
