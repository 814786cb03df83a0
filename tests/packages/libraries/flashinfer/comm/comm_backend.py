"""The ranks as FlashInfer sees them."""

from typing import Any


class TorchDistBackend:
    def __init__(self, group: Any = None) -> None:
        self.group = group
