"""Gloo through torch.distributed: what CPU ranks get by default, on one host or on several."""

from collbench.algorithms.base import Algorithm
from collbench.contention.traffic import Schedule, ring
from collbench.results.records import DTYPE_BYTES, Call, Collective, Mode, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "cost_us", "environment"]

_MAX_CALLS = 8
"""8 ranks on 2 cores take 16 ms a call: a chain of 122 would take 2 s a sample."""


def _traffic(call: Call, topology: Topology) -> Schedule:
    """Gloo's default, a ring that is pipelined over segments of the message (gloo/allreduce.cc)."""
    del topology
    return ring(call)


def _support(machine: Machine, call: Call) -> Support:
    if "torch" not in machine.software:
        return Support.no("torch is not installed", "pip install 'collbench[sweep]'")
    if call.collective is not Collective.ALL_REDUCE or call.op != "sum" or call.epilogue:
        what = " with ".join(filter(None, (f"{call.collective} ({call.op})", call.epilogue)))
        return Support.no(f"{what}: only all_reduce (sum) is set up")
    if call.dtype not in DTYPE_BYTES:
        return Support.no(f"dtype {call.dtype}: only {', '.join(DTYPE_BYTES)} are set up")
    if call.bytes < call.itemsize or call.bytes % call.itemsize:
        return Support.no(f"{call.bytes} bytes are no whole number of elements of {call.dtype}")
    return Support.yes()


def environment(machine: Machine) -> dict[str, str]:
    """Ranks of one host meet on the loopback: a host name that resolves is not needed, and nobody else can connect."""
    return {"GLOO_SOCKET_IFNAME": "lo"} if machine.hosts == 1 else {}


def cost_us(call: Call, machine: Machine) -> float:
    """400 us with 2 ranks and 16 to 30 ms with 8 on 2 cores, where ranks wait for each other's time slices."""
    del machine
    waiting = 400.0 if call.world_size <= 2 else 250.0 * call.world_size**2  # noqa: PLR2004 - a core for each of 2
    return waiting + call.bytes * call.world_size / 800


ALGORITHMS = (
    Algorithm(
        name="gloo",
        collective=Collective.ALL_REDUCE,
        summary="torch.distributed.all_reduce over gloo, which works in place: a copy of the input is part of a call",
        reference="https://docs.pytorch.org/docs/stable/distributed.html",
        traffic=_traffic,
        support=_support,
        runner="collbench.algorithms.gloo_runner:GlooRunner",
        family="gloo",
        device="cpu",
        modes=(Mode.EAGER,),
        imports=("torch", "torch.distributed"),
        environment=environment,
        max_calls=_MAX_CALLS,
        cost_us=cost_us,
    ),
)
