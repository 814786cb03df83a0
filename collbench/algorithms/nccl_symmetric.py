"""NCCL's symmetric kernels: one-shot LL and pull-and-push on registered windows, by release.

Read in the sources of 2.27.3 to 2.30.7.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from collbench.algorithms.cuda_support import ranks_share_gpu, refuse, version_text
from collbench.algorithms.known_system import full_nvlink, is_assumed, nccl_sharing, needs_p2p, one_host, system
from collbench.algorithms.nccl import DTYPES, cost_us, environment
from collbench.contention import nccl_symmetric
from collbench.contention.nccl_tuner import Tuner
from collbench.contention.traffic import Move, Schedule, one_stage
from collbench.results.records import Call, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS"]

_FIRST, _NVLINK_ONLY = (2, 27, 3), (2, 29, 2)
"""The first release with them, and the first that asks for a direct NVLink between all GPUs."""

_SOURCE = "NCCL symmetric kernels, 2.27.3 to 2.30.7; nccl issues 1963 and 2275"


def _release(machine: Machine, call: Call) -> Support | None:
    del call
    version = machine.version("nccl")
    if not version:
        missing = "the version of NCCL was not said" if is_assumed(machine) else "no NCCL was found"
        return Support.unknown(f"{missing}, and these kernels depend on it", "--with nccl=VERSION", _SOURCE)
    if version < _FIRST:
        return Support.no(f"NCCL {version_text(version)} has none", f"use {version_text(_FIRST)} or later", _SOURCE)
    if full_nvlink(machine) or ranks_share_gpu(machine):
        return None
    if version >= _NVLINK_ONLY:
        reason = f"NCCL {version_text(version)} offers them between GPUs joined by NVLink only; 2.28.9 did on PCIe too"
        return Support.no(reason, "LD_PRELOAD a libnccl of 2.27.3 to 2.28.9", _SOURCE)
    reason = (
        f"NCCL {version_text(version)} asks for P2P between all GPUs and not for NVLink, so they may run on PCIe; "
        "nobody has published a time"
    )
    remedy = "measure it: a sweep registers its buffers as windows (NCCL_CUMEM_ENABLE=1) and says which kernel ran"
    return Support.unknown(reason, remedy, _SOURCE)


def _traffic(call: Call, topology: Topology) -> Schedule:
    """Of the kernel that NCCL takes by its own table, with NVLink multicast off as collbench has it.

    Where the table knows no such links, as on PCIe, that of the kernel for small messages.
    """
    tuner = Tuner.of(topology, call.world_size) if topology.gpus else None
    picked = nccl_symmetric.pick(tuner, call.bytes, multicasts=False) if tuner else None
    if picked:
        return nccl_symmetric.schedule(call, picked[0])
    return one_stage(call, Move.PUSH, wire_factor=2.0, protocol="flag in every 8 bytes")


def _torch(machine: Machine, call: Call) -> Support | None:
    """Asked where the sweep would run it; of a described machine without a word on torch, NCCL alone is judged."""
    said = "torch" in machine.software or not is_assumed(machine)
    return refuse(machine, call, DTYPES) if said else None


def _environment(machine: Machine) -> Mapping[str, str]:
    """Windows need memory that NCCL maps itself."""
    return {**environment("", "", machine), "NCCL_CUMEM_ENABLE": "1"}


_SYSTEM = system(
    "nccl_symmetric", "NCCL's symmetric kernels on registered windows", "https://github.com/NVIDIA/nccl",
    (_torch, nccl_sharing, one_host, needs_p2p, _release),
    Support.yes("for buffers registered as windows; vLLM: VLLM_USE_NCCL_SYMM_MEM=1", _SOURCE), _traffic, family="nccl",
)  # fmt: skip

ALGORITHMS = (
    replace(
        _SYSTEM, runner="collbench.algorithms.nccl_symmetric_runner:Symmetric", imports=("torch", "torch.distributed"),
        environment=_environment, cost_us=partial(cost_us, "LL"),
    ),
)  # fmt: skip
"""NCCL chooses among its symmetric kernels, and the evidence names the one."""
