"""SGLang's communicators: its custom all-reduce, torch symmetric memory with its size table, FlashInfer's PCIe kernels.

Read in SGLang 0.5.23. Its custom all-reduce pushes with a sentinel (data announces itself) where messages are small.
"""

from collbench.algorithms.cuda_support import number
from collbench.algorithms.flashinfer import NEEDS_PCIE_RANKS
from collbench.algorithms.known_system import (
    at_least,
    full_nvlink,
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

_REFERENCE = "https://github.com/sgl-project/sglang"
_READ = "SGLang 0.5.23 custom_all_reduce_v2.py"
_TABLE = "SGLang's TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES; sglang pull requests 10571 and 24548"
_GUARDED = (0, 5, 23)
"""Read with the guard of pull request 24548, merged in June 2026; which release had it first is not known."""

_MAJORS = (9, 10)
_MOST_BYTES = 16 << 20  # SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB=16384, the default
_INSTALL = needs_package("sglang", "pip install sglang")
_MULTICAST = needs_multicast("SGLang's symmetric memory", "SGLang 0.5.23 torch_symm_mem.py; sglang pull request 30364")
_OWN_GPUS = own_gpus("SGLang", "SGLang 0.5.23")


def _nvlink_gate(machine: Machine, call: Call) -> Support | None:
    if call.world_size == 2 or full_nvlink(machine):  # noqa: PLR2004 - the case that the gate lets through
        return None
    reason = (
        f"SGLang's custom all-reduce wants full NVLink or two ranks; here are {call.world_size} ranks on fabric "
        f"{machine.fabric}, and its pull variants would need atomics on the peer besides"
    )
    remedy = "leave it to NCCL, or SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 (SGLang 0.5.23 with FlashInfer 0.7)"
    return Support.no(reason, remedy, _READ)


def _size_table(machine: Machine, call: Call) -> Support | None:
    del call
    major = number(machine.arch) // 10
    if not major:
        return Support.unknown("SGLang's size table knows compute capabilities 9.x and 10.x only", "", _TABLE)
    if major in _MAJORS:
        return None
    new = at_least(machine, "sglang", _GUARDED)
    early = major < min(_MAJORS)
    if early or new:
        reason = f"SGLang's size table has no entry for compute capability {major}.x: the communicator stays off"
        return Support.no(reason, "leave it to NCCL", _TABLE)
    when = {
        None: "releases before its guard (pull request 24548, merged in June 2026) raise it, later ones stay off",
        False: "releases before its guard (pull request 24548, merged in June 2026) raise it; 0.5.23 has the guard",
    }[new]
    reason = (
        f"KeyError: {major} with --enable-torch-symm-mem: SGLang's own size table has no entry for compute capability "
        f"{major}.x, torch is not to blame; {when}"
    )
    return Support.no(reason, "leave --enable-torch-symm-mem out; SGLang 0.5.23 falls back to NCCL", _TABLE)


def _pcie_ipc_versions(machine: Machine, call: Call) -> Support | None:
    del call
    new = at_least(machine, "sglang", _GUARDED)
    if new:
        return None
    told = machine.software.get("sglang")
    what = f"whether {told} has it is not known" if told else "the version was not said"
    remedy = "install SGLang 0.5.23 or later" if told else "--with sglang=VERSION"
    return Support.unknown(f"read in SGLang 0.5.23; {what}", remedy, "sglang pull request 34528")


def _push(call: Call, topology: Topology) -> Schedule:
    del topology
    return one_stage(call, Move.PUSH, protocol="data announces itself")


def _two_shot(call: Call, topology: Topology) -> Schedule:
    del topology
    return two_stage(call, Move.PULL, protocol="signal pads")


def _staged(call: Call, topology: Topology) -> Schedule:
    del topology
    return staged_ring(call, protocol="data announces itself")


ALGORITHMS = (
    system(
        "sglang_custom_all_reduce", "SGLang's one-shot push with a sentinel, two-shot above", _REFERENCE,
        (_OWN_GPUS, _nvlink_gate, needs_bytes("SGLang's custom all-reduce", _MOST_BYTES, 16, _READ), one_host,
         needs_p2p, _INSTALL),
        Support.yes("on unless --disable-custom-all-reduce is given", _READ), _push, family="sglang",
    ),
    system(
        "sglang_symm_mem", "SGLang over torch symmetric memory (--enable-torch-symm-mem)", _REFERENCE,
        (_OWN_GPUS, _size_table, _MULTICAST, needs_ranks("SGLang's size table", (2, 4, 6, 8), _TABLE), one_host,
         needs_p2p, _INSTALL),
        Support.yes("off unless --enable-torch-symm-mem is given", "SGLang 0.5.23 torch_symm_mem.py"), _two_shot,
        family="sglang",
    ),
    system(
        "sglang_pcie_ipc", "SGLang over FlashInfer's kernels for PCIe", _REFERENCE,
        (_OWN_GPUS, NEEDS_PCIE_RANKS, one_host,
         needs_p2p, _INSTALL, needs_package("flashinfer", "pip install flashinfer-python"), _pcie_ipc_versions),
        Support.yes(
            "off unless SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1; size its workspace for decode, one for prefill cost 66 % "
            "of time to first token", "sglang pull request 34528",
        ), _staged, family="sglang",
    ),
)  # fmt: skip
"""The communicators of SGLang that look at the machine before they start."""
