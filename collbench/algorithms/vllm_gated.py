"""What vLLM starts by itself: its communicators with their gates, as a server meets them, and its class past its gate.

The kernels of an older release, compiled from a header, are `vllm.py`'s. Read in vLLM 0.33.0.
"""

from functools import partial

from collbench.algorithms.base import Foreign
from collbench.algorithms.cuda_support import number
from collbench.algorithms.flashinfer import NEEDS_PCIE_RANKS, PCIE_SOURCE
from collbench.algorithms.known_system import (
    needs_arch,
    needs_bytes,
    needs_multicast,
    needs_p2p,
    needs_package,
    needs_ranks,
    one_host,
    own_gpus,
    system,
)
from collbench.algorithms.library_modules import VLLM
from collbench.algorithms.library_system import Way, library, nvlink_gate, past, read_in
from collbench.algorithms.schedules import pulled, pulled_twice, pulled_twice_in_turn, ring
from collbench.results.records import Call, Support
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "SYSTEMS"]

_REFERENCE = "https://github.com/vllm-project/vllm"
_GATE = "vLLM 0.33.0 custom_all_reduce.py; vllm issue 56128"
_TABLE = "vLLM 0.33.0 all_reduce_utils.py; vllm pull request 35360"
_SIZES: dict[int, dict[int, int]] = {
    90: {2: 64 << 20, 4: 32 << 20, 6: 512 << 10, 8: 256 << 10},
    100: {2: 2 << 20, 4: 2 << 20, 6: 1 << 20, 8: 1 << 20},
    103: {2: 4 << 20, 4: 4 << 20, 6: 8 << 20, 8: 4 << 20},
}
"""Largest message of the custom all-reduce by compute capability and ranks, where symmetric memory is on as well
(vLLM 0.33.0, all_reduce_utils.py); never more than the default."""
_DEFAULT_SIZE = 8 << 20
_SINCE = (0, 33)
_INSTALL = needs_package("vllm", "pip install vllm")
_OWN_GPUS = own_gpus("vLLM", "vLLM 0.33.0")
_NVLINK = nvlink_gate(
    "vLLM switches its custom all-reduce off on more than two GPUs",
    ", at start and again at each call; its operator called directly launches nothing and returns in 2 us with the "
    "output untouched",
    "leave it to NCCL, or VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 (vLLM 0.33, FlashInfer 0.7); vllm_one_stage and "
    "vllm_forced_one_stage of collbench sweep time the kernels past the gate",
    _GATE,
)
_RANKS = needs_ranks("vLLM's custom all-reduce", (2, 4, 6, 8), _GATE)


def _size_gate(machine: Machine, call: Call) -> Support | None:
    most = min(_DEFAULT_SIZE, _SIZES.get(number(machine.arch), {}).get(call.world_size, _DEFAULT_SIZE))
    return needs_bytes("vLLM's custom all-reduce", most - 16, 16, _GATE)(machine, call)  # it wants less than `most`


_FORCED_CHECKS = (
    _RANKS, needs_bytes("vLLM's operator", _DEFAULT_SIZE, 16, _GATE), one_host,
    needs_p2p, _INSTALL, read_in("vllm", _SINCE, _GATE),
)  # fmt: skip
_FORCED = partial(past, (_OWN_GPUS, _NVLINK, _size_gate))
_RUNNER = "collbench.algorithms.vllm_library_runner"
_ALGO = "VLLM_CUSTOM_ALLREDUCE_ALGO"
_way = partial(Way, foreign=Foreign(VLLM))

ALGORITHMS = (
    library(
        "vllm_custom_all_reduce", "vLLM's one-stage and two-stage pulls, behind its gates", _REFERENCE,
        (_OWN_GPUS, _NVLINK, _RANKS, _size_gate, one_host, needs_p2p, _INSTALL),
        Support.yes(
            "chosen by vLLM unless --disable-custom-all-reduce is given; FlashInfer's fusion stands before it where it "
            "is installed, on sm_90 and sm_100 with 2, 4 or 8 ranks, unless VLLM_ALLREDUCE_USE_FLASHINFER=0",
            f"{_GATE}; cuda_communicator.py",
        ), pulled, family="vllm",
        way=_way(f"{_RUNNER}:Gated"),
    ),
    library(
        "vllm_forced_one_stage", f"vLLM's class past its gates, {_ALGO}=1stage", _REFERENCE, _FORCED_CHECKS, _FORCED,
        pulled, family="vllm", way=_way(f"{_RUNNER}:Forced", environment={_ALGO: "1stage"}),
    ),
    library(
        "vllm_forced_two_stage", f"vLLM's class past its gates, {_ALGO}=2stage", _REFERENCE, _FORCED_CHECKS, _FORCED,
        pulled_twice_in_turn, family="vllm", way=_way(f"{_RUNNER}:Forced", environment={_ALGO: "2stage"}),
    ),
)  # fmt: skip
"""Its custom all-reduce, as a server starts it and past its gates."""

SYSTEMS = (
    system(
        "vllm_symm_mem", "vLLM over torch symmetric memory, multicast or two-shot", _REFERENCE,
        (_OWN_GPUS,
         needs_arch("vLLM's size table of symmetric memory", (9, 10), "leave it to NCCL", _TABLE),
         needs_multicast("vLLM's symmetric memory", "vLLM 0.33.0 symm_mem.py"),
         needs_ranks("vLLM's size table", (2, 4, 6, 8), _TABLE), one_host,
         needs_p2p, _INSTALL),
        Support.yes("on unless VLLM_ALLREDUCE_USE_SYMM_MEM=0", "vLLM 0.33.0 symm_mem.py"), pulled_twice, family="vllm",
    ),
    system(
        "vllm_flashinfer_pcie_ipc", "vLLM over FlashInfer's kernels for PCIe", _REFERENCE,
        (_OWN_GPUS, NEEDS_PCIE_RANKS, one_host,
         needs_p2p, _INSTALL, needs_package("flashinfer", "pip install flashinfer-python"),
         read_in("vllm", _SINCE, f"vLLM 0.33.0 envs.py; {PCIE_SOURCE}"),
         read_in("flashinfer", (0, 7, 4), f"vLLM 0.33.0 envs.py; {PCIE_SOURCE}")),
        Support.yes(
            "off unless VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1; flashinfer_pcie_workspace times what it calls",
            "vLLM 0.33.0 envs.py",
        ), ring, family="vllm",
    ),
)  # fmt: skip
"""Its other communicators, which collbench does not start: what they call it times elsewhere."""
