"""Systems that collbench knows and cannot run yet: when they work, who says so, and what they send.

Such a record has no runner. `base.registry` leaves it out and `base.known_systems` holds it, so that the doctor answers
for it while a sweep does not offer it (docs/decisions/0005-known-systems.md).
"""

from collections.abc import Callable, Sequence
from functools import partial

from collbench.algorithms.base import Algorithm
from collbench.algorithms.cuda_support import number, ranks_share_gpu, version_text
from collbench.algorithms.nccl import MULTI_RANK_SINCE
from collbench.contention.traffic import Schedule
from collbench.results.records import Answer, Call, Collective, Fabric, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = [
    "ASSUMED",
    "NOTHING_AGAINST",
    "Check",
    "at_least",
    "full_nvlink",
    "is_assumed",
    "nccl_sharing",
    "needs_arch",
    "needs_bytes",
    "needs_gpus",
    "needs_multicast",
    "needs_p2p",
    "needs_package",
    "needs_ranks",
    "no_remote_atomics",
    "one_host",
    "own_gpus",
    "sharing_unsaid",
    "system",
    "verdict",
]  # fmt: skip

Check = Callable[[Machine, Call], Support | None]
"""One fact about a system: what it says of this machine and call, None where it has nothing against them."""

ASSUMED = "assumed"
"""Fact of a machine that somebody described: what is not named there is not known, rather than not installed."""

NOTHING_AGAINST = "nothing that is known stands against it"

_SWITCHED_OFF = frozenset({"ns", "off", "disabled"})


def is_assumed(machine: Machine) -> bool:
    """Whether the machine was described by options instead of being looked at."""
    return machine.facts.get(ASSUMED) == "yes"


def full_nvlink(machine: Machine) -> bool:
    """Whether every pair of ranks is joined by NVLink."""
    return machine.fabric is Fabric.NVLINK


def at_least(machine: Machine, package: str, version: tuple[int, ...]) -> bool | None:
    """Whether a package is of this version or a later one; None where its version is not known."""
    found = machine.version(package)
    return None if not found else found >= version


def verdict(checks: Sequence[Check], fine: Support, machine: Machine, call: Call) -> Support:
    """The first fact that forbids it, else the first that leaves it open, else `fine`."""
    found = [answer for check in checks if (answer := check(machine, call)) is not None]
    open_ = [answer for answer in found if answer.answer is Answer.UNKNOWN]
    forbidden = [answer for answer in found if answer.answer is Answer.DOES_NOT_RUN]
    return next(iter(forbidden), next(iter(open_), fine))


def needs_gpus(machine: Machine, call: Call) -> Support | None:
    """A GPU of NVIDIA's for every rank."""
    del call
    gpus, per_host = len(machine.topology.gpus), -(-machine.ranks // max(1, machine.hosts))
    if not gpus:
        return Support.no("no CUDA device", "run on a machine with an NVIDIA GPU")
    if machine.ranks < 2:  # noqa: PLR2004 - a rank and its peer
        return Support.no("one rank has no peer", "start at least 2 ranks")
    if per_host > gpus and not machine.share_gpu:
        return Support.no(f"{per_host} ranks on {gpus} GPU(s)", "start as many ranks as GPUs")
    return None


def own_gpus(name: str, source: str) -> Check:
    """Frameworks that start one rank per GPU never share one."""

    def check(machine: Machine, call: Call) -> Support | None:
        del call
        if not ranks_share_gpu(machine):
            return None
        return Support.no(f"{name} starts one rank per GPU, and these ranks share one", "use one GPU per rank", source)

    return check


def sharing_unsaid(name: str, source: str) -> Check:
    """Whether several ranks on one GPU work is not known of libraries that nobody has run so.

    Those without this check were: docs/measurements/systems.md has their times.
    """

    def check(machine: Machine, call: Call) -> Support | None:
        del call
        if not ranks_share_gpu(machine):
            return None
        return Support.unknown(f"whether {name} takes several ranks on one GPU is not known", "", source)

    return check


def nccl_sharing(machine: Machine, call: Call) -> Support | None:
    """NCCL takes several ranks on one GPU from one release on."""
    del call
    if not ranks_share_gpu(machine):
        return None
    new = at_least(machine, "nccl", MULTI_RANK_SINCE)
    since = version_text(MULTI_RANK_SINCE)
    if new is None:
        return Support.unknown("the version of NCCL is not known, and it decides over ranks that share a GPU")
    if new:
        return None
    reason = f"NCCL {machine.software['nccl']} refuses several ranks on one GPU; {since} and later take them"
    return Support.no(reason, f"install NCCL {since} or later", "NCCL issues 231, 418 and 1716")


def one_host(machine: Machine, call: Call) -> Support | None:
    """What maps its peers' memory needs them on the same host."""
    del call
    return Support.no(f"ranks on {machine.hosts} hosts", "run on one host") if machine.hosts > 1 else None


def needs_package(package: str, remedy: str) -> Check:
    """Installed here; of a described machine nobody says that it is not."""

    def check(machine: Machine, call: Call) -> Support | None:
        del call
        if package in machine.software or is_assumed(machine):
            return None
        return Support.no(f"{package} is not installed", remedy)

    return check


def needs_ranks(name: str, allowed: tuple[int, ...], source: str) -> Check:
    """Kernels that exist for some world sizes only."""

    def check(machine: Machine, call: Call) -> Support | None:
        del machine
        if call.world_size in allowed:
            return None
        words = ", ".join(map(str, allowed))
        return Support.no(f"{name} is built for {words} ranks, not {call.world_size}", f"start {words} ranks", source)

    return check


def needs_bytes(name: str, most: int, multiple: int, source: str) -> Check:
    """A largest message, and a multiple that every message must be."""

    def check(machine: Machine, call: Call) -> Support | None:
        del machine
        if call.bytes % multiple:
            return Support.no(f"{call.bytes} bytes: {name} takes multiples of {multiple} bytes", "pad it", source)
        if call.bytes > most:
            return Support.no(f"{call.bytes} bytes: {name} takes up to {most} bytes", "leave these to NCCL", source)
        return None

    return check


def needs_p2p(machine: Machine, call: Call) -> Support | None:
    """Memory of every peer mapped: off in some drivers (GeForce), in some virtual machines, behind some switches."""
    del call
    if ranks_share_gpu(machine):
        return None
    if machine.facts.get("p2p") in _SWITCHED_OFF:
        return Support.no("the GPUs cannot reach each other's memory (P2P is off)", "see the warnings of this command")
    return None


def no_remote_atomics(name: str, source: str) -> Check:
    """Read-modify-write on a peer's memory, which PCIe does not give atomicity for."""

    def check(machine: Machine, call: Call) -> Support | None:
        del call
        if machine.fabric not in {Fabric.PCIE, Fabric.MIXED} or machine.facts.get("p2p_atomics") == "ok":
            return None
        reason = (
            f"{name} advances semaphores on the peer by atomic additions, which CUDA does not support between GPUs "
            "without native P2P atomics, as on PCIe: a wait for them may never end"
        )
        return Support.no(reason, "use a design that only stores to its peers, with the flag in the data", source)

    return check


def needs_multicast(name: str, source: str) -> Check:
    """NVLink multicast, which only GPUs behind an NVSwitch have."""

    def check(machine: Machine, call: Call) -> Support | None:
        del call
        told = machine.facts.get("multicast", "unknown")
        if not full_nvlink(machine) or told in {"no", "ns", "unsupported"}:
            reason = f"{name} needs NVLink multicast, and fabric {machine.fabric} has none"
            return Support.no(reason, "use GPUs behind an NVSwitch, or an algorithm that needs none", source)
        if told == "unknown" and machine.facts.get("nvswitch") != "yes":
            reason = f"{name} needs NVLink multicast, which GPUs behind an NVSwitch have; nobody said if there is one"
            return Support.unknown(reason, "collbench topo on that machine shows it", source)
        return None

    return check


def needs_arch(name: str, majors: tuple[int, ...], remedy: str, source: str) -> Check:
    """Built or listed for some major compute capabilities only."""

    def check(machine: Machine, call: Call) -> Support | None:
        del call
        arch = number(machine.arch)
        if arch and arch // 10 in majors:
            return None
        listed = ", ".join(f"{major}.x" for major in majors)
        if not arch:
            return Support.unknown(f"{name} knows compute capabilities {listed}, and this one is not known", "", source)
        return Support.no(f"{name} knows compute capabilities {listed}, not {arch / 10:.1f}", remedy, source)

    return check


def system(
    name: str,
    summary: str,
    reference: str,
    checks: Sequence[Check],
    fine: Support,
    traffic: Callable[[Call, Topology], Schedule],
    *,
    family: str,
    collective: Collective = Collective.ALL_REDUCE,
) -> Algorithm:
    """The record of a system without a runner: its checks behind those that every system on GPUs asks."""
    return Algorithm(
        name=name, collective=collective, summary=summary, reference=reference, traffic=traffic,
        support=partial(verdict, (needs_gpus, *checks), fine), runner="", family=family,
    )  # fmt: skip
