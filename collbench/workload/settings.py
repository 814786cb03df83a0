"""Settings that make a server use an algorithm: what to paste, for which release, and where none does."""

from dataclasses import dataclass

from collbench.results.records import Fabric

__all__ = ["Setting", "settings_of"]

_PAIR = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """`text` is pasted as it stands: variables in front of a command, or an option of it.

    `replaces` is the algorithm that the server runs by default and that this setting switches off.
    """

    where: str
    release: str
    text: str
    note: str = ""
    replaces: str = ""


_PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
_NO_CUSTOM = "so that messages reach NCCL"
_DIRECT = Setting(
    "NCCL", "every release", "NCCL_P2P_LEVEL=SYS",
    "ranks meet beyond one switch, where the default is host memory (NCCL 2.30.7 paths.cc); measure both",
)  # fmt: skip


def settings_of(algorithm: str, fabric: Fabric, ranks: int, *, far: bool = False) -> tuple[Setting, ...]:
    """What selects an algorithm; empty where no server that we read has it, or where its gate forbids it here.

    `far`: some ranks meet beyond one PCIe switch, where NCCL goes through host memory unless told otherwise.
    """
    name = algorithm.partition(" ")[0]
    gated = fabric is not Fabric.NVLINK and ranks > _PAIR
    direct = (_DIRECT,) if far and fabric is Fabric.PCIE else ()
    if name == "nccl_auto":
        return (Setting("NCCL", "every release", "env -u NCCL_ALGO -u NCCL_PROTO"), *direct, *_servers_use_nccl())
    if name.startswith("nccl_") and name.count("_") == _PAIR and name.rpartition("_")[2] in _PROTOCOLS:
        return (*_forced(*name.split("_")[1:]), *direct, *_servers_use_nccl())
    if name in {"vllm_one_stage", "vllm_two_stage"} and not gated:
        stage = "1stage" if name == "vllm_one_stage" else "2stage"
        return (Setting("vLLM", "0.33", f"VLLM_CUSTOM_ALLREDUCE_ALGO={stage}", "on by default with full NVLink"),)
    if name.startswith("flashinfer_pcie") and ranks in {2, 4, 8}:
        note = "it chooses the variant by size itself"
        return (
            Setting("vLLM", "0.33", "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1", note),
            Setting("SGLang", "0.5.23", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1", note),
        )
    return ()


def _forced(algorithm: str, protocol: str) -> tuple[Setting, ...]:
    kind, word = algorithm.capitalize(), _PROTOCOLS[protocol]
    return (
        Setting("NCCL", "2.24 and later", f'NCCL_ALGO="allreduce:{kind.lower()}" NCCL_PROTO="allreduce:{word}"',
                "all-reduces only"),
        Setting("NCCL", "2.5 to 2.23", f"NCCL_ALGO={kind} NCCL_PROTO={word}", "every collective of the process"),
    )  # fmt: skip


def _servers_use_nccl() -> tuple[Setting, ...]:
    return (
        Setting("vLLM", "0.33", "--disable-custom-all-reduce", _NO_CUSTOM, "vllm_custom_all_reduce"),
        Setting("SGLang", "0.5.23", "--disable-custom-all-reduce", _NO_CUSTOM, "sglang_custom_all_reduce"),
    )
