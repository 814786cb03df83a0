"""Dispatches over gloo; with `closed` its GPUs are joined by PCIe, with `raises` rows come in reverse order."""

from typing import Any

import libraries_fake

HEADER = 4096


class Config:
    def get_nvl_buffer_size_hint(self, hidden_bytes: int, ranks: int) -> int:
        assert hidden_bytes % 16 == 0
        return HEADER + ranks * hidden_bytes


class Buffer:
    open: int = 0

    def __init__(
        self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
        explicitly_destroy: bool = False,
    ) -> None:  # fmt: skip
        assert libraries_fake.FAULT != "closed", "PCIe GPUs only have pairwise NVLink connections"
        assert num_nvl_bytes > HEADER
        assert explicitly_destroy
        self.group, self.rank, self.size = group, group.rank(), group.size()
        Buffer.open += 1

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        assert num_ranks in {2, 4, 8}, f"Unsupported number of EP ranks: {num_ranks}"
        return Config()

    def dispatch(
        self, x: Any, handle: Any = None, num_tokens_per_rank: Any = None, num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None, num_tokens_per_expert: Any = None, topk_idx: Any = None,
        topk_weights: Any = None, expert_alignment: int = 1, num_worst_tokens: int = 0, config: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        import torch
        import torch.distributed as dist

        assert config is not None
        told: list[Any] = [None] * self.size
        if handle is None:
            assert num_tokens_per_rank.dtype == torch.int32
            assert num_tokens_per_expert.shape == num_tokens_per_rank.shape == (self.size,)
            assert is_token_in_rank.sum(0).tolist() == num_tokens_per_rank.tolist()
        else:
            is_token_in_rank = handle[4]
        assert is_token_in_rank.shape == (len(x), self.size)
        dist.all_gather_object(told, (x.clone(), is_token_in_rank[:, :].clone()), group=self.group)
        indices = [inside[:, self.rank].nonzero().view(-1) for _, inside in told]
        if libraries_fake.FAULT == "raises":
            indices = [one.flip(0) for one in indices]
        came = torch.cat([tokens[index] for (tokens, _), index in zip(told, indices, strict=True)])
        if libraries_fake.FAULT == "silent":
            came = torch.full_like(came, 7)
        found = (None, None, None, torch.cat(indices).to(torch.int32), is_token_in_rank, None)
        return came, None, None, None, None if handle is not None else found, None

    def destroy(self) -> None:
        Buffer.open -= 1
