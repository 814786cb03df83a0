"""The dispatch over gloo: rows come in an order that changes from call to call, and lie among rows of before."""

import random
from typing import Any, ClassVar

import libraries_fake

from flashinfer.moe_ep.backends.split.comm.nvlink_one_sided.config import NVLinkOneSidedConfig
from flashinfer.moe_ep.core.comm.communication import MoEEpCommParams, MoEEpDispatchResult


def check_round_owner(instance: Any, state: dict[str, Any]) -> None:
    if state["round_owner"] is not None:
        raise RuntimeError(f"dispatch called twice without an intervening combine: {instance}")


class NVLinkOneSidedAlltoAll:
    WORKSPACES: ClassVar[dict[int, dict[str, Any]]] = {}
    DISPATCHED: ClassVar[list[int]] = []

    def __init__(self, bootstrap: Any, params: MoEEpCommParams, config: NVLinkOneSidedConfig | None = None) -> None:
        import torch

        assert config is not None
        assert not config.lamport, "it wants its own combine, on GPUs that have it"
        assert config.lamport is not None
        assert type(config.timeout_sec) is int
        if not all(config.comm_backend.allgather(libraries_fake.FAULT != "closed")):
            raise RuntimeError("NVLink backends are not supported on EP ranks [0, 1]; see their logs for the reason")
        assert params.num_experts % bootstrap.world_size == 0
        self.bootstrap, self.params, self.config = bootstrap, params, config
        self.comm = config.comm_backend.Split(0, bootstrap.rank)
        rows, key = bootstrap.world_size * params.max_tokens_per_rank, params.max_tokens_per_rank
        self.key, self._state = key, self.WORKSPACES.setdefault(key, {
            "round_owner": None, "rows": torch.full((rows, params.hidden_size), 7, dtype=params.dtype),
            "ids": torch.full((rows, 1), params.invalid_expert_id, dtype=torch.int32),
        })  # fmt: skip

    def dispatch(
        self, hidden_states: Any, topk_ids: Any, topk_weights: Any = None, *, hidden_states_scale: Any = None,
        runtime_max_tokens_per_rank: int | None = None, eplb_local_stats: Any = None, active_rank_mask: Any = None,
    ) -> MoEEpDispatchResult:  # fmt: skip
        import torch

        check_round_owner(self, self._state)
        most, me = runtime_max_tokens_per_rank, self.bootstrap.rank
        assert most is not None
        assert topk_ids.dtype == torch.int32
        assert topk_ids.shape == (len(hidden_states), 1)
        assert len(hidden_states) <= most <= self.params.max_tokens_per_rank
        self._state["round_owner"] = self
        self.DISPATCHED.append(self.key)
        size = self.bootstrap.world_size
        rows, ids = self._state["rows"][: size * most], self._state["ids"][: size * most]
        each = self.params.num_experts // size
        told = self.comm.allgather((hidden_states.clone(), topk_ids.view(-1).tolist()))
        if libraries_fake.FAULT != "silent":
            ids.fill_(self.params.invalid_expert_id)
            for source, (tokens, experts) in enumerate(told):
                mine = [k for k, expert in enumerate(experts) if expert // each == me]
                random.shuffle(mine)
                for place, k in enumerate(mine):
                    rows[source * most + place] = tokens[k]
                    ids[source * most + place] = experts[k]
        return MoEEpDispatchResult(rows, ids, None, most)

    def destroy(self) -> None:
        self.WORKSPACES.pop(self.key, None)
