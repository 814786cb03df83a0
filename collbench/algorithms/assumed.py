"""What a machine is assumed to be when only its topology is known: software, facts, and what does not run there."""

from dataclasses import replace

from collbench.algorithms.base import Algorithm
from collbench.contention.patterns import through_host
from collbench.contention.traffic import Schedule
from collbench.results.records import Call, Fabric
from collbench.topology.gpus import SWITCHED_OFF, has_peer_access, vendor
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine
from collbench.topology.models import arch_of

__all__ = ["OWN", "assumed_machine", "notes", "traffic_of", "usual", "why_foreign"]

_SOFTWARE = {
    "torch": "2.13.0", "cuda": "13.0", "nccl": "2.30.7", "cuda-core": "1.0", "cuda-bindings": "13.0", "nvcc": "13.0",
    "flashinfer": "1.0", "flashinfer-headers": "assumed",
}  # fmt: skip
_USUAL_ARCH = "sm_90"
OWN = "own"
"""Family of our own algorithms: their traffic is predicted even where our kernels do not run."""

_LAUNCHERS = {OWN: OWN, "nccl": "torch", "symm": "torch", "expert": "torch"}
_LIBRARY = "library"
"""Whose host code launches, by family; libraries have operators of their own."""

_MOST_PEERS = 8
"""Peers whose memory one GPU maps where there is no NVSwitch (CUDA programming guide, peer-to-peer memory access)."""


_STAGED = (
    "no peer access: all bytes go through host memory, where NCCL was seen to carry 2 to 30 GB/s; links are taken at "
    "the rate of copies, so large messages may take far longer; small ones are written to memory and polled from "
    "there, NCCL's own part is taken as with peer access, and nobody has published times of them: measure"
)
"""1.9 GB/s between RTX 5070 Ti, Gen4 x16 (sgl-project/sglang pull request 39605), 3.8 between RTX 2080 Ti, about 30 on
EPYC 9575F (local-inference-lab/rtx6kpro, optimization/pcie-oneshot-allreduce.md)."""


def assumed_machine(topology: Topology, fabric: Fabric, ranks: int) -> Machine:
    """The machine of a topology: recent software, peer access as the topology says, NVIDIA's cards by their name."""
    archs = {arch_of(topology.node(gpu).attributes.get("model", "")) for gpu in topology.gpus}
    arch = archs.pop() if len(archs) == 1 else ""
    facts = {
        "p2p": "ok" if has_peer_access(topology) else "off",
        "arch": arch or _USUAL_ARCH,
        "assumed": "yes",
    }
    return Machine(topology, fabric, ranks, software=_SOFTWARE, facts=facts)


def usual(machine: Machine) -> Machine:
    """The same machine with cards on which our kernels run."""
    return replace(machine, facts={**machine.facts, "arch": _USUAL_ARCH})


def why_foreign(algorithm: Algorithm, topology: Topology) -> str:
    """Why other people's software does not run on the cards of another vendor; empty where nothing is in the way."""
    made = vendor(topology)
    if made in {"", "NVIDIA"} or algorithm.family == OWN:
        return ""
    return f"made for NVIDIA's GPUs, and these are {made}'s"


def traffic_of(algorithm: Algorithm, call: Call, machine: Machine) -> Schedule:
    """Its schedule on this machine: who launches it, whether early, and through host memory if need be."""
    launcher, early = _LAUNCHERS.get(algorithm.family, _LIBRARY), algorithm.starts_early(machine)
    traffic = algorithm.traffic(call, machine.topology)
    schedule = replace(traffic, launcher=launcher, early=early, epilogue=bool(call.epilogue))
    apart = machine.facts.get("p2p") in SWITCHED_OFF or not has_peer_access(machine.topology)
    return through_host(schedule) if apart else schedule


def notes(topology: Topology, fabric: Fabric, ranks: int) -> tuple[str, ...]:
    """What a reader of predictions should know of this topology."""
    made = vendor(topology)
    found = []
    if not has_peer_access(topology):
        found.append(_STAGED)
    if made not in {"", "NVIDIA"}:
        found.append(f"these GPUs are {made}'s, for which collbench has no kernels: rows say what such traffic costs")
    if fabric is Fabric.MIXED:
        found.append("rings and chains go in rank order here; NCCL orders its own along NVLinks and may be faster")
    if fabric is Fabric.PCIE and ranks - 1 > _MOST_PEERS:
        found.append(
            f"CUDA maps at most {_MOST_PEERS} peers per GPU without NVSwitch: "
            f"kernels that map all {ranks - 1} may not run"
        )
    return tuple(found)
