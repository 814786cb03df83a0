"""What was found out about a machine, by names for people, in the order in which they are read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collbench.algorithms.known_system import is_assumed
from collbench.doctor.driver import Card
from collbench.topology.machine import Machine
from collbench.topology.nvml import NvmlCapture
from collbench.wording import first_few

__all__ = ["facts_of", "pairs_of"]

_KINDS = ("read", "write", "atomics")
_LISTED = 6
"""Pairs of GPUs that are named where some have P2P and some do not."""


def facts_of(machine: Machine, cards: Iterable[Card] = (), pairs: Sequence[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Facts by name; none is empty. `pairs` are rows of `pairs_of`."""
    software, facts, cards = machine.software, machine.facts, tuple(cards)
    told = {
        "GPUs": _models(machine, cards), "compute capability": facts.get("archs") or machine.arch,
        "driver": software.get("driver", ""), "driver options": facts.get("driver_options", ""),
        "CUDA": _both("torch", software.get("cuda"), "driver", software.get("cuda-driver")),
        "torch": software.get("torch", "not said" if is_assumed(machine) else "not installed"),
        "NCCL": _both("package", software.get("nccl"), "loaded", software.get("nccl-loaded")),
        "fabric": str(machine.fabric), "P2P": _p2p(pairs) or _p2p_word(machine), "links": _links(machine),
        "BAR1": _set(f"{card.bar1_mib} MiB" for card in cards if card.bar1_mib),
        "persistence": _set(card.persistence for card in cards),
        "compute mode": _set(card.compute_mode for card in cards),
        "MIG": _set(card.mig for card in cards), "ACS": facts.get("acs", ""), "IOMMU": facts.get("iommu", ""),
        "MPS": facts.get("mps", ""), "shared memory": f"{facts['shm_mib']} MiB" if "shm_mib" in facts else "",
        "descriptors of peers": facts.get("pidfd", ""), "ptrace scope": facts.get("ptrace_scope", ""),
        "seccomp": facts.get("seccomp", ""), "container": facts.get("container", ""),
        "processors": facts.get("cpus") or facts.get("threads", ""), "NUMA nodes": facts.get("numa_nodes", ""),
        "NUMA binding": _numa(machine),
    }  # fmt: skip
    return {name: value for name, value in told.items() if value}


def pairs_of(capture: NvmlCapture | None) -> list[dict[str, Any]]:
    """Every pair of GPUs by index, with the level at which they meet and the driver's words on P2P between them."""
    if capture is None:
        return []
    index = {gpu.busid: gpu.index for gpu in capture.gpus}
    return [
        {"a": index[pair.a], "b": index[pair.b], "level": pair.level} | {k: pair.p2p.get(k, "") for k in _KINDS}
        for pair in capture.pairs
        if {pair.a, pair.b} <= set(index)
    ]


def _models(machine: Machine, cards: Sequence[Card]) -> str:
    gpus = machine.topology.gpus
    named = {machine.topology.node(gpu).attributes.get("model", "") for gpu in gpus}
    models = sorted(filter(None, {card.model for card in cards} or named))
    return f"{len(gpus)}{' x ' if models else ''}{', '.join(models)}"


def _both(one: str, first: str | None, other: str, second: str | None) -> str:
    parts = [f"{version} ({name})" for name, version in ((one, first), (other, second)) if version]
    return ", ".join(parts)


def _set(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _p2p(pairs: Sequence[Mapping[str, Any]]) -> str:
    """How many pairs can read, write, and do atomics on each other's memory, and which ones cannot."""
    parts = []
    for kind in _KINDS if pairs else ():
        said = [pair for pair in pairs if pair[kind]]
        bad: dict[str, list[str]] = {}
        for pair in said:
            if pair[kind] != "ok":
                bad.setdefault(pair[kind], []).append(f"{pair['a']}-{pair['b']}")
        good = len(said) - sum(map(len, bad.values()))
        why = "; ".join(f"{state}{_which(names) if good else ''}" for state, names in bad.items())
        parts.append(f"{kind} {good} of {len(pairs)} pairs" + (f" ({why})" if why else ""))
    return "; ".join(parts)


def _which(names: Sequence[str]) -> str:
    return f": {first_few(names, _LISTED)}"


def _p2p_word(machine: Machine) -> str:
    """Of a run, whose record has one word for all pairs."""
    words = [f"{name} {machine.facts[fact]}" for name, fact in (("memory", "p2p"), ("atomics", "p2p_atomics"))
             if fact in machine.facts]  # fmt: skip
    unsaid = is_assumed(machine) and "p2p" not in machine.facts  # what the fabric alone says was not found out
    return ", ".join(words) if machine.topology.gpus and not unsaid else ""


def _links(machine: Machine) -> str:
    ends = set(machine.topology.gpus)
    found: dict[str, int] = {}
    for link in machine.topology.links:
        if link.dst in ends and link.kind == "pcie" and link.generation and link.current_generation:
            words = (
                f"Gen{link.current_generation} x{link.current_width} now, Gen{link.generation} x{link.width} at best"
            )
            found[words] = found.get(words, 0) + 1
    return "; ".join(words if len(found) == 1 else f"{count} x {words}" for words, count in sorted(found.items()))


def _numa(machine: Machine) -> str:
    """On which NUMA node each GPU is, and on which ones this process may run."""
    nodes: dict[str, list[str]] = {}
    for gpu in machine.topology.gpus:
        nodes.setdefault(machine.topology.node(gpu).attributes.get("numa", ""), []).append(gpu)
    parts = [f"{', '.join(gpus)} at node {node}" for node, gpus in nodes.items() if node]
    allowed = machine.facts.get("numa_allowed", "")
    return "; ".join([*parts, f"processors of node {allowed} allowed"] if parts and allowed else parts)
