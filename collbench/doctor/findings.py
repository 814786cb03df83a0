"""Warnings about a machine: each says what is so, why it matters, and what to do."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collbench.algorithms.cuda_support import number
from collbench.doctor.driver import Card
from collbench.results.records import Fabric
from collbench.topology.discover import Discovery
from collbench.topology.graph import LinkKind
from collbench.topology.machine import Machine

__all__ = ["Finding", "machine_warnings", "warnings_of"]

_SEARCHED_FASTER, _SOCKETS_READ_ANEW = 100, (2, 31)
_LEAST_SHM_MIB = 1024
_SMALL_BAR1 = 0.5
_STAGED_MAJOR = 12
"""Major compute capability of the cards on which staging was reported."""

_FAR = {"PHB", "NODE", "SYS"}
"""Levels of `nvidia-smi topo -m` between which NCCL does not take P2P unless NCCL_P2P_LEVEL says so."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One warning: what is so, what to do, and who says so."""

    text: str
    remedy: str = ""
    source: str = ""

    @property
    def line(self) -> str:
        """Both in one line."""
        return f"{self.text}: {self.remedy}" if self.remedy else self.text


def warnings_of(
    machine: Machine, found: Discovery, cards: tuple[Card, ...], environ: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Warnings about this machine, the gravest first."""
    pairs = [
        *_pairs(found, environ),
        *_staged(machine, found),
        *machine_warnings(machine),
        *_cards(cards),
        *_host(machine),
    ]
    return tuple(dict.fromkeys(pairs))


def machine_warnings(machine: Machine) -> list[Finding]:
    """What a `Machine` alone tells, also one out of a stored run."""
    facts, gpus = machine.facts, machine.topology.gpus
    if not gpus or machine.fabric is Fabric.HOST:
        return []
    told = []
    if len(gpus) > 1 and facts.get("p2p", "ok") not in {"ok", "unknown"}:
        told.append(Finding(
            "some GPUs cannot reach each other's memory (P2P is off)",
            "NCCL goes through host memory and every algorithm that maps peers fails; GeForce drivers switch it off",
            "nvidia-smi topo -p2p",
        ))  # fmt: skip
    if facts.get("acs") == "on":
        told.append(Finding(
            "ACS redirects traffic between GPUs through the root port",
            "switch it off in the firmware or with setpci if no virtual machine needs it",
            "ACSCtl of the switches' ports; nccl issue 2079",
        ))  # fmt: skip
    if facts.get("iommu") == "on" and len(gpus) > 1:
        told.append(Finding(
            "the IOMMU is on: peer traffic may be redirected, slower or hang", "boot with iommu=pt, or switch it off",
            "/sys/class/iommu",
        ))  # fmt: skip
    told += _fallback(machine)
    told += _downtrained(machine)
    if facts.get("busy_gpus"):
        told.append(Finding(f"GPUs in use: {facts['busy_gpus']}", "end those processes before measuring", "NVML"))
    return told


def _fallback(machine: Machine) -> Iterable[Finding]:
    """NCCL up to 2.30 takes 16 GB/s between AMD sockets, below the slowest speed that it tries from sm_100 on."""
    facts, version = machine.facts, machine.version("nccl")
    sockets = facts.get("sockets", "")
    across = sockets.isdecimal() and int(sockets) > 1 and "AMD" in facts.get("cpu", "")
    new_gpu = number(machine.arch) >= _SEARCHED_FASTER
    if machine.fabric is Fabric.PCIE and across and new_gpu and version and version < _SOCKETS_READ_ANEW:
        told = machine.software["nccl"]
        yield Finding(
            f"NCCL {told} may find no ring between the sockets of this AMD machine and take its fallback of 0.1 GB/s, "
            "whose wrong idea of the bandwidth makes it choose Simple where LL is twice as fast",
            "look for 'falling back to simple order' in NCCL_DEBUG=INFO; NCCL 2.31 and later, or NCCL_PROTO=LL",
            "NCCL 2.30.7 search; nccl issue 2127, nccl-tests issue 287",
        )


def _downtrained(machine: Machine) -> Iterable[Finding]:
    ends = set(machine.topology.gpus)
    slow: dict[str, list[str]] = {}
    for link in machine.topology.links:
        if link.kind is not LinkKind.PCIE or not (link.generation and link.current_generation):
            continue
        lower = link.current_generation < link.generation
        narrower = 0 < link.current_width < link.width
        if (lower or narrower) and link.dst in ends:
            words = f"Gen{link.current_generation} x{link.current_width} instead of Gen{link.generation} x{link.width}"
            slow.setdefault(words, []).append(link.dst)
    for words, gpus in slow.items():
        yield Finding(
            f"{', '.join(gpus)} at {words}",
            "idle GPUs lower their speed: look again under load (collbench sweep does)",
            "PCIe link state",
        )  # fmt: skip


def _pairs(found: Discovery, environ: Mapping[str, str]) -> Iterable[Finding]:
    capture = found.capture
    if capture is None or not capture.pairs:
        return
    usable = {gpu.busid for gpu in capture.usable}
    far = [pair for pair in capture.pairs if pair.level in _FAR and {pair.a, pair.b} <= usable]
    joined = {(g.busid, link.remote) for g in capture.gpus for link in g.nvlinks} | {
        (a.busid, b.busid) for a, b in itertools.permutations(capture.gpus, 2) if a.nvlinks and b.nvlinks
    }
    far = [pair for pair in far if (pair.a, pair.b) not in joined]
    if far and "NCCL_P2P_LEVEL" not in environ:
        yield Finding(
            f"{len(far)} of {len(capture.pairs)} pairs of GPUs meet at a root port or beyond: NCCL sends between them "
            "through host memory (SHM) by default", "measure NCCL_P2P_LEVEL=SYS beside the default",
            "NCCL 2.30.7 paths.cc; nccl pull request 2080",
        )  # fmt: skip
    if len(usable) != len(capture.gpus):
        yield Finding(f"CUDA_VISIBLE_DEVICES shows {len(usable)} of {len(capture.gpus)} GPUs", "", "the environment")


def _staged(machine: Machine, found: Discovery) -> Iterable[Finding]:
    """RTX PRO 6000 without a common switch: loads of peers went through system memory, and nothing said so."""
    pairs = found.capture.pairs if found.capture is not None else ()
    direct = [pair for pair in pairs if pair.level in _FAR and pair.p2p.get("read") == "ok"]
    told = "ForceP2P" in machine.facts.get("driver_options", "")
    if direct and not told and number(machine.arch) // 10 == _STAGED_MAJOR and machine.fabric is Fabric.PCIE:
        yield Finding(
            f"{len(direct)} pairs of GPUs have no common switch, and the driver was loaded without ForceP2P: loads of "
            "a peer's memory may be staged through system memory (242 us instead of 16.5 were seen), while copies and "
            "NCCL are as fast as ever",
            "collbench probe tells (staging through system memory); if so, give nvidia.ko the registry key ForceP2P",
            "a public report on 4 x RTX PRO 6000, all-reduce of 114 KB",
        )  # fmt: skip


def _cards(cards: tuple[Card, ...]) -> Iterable[Finding]:
    if any(card.mig == "on" for card in cards):
        yield Finding("MIG is on: instances of one GPU have no P2P", "measure without MIG", "NVML")
    if any(card.compute_mode in {"exclusive process", "exclusive thread"} for card in cards):
        yield Finding("compute mode is exclusive: several ranks on one GPU cannot start", "use MPS", "NVML")
    if any(card.persistence == "off" for card in cards):
        yield Finding("persistence mode is off: the first call of a process is slow", "nvidia-smi -pm 1", "NVML")
    if any(0 < card.bar1_mib < _SMALL_BAR1 * card.memory_mib for card in cards) and len(cards) > 1:
        yield Finding(
            "BAR1 is smaller than the GPU's memory: peers cannot map all of it", "switch Resizable BAR on", "NVML"
        )


def _far_gpus(machine: Machine) -> Iterable[Finding]:
    """GPUs at NUMA nodes of which this process may use no processor."""
    allowed = set(filter(None, machine.facts.get("numa_allowed", "").split(",")))
    nodes = {gpu: machine.topology.node(gpu).attributes.get("numa", "") for gpu in machine.topology.gpus}
    far = [f"{gpu} at node {node}" for gpu, node in nodes.items() if node and node not in allowed]
    if allowed and far:
        yield Finding(
            f"{', '.join(far)}: this process may use processors of NUMA node {','.join(sorted(allowed))} only, so "
            "these ranks launch and wait from afar",
            "widen the container's cpuset, or start without numactl --cpunodebind", "/sys/devices/system/node",
        )  # fmt: skip


def _host(machine: Machine) -> Iterable[Finding]:
    facts = machine.facts
    shm = facts.get("shm_mib", "")
    if shm.isdecimal() and int(shm) < _LEAST_SHM_MIB:
        yield Finding(
            f"shared memory has {shm} MiB, and NCCL's transport through host memory lives there",
            "start the container with --shm-size=1g or --ipc=host", "statvfs",
        )  # fmt: skip
    if machine.topology.gpus and facts.get("pidfd", "ok") != "ok":
        yield Finding(
            f"a process may not take its neighbour's descriptors ({facts['pidfd']}): torch symmetric memory fails",
            "--cap-add SYS_PTRACE, or a seccomp profile with pidfd_getfd", "pytorch issue 129408",
        )  # fmt: skip
    yield from _far_gpus(machine)
    if facts.get("numa_balancing", "0") not in {"", "0"} and machine.topology.gpus:
        yield Finding(
            "automatic NUMA balancing is on: it moves pages under the ranks", "sysctl kernel.numa_balancing=0",
            "/proc/sys/kernel/numa_balancing",
        )  # fmt: skip
