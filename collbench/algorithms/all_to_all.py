"""All-to-alls of expert-parallel decode that are run: NCCL's, torch's, gloo's, and emulations by other collectives.

A dispatch and a combine are one all-to-all each (`routing`). An all-gather in the place of a dispatch, and a
reduce-scatter in the place of a combine, is what vLLM does by default; here both carry every row of every rank, n times
the bytes, where a server that gathers tokens instead of rows sends 1/8 of that.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from collbench.algorithms.base import Algorithm
from collbench.algorithms.cuda_support import ranks_share_gpu, refuse_elements, refuse_machine, version_text
from collbench.algorithms.gloo import cost_us as gloo_cost_us
from collbench.algorithms.gloo import environment as gloo_environment
from collbench.algorithms.host_exchange import refuse_all_to_all
from collbench.algorithms.known_system import Check, full_nvlink, nccl_sharing, needs_p2p, one_host, verdict
from collbench.algorithms.nccl import DTYPES
from collbench.algorithms.nccl import environment as nccl_environment
from collbench.algorithms.shapes import rows_of
from collbench.contention import patterns
from collbench.contention.nccl_tuner import half_ring_schedule
from collbench.contention.traffic import Move, Schedule
from collbench.results.records import Call, Collective, Mode, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS"]

_NCCL = "NCCL 2.30.7; vllm issue 42254, sglang issue 22583"
_NATIVE = "nccl.h of 2.28.9: ncclAlltoAll"
_NVSHMEM = "torch 2.11 symm_mem; pytorch issues 157321 and 167966"
_PLAIN, _WHOLE = (2, 7), (2, 28)
"""First NCCL with sends and receives, and with an all-to-all of its own."""

_TORCH_REMEDY = "pip install 'collbench[sweep]'"


def _call(machine: Machine, call: Call) -> Support | None:
    del machine
    reason = refuse_all_to_all(call)
    return Support.no(reason) if reason else refuse_elements(call, DTYPES)


def _gpus(machine: Machine, call: Call) -> Support | None:
    del call
    return refuse_machine(machine)


def _since(first: tuple[int, ...], what: str, source: str) -> Check:
    def check(machine: Machine, call: Call) -> Support | None:
        del call
        version = machine.version("nccl")
        if not version:
            return Support.unknown("the version of NCCL was not said", "--with nccl=VERSION", source)
        if version >= first:
            return None
        return Support.no(f"NCCL {version_text(version)} has no {what}", "install a later one", source)

    return check


def _even(machine: Machine, call: Call) -> Support | None:
    del machine
    return Support.no("ncclAlltoAll takes equal parts", "use nccl_all_to_all", _NATIVE) if call.splits else None


def _torch_here(machine: Machine, call: Call) -> Support | None:
    del call
    return None if "torch" in machine.software else Support.no("torch is not installed", _TORCH_REMEDY)


def _nvshmem(machine: Machine, call: Call) -> Support | None:
    del call
    there = "nvshmem" in machine.software
    seen = (
        "on two H200 over NVLink it ran, and one cell of eight came out wrong"
        if full_nvlink(machine)
        else "on PCIe its reports are of failures and hangs"
    )
    reason = (
        f"torch builds it over NVSHMEM, which is installed; {seen}"
        if there
        else "torch builds it over NVSHMEM, and whether that is there is not known"
    )
    return Support.unknown(reason, "try it under a deadline" if there else "", _NVSHMEM)


def _send(call: Call, topology: Topology) -> Schedule:
    del topology
    return patterns.all_to_all(call, Move.PUSH, protocol="Simple")


def _flagged(call: Call, topology: Topology) -> Schedule:
    del topology
    return patterns.all_to_all(call, Move.PUSH, protocol="data announces itself")


def _all_rows(call: Call) -> Call:
    """Every rank's rows, padded to the most that one sends."""
    most = max(sum(row) for row in rows_of(call))
    return replace(call, bytes=most * call.itemsize * call.world_size, splits=())


def _all_places(call: Call) -> Call:
    """Rows for every rank, padded to the most that one gets."""
    rows = rows_of(call)
    most = max(sum(row[k] for row in rows) for k in range(len(rows)))
    return replace(call, bytes=most * call.itemsize * call.world_size, splits=())


def _gathered(call: Call, topology: Topology) -> Schedule:
    """Every rank's padded rows to everybody."""
    del topology
    return patterns.all_gather(_all_rows(call))


def _reduced(call: Call, topology: Topology) -> Schedule:
    """Padded rows of everybody for every rank, summed there."""
    del topology
    return patterns.reduce_scatter(_all_places(call))


def _nccl_gathered(call: Call, topology: Topology) -> Schedule:
    """NCCL's ring once round, and a copy out of it per rank; one into a padded buffer first, unless all send alike."""
    padded = len({sum(row) for row in rows_of(call)}) > 1
    return replace(half_ring_schedule(_all_rows(call), topology), launches=1 + call.world_size + padded)


def _nccl_reduced(call: Call, topology: Topology) -> Schedule:
    """A copy to its place per rank, NCCL's ring once round, a copy of the result."""
    sent = half_ring_schedule(_all_places(call), topology, sums=True)
    return replace(sent, launches=2 + call.world_size)


def _cost_us(factor: float, call: Call, machine: Machine) -> float:
    del machine
    return 20 + 2.0 * call.world_size + factor * call.bytes / 10_000


def _on_gpus(
    name: str, summary: str, runner: str, checks: tuple[Check, ...], fine: Support,
    traffic: Callable[[Call, Topology], Schedule], factor: float = 1.0,
) -> Algorithm:  # fmt: skip
    return Algorithm(
        name=name, collective=Collective.ALL_TO_ALL, summary=summary, reference="https://github.com/NVIDIA/nccl",
        traffic=traffic, support=partial(verdict, (_call, _gpus, *checks), fine),
        runner=f"collbench.algorithms.{runner}", family="expert", imports=("torch", "torch.distributed"),
        environment=partial(nccl_environment, "", ""), cost_us=partial(_cost_us, factor),
    )  # fmt: skip


def _on_gloo(name: str, summary: str, runner: str, traffic: Callable[[Call, Topology], Schedule]) -> Algorithm:
    return Algorithm(
        name=name, collective=Collective.ALL_TO_ALL, summary=summary, traffic=traffic,
        reference="https://docs.pytorch.org/docs/stable/distributed.html",
        support=partial(verdict, (_call, _torch_here), Support.yes()),
        runner=f"collbench.algorithms.exchange_runner:{runner}", family="gloo", device="cpu", modes=(Mode.EAGER,),
        imports=("torch", "torch.distributed"), environment=gloo_environment, max_calls=8, cost_us=gloo_cost_us,
    )  # fmt: skip


def _own_gpu_each(machine: Machine, call: Call) -> Support | None:
    """NVSHMEM's teams: seen on one H200 under MPS with NVSHMEM of CUDA 13.0."""
    del call
    if not ranks_share_gpu(machine):
        return None
    reason = "NVSHMEM makes no teams where several ranks share a GPU: 'not supported with limited MPG ... runs'"
    return Support.no(reason, "give each rank a GPU", _NVSHMEM)


_GROUPED = Support.yes("runs on every fabric; in a CUDA graph too", _NCCL)

ALGORITHMS = (
    _on_gpus(
        "nccl_all_to_all", "sends and receives in one group (what torch all_to_all_single does)",
        "nccl_exchange_runner:SendRecv", (_since(_PLAIN, "sends and receives", _NCCL), nccl_sharing), _GROUPED, _send,
    ),
    _on_gpus(
        "nccl_all_to_all_native", "ncclAlltoAll, for equal parts", "nccl_exchange_runner:AllToAll",
        (_even, _since(_WHOLE, "all-to-all of its own", _NATIVE), nccl_sharing), Support.yes("", _NATIVE), _send,
    ),
    _on_gpus(
        "nccl_all_gather_select", "an all-gather of everything, of which each rank copies its parts",
        "exchange_runner:NcclByGather", (_since(_PLAIN, "sends and receives", _NCCL), nccl_sharing),
        Support.yes("n times the bytes of an all-to-all, in one step", _NCCL), _nccl_gathered, 8.0,
    ),
    _on_gpus(
        "nccl_reduce_scatter_place", "parts among zeros, summed by a reduce-scatter at whom they are for",
        "exchange_runner:NcclByReduce", (_since(_PLAIN, "sends and receives", _NCCL), nccl_sharing),
        Support.yes("n times the bytes of an all-to-all, in one step", _NCCL), _nccl_reduced, 8.0,
    ),
    replace(
        _on_gpus(
            "torch_all_to_all_vdev", "torch's device-side all-to-all over NVSHMEM", "nvshmem_runner:AllToAllVdev",
            (_own_gpu_each, one_host, needs_p2p, _nvshmem), Support.yes("", _NVSHMEM), _flagged,
        ),
        reference="https://github.com/pytorch/pytorch", max_calls=8,
    ),
    _on_gloo("gloo_all_to_all", "torch.distributed.all_to_all_single over gloo", "GlooAllToAll", _send),
    _on_gloo("gloo_all_gather_select", "gloo's all-gather, then copies of the own parts", "GlooByGather", _gathered),
    _on_gloo("gloo_reduce_scatter_place", "parts among zeros, gloo's reduce-scatter", "GlooByReduce", _reduced),
)  # fmt: skip
