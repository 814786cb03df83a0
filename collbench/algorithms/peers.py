"""What all peers' kernels compiled from installed headers share: when they run, and how their records are made."""

from collections.abc import Callable

from collbench.algorithms.base import Algorithm
from collbench.algorithms.cuda_support import number, ranks_share_gpu, refuse
from collbench.contention.traffic import Schedule
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["peer_algorithm", "refuse_peer"]

_MOST_BYTES = 8 << 20
_PACK = 16
_COMPILE_S = 300.0
"""Longest compilation by nvcc, which a group's first cell may take beyond its own limit (`peer_library`)."""
_SINCE_ARCH = 80
_HEADERS_REMEDY = "pip install flashinfer-python, or set COLLBENCH_FLASHINFER_INCLUDE to the folder of its headers"


def refuse_peer(
    machine: Machine, call: Call, dtypes: tuple[str, ...], ranks: tuple[int, ...], since: tuple[int, ...]
) -> Support | None:
    """Why a peer's kernel cannot run; None if nothing stands in the way.

    `since` is FlashInfer's first release whose wheel is known to hold the header.
    """
    refusals = (
        refuse(machine, call, dtypes), _refuse_software(machine, since), _refuse_call(call, ranks),
        _refuse_reach(machine),
    )  # fmt: skip
    return next((refusal for refusal in refusals if refusal is not None), None)


def _refuse_software(machine: Machine, since: tuple[int, ...]) -> Support | None:
    if "cuda-bindings" not in machine.software:
        return Support.no("cuda-bindings is not installed (extra cuda)", "pip install 'collbench[cuda]'")
    if 0 < number(machine.arch) < _SINCE_ARCH:
        return Support.no(f"{machine.arch} is older than sm_80", "use an Ampere GPU or a later one")
    if "flashinfer-headers" not in machine.software:
        version = machine.version("flashinfer")
        if version is None:
            return Support.no("the headers of flashinfer-python were not found", _HEADERS_REMEDY)
        if version < since:
            needed = ".".join(map(str, since))
            told = f"flashinfer {machine.software['flashinfer']} is older than {needed}"
            return Support.no(
                f"collbench builds it from FlashInfer's headers, and {told}", f"install FlashInfer {needed} or later"
            )
    if "nvcc" not in machine.software:
        return Support.no("nvcc was not found", "install the CUDA toolkit, or set CUDA_HOME")
    return None


def _refuse_call(call: Call, ranks: tuple[int, ...]) -> Support | None:
    if call.world_size not in ranks:
        known = ", ".join(map(str, ranks))
        return Support.no(f"{call.world_size} ranks: it is built for {known}", f"start one of {known} ranks")
    if call.bytes % _PACK or call.bytes < _PACK:
        return Support.no(f"{call.bytes} bytes are no multiple of 16", "use a size that is one")
    if call.bytes > _MOST_BYTES:
        return Support.no(f"{call.bytes} bytes are more than 8 MiB", "use a size up to 8 MiB")
    return None


def _refuse_reach(machine: Machine) -> Support | None:
    if machine.hosts > 1:
        return Support.no(f"ranks on {machine.hosts} hosts: memory is shared within one host", "run on one host")
    if machine.facts.get("p2p") in {"ns", "off", "disabled"} and not ranks_share_gpu(machine):
        return Support.no("the GPUs cannot reach each other's memory (P2P is off)", "see collbench doctor about P2P")
    return None


def _cost_us(call: Call, machine: Machine) -> float:
    del machine
    return 6.0 + call.bytes * call.world_size / 100_000


def peer_algorithm(
    name: str,
    summary: str,
    reference: str,
    traffic: Callable[[Call, Topology], Schedule],
    support: Callable[[Machine, Call], Support],
    runner: str,
    family: str,
) -> Algorithm:
    """The record of an all-reduce of somebody else's; `runner` stands in the module `<family>_runner`."""
    return Algorithm(
        name=name, collective=Collective.ALL_REDUCE, summary=summary, reference=reference, traffic=traffic,
        support=support, runner=f"collbench.algorithms.{family}_runner:{runner}", family=family, imports=("torch",),
        cost_us=_cost_us, opening_s=_COMPILE_S,
    )  # fmt: skip
