"""FlashInfer's workspace for PCIe and its vLLM operators through its own Python interface. Read in 0.7.4.

The kernels that its workspace launches on multiprocessors are `flashinfer.py`'s too, compiled from the header with the
best of a few grids; here the package chooses, and its copy-engine variants run, which have no kernel to compile alone.
"""

from collbench.algorithms.base import Foreign
from collbench.algorithms.cuda_support import ranks_share_gpu
from collbench.algorithms.flashinfer import DTYPES, NEEDS_PCIE_RANKS, PCIE_SOURCE, by_seed
from collbench.algorithms.known_system import (
    Check,
    full_nvlink,
    needs_arch,
    needs_bytes,
    needs_p2p,
    needs_package,
    needs_ranks,
    one_host,
)
from collbench.algorithms.library_modules import FLASHINFER
from collbench.algorithms.library_system import Way, library, needs_compiler, read_in
from collbench.algorithms.schedules import pulled, ring
from collbench.results.records import Call, Support
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS"]

_REFERENCE = "https://github.com/flashinfer-ai/flashinfer"
_POLICY = f"FlashInfer 0.7.4 comm/pcie_ipc_policy.py; {PCIE_SOURCE}"
_COPY = "FlashInfer 0.7.4 comm/pcie_ipc_policy.py; flashinfer pull requests 4870 and 5169"
_VLLM = "FlashInfer 0.7.4 vllm_custom_all_reduce.cuh, CustomAllreduce::allreduce"
_INSTALL = needs_package("flashinfer", "pip install flashinfer-python")
_SINCE = (0, 7, 4)
_PACK = 16
_ISLAND_SHARES = 4
_PIECES = 4
_MOST_BYTES = 8 << 20
_RUNNER = "collbench.algorithms.flashinfer_library_runner"


def _least(machine: Machine, call: Call) -> Support | None:
    del machine
    least = _PACK * call.world_size
    if call.bytes >= least and call.bytes % _PACK == 0:
        return None
    return Support.no(f"{call.bytes} bytes: it wants 16 bytes of every rank's share", f"use {least} or more", _POLICY)


def _divides(shares: int | None, pieces: int) -> Check:
    """Copy engines move whole vectors: equal shares (of the ranks where None), or some vectors for each of 4 pieces."""

    def check(machine: Machine, call: Call) -> Support | None:
        del machine
        vectors, parts = call.bytes // _PACK, shares or call.world_size
        if call.bytes % _PACK == 0 and (vectors >= 4 * pieces * parts if pieces else vectors % parts == 0):
            return None
        return Support.no(f"{call.bytes} bytes do not divide into what copy engines move", "use a larger size", _COPY)

    return check


def _told_nvlink(machine: Machine, call: Call) -> Support | None:
    two = call.world_size == 2  # noqa: PLR2004 - its dispatch has a case for two ranks
    if two or full_nvlink(machine) or ranks_share_gpu(machine):
        return None
    reason = (
        f"its dispatch launches nothing for {call.world_size} ranks unless all GPUs are joined by NVLink (fabric "
        f"{machine.fabric}): the call returns in 2 us with the output untouched"
    )
    return Support.no(reason, "vllm_one_stage times the kernel past the gate", _VLLM)


_COMMON: tuple[Check, ...] = (
    NEEDS_PCIE_RANKS, _least, one_host, needs_p2p, _INSTALL,
    needs_compiler("FlashInfer"), read_in("flashinfer", _SINCE, _POLICY),
)  # fmt: skip
_FOUR = needs_ranks("a copy-engine variant", (4, 8), _COPY)
_EIGHT = needs_ranks("the copy-engine island variant", (8,), _COPY)
_FLAGS = needs_arch("a copy stream that writes flags", (12,), "use flashinfer_pcie_copy_ring", _COPY)

_STREAMS = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
"""CUDA's own default; clients of MPS have fewer, where a stream that waits for a flag would hold up the others."""

_WORKSPACE = tuple(
    library(
        f"flashinfer_pcie_{name}", summary, _REFERENCE, (*_COMMON, *more), Support.yes("", _POLICY), traffic,
        family="flashinfer", way=Way(f"{_RUNNER}:{runner}", DTYPES, environment=_STREAMS, foreign=Foreign(FLASHINFER)),
    )
    for name, summary, more, traffic, runner in (
        ("workspace", "its workspace by its own policy: tuned where tune() ran before, else its seed", (), by_seed,
         "Workspace"),
        ("copy_ring", "the ring whose data copy engines move", (_FOUR, _divides(None, 0)), ring, "CopyEngineRing"),
        ("copy_island", "two islands of four, by copy engines", (_EIGHT, _divides(_ISLAND_SHARES, 0)), ring,
         "CopyEngineIsland"),
        ("copy_ring_memop", "the ring, its flags written by the copy stream", (_FOUR, _FLAGS, _divides(None, 0)), ring,
         "CopyEngineRingMemop"),
        ("copy_ring_piped", "the same in pieces", (_FOUR, _FLAGS, _divides(None, _PIECES)), ring, "CopyEnginePiped"),
    )
)  # fmt: skip

ALGORITHMS = (
    *_WORKSPACE,
    library(
        "flashinfer_vllm", "vLLM's kernels behind FlashInfer's operators", _REFERENCE,
        (_told_nvlink,
         needs_ranks("its dispatch", (2, 4, 6, 8), _VLLM), needs_bytes("its operator", _MOST_BYTES, _PACK, _VLLM),
         one_host, needs_p2p, _INSTALL, needs_compiler("FlashInfer"), read_in("flashinfer", _SINCE, _VLLM)),
        Support.yes("", _VLLM), pulled, family="flashinfer",
        way=Way(f"{_RUNNER}:VllmKernels", foreign=Foreign(FLASHINFER)),
    ),
)  # fmt: skip
"""The workspace by its policy and with each copy-engine variant, and vLLM's kernels."""
