"""FlashInfer's all-reduce fused with RMSNorm: the `trtllm` kernels that it compiles where it runs, and `mnnvl`.

Which compute capabilities it compiles for changed with its releases; read in 0.5.3 and 0.7.4.
"""

from dataclasses import replace

from collbench.algorithms.base import Foreign
from collbench.algorithms.cuda_support import may_start_early, number, ranks_share_gpu
from collbench.algorithms.epilogues import RESIDUAL_RMSNORM
from collbench.algorithms.fusion_rows import blocks_of_two_shot, one_shot_overflows, rows_of_fusion
from collbench.algorithms.known_system import (
    NOTHING_AGAINST,
    at_least,
    full_nvlink,
    needs_arch,
    needs_multicast,
    needs_p2p,
    needs_package,
    needs_ranks,
    one_host,
    sharing_unsaid,
    system,
)
from collbench.algorithms.library_modules import FLASHINFER
from collbench.algorithms.library_system import Way, library, needs_compiler
from collbench.algorithms.schedules import pushed
from collbench.contention.traffic import Move, Schedule, two_stage
from collbench.results.records import Call, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "SYSTEMS"]

_REFERENCE = "https://github.com/flashinfer-ai/flashinfer"
_SOURCE = "FlashInfer jit/comm.py; sglang issue 15650, flashinfer pull request 3903"
_WITHOUT_12, _WITH_12 = (0, 6, 12), (0, 7, 4)
"""The last release that surely came before sm_12x was added (pull request 3903 was open on 14 July 2026; 0.6.12 is of
May), and the first one that was read with it."""

_MNNVL = "FlashInfer 0.7.4 comm/allreduce.py"
_RANKS = (2, 4, 8, 16)
_CHOOSES_FOR = (2, 4, 8)
"""Its own choice between one-shot and two-shot has no threshold for more ranks: comm/trtllm_ar.py."""
_CUDA_FOR_12 = (12, 8)
_INSTALL = needs_package("flashinfer", "pip install flashinfer-python")


def _archs(machine: Machine, call: Call) -> Support | None:
    del call
    arch = number(machine.arch)
    if arch // 10 in {9, 10}:
        return None
    if arch // 10 != 12:  # noqa: PLR2004 - the major version that came later
        return needs_arch("FlashInfer's fusion", (9, 10, 12), "leave it to NCCL", _SOURCE)(machine, Call(1, 2))
    version = machine.version("flashinfer")
    early = f"No supported CUDA architectures found for major versions [9, 10] up to FlashInfer {_text(_WITHOUT_12)}"
    late = f"compiled for sm_12x in {_text(_WITH_12)}"
    if not version:
        reason = f"it depends on the release, which was not said: {early}; {late}"
        return Support.unknown(reason, "--with flashinfer=VERSION", _SOURCE)
    if version < (*_WITHOUT_12[:2], _WITHOUT_12[2] + 1):
        reason = (
            f"FlashInfer {machine.software['flashinfer']} compiles it for compute capabilities 9.x and 10.x only: "
            "'No supported CUDA architectures found for major versions [9, 10]', at the latest during graph capture"
        )
        remedy = f"install FlashInfer {_text(_WITH_12)} or later; whether it pays on PCIe is to be measured"
        return Support.no(reason, remedy, _SOURCE)
    if version < _WITH_12:
        reason = f"FlashInfer {machine.software['flashinfer']} was not read: {early}; {late}"
        return Support.unknown(reason, f"install FlashInfer {_text(_WITH_12)} or later", _SOURCE)
    return None


def _compiler(machine: Machine, call: Call) -> Support | None:
    del call
    known = at_least(machine, "cuda", _CUDA_FOR_12)
    if number(machine.arch) // 10 == 12 and known is False:  # noqa: PLR2004 - the major version
        return Support.no(
            f"CUDA {machine.software['cuda']} cannot compile for sm_12x", "use CUDA 12.8 or later",
            "CUDA 12.8 release notes",
        )  # fmt: skip
    return None


def _collapse(machine: Machine, call: Call) -> Support | None:
    """On PCIe it is a push from all to all: right, and slow where posted writes collapse."""
    if full_nvlink(machine) or ranks_share_gpu(machine) or call.world_size == 2:  # noqa: PLR2004 - no fan-out
        return None
    reason = (
        "it runs, and pushes every message to every rank at once: a four-rank server on PCIe became slower with it, "
        "and fabrics with write collapse lose a factor of ten"
    )
    return Support.unknown(reason, "measure before you serve with it", "sglang pull request 32330")


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _two_shot_rows(machine: Machine, call: Call) -> Support | None:
    del machine
    if rows_of_fusion(call, two_shot=True):
        return None
    return Support.no(
        f"its two-shot kernels want more than {call.world_size} tokens, each with 16 bytes for every rank",
        "use a larger message", _SOURCE,
    )  # fmt: skip


def _one_shot_addresses(machine: Machine, call: Call) -> Support | None:
    del machine
    if not one_shot_overflows(call):
        return None
    reason = f"its one-shot kernels count {call.world_size} x {call.bytes} bytes in 32 bits and would write elsewhere"
    return Support.no(reason, "let it choose, or use a smaller message", "FlashInfer 0.7.4 trtllm_allreduce_fusion.cuh")


_BARRIER_FLAGS = 256
"""Flags that its barrier keeps up to date, whatever the grid: each block sets every so-many-th of them, one by one."""


def _one_shot(call: Call, topology: Topology) -> Schedule:
    """A push; before it the kernel reads where its buffers lie, and its input; at the end how many blocks are there."""
    return replace(pushed(call, topology), own_reads=3)


def _two_shot(call: Call, topology: Topology) -> Schedule:
    """A copy, a pull of shares, a push of sums and a read of them, with a barrier behind copy and push.

    Its barrier's flags are released behind data, once for each block, and those of blocks that are not there set too.
    """
    del topology
    found = two_stage(call, Move.PULL, Move.PUSH, fences=(1, 1), protocol="barriers")
    stores = -(-_BARRIER_FLAGS // max(blocks_of_two_shot(call), 1)) - 1
    return replace(found, phases=tuple(replace(phase, stores=stores) for phase in found.phases), own_reads=4)


_CHOICE = needs_ranks("FlashInfer's choice between one-shot and two-shot", _CHOOSES_FOR, _SOURCE)
_CHECKS = (
    _archs, _compiler, needs_ranks("FlashInfer's fusion", _RANKS, _SOURCE), one_host, needs_p2p, _INSTALL,
    needs_compiler("FlashInfer"), _collapse,
)  # fmt: skip
_FINE = Support.yes("compiled at its first call with nvcc and ninja", _SOURCE)
_RUNNER = "collbench.algorithms.flashinfer_library_runner"

_BUILT = tuple(
    library(
        f"flashinfer_trtllm_{name}", summary, _REFERENCE, (*_CHECKS, *more), _FINE, traffic, family="flashinfer",
        way=Way(f"{_RUNNER}:{runner}", epilogues=(RESIDUAL_RMSNORM,), foreign=Foreign(FLASHINFER)),
    )
    for name, summary, more, traffic, runner in (
        ("fusion", "one-shot push with a sentinel or two-shot, as it chooses, with RMSNorm behind it", (_CHOICE,),
         _one_shot, "Fusion"),
        ("fusion_pdl", "the same, launched early, as vLLM and SGLang launch it in their servers", (_CHOICE,),
         _one_shot, "FusionEarly"),
        ("one_shot", "as it is by default, one-shot forced", (_one_shot_addresses,), _one_shot, "FusionOneShot"),
        ("two_shot", "the same, two-shot forced: pull and push", (_two_shot_rows,), _two_shot, "FusionTwoShot"),
    )
)  # fmt: skip

ALGORITHMS = tuple(replace(one, starts_early=may_start_early) if one.name.endswith("_pdl") else one for one in _BUILT)
"""The fused all-reduce over a `trtllm` workspace."""

SYSTEMS = (
    system(
        "flashinfer_mnnvl_fusion", "the same over NVLink multicast", _REFERENCE,
        (sharing_unsaid("FlashInfer's workspace", _MNNVL), needs_multicast("its mnnvl workspace", _MNNVL),
         needs_arch("FlashInfer's mnnvl", (9, 10), "backend='trtllm'", "flashinfer pull request 3385"), _INSTALL),
        Support.yes(NOTHING_AGAINST, _MNNVL), pushed, family="flashinfer",
    ),
)  # fmt: skip
"""What collbench does not start, since it keeps multicast off."""
