"""What our own kernels share: when they run, and how their records are made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from collbench.algorithms.base import Algorithm
from collbench.algorithms.cuda.designs import FLOATS
from collbench.algorithms.cuda_support import may_start_early, number, ranks_share_gpu, refuse_elements, refuse_machine
from collbench.algorithms.epilogues import why_not
from collbench.algorithms.shapes import IN_PARTS, splits_problem
from collbench.contention.own_traffic import islands_of
from collbench.contention.traffic import Schedule
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["Takes", "cost_us", "environment", "own_algorithm", "own_support"]

_MOST_RANKS = 16
_LEAST_BYTES, _MOST_BYTES = 16, 8 << 20
_SINCE = 80
_EXTRA = "pip install 'collbench[cuda]'"


@dataclass(frozen=True, slots=True)
class Takes:
    """What a design of ours takes: its collective, element types, epilogues behind it, and parts of any length."""

    collective: Collective = Collective.ALL_REDUCE
    dtypes: tuple[str, ...] = FLOATS
    epilogues: tuple[str, ...] = ()
    splits: bool = False


_PLAIN = Takes()


def own_support(takes: Takes, machine: Machine, call: Call) -> Support:
    """Whether a design of ours runs: one host, GPUs that reach each other, 2 to 16 ranks, 16 bytes to 8 MiB."""
    refusals = (
        _refuse_collective(takes, call), refuse_elements(call, takes.dtypes), refuse_machine(machine),
        _refuse_software(machine), _refuse_call(call), _refuse_reach(machine),
    )  # fmt: skip
    return next((refusal for refusal in refusals if refusal is not None), Support.yes())


def _refuse_collective(takes: Takes, call: Call) -> Support | None:
    if call.collective is not takes.collective:
        return Support.no(f"{call.collective}: it is an algorithm for {takes.collective}")
    reduces = call.collective in {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER}
    if call.op != ("sum" if reduces else ""):
        return Support.no(f"{call.collective} with {call.op or 'no operation'}: only sums are built")
    splits = splits_problem(call) if takes.splits else "it knows no splits" if call.splits else ""
    if splits:
        return Support.no(splits)
    if call.epilogue and call.epilogue not in takes.epilogues:
        return Support.no(f"it knows no epilogue {call.epilogue}")
    reason = why_not(call)
    return Support.no(reason, "use whole rows") if reason else None


def _refuse_reach(machine: Machine) -> Support | None:
    if machine.hosts > 1:
        return Support.no(f"ranks on {machine.hosts} hosts: memory is shared within one host", "run on one host")
    if machine.facts.get("p2p") in {"ns", "off", "disabled"} and not ranks_share_gpu(machine):
        return Support.no("the GPUs cannot reach each other's memory (P2P is off)", "see collbench doctor about P2P")
    return None


def _refuse_software(machine: Machine) -> Support | None:
    for name in ("cuda-core", "cuda-bindings"):
        if name not in machine.software:
            return Support.no(f"{name} is not installed (extra cuda)", _EXTRA)
    if 0 < number(machine.arch) < _SINCE:
        return Support.no(f"{machine.arch} is older than sm_80", "use an Ampere GPU or a later one")
    return None


def _refuse_call(call: Call) -> Support | None:
    if call.world_size > _MOST_RANKS:
        return Support.no(f"{call.world_size} ranks: the kernels know at most {_MOST_RANKS}", "start fewer ranks")
    unit = call.itemsize * call.world_size
    if call.collective in IN_PARTS and call.bytes % unit and not call.splits:
        return Support.no(f"{call.bytes} bytes: not the same for every rank", f"use a multiple of {unit}")
    if call.collective is Collective.BARRIER:
        return None if call.bytes == unit else Support.no(f"{call.bytes} bytes: a barrier takes one element per rank")
    if not _LEAST_BYTES <= call.bytes <= _MOST_BYTES:
        return Support.no(f"{call.bytes} bytes: the kernels take 16 bytes to 8 MiB", "use a size in that range")
    return None


def environment(machine: Machine) -> Mapping[str, str]:
    """Variable of the workers: the groups of ranks below one switch, as `Islands.parse` reads them."""
    groups = islands_of(machine.topology, machine.ranks)
    return {"COLLBENCH_ISLANDS": ";".join(",".join(map(str, group)) for group in groups)}


def cost_us(call: Call, machine: Machine) -> float:
    """Time of one call for the plan, within a factor of 5."""
    del machine
    return 6.0 + call.bytes * call.world_size / 100_000


def own_algorithm(
    name: str,
    summary: str,
    reference: str,
    traffic: Callable[[Call, Topology], Schedule],
    runner: str,
    takes: Takes = _PLAIN,
) -> Algorithm:
    """The record of a design of ours: an algorithm of family `own` whose `runner` stands in `own_runners`."""
    return Algorithm(
        name=name, collective=takes.collective, summary=summary, reference=reference, traffic=traffic,
        support=partial(own_support, takes), runner=f"collbench.algorithms.own_runners:{runner}", family="own",
        imports=("torch",), environment=environment, cost_us=cost_us,
        starts_early=may_start_early,
    )  # fmt: skip
