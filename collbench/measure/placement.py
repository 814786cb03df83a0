"""Which rank runs on which device."""

import os
from functools import cache

from collbench.errors import UsageError
from collbench.measure import gpu_processes
from collbench.topology.machine import Machine

__all__ = ["devices", "gpu_count", "refuse_too_many"]


def gpu_count() -> int:
    """CUDA devices that this process may use, by NVML and CUDA_VISIBLE_DEVICES; 0 without a driver. Touches no GPU.

    Raises:
        InvalidError: the driver hangs or gives no answer that can be.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([word for word in visible.split(",") if word.strip() and word.strip() != "-1"])
    return _gpus_of_host()


@cache
def _gpus_of_host() -> int:
    return len(gpu_processes.ask())


def refuse_too_many(local_ranks: int, gpus: int, *, share: bool) -> None:
    """More ranks than GPUs on a host only with `--share-gpu`.

    Raises:
        UsageError: there are more ranks, and nobody asked to share.
    """
    if local_ranks > gpus and not share:
        raise UsageError(
            f"{local_ranks} ranks but {gpus} GPU{'s' if gpus > 1 else ''}: start {gpus}, or add --share-gpu to let "
            "ranks share one through MPS (that shows launch and synchronisation cost, not links)"
        )


def devices(kind: str, local_ranks: int, machine: Machine) -> list[str]:
    """Device of each local rank: ranks in order over the GPUs, neighbours together where they must share."""
    if kind == "cpu":
        return ["cpu"] * local_ranks
    gpus = max(1, gpu_count())
    if not machine.share_gpu or gpus >= local_ranks:
        return [f"cuda:{rank}" for rank in range(local_ranks)]
    return [f"cuda:{rank * gpus // local_ranks}" for rank in range(local_ranks)]
