"""Sums over gloo what it was prepared for. With `raises` a GPU is too small, with `memory` a rank has none left."""

import contextlib
from collections.abc import Iterator
from typing import Any

import libraries_fake

from b12x.comm.pcie._preparation import plan as declare
from b12x.comm.pcie._preparation import query_from_runtime
from b12x.preparation.types import OPEN, require_prepared


def made(group: Any, device: Any) -> tuple[int, int]:
    """Rank and world size, behind what all ranks agree on."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if libraries_fake.FAULT == "raises":
        raise RuntimeError(
            "PCIe oneshot resident-grid capability failed: group rank 1: RuntimeError: PCIe oneshot requires at least "
            "36 visible SMs\nmore"
        )
    if libraries_fake.FAULT == "memory" and rank == 1:
        raise RuntimeError("cudaMalloc failed: out of memory")
    OPEN["runtimes"] += 1
    return rank, size


class PCIeAllReduce:
    def __init__(self, group: Any, device: Any, max_size: int) -> None:
        self.group, self.device, self.max_size = group, device, max_size
        self.rank, self.world_size = made(group, device)
        if self.world_size not in {2, 4, 6, 8}:
            raise ValueError(f"unsupported PCIe all-reduce world size {self.world_size}; supported world sizes are ...")
        self.captures = 0

    @classmethod
    def from_exchange_group(
        cls, *, exchange_group: Any, device: Any, eager_buffer_bytes: int = 8 << 20, max_size: int = 8 << 20,
        rank_data_bytes: int = 8 << 20, ext_module: Any = None, single_channel: bool = False,
        max_concurrent_channels: int = 1,
    ) -> "PCIeAllReduce":  # fmt: skip
        assert max_size <= eager_buffer_bytes, "max_size exceeds eager buffer capacity"
        assert single_channel
        return cls(exchange_group, device, max_size)

    def plan(
        self, inp: Any, *, operation: str = "all_reduce", stream: Any = None, channel_id: str | None = None,
        invocation: Any = None, override: Any = None, **call: Any,
    ) -> Any:  # fmt: skip
        query = query_from_runtime(self, surface=f"OneshotAllReduce.{operation}", call={"inp": inp, **call})
        return declare(query, runtime=self)

    def _state(self, plan: Any, inp: Any) -> None:
        state = require_prepared(plan, self)
        assert state.bound == tuple(inp.shape), "oneshot graph resources were not bound during preparation"

    def all_reduce(
        self, inp: Any, *, plan: Any, out: Any = None, peer_input_ptrs: Any = None, blocks: int | None = None,
        stream: Any = None, channel_id: str | None = None,
    ) -> Any:  # fmt: skip
        self._state(plan, inp)
        libraries_fake.into(out, inp, self.group)
        return out

    def all_reduce_fused_add_rms_norm(
        self, inp: Any, residual: Any, weight: Any, epsilon: float, *, plan: Any, out: Any = None,
        residual_out: Any = None, peer_input_ptrs: Any = None, stream: Any = None, channel_id: str | None = None,
    ) -> Any:  # fmt: skip
        import torch

        self._state(plan, inp)
        total = libraries_fake.summed(inp.reshape(-1).float(), self.group).view(inp.shape) + residual.float()
        scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + epsilon)
        if libraries_fake.FAULT != "silent":
            residual_out.copy_(total.to(inp.dtype))
            out.copy_((total * scale * weight.float()).to(inp.dtype))
        return out, residual_out

    @contextlib.contextmanager
    def capture(self, stream: Any = None, *, channel_id: str | None = None) -> Iterator["PCIeAllReduce"]:
        self.captures += 1
        yield self
        self.captures -= 1

    def close(self) -> None:
        import torch.distributed as dist

        assert not self.captures
        assert OPEN["sessions"] == 0, "a plan of it is still prepared"
        dist.barrier(group=self.group, device_ids=[0])
        OPEN["runtimes"] -= 1
