"""Which calls the host family can take, and on which machines."""

from collbench.results.records import DTYPE_BYTES, Call, Collective, Support
from collbench.topology.machine import Machine

__all__ = ["MAX_BYTES", "MAX_RANKS", "ordered", "place_problem", "support"]

MAX_RANKS = 16
MAX_BYTES = 8 << 20


def support(machine: Machine, call: Call) -> Support:
    """See `Algorithm.support`."""
    problem = place_problem(machine) or _call(call)
    if problem:
        return Support.no(*problem)
    return ordered(machine)


def ordered(machine: Machine) -> Support:
    """The answer to a call that nothing forbids: of a processor that was not said, its memory ordering is not known."""
    if "host_arch" not in machine.facts:
        return Support.unknown("processor not known: memory ordering argued for x86-64 only")
    return Support.yes()


def place_problem(machine: Machine) -> tuple[str, str] | None:
    """Reason and remedy where ranks of this machine cannot share memory as the host family does."""
    if machine.hosts > 1:
        return f"ranks on {machine.hosts} hosts", "use gloo or nccl between hosts"
    arch = machine.facts.get("host_arch", "x86_64")
    return None if arch == "x86_64" else (f"memory ordering argued for x86-64 only, this is {arch}", "use gloo")


def _call(call: Call) -> tuple[str, str] | None:
    if not 1 <= call.world_size <= MAX_RANKS:
        return f"{call.world_size} ranks: host algorithms take 1 to {MAX_RANKS}", f"use at most {MAX_RANKS} ranks"
    if call.collective is not Collective.ALL_REDUCE or call.op != "sum" or call.epilogue:
        what = " with ".join(filter(None, (f"{call.collective} ({call.op})", call.epilogue)))
        return f"{what}: only all_reduce (sum) is implemented", ""
    if call.dtype not in DTYPE_BYTES:
        return f"dtype {call.dtype}: only {', '.join(DTYPE_BYTES)} are implemented", ""
    if not call.itemsize <= call.bytes <= MAX_BYTES or call.bytes % call.itemsize:
        return f"{call.bytes} bytes: host algorithms take whole elements up to {MAX_BYTES >> 20} MiB", ""
    return None
