"""What our own kernels share: when they run, and how their records are made."""

from collections.abc import Callable, Mapping
from functools import partial

from collbench.algorithms.base import Algorithm
from collbench.algorithms.cuda_support import number, ranks_share_gpu, refuse
from collbench.contention.own_traffic import islands_of
from collbench.contention.traffic import Schedule
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["FLOATS", "cost_us", "own_algorithm", "own_support"]

FLOATS = ("bfloat16", "float16", "float32")
"""Element types of designs whose data announces itself: -0.0 means "not yet written"."""

_MOST_RANKS = 16
_LEAST_BYTES, _MOST_BYTES = 16, 8 << 20
_SINCE = 80
_EXTRA = "pip install 'collbench[cuda]'"


def own_support(dtypes: tuple[str, ...], machine: Machine, call: Call) -> Support:
    """Whether a design of ours runs: one host, GPUs that reach each other, 2 to 16 ranks, 16 bytes to 8 MiB."""
    refusals = (refuse(machine, call, dtypes), _refuse_software(machine), _refuse_call(call), _refuse_reach(machine))
    return next((refusal for refusal in refusals if refusal is not None), Support.yes())


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
    dtypes: tuple[str, ...] = FLOATS,
) -> Algorithm:
    """The record of a design of ours: an all-reduce of family `own` whose `runner` stands in `own_runners`."""
    return Algorithm(
        name=name, collective=Collective.ALL_REDUCE, summary=summary, reference=reference, traffic=traffic,
        support=partial(own_support, dtypes), runner=f"collbench.algorithms.own_runners:{runner}", family="own",
        imports=("torch",), environment=environment, cost_us=cost_us,
    )  # fmt: skip
