"""Libraries for expert-parallel decode: dispatches of FlashInfer and DeepEP as all-to-alls.

DeepEP's low-latency mode is known only: it starts NVSHMEM for InfiniBand. What NCCL, torch and we have stands in
`all_to_all`. Read in vLLM 0.33.0, FlashInfer 0.6 to 0.7.4, sgl-deep-ep 0.1.2.post1 (DeepEP 2.1.0) and DeepEP's issues.
"""

from dataclasses import replace
from functools import partial

from collbench.algorithms.base import Algorithm, Foreign
from collbench.algorithms.cuda_support import number, ranks_share_gpu, refuse_elements
from collbench.algorithms.host_exchange import refuse_all_to_all
from collbench.algorithms.known_system import (
    NOTHING_AGAINST,
    full_nvlink,
    needs_arch,
    needs_gpus,
    needs_package,
    needs_ranks,
    one_host,
    sharing_unsaid,
    system,
    verdict,
)
from collbench.algorithms.library_modules import DEEPEP, FLASHINFER
from collbench.algorithms.library_system import Way, library, needs_compiler, read_in
from collbench.algorithms.moe_tokens import tokens_problem, width_of
from collbench.contention.patterns import all_to_all
from collbench.contention.traffic import Move, Schedule
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "SYSTEMS"]

_DEEPEP = "DeepEP's README; DeepEP issue 462"
_INTRANODE = "DeepEP 2.1.0 buffers/legacy.py, csrc/kernels/intranode.cu"
_ROW_BYTES = 32
"""Its kernels move halves of rows in vectors of 16 bytes."""
_MOE = "FlashInfer 0.7.4 moe_ep, MnnvlMemory.supports_mnnvl; flashinfer issue 2282"
_DEEPEP_REFERENCE = "https://github.com/deepseek-ai/DeepEP"
_ANYWHERE = "leave it to nccl_all_to_all, or to vLLM's default, all-gather and reduce-scatter"
_FLOATS = ("bfloat16", "float16", "float32")
_READ = (0, 7, 4)
_ARCHS = (9, 10)
_WHOLE_ROWS = "use sizes of whole tokens: with --skew multiples of 114688 bytes in bfloat16"


def _nvlink(name: str, source: str, machine: Machine, call: Call) -> Support | None:
    del call
    if full_nvlink(machine) or ranks_share_gpu(machine):
        return None
    return Support.no(f"{name} needs NVLink between all GPUs, and the fabric is {machine.fabric}", _ANYWHERE, source)


def _flagged(call: Call, topology: Topology) -> Schedule:
    del topology
    return all_to_all(call, Move.PUSH, protocol="data announces itself")


def _fenced(call: Call, topology: Topology) -> Schedule:
    """Tokens, then a flag for each peer behind a fence: one kernel of five, two of which put the rows in order.

    Reads that wait for one another, beside each kernel's first: the round's number, just written; a rank's counter, the
    token, the count of tokens done, the round, the counters for the peers; what came; and of each of the two that put
    rows in order the row behind its place.
    """
    del topology
    return replace(all_to_all(call, Move.PUSH, protocol="barriers"), launches=5, own_reads=9)


def _queued(call: Call, topology: Topology) -> Schedule:
    """A kernel between two barriers that clears the queues, then one that fills and empties them."""
    del topology
    return replace(all_to_all(call, Move.PUSH, syncs=3, protocol="barriers"), launches=2)


def _tokens(dtypes: tuple[str, ...], machine: Machine, call: Call) -> Support | None:
    """An all-to-all of these types whose parts can be cut into tokens."""
    del machine
    reason = refuse_all_to_all(call)
    refused = Support.no(reason) if reason else refuse_elements(call, dtypes)
    if refused is not None:
        return refused
    problem = tokens_problem(call)
    return Support.no(problem, _WHOLE_ROWS) if problem else None


def _deepep_rows(machine: Machine, call: Call) -> Support | None:
    del machine
    if refuse_all_to_all(call):
        return None
    row = width_of(call) * call.itemsize
    if row % _ROW_BYTES == 0:
        return None
    return Support.no(f"rows of {row} bytes: it takes multiples of {_ROW_BYTES}", _WHOLE_ROWS, _INTRANODE)


def _moe_arch(machine: Machine, call: Call) -> Support | None:
    """Its code asks for NVLink and for no compute capability; vLLM takes it on 9.x and 10.x."""
    del call
    arch = number(machine.arch)
    if arch and arch // 10 in _ARCHS:
        return None
    told = f"{arch / 10:.1f}" if arch else "one that is not known"
    return Support.unknown(f"nobody is known to run it on a compute capability of {told}", _ANYWHERE, _MOE)


def _cuda_torch(machine: Machine, call: Call) -> Support | None:
    del call
    told = machine.software.get("torch", "")
    return Support.no(f"torch {told} is a CPU build", "install a CUDA build of torch") if "+cpu" in told else None


def _moe() -> Algorithm:
    record = library(
        "flashinfer_moe_dispatch",
        "FlashInfer's one-sided dispatch without its combine, and two small kernels that put its rows in order",
        "https://github.com/flashinfer-ai/flashinfer", (), Support.yes(), _fenced, family="expert",
        way=Way("collbench.algorithms.flashinfer_moe_runner:Dispatch", foreign=Foreign(FLASHINFER)),
    )  # fmt: skip
    checks = (
        needs_gpus, partial(_tokens, _FLOATS), sharing_unsaid("FlashInfer's workspace", _MOE), one_host,
        partial(_nvlink, "FlashInfer's expert-parallel all-to-all", _MOE), _moe_arch,
        needs_package("flashinfer", "pip install flashinfer-python"), read_in("flashinfer", _READ, _MOE),
        needs_compiler("FlashInfer"), _cuda_torch,
    )  # fmt: skip
    fine = Support.yes("its sources have nothing against it; compiled at its first call", _MOE)
    return replace(record, collective=Collective.ALL_TO_ALL, support=partial(verdict, checks, fine))


def _deepep() -> Algorithm:
    record = library(
        "deepep_intranode_dispatch", "DeepEP's dispatch inside a host, with the handle of a first one",
        _DEEPEP_REFERENCE, (), Support.yes(), _queued, family="expert",
        way=Way("collbench.algorithms.deepep_runner:IntranodeDispatch", foreign=Foreign(DEEPEP)),
    )  # fmt: skip
    checks = (
        needs_gpus, partial(_tokens, ("bfloat16",)), _deepep_rows,
        needs_ranks("its intranode dispatch", (2, 4, 8), _INTRANODE),
        sharing_unsaid("DeepEP", _INTRANODE), one_host, partial(_nvlink, "DeepEP", _DEEPEP),
        needs_arch("DeepEP", (9, 10), _ANYWHERE, _DEEPEP),
        needs_package("deep-ep", "pip install sgl-deep-ep, with the torch that it was built for"),
        needs_compiler("DeepEP"), _cuda_torch,
    )  # fmt: skip
    fine = Support.yes(NOTHING_AGAINST, _INTRANODE)
    return replace(record, collective=Collective.ALL_TO_ALL, support=partial(verdict, checks, fine))


ALGORITHMS = (_moe(), _deepep())
"""What collbench runs of them."""

SYSTEMS = (
    system(
        "deepep_low_latency", "DeepEP's low-latency dispatch and combine", _DEEPEP_REFERENCE,
        (sharing_unsaid("DeepEP", _DEEPEP), partial(_nvlink, "DeepEP", _DEEPEP),
         needs_arch("DeepEP", (9, 10), _ANYWHERE, _DEEPEP), needs_package("deep-ep", "install DeepEP")),
        Support.yes(NOTHING_AGAINST, _DEEPEP), _flagged, collective=Collective.ALL_TO_ALL, family="expert",
    ),
)  # fmt: skip
"""Dispatch and combine are one all-to-all each."""
