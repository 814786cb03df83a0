"""The fused all-reduce: two-shot only above as many tokens as ranks, as the real one asserts."""

from typing import Any

import libraries_fake

from flashinfer.comm.trtllm_ar import REFERENCES


class Workspace:
    def __init__(self, group: Any, world_size: int, room: int) -> None:
        self.group, self.world_size, self.room = group, world_size, room
        self.destroyed = False
        self.ipc_handles: list[list[int]] = [[0] * world_size]
        REFERENCES[id(self.ipc_handles)] = bytearray(room)

    def destroy(self) -> None:
        self.destroyed = True
        del self.ipc_handles


if libraries_fake.FAULT == "old":

    def create_allreduce_fusion_workspace(backend: str, tp_size: int, tp_rank: int) -> None:
        raise AssertionError("nobody calls what changed")

else:

    def create_allreduce_fusion_workspace(  # type: ignore[misc]
        backend: str = "auto", world_size: Any = None, rank: Any = None, max_token_num: Any = None,
        hidden_dim: Any = None, dtype: Any = None, gpus_per_node: Any = None, comm_backend: Any = None,
        force_oneshot_support: bool = False, group: Any = None,
    ) -> Workspace:  # fmt: skip
        assert backend == "trtllm"
        return Workspace(group, world_size, max_token_num * hidden_dim)


def allreduce_fusion(
    input: Any, workspace: Any, pattern: int, launch_with_pdl: bool = False, trigger_completion_at_end: bool = True,
    output: Any = None, residual_out: Any = None, norm_out: Any = None, quant_out: Any = None, scale_out: Any = None,
    residual_in: Any = None, rms_gamma: Any = None, rms_eps: float = 1e-6, scale_factor: Any = None,
    layout_code: Any = None, use_oneshot: Any = None, fp32_acc: bool = False,
) -> Any:  # fmt: skip
    tokens, hidden = input.shape
    assert not workspace.destroyed
    assert tokens * hidden <= workspace.room
    assert hidden % 8 == 0
    assert hidden <= 8 * 8 * 1024, "a row is one cluster of at most 8 blocks of 1024 threads, 8 elements each"
    assert output is not None, "without one the real function allocates"
    assert use_oneshot is not False or tokens > workspace.world_size
    if libraries_fake.FAULT == "silent":
        return output
    total = libraries_fake.summed(input.reshape(-1).float(), workspace.group).view(tokens, hidden)
    if pattern == 0:
        return output.copy_(total)
    total = total + residual_in.float()
    residual_out.copy_(total)
    scale = (total.square().mean(dim=1, keepdim=True) + rms_eps).rsqrt()
    return norm_out.copy_(total * scale * rms_gamma.float())
