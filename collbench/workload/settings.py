"""What servers run by themselves, and settings that make them run something else: what to paste, for which release.

Each setting names the row that times what it starts. Read in vLLM 0.33.0 (cuda_communicator.py, config/vllm.py,
flashinfer_all_reduce.py), SGLang 0.5.23 (parallel_state.py, arg_groups/overrides.py) and NCCL 2.30.7.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from collbench.algorithms.epilogues import RESIDUAL_RMSNORM
from collbench.algorithms.sglang import WORKSPACE_SIZE
from collbench.results.records import Fabric

__all__ = ["NCCL", "PROTOCOLS", "WORKSPACE", "Server", "Setting", "servers"]

NCCL = "nccl_auto"
"""What runs where no server has an all-reduce of its own."""
WORKSPACE = "flashinfer_pcie_workspace"
"""What `PCIE_IPC` settings start: it chooses kernel and grid itself."""
PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
"""Last part of the names of NCCL's forced rows, and NCCL's word for it."""

_PAIR = 2
_FUSION = "flashinfer_trtllm_fusion_pdl"
_OFF = "--disable-custom-all-reduce"
_FUSING_ARCHS, _FUSING_RANKS = {90, 100}, {2, 4, 8}
"""Of vLLM 0.33.0's table of sizes, without which its FlashInfer communicator stays off."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`text` is pasted as it stands: variables in front of a command, or an option of it.

    `algorithm` is the row that times what it starts, empty where it is part of any; `replaces` is what the server runs
    without it.
    """

    where: str
    release: str
    text: str
    note: str = ""
    algorithm: str = ""
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """What one server runs unless it is told otherwise, and what it can be told here; `note` is about the former.

    `without` is what it runs where the library of its default is not installed, empty where it brings that itself.
    """

    where: str
    release: str
    default: str
    note: str = ""
    without: str = ""
    settings: tuple[Setting, ...] = ()


def servers(
    fabric: Fabric, ranks: int, names: Iterable[str], *, arch: int = 0, far: bool = False, epilogue: str = ""
) -> tuple[Server, ...]:
    """What there is to be told on a fabric; `names` are the algorithms that have times, `arch` is 90 of `sm_90`.

    `far`: some ranks meet beyond one PCIe switch, where NCCL goes through host memory unless told otherwise. With an
    `epilogue` calls are fused ones. On processors there is none; servers start no two ranks on one GPU, NCCL can.
    """
    if fabric is Fabric.HOST:
        return ()
    plain = dict.fromkeys(name.partition(" ")[0] for name in names)
    if epilogue:
        fused = epilogue == RESIDUAL_RMSNORM and fabric is not Fabric.SHARED_GPU and _fuses(arch, ranks)
        return (_VLLM_FUSED, _SGLANG_FUSED) if fused else ()
    nccl = _nccl(plain, far=far and fabric is Fabric.PCIE)
    timed = (nccl,) if any(name.startswith("nccl_") for name in plain) else ()
    if fabric is Fabric.SHARED_GPU:
        return timed
    reached = [one for one in nccl.settings if one.algorithm]
    gated = fabric is not Fabric.NVLINK and ranks > _PAIR
    return (_vllm(ranks, arch, reached, gated=gated), _sglang(ranks, reached, gated=gated), *timed)


def _fuses(arch: int, ranks: int) -> bool:
    return arch in _FUSING_ARCHS and ranks in _FUSING_RANKS


def _vllm(ranks: int, arch: int, reached: Iterable[Setting], *, gated: bool) -> Server:
    where, release, own = "vLLM", "0.33", "vllm_custom_all_reduce"
    fused = _fuses(arch, ranks)
    default = _FUSION if fused else NCCL if gated else own
    off = "VLLM_ALLREDUCE_USE_FLASHINFER=0" if fused else ""
    told = [Setting(where, release, "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1", _TUNED, WORKSPACE)]
    told = told if ranks in _FUSING_RANKS else []
    if not gated:
        told += [Setting(where, release, off, algorithm=own)] if fused else []
        told += [
            Setting(
                where, release, f"{off} VLLM_CUSTOM_ALLREDUCE_ALGO={n}stage".strip(), algorithm=f"vllm_forced_{word}"
            )
            for n, word in ((1, "one_stage"), (2, "two_stage"))
        ]
    if fused or not gated:
        told += [_with_nccl(where, release, one, off, "" if gated else _OFF) for one in reached]
    without = (NCCL if gated else own) if fused else ""
    return Server(where, release, default, _MNNVL if fused else "", without, _replacing(default, told))


def _sglang(ranks: int, reached: Iterable[Setting], *, gated: bool) -> Server:
    """Its own all-reduce is asked before FlashInfer's workspace, which therefore needs the other one to be off."""
    where, release, own = "SGLang", "0.5.23", "sglang_custom_all_reduce"
    off = "" if gated else _OFF
    pcie = f"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 {off}".strip()
    told = [Setting(where, release, pcie, _TUNED, WORKSPACE)] if ranks in _FUSING_RANKS else []
    if not gated:
        classic = "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2=0 SGLANG_CUSTOM_ALLREDUCE_ALGO=1stage"
        told.append(Setting(where, release, classic, algorithm="sglang_classic_one_stage"))
        told += [_with_nccl(where, release, one, "", off) for one in reached]
    default = NCCL if gated else own
    return Server(where, release, default, settings=_replacing(default, told))


_TUNED = f"the server tunes it when it starts, the row did not; {WORKSPACE_SIZE}"
_MNNVL = "with NVLink multicast it takes FlashInfer's mnnvl kernels instead, which collbench does not start"
_VLLM_FUSED = Server("vLLM", "0.33", _FUSION, f"fuse_allreduce_rms is on from -O2, which is the default; {_MNNVL}")
_SGLANG_FUSED = Server(
    "SGLang", "0.5.23", _FUSION,
    "on by itself for the models of its list, else by --flashinfer-allreduce-fusion-backend auto; on sm_100 it takes "
    "mnnvl kernels instead, which collbench does not start",
)  # fmt: skip


def _replacing(default: str, told: Iterable[Setting]) -> tuple[Setting, ...]:
    return tuple(replace(one, replaces=default) for one in told)


def _with_nccl(where: str, release: str, forced: Setting, before: str, behind: str) -> Setting:
    env = "" if forced.algorithm == NCCL else forced.text
    return Setting(where, release, " ".join(filter(None, (before, env, behind))), algorithm=forced.algorithm)


def _nccl(names: Iterable[str], *, far: bool) -> Server:
    told = [Setting("NCCL", "every release", "env -u NCCL_ALGO -u NCCL_PROTO", algorithm=NCCL)]
    for name in names:
        words = name.split("_")
        if words[0] == "nccl" and len(words) == 3 and words[2] in PROTOCOLS:  # noqa: PLR2004 - nccl_tree_ll
            told.append(_forced(name, words[1], PROTOCOLS[words[2]]))
    note = "ranks meet beyond one switch, where the default is host memory (NCCL 2.30.7 paths.cc); measure both"
    told += [Setting("NCCL", "every release", "NCCL_P2P_LEVEL=SYS", note)] if far else []
    return Server("NCCL", "every release", NCCL, settings=_replacing(NCCL, told))


def _forced(name: str, kind: str, protocol: str) -> Setting:
    note = f"all-reduces only; up to NCCL 2.23 NCCL_ALGO={kind.capitalize()} NCCL_PROTO={protocol}, of every collective"
    text = f'NCCL_ALGO="allreduce:{kind}" NCCL_PROTO="allreduce:{protocol}"'
    return Setting("NCCL", "2.24 and later", text, note, name)
