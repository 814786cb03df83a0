"""Its options."""

from dataclasses import dataclass
from typing import Any


@dataclass
class NVLinkOneSidedConfig:
    backend_name: str = "nvlink_one_sided"
    comm_backend: Any = None
    cft: Any = None
    lamport: Any = None
    timeout_sec: int = 300
