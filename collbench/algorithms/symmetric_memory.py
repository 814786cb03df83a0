"""torch's symmetric-memory all-reduces: one-shot and two-shot pulls behind signal pads, and the multicast one.

What they launch, need and refuse stands in torch's CUDASymmetricMemoryOps.cu and CUDASymmetricMemory.cu (2.9 to
2.14): element types float32 and bfloat16, sizes in multiples of 4 bytes, and per block a compare-and-swap on the signal
pad of each peer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from collbench.algorithms.base import Algorithm
from collbench.algorithms.cuda_support import number, ranks_share_gpu, refuse
from collbench.contention.traffic import Flow, Move, Phase, Schedule, one_stage, two_stage
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "DTYPES", "Launch", "launch_size"]

DTYPES = ("float32", "bfloat16")

_TWO_SHOT_RANKS = (2, 4, 8)
"""World sizes for which torch builds the out-of-place two-shot kernel."""

_PAD_BYTES = 9216
"""torch's default signal pad: 32 blocks x 72 ranks x 4 bytes."""

_WARP = 32
_SIGNAL_BYTES = 4
_SINCE = (2, 9)
_BFLOAT16_ADD_SINCE = 80
_MULTICAST_SINCE = 90

_REFERENCE = "https://github.com/pytorch/pytorch/tree/main/torch/csrc/distributed/c10d/symm_mem"
_MULTICAST_OFF = "NVLink multicast is off (TORCH_SYMM_MEM_DISABLE_MULTICAST=1)"


@dataclass(frozen=True, slots=True)
class Launch:
    """Grid of one kernel: `blocks` x `threads`."""

    blocks: int
    threads: int


_LIMITS = {"one_shot": Launch(24, 512), "two_shot": Launch(24, 1024), "multimem": Launch(8, 1024)}
"""Largest grid of each kernel."""


def launch_size(kind: str, call: Call) -> Launch:
    """The grid that torch launches for this call: one vector of up to 16 bytes per thread until the largest grid."""
    limit = _LIMITS[kind]
    vector = next(size for size in (16, 8, 4) if call.bytes % size == 0)
    splits = call.world_size if kind == "two_shot" else 1
    # torch rounds elements up to a multiple of the vector's bytes, not of its elements
    per_split = -(-call.count // (vector * splits)) * vector
    per_thread = vector // call.itemsize
    vectors = -(-per_split // per_thread)
    if vectors <= limit.threads:
        return Launch(1, -(-vectors // _WARP) * _WARP)
    return Launch(min(-(-vectors // limit.threads), limit.blocks), limit.threads)


def _support(kind: str, machine: Machine, call: Call) -> Support:
    checks = (partial(refuse, dtypes=DTYPES), _refuse_common, _refuse_memory, _REFUSE_KIND[kind])
    for check in checks:
        refused = check(machine, call)
        if refused is not None:
            return refused
    if machine.facts.get("p2p_atomics") == "ns" and not ranks_share_gpu(machine):
        return Support.unknown(
            "its signal pads need compare-and-swap on the peer's memory, and these GPUs have no native P2P atomics",
            "prefer an algorithm that only stores to its peers", "CUDA programming guide, system-scope atomics",
        )  # fmt: skip
    return Support.yes()


def _refuse_common(machine: Machine, call: Call) -> Support | None:
    if (machine.version("torch") or _SINCE) < _SINCE:
        return Support.no(f"torch {machine.software['torch']} is older than 2.9", "install torch 2.9 or later")
    if machine.hosts > 1:
        return Support.no(f"ranks on {machine.hosts} hosts", "run on one host")
    if call.bytes % _SIGNAL_BYTES:
        return Support.no(f"{call.bytes} bytes are no multiple of 4", "use a size that is a multiple of 16 bytes")
    if call.dtype == "bfloat16" and 0 < number(machine.arch) < _BFLOAT16_ADD_SINCE:
        return Support.no(f"{machine.arch} cannot add bfloat16", "use float32, or a GPU from sm_80 on")
    return None


def _refuse_memory(machine: Machine, call: Call) -> Support | None:
    most = max(limit.blocks for limit in _LIMITS.values())
    if most * call.world_size * _SIGNAL_BYTES > _PAD_BYTES:
        return Support.no(
            f"the signal pad of {_PAD_BYTES} bytes holds {most} blocks of at most "
            f"{_PAD_BYTES // (most * _SIGNAL_BYTES)} ranks", "start fewer ranks",
        )  # fmt: skip
    if machine.facts.get("p2p") in {"ns", "off", "disabled"} and not ranks_share_gpu(machine):
        return Support.no("the GPUs cannot reach each other's memory (P2P is off)", "see collbench doctor about P2P")
    return None


def _refuse_two_shot(machine: Machine, call: Call) -> Support | None:
    del machine
    if call.world_size in _TWO_SHOT_RANKS:
        return None
    return Support.no(
        f"torch builds the two-shot kernel for 2, 4 and 8 ranks, not {call.world_size}", "start 2, 4 or 8"
    )


def _refuse_multimem(machine: Machine, call: Call) -> Support | None:
    del call
    if 0 < number(machine.arch) < _MULTICAST_SINCE:
        return Support.no(f"{machine.arch} has no NVLink multicast", "use GPUs from sm_90 on behind an NVSwitch")
    if ranks_share_gpu(machine):
        return Support.no("NVLink multicast joins different GPUs, and these ranks share one", "start one rank per GPU")
    if machine.facts.get("multicast") in {"ns", "no", "unsupported"}:
        return Support.no("no multicast on this device", "use GPUs behind an NVSwitch")
    return Support.no(_MULTICAST_OFF, "collbench keeps multicast off in every environment that it builds")


_REFUSE_KIND: dict[str, Callable[[Machine, Call], Support | None]] = {
    "one_shot": lambda _machine, _call: None,
    "two_shot": _refuse_two_shot,
    "multimem": _refuse_multimem,
}


def _environment(machine: Machine) -> dict[str, str]:
    variables = {
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        # one allocation per runner, as asked for: a pool would hand out parts of larger ones
        "TORCH_SYMMMEM_IMPLICIT_POOL": "0",
    }
    if machine.hosts == 1:
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    if ranks_share_gpu(machine):
        variables["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    return variables


def _one_shot(call: Call, topology: Topology) -> Schedule:
    del topology
    return one_stage(call, Move.PULL, syncs=2, protocol="signal pads")


def _two_shot(call: Call, topology: Topology) -> Schedule:
    """Pulls in both stages, a barrier behind the second one, and the copy into the symmetric buffer in front."""
    del topology
    schedule = two_stage(call, Move.PULL, protocol="signal pads")
    last = schedule.phases[-1]
    return replace(schedule, phases=(*schedule.phases[:-1], replace(last, syncs=last.syncs + 1)), launches=2)


def _multimem(call: Call, topology: Topology) -> Schedule:
    """The switch sums, so each rank receives one message; what leaves each port is read n times, in fact."""
    del topology
    n = call.world_size
    part = call.bytes / max(1, n - 1)
    flows = tuple(Flow(src, dst, part, Move.PULL) for src in range(n) for dst in range(n) if src != dst)
    return Schedule((Phase(flows, syncs=2, label="reduce in the switch"),), protocol="multicast")


def _cost_us(call: Call, machine: Machine) -> float:
    del machine
    return 9.0 + call.bytes * call.world_size / 200_000


def _algorithm(kind: str, summary: str, schedule: Callable[[Call, Topology], Schedule], runner: str) -> Algorithm:
    return Algorithm(
        name=f"symm_{kind}", collective=Collective.ALL_REDUCE, summary=summary, reference=_REFERENCE,
        traffic=schedule, support=partial(_support, kind),
        runner=f"collbench.algorithms.symmetric_memory_runner:{runner}", family="symm",
        imports=("torch", "torch.distributed", "torch.distributed._symmetric_memory"),
        environment=_environment, cost_us=_cost_us,
    )  # fmt: skip


ALGORITHMS = (
    _algorithm("one_shot", "every rank pulls and sums all messages", _one_shot, "OneShot"),
    _algorithm("two_shot", "pulls its share, then pulls the others' sums; behind a copy", _two_shot, "TwoShot"),
    _algorithm("multimem", "loads sums from the NVSwitch (multicast)", _multimem, "Multimem"),
)
