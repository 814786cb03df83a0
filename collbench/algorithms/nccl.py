"""NCCL's all-reduce: each algorithm and protocol forced, and NCCL's own choice, over torch.distributed's communicator.

What runs is proved by NCCL's log, not by the variables that ask for it (`nccl_runner`, `nccl_log`). Why the call is
made as it is: docs/decisions/0003-nccl-calls.md.
"""

from collections.abc import Callable, Mapping
from functools import partial

from collbench.algorithms.base import Algorithm
from collbench.algorithms.cuda_support import ranks_share_gpu, refuse, version_text
from collbench.contention import traffic
from collbench.contention.traffic import Schedule
from collbench.results.records import Call, Collective, Fabric, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "DTYPES", "MULTI_RANK_SINCE", "WIRE_FACTOR", "cost_us", "environment"]

DTYPES = ("float32", "float16", "bfloat16", "int32")

WIRE_FACTOR: Mapping[str, float] = {"LL": 2.0, "LL128": 128 / 120, "Simple": 1.0}
"""Bytes on the wire per payload byte: LL sends 4 bytes of flag with 4 of data, LL128 8 of flag in a 128-byte line."""

MULTI_RANK_SINCE = (2, 30, 3)
"""First NCCL that takes several ranks on one GPU, behind NCCL_MULTI_RANK_GPU_ENABLE=1; 2.5 to 2.29 refuse."""

_LL128_SUSPECT = (2, 31)
"""From here on a forced LL128 may be refused on PCIe ("no algorithm/protocol available"): tried, not assumed."""

_SHARED_CTAS = "2"
"""Blocks of one rank's collective when ranks share a GPU: all ranks' blocks must be resident together."""

_REFERENCE = "https://github.com/NVIDIA/nccl"
_LIBRARY_REMEDY = "pip install 'nvidia-nccl-cu13>=2.30.7' and give its libnccl.so.2 with --nccl PATH"


def _support(protocol: str, machine: Machine, call: Call) -> Support:
    refused = refuse(machine, call, DTYPES)
    if refused is not None:
        return refused
    version = machine.version("nccl")
    if not version:
        return Support.unknown("the version of NCCL is not known before it is loaded")
    if ranks_share_gpu(machine) and version < MULTI_RANK_SINCE:
        reason = (
            f"NCCL {version_text(version)} refuses several ranks on one GPU (Duplicate GPU detected); "
            f"{version_text(MULTI_RANK_SINCE)} and later take them"
        )
        return Support.no(reason, _LIBRARY_REMEDY, "NCCL issues 231, 418 and 1716")
    if protocol == "LL128":
        return _support_ll128(machine, version)
    return Support.yes(f"NCCL {version_text(version)}")


def _support_ll128(machine: Machine, version: tuple[int, ...]) -> Support:
    if machine.fabric not in {Fabric.PCIE, Fabric.MIXED, Fabric.NETWORK}:
        return Support.yes(f"NCCL {version_text(version)}")
    refused = " and may refuse it" if version >= _LL128_SUSPECT else ""
    reason = (
        f"LL128 is forced: NCCL {version_text(version)} leaves it off on PCIe{refused}, because processors may split "
        "a 128-byte write; sums are verified"
    )
    return Support.unknown(reason, "use nccl_ring_ll", "NCCL issue 786, pull request 2036")


def environment(algorithm: str, protocol: str, machine: Machine) -> dict[str, str]:
    """Variables of the workers. NVLink multicast stays off in every environment that the suite builds."""
    variables = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,ENV",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_NCCL_USE_COMM_NONBLOCKING": "0",
    }
    if algorithm:
        variables |= {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
    if machine.hosts == 1:
        variables["NCCL_SOCKET_IFNAME"] = "lo"
    if ranks_share_gpu(machine):
        variables |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": _SHARED_CTAS}
    return variables


def _traffic(algorithm: str, protocol: str, call: Call, topology: Topology) -> Schedule:
    del topology
    build = traffic.chain if algorithm == "Tree" else traffic.ring
    return build(call, wire_factor=WIRE_FACTOR[protocol], protocol=protocol)


def cost_us(protocol: str, call: Call, machine: Machine) -> float:
    """NCCL's own constants (base and per hop, PCIe) and 10 GB/s; on a shared GPU the same within a factor of 3."""
    del machine
    base, hop = {"LL": (6.6, 1.0), "LL128": (14.0, 2.5), "Simple": (8.4, 5.7)}[protocol]
    return base + 2 * (call.world_size - 1) * hop + 2 * call.bytes * WIRE_FACTOR[protocol] / 10_000


def _algorithm(algorithm: str, protocol: str) -> Algorithm:
    named = algorithm or "Ring"
    summary = f"NCCL's {named.lower()} with the {protocol} protocol, forced" if algorithm else "what NCCL chooses"
    support: Callable[[Machine, Call], Support] = partial(_support, protocol if algorithm else "")
    return Algorithm(
        name=f"nccl_{algorithm}_{protocol}".lower() if algorithm else "nccl_auto",
        collective=Collective.ALL_REDUCE, summary=summary, reference=_REFERENCE,
        traffic=partial(_traffic, named, protocol), support=support,
        runner=f"collbench.algorithms.nccl_runner:{algorithm + protocol if algorithm else 'Auto'}", family="nccl",
        imports=("torch", "torch.distributed"), environment=partial(environment, algorithm, protocol),
        cost_us=partial(cost_us, protocol),
    )  # fmt: skip


ALGORITHMS = (
    *(_algorithm(algorithm, protocol) for algorithm in ("Ring", "Tree") for protocol in ("LL", "LL128", "Simple")),
    _algorithm("", "LL"),
)
"""The six forced rows, and `nccl_auto`, whose traffic is that of a ring with LL, NCCL's usual choice when small."""
