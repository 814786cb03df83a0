"""Queries and plans; which kernel is chosen as 1.5.1 chooses it."""

import os
from typing import Any

from b12x.comm.pcie._tuning import PcieQuery
from b12x.preparation.types import Plan


def query_from_runtime(runtime: Any, *, surface: str, call: Any) -> PcieQuery:
    inp = call["inp"]
    if surface.startswith("PCIeTwoShotBF16"):
        told = {"operation": "all_reduce", "threads": 512}
    elif inp.numel() * inp.element_size() > runtime.max_size:
        raise ValueError("input does not satisfy PCIe oneshot requirements")
    elif "fused" in surface:
        assert inp.shape[0] <= 36, "fused allreduce RMSNorm supports at most 36 rows"
        told = {"mode": "stage_push" if os.getenv("B12X_PCIE_ONESHOT_PUSH", "0") == "1" else "stage_pull"}
    else:
        rows = inp.ndim == 2 and inp.shape[-1] == 4096 and runtime.world_size == 2
        push = rows and os.getenv("B12X_PCIE_TP2_PLAIN_REMOTE_PUSH", "1") == "1"
        told = {"transport": "tp2_remote_push" if push else "pull", "eager_transport": "pull"}
    return PcieQuery(
        surface=surface, world_size=runtime.world_size, rank=runtime.rank, topology="pcie_ipc", call=told,
        setup={"shape": tuple(inp.shape), "dtype": str(inp.dtype)},
    )  # fmt: skip


def plan(query: PcieQuery, *, runtime: Any = None, invocation: Any = None, override: Any = None) -> Plan:
    return Plan(query=query, runtime=runtime)
