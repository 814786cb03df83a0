"""Whether another tool's output can be of a topology at all."""

from pathlib import Path

from collbench.errors import InvalidError
from collbench.interop.pair_probes import PairProbes
from collbench.results.probes import Probe
from collbench.topology.discover import cuda_gpus
from collbench.topology.elements import LinkKind
from collbench.topology.graph import Topology, TopologyError
from collbench.topology.pcie import payload_gbps

__all__ = ["refuse_other_machine"]

_ABOVE = 1.3
"""Times what a link is known to carry, above which a copy cannot have gone over it."""

_BELOW = 0.25
"""Part of what NVLink carries, below which a copy hardly went over it."""


def refuse_other_machine(origin: Path, found: PairProbes, topology: Topology) -> list[str]:
    """Refuse another tool's output that cannot be of this topology; gives what is odd, as sentences.

    Raises:
        InvalidError: the topology has no NVIDIA GPU, or less fits through its links than was measured.
    """
    name = topology.name or "(unnamed)"
    if topology.gpus and not cuda_gpus(topology):
        model = topology.node(topology.gpus[0]).attributes.get("model", "other GPUs")
        raise InvalidError(
            f"{origin}: {found.tool} runs on NVIDIA's GPUs, and topology {name} has {len(topology.gpus)} x {model}: "
            "file and topology do not fit"
        )
    odd = []
    for probe in found.probes:
        if probe.pattern != "solo" or not probe.value or (limit := _limit(topology, probe)) is None:
            continue
        most, is_fast = limit
        text = f"{probe.value:.4g} GB/s from GPU {probe.src} to GPU {probe.dst}, and the links of topology {name} "
        if probe.value > _ABOVE * most:
            raise InvalidError(f"{origin}: {text}between them carry {most:.4g} GB/s: file and topology do not fit")
        if is_fast and probe.value < _BELOW * most:
            odd.append(f"{text}between them carry {most:.4g} GB/s: file and topology may not fit")
    return [*_fewer(found, topology), *odd[:1]]


def _fewer(found: PairProbes, topology: Topology) -> list[str]:
    """Which GPUs the file's stand for, where it has not all of them: numbers of devices say nothing of places."""
    ranks = sorted({rank for probe in found.probes for flow in probe.flows for rank in flow})
    if not 0 < len(ranks) < len(topology.gpus):
        return []
    some = ", ".join(topology.gpus[rank] for rank in ranks)
    return [f"{len(ranks)} of {len(topology.gpus)} GPUs are in the file, taken for {some}: are they these?"]


def _limit(topology: Topology, probe: Probe) -> tuple[float, bool] | None:
    """GB/s of the slowest link on the way whose speed is known, and whether the way is all NVLink."""
    try:
        links = topology.route(topology.gpus[probe.src], topology.gpus[probe.dst])
    except TopologyError:
        return None
    devices = {LinkKind.PCIE, LinkKind.NVLINK}
    rates = [
        rate
        for link in links
        if link.kind in devices
        and (rate := (link.kind is LinkKind.PCIE and payload_gbps(link.generation, link.width)) or link.capacity_gbps)
    ]
    return (min(rates), all(link.kind is LinkKind.NVLINK for link in links)) if rates else None
