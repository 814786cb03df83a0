"""All-to-alls of expert-parallel decode: dispatch and combine of DeepEP, FlashInfer, torch and NCCL.

Read in vLLM 0.33.0, FlashInfer 0.6 to 0.7.4, NCCL 2.30.7 and DeepEP's issues.
"""

from functools import partial

from collbench.algorithms.cuda_support import version_text
from collbench.algorithms.known_system import (
    NOTHING_AGAINST,
    full_nvlink,
    nccl_sharing,
    needs_arch,
    needs_p2p,
    needs_package,
    one_host,
    sharing_unsaid,
    system,
)
from collbench.contention.patterns import all_to_all
from collbench.contention.traffic import Move, Schedule
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS"]

_DEEPEP = "DeepEP's README; DeepEP issue 462"
_MOE = "FlashInfer 0.7.4 moe_ep, MnnvlMemory.supports_mnnvl; flashinfer issue 2282"
_NCCL = "NCCL 2.30.7; vllm issue 42254, sglang issue 22583"
_NVSHMEM = "torch 2.11 symm_mem; pytorch issues 157321 and 167966"
_ANYWHERE = "leave it to nccl_all_to_all, or to vLLM's default, all-gather and reduce-scatter"
_PLAIN = (2, 7)
"""First NCCL with sends and receives."""


def _nvlink(name: str, source: str, machine: Machine, call: Call) -> Support | None:
    del call
    if full_nvlink(machine):
        return None
    return Support.no(f"{name} needs NVLink between all GPUs, and the fabric is {machine.fabric}", _ANYWHERE, source)


def _nccl(machine: Machine, call: Call) -> Support | None:
    del call
    version = machine.version("nccl")
    if not version:
        return Support.unknown("the version of NCCL was not said", "--with nccl=VERSION", _NCCL)
    if version < _PLAIN:
        return Support.no(f"NCCL {version_text(version)} has no sends and receives", "install a later one", _NCCL)
    return None


def _nvshmem(machine: Machine, call: Call) -> Support | None:
    del call
    if "nvshmem" in machine.software:
        return Support.unknown(
            "torch builds it over NVSHMEM, which is installed; on PCIe its reports are of failures and hangs",
            "try it under a deadline", _NVSHMEM,
        )  # fmt: skip
    return Support.unknown("torch builds it over NVSHMEM, and whether that is there is not known", "", _NVSHMEM)


def _send(call: Call, topology: Topology) -> Schedule:
    del topology
    return all_to_all(call, Move.PUSH, protocol="Simple")


def _flagged(call: Call, topology: Topology) -> Schedule:
    del topology
    return all_to_all(call, Move.PUSH, protocol="data announces itself")


_system = partial(system, collective=Collective.ALL_TO_ALL, family="expert")

ALGORITHMS = (
    _system(
        "nccl_all_to_all", "sends and receives in one group (torch all_to_all_single)", "https://github.com/NVIDIA/nccl",
        (_nccl, nccl_sharing), Support.yes("runs on every fabric; in a CUDA graph too", _NCCL), _send,
    ),
    _system(
        "deepep_low_latency", "DeepEP's low-latency dispatch and combine", "https://github.com/deepseek-ai/DeepEP",
        (sharing_unsaid("DeepEP", _DEEPEP), partial(_nvlink, "DeepEP", _DEEPEP),
         needs_arch("DeepEP", (9, 10), _ANYWHERE, _DEEPEP), needs_package("deep-ep", "install DeepEP")),
        Support.yes(NOTHING_AGAINST, _DEEPEP), _flagged,
    ),
    _system(
        "flashinfer_moe_nvlink", "FlashInfer's one-sided and two-sided dispatch", "https://github.com/flashinfer-ai/flashinfer",
        (sharing_unsaid("FlashInfer's workspace", _MOE),
         partial(_nvlink, "FlashInfer's expert-parallel all-to-all", _MOE),
         needs_arch("FlashInfer's all-to-all", (9, 10), _ANYWHERE, _MOE),
         needs_package("flashinfer", "pip install flashinfer-python")),
        Support.yes(NOTHING_AGAINST, _MOE), _flagged,
    ),
    _system(
        "torch_all_to_all_vdev", "torch's device-side all-to-all over NVSHMEM", "https://github.com/pytorch/pytorch",
        (sharing_unsaid("NVSHMEM", _NVSHMEM), one_host, needs_p2p, _nvshmem),
        Support.yes(NOTHING_AGAINST, _NVSHMEM), _flagged,
    ),
)  # fmt: skip
"""Dispatch and combine are one all-to-all each."""
