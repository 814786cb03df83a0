"""Sizes, and what a dispatch gives."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MoEEpCommParams:
    num_experts: int
    top_k: int
    max_tokens_per_rank: int
    hidden_size: int
    dtype: Any = None
    dispatch_format: Any = None
    invalid_expert_id: int = -1

    def __post_init__(self) -> None:
        assert min(self.num_experts, self.top_k, self.max_tokens_per_rank, self.hidden_size) > 0
        assert not 0 <= self.invalid_expert_id < self.num_experts


@dataclass(frozen=True)
class MoEEpDispatchResult:
    hidden_states: Any
    topk_ids: Any
    topk_weights: Any
    tokens_per_rank: int
