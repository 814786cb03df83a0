"""Libraries for expert-parallel decode: FlashInfer's dispatch, which runs, and DeepEP's, which collbench only knows.

What NCCL, torch and we have for it stands in `all_to_all`. Read in vLLM 0.33.0, FlashInfer 0.6 to 0.7.4 and DeepEP's
issues.
"""

from dataclasses import replace
from functools import partial

from collbench.algorithms.base import Algorithm
from collbench.algorithms.cuda_support import number, ranks_share_gpu, refuse_elements
from collbench.algorithms.host_exchange import refuse_all_to_all
from collbench.algorithms.known_system import (
    NOTHING_AGAINST,
    full_nvlink,
    needs_arch,
    needs_gpus,
    needs_package,
    one_host,
    sharing_unsaid,
    system,
    verdict,
)
from collbench.algorithms.library_system import Way, library, needs_compiler, read_in
from collbench.algorithms.moe_tokens import tokens_problem
from collbench.contention.patterns import all_to_all
from collbench.contention.traffic import Move, Schedule
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "SYSTEMS"]

_DEEPEP = "DeepEP's README; DeepEP issue 462"
_MOE = "FlashInfer 0.7.4 moe_ep, MnnvlMemory.supports_mnnvl; flashinfer issue 2282"
_ANYWHERE = "leave it to nccl_all_to_all, or to vLLM's default, all-gather and reduce-scatter"
_FLOATS = ("bfloat16", "float16", "float32")
_READ = (0, 7, 4)
_ARCHS = (9, 10)


def _nvlink(name: str, source: str, machine: Machine, call: Call) -> Support | None:
    del call
    if full_nvlink(machine) or ranks_share_gpu(machine):
        return None
    return Support.no(f"{name} needs NVLink between all GPUs, and the fabric is {machine.fabric}", _ANYWHERE, source)


def _flagged(call: Call, topology: Topology) -> Schedule:
    del topology
    return all_to_all(call, Move.PUSH, protocol="data announces itself")


def _fenced(call: Call, topology: Topology) -> Schedule:
    """Tokens first, then one flag for each peer behind a fence."""
    del topology
    return all_to_all(call, Move.PUSH, protocol="barriers")


def _moe_call(machine: Machine, call: Call) -> Support | None:
    del machine
    reason = refuse_all_to_all(call)
    if reason:
        return Support.no(reason)
    refused, problem = refuse_elements(call, _FLOATS), tokens_problem(call)
    return refused or (Support.no(problem, "use parts of whole rows", _MOE) if problem else None)


def _moe_arch(machine: Machine, call: Call) -> Support | None:
    """Its code asks for NVLink and for no compute capability; vLLM takes it on 9.x and 10.x."""
    del call
    arch = number(machine.arch)
    if arch and arch // 10 in _ARCHS:
        return None
    told = f"{arch / 10:.1f}" if arch else "one that is not known"
    return Support.unknown(f"nobody is known to run it on a compute capability of {told}", _ANYWHERE, _MOE)


def _moe_torch(machine: Machine, call: Call) -> Support | None:
    del call
    told = machine.software.get("torch", "")
    return Support.no(f"torch {told} is a CPU build", "install a CUDA build of torch") if "+cpu" in told else None


def _moe() -> Algorithm:
    record = library(
        "flashinfer_moe_dispatch",
        "FlashInfer's one-sided dispatch without its combine, and two small kernels that put its rows in order",
        "https://github.com/flashinfer-ai/flashinfer", (), Support.yes(), _fenced, family="expert",
        way=Way("collbench.algorithms.flashinfer_moe_runner:Dispatch"),
    )  # fmt: skip
    checks = (
        needs_gpus, _moe_call, sharing_unsaid("FlashInfer's workspace", _MOE), one_host,
        partial(_nvlink, "FlashInfer's expert-parallel all-to-all", _MOE), _moe_arch,
        needs_package("flashinfer", "pip install flashinfer-python"), read_in("flashinfer", _READ, _MOE),
        needs_compiler("FlashInfer"), _moe_torch,
    )  # fmt: skip
    fine = Support.yes("its sources have nothing against it; compiled at its first call", _MOE)
    return replace(record, collective=Collective.ALL_TO_ALL, support=partial(verdict, checks, fine))


ALGORITHMS = (_moe(),)
"""What collbench runs of them."""

SYSTEMS = (
    system(
        "deepep_low_latency", "DeepEP's low-latency dispatch and combine", "https://github.com/deepseek-ai/DeepEP",
        (sharing_unsaid("DeepEP", _DEEPEP), partial(_nvlink, "DeepEP", _DEEPEP),
         needs_arch("DeepEP", (9, 10), _ANYWHERE, _DEEPEP), needs_package("deep-ep", "install DeepEP")),
        Support.yes(NOTHING_AGAINST, _DEEPEP), _flagged, collective=Collective.ALL_TO_ALL, family="expert",
    ),
)  # fmt: skip
"""Dispatch and combine are one all-to-all each."""
