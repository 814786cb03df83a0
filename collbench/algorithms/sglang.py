"""SGLang's communicators: custom all-reduces, torch symmetric memory with its size table, FlashInfer's PCIe kernels.

Read in SGLang 0.5.23. Its custom all-reduce pushes with a sentinel (data announces itself) where messages are small.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from collbench.algorithms.base import Algorithm, Foreign
from collbench.algorithms.cuda_support import may_start_early, number
from collbench.algorithms.flashinfer import NEEDS_PCIE_RANKS
from collbench.algorithms.known_system import (
    Check,
    at_least,
    needs_bytes,
    needs_multicast,
    needs_p2p,
    needs_package,
    needs_ranks,
    no_remote_atomics,
    one_host,
    own_gpus,
    system,
)
from collbench.algorithms.library_modules import SGLANG
from collbench.algorithms.library_system import Way, library, needs_compiler, nvlink_gate, past, read_in
from collbench.algorithms.schedules import pulled, pulled_twice, pushed, pushed_twice, ring
from collbench.results.records import Call, Support
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "SYSTEMS", "WORKSPACE_SIZE"]

WORKSPACE_SIZE = "size its workspace for decode, one for prefill cost 66 % of time to first token"
"""Caution of who starts FlashInfer's workspace for PCIe in a server (sglang pull request 34528)."""

_REFERENCE = "https://github.com/sgl-project/sglang"
_READ = "SGLang 0.5.23 custom_all_reduce_v2.py"
_OLD = "SGLang 0.5.23 custom_all_reduce.py, sglang-kernel 0.4.10"
_TABLE = "SGLang's TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES; sglang pull requests 10571 and 24548"
_GUARDED = (0, 5, 23)
"""Read with the guard of pull request 24548, merged in June 2026; which release had it first is not known."""

_MAJORS = (9, 10)
_MOST_BYTES = 16 << 20  # SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB=16384, the default
_OLD_BYTES = 8 << 20
_INSTALL = needs_package("sglang", "pip install sglang")
_MULTICAST = needs_multicast("SGLang's symmetric memory", "SGLang 0.5.23 torch_symm_mem.py; sglang pull request 30364")
_OWN_GPUS = own_gpus("SGLang", "SGLang 0.5.23")
_NVLINK = nvlink_gate(
    "SGLang's custom all-reduce wants full NVLink or two ranks, and is off",
    "; its pull variants would need atomics on the peer besides",
    "leave it to NCCL, or SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 (SGLang 0.5.23 with FlashInfer 0.7)", _READ,
)  # fmt: skip
_SIZE = needs_bytes("SGLang's custom all-reduce", _MOST_BYTES, 16, _READ)


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


_COMMON: tuple[Check, ...] = (one_host, needs_p2p, _INSTALL)
_COMPILED = (*_COMMON, needs_compiler("SGLang"), read_in("sglang", _GUARDED, _READ))
_PUSHES = (_SIZE, *_COMPILED)
_PULLS = (*_PUSHES, no_remote_atomics("SGLang's pull", _READ))
_PAST = partial(past, (_OWN_GPUS, _NVLINK))
_RUNNER = "collbench.algorithms.sglang_library_runner"
_ALGO = "SGLANG_CUSTOM_ALLREDUCE_ALGO"
_ALONE = {"SGLANG_SKIP_P2P_CHECK": "1"}
"""Its own check of peer access meets its server's world group, which is not there; the driver is asked instead."""
_way = partial(Way, environment=_ALONE, foreign=Foreign(SGLANG))


def _early(*record: Any, **words: Any) -> Algorithm:  # noqa: ANN401 - those of `library`
    """A push: launched early where the GPU knows that (`is_arch_support_pdl`). Pulls begin with a copy that is not."""
    return replace(library(*record, **words), starts_early=may_start_early)


ALGORITHMS = (
    _early(
        "sglang_custom_all_reduce", "SGLang's one-shot push with a sentinel, two-shot above", _REFERENCE,
        (_OWN_GPUS, _NVLINK, _SIZE, *_COMMON, needs_compiler("SGLang")),
        Support.yes("on unless --disable-custom-all-reduce is given", _READ), pushed, family="sglang",
        way=_way(f"{_RUNNER}:Gated"),
    ),
    *(
        (library if "pull" in name else _early)(
            f"sglang_forced_{name}", f"SGLang's class past its gate, {runner} forced", _REFERENCE, checks, _PAST,
            traffic, family="sglang", way=_way(f"{_RUNNER}:{runner}"),
        )
        for name, runner, checks, traffic in (
            ("one_shot_push", "OneShotPush", _PUSHES, pushed),
            ("two_shot_push", "TwoShotPush", _PUSHES, pushed_twice),
            ("one_shot_pull", "OneShotPull", _PULLS, pulled),
            ("two_shot_pull", "TwoShotPull", _PULLS, pulled_twice),
        )
    ),
    library(
        "sglang_classic_one_stage", f"SGLang's first version past its gate, {_ALGO}=1stage", _REFERENCE,
        (needs_ranks("SGLang's first version", (2, 4, 6, 8), _OLD),
         needs_bytes("SGLang's first version", _OLD_BYTES, 16, _OLD), *_COMMON,
         needs_package("sgl-kernel", "pip install sglang-kernel"), read_in("sglang", _GUARDED, _OLD)),
        _PAST, pulled, family="sglang", way=_way(f"{_RUNNER}:Classic", environment={_ALGO: "1stage", **_ALONE}),
    ),
)  # fmt: skip
"""Its custom all-reduces, as a server starts them and past their gates."""

SYSTEMS = (
    system(
        "sglang_symm_mem", "SGLang over torch symmetric memory (--enable-torch-symm-mem)", _REFERENCE,
        (_OWN_GPUS, _size_table, _MULTICAST, needs_ranks("SGLang's size table", (2, 4, 6, 8), _TABLE), *_COMMON),
        Support.yes("off unless --enable-torch-symm-mem is given", "SGLang 0.5.23 torch_symm_mem.py"), pulled_twice,
        family="sglang",
    ),
    system(
        "sglang_pcie_ipc", "SGLang over FlashInfer's kernels for PCIe", _REFERENCE,
        (_OWN_GPUS, NEEDS_PCIE_RANKS, *_COMMON, needs_package("flashinfer", "pip install flashinfer-python"),
         read_in("sglang", _GUARDED, "sglang pull request 34528")),
        Support.yes(
            "off unless SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1, and asked behind the custom all-reduce where that is on; "
            f"{WORKSPACE_SIZE}; flashinfer_pcie_workspace times what it calls", "sglang pull request 34528",
        ), ring, family="sglang",
    ),
)  # fmt: skip
"""Its other communicators, which collbench does not start: what they call it times elsewhere."""
