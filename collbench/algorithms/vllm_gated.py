"""What vLLM starts by itself: its communicators with their gates, as a server meets them.

The kernels of its custom all-reduce, called past the gate, are `vllm.py`'s. Read in vLLM 0.33.0.
"""

from collbench.algorithms.cuda_support import number
from collbench.algorithms.flashinfer import NEEDS_PCIE_RANKS, PCIE_SOURCE
from collbench.algorithms.known_system import (
    at_least,
    full_nvlink,
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
from collbench.contention.own_traffic import staged_ring
from collbench.contention.traffic import Move, Schedule, one_stage, two_stage
from collbench.results.records import Call, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS"]

_REFERENCE = "https://github.com/vllm-project/vllm"
_GATE = "vLLM 0.33.0 custom_all_reduce.py; vllm issue 56128"
_TABLE = "vLLM 0.33.0 all_reduce_utils.py; vllm pull request 35360"
_SIZES: dict[int, dict[int, int]] = {
    90: {2: 64 << 20, 4: 32 << 20, 6: 512 << 10, 8: 256 << 10},
    100: {2: 2 << 20, 4: 2 << 20, 6: 1 << 20, 8: 1 << 20},
}
"""Largest message of the custom all-reduce by compute capability and ranks (vLLM 0.33.0, all_reduce_utils.py)."""
_DEFAULT_SIZE = 8 << 20
_INSTALL = needs_package("vllm", "pip install vllm")
_OWN_GPUS = own_gpus("vLLM", "vLLM 0.33.0")


def _nvlink_gate(machine: Machine, call: Call) -> Support | None:
    if call.world_size == 2 or full_nvlink(machine):  # noqa: PLR2004 - the case that the gate lets through
        return None
    reason = (
        f"vLLM switches its custom all-reduce off on more than two GPUs without full NVLink ({call.world_size} ranks, "
        f"fabric {machine.fabric}), at start and again at each call; its operator called directly launches nothing "
        "and returns in 2 us with the output untouched"
    )
    remedy = (
        "leave it to NCCL, or VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 (vLLM 0.33, FlashInfer 0.7); vllm_one_stage of "
        "collbench sweep times the kernel past the gate"
    )
    return Support.no(reason, remedy, _GATE)


def _size_gate(machine: Machine, call: Call) -> Support | None:
    most = _SIZES.get(number(machine.arch), {}).get(call.world_size, _DEFAULT_SIZE)
    return needs_bytes("vLLM's custom all-reduce", most, 16, _GATE)(machine, call)


def _pull(call: Call, topology: Topology) -> Schedule:
    del topology
    return one_stage(call, Move.PULL, syncs=2, protocol="barriers")


def _two_shot(call: Call, topology: Topology) -> Schedule:
    del topology
    return two_stage(call, Move.PULL, protocol="signal pads")


def _pcie_ipc_versions(machine: Machine, call: Call) -> Support | None:
    del call
    for package, since in (("vllm", (0, 33)), ("flashinfer", (0, 7, 4))):
        new = at_least(machine, package, since)
        text = ".".join(map(str, since))
        if new is None:
            return Support.unknown(
                f"it came with {package} {text} at the latest, and the version was not said",
                f"--with {package}=VERSION",
                f"vLLM 0.33.0 envs.py; {PCIE_SOURCE}",
            )  # fmt: skip
        if not new:
            return Support.unknown(
                f"read in {package} {text}; whether {machine.software[package]} has it is not known",
                f"install {package} {text} or later", f"vLLM 0.33.0 envs.py; {PCIE_SOURCE}",
            )  # fmt: skip
    return None


def _staged(call: Call, topology: Topology) -> Schedule:
    del topology
    return staged_ring(call, protocol="data announces itself")


ALGORITHMS = (
    system(
        "vllm_custom_all_reduce", "vLLM's one-stage and two-stage pulls, behind its gates", _REFERENCE,
        (_OWN_GPUS, _nvlink_gate, needs_ranks("vLLM's custom all-reduce", (2, 4, 6, 8), _GATE), _size_gate, one_host,
         needs_p2p, _INSTALL),
        Support.yes("chosen by vLLM unless --disable-custom-all-reduce is given", _GATE), _pull, family="vllm",
    ),
    system(
        "vllm_symm_mem", "vLLM over torch symmetric memory, multicast or two-shot", _REFERENCE,
        (_OWN_GPUS,
         needs_arch("vLLM's size table of symmetric memory", (9, 10), "leave it to NCCL", _TABLE),
         needs_multicast("vLLM's symmetric memory", "vLLM 0.33.0 symm_mem.py"),
         needs_ranks("vLLM's size table", (2, 4, 6, 8), _TABLE), one_host,
         needs_p2p, _INSTALL),
        Support.yes("on unless VLLM_ALLREDUCE_USE_SYMM_MEM=0", "vLLM 0.33.0 symm_mem.py"), _two_shot, family="vllm",
    ),
    system(
        "vllm_flashinfer_pcie_ipc", "vLLM over FlashInfer's kernels for PCIe", _REFERENCE,
        (_OWN_GPUS, NEEDS_PCIE_RANKS, one_host,
         needs_p2p, _INSTALL, needs_package("flashinfer", "pip install flashinfer-python"), _pcie_ipc_versions),
        Support.yes("off unless VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1", "vLLM 0.33.0 envs.py"), _staged,
        family="vllm",
    ),
)  # fmt: skip
"""The communicators of vLLM that look at the machine before they start."""
