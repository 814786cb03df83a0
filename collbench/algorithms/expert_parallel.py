"""Libraries for expert-parallel decode that collbench knows and cannot run yet: DeepEP's and FlashInfer's.

What it runs stands in `all_to_all`. Read in vLLM 0.33.0, FlashInfer 0.6 to 0.7.4 and DeepEP's issues.
"""

from functools import partial

from collbench.algorithms.known_system import (
    NOTHING_AGAINST,
    full_nvlink,
    needs_arch,
    needs_package,
    sharing_unsaid,
    system,
)
from collbench.contention.patterns import all_to_all
from collbench.contention.traffic import Move, Schedule
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["SYSTEMS"]

_DEEPEP = "DeepEP's README; DeepEP issue 462"
_MOE = "FlashInfer 0.7.4 moe_ep, MnnvlMemory.supports_mnnvl; flashinfer issue 2282"
_ANYWHERE = "leave it to nccl_all_to_all, or to vLLM's default, all-gather and reduce-scatter"


def _nvlink(name: str, source: str, machine: Machine, call: Call) -> Support | None:
    del call
    if full_nvlink(machine):
        return None
    return Support.no(f"{name} needs NVLink between all GPUs, and the fabric is {machine.fabric}", _ANYWHERE, source)


def _flagged(call: Call, topology: Topology) -> Schedule:
    del topology
    return all_to_all(call, Move.PUSH, protocol="data announces itself")


_system = partial(system, collective=Collective.ALL_TO_ALL, family="expert")

SYSTEMS = (
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
)  # fmt: skip
"""Dispatch and combine are one all-to-all each."""
