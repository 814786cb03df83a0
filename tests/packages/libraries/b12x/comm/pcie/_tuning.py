"""What a plan is for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PcieQuery:
    surface: str
    world_size: int
    rank: int
    topology: str
    call: Mapping[str, Any]
    setup: Mapping[str, Any]
