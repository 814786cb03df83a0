"""This machine: what was found out, and warnings about what makes collectives slow or impossible."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from collbench.doctor import driver
from collbench.doctor.container import host_state
from collbench.doctor.findings import Finding, warnings_of
from collbench.topology.discover import Discovery, discover
from collbench.topology.discover import machine as make_machine
from collbench.topology.machine import Machine

__all__ = ["Here", "look"]

_DEADLINE_S = 1.5
_DEEP_S = 8.0
_DEFAULT_RANKS = 8
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Here:
    """The machine, facts to print in order, warnings, and what was not found out."""

    machine: Machine
    facts: Mapping[str, str]
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]


def look(
    ranks: int | None = None,
    *,
    share_gpu: bool = False,
    deep: bool = False,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    library: Any = None,  # noqa: ANN401 - pynvml has no types
) -> Here:
    """Look at this machine without touching memory of a GPU: everything is read, or asked of NVML in other processes.

    `ranks` defaults to one per GPU, 8 with fewer than two GPUs. `deep` also loads torch and libnccl, in a process of
    their own, and gives slow drivers more time. Every source has a deadline and costs nothing but itself.
    """
    deadline_s = _DEEP_S if deep else _DEADLINE_S
    asked = _later(lambda: _cards(library, deadline_s, root))
    loaded = _later(lambda: _loaded(deadline_s) if deep else {})
    found = discover(root, environ, library, deadline_s)
    state = host_state(root, environ)
    gpus = len(found.topology.gpus)
    machine = make_machine(ranks or (gpus if gpus > 1 else _DEFAULT_RANKS), 1, share_gpu, found)
    cards, libraries = asked(), loaded()
    machine = replace(machine, software={**machine.software, **libraries}, facts={**machine.facts, **state})
    missing = [f"{row.name}: {row.reason}" for row in found.sources if row.status == "failed"]
    missing += [f"driver: {cards}"] if isinstance(cards, str) and cards else []
    known = () if isinstance(cards, str) else cards
    return Here(machine, _facts(machine, found, known), warnings_of(machine, found, known, environ), tuple(missing))


def _later(function: Callable[[], _Answer]) -> Callable[[], _Answer]:
    """Start a function beside the rest; what is given back waits for its answer."""
    answers: list[_Answer] = []
    thread = threading.Thread(target=lambda: answers.append(function()), daemon=True)
    thread.start()

    def wait() -> _Answer:
        thread.join()
        return answers[0]

    return wait


def _cards(library: Any, deadline_s: float, root: Path) -> tuple[driver.Card, ...] | str:  # noqa: ANN401 - see look
    from collbench.topology import nvml

    if library is not None:
        try:
            return tuple(driver.query(library))
        except Exception as error:  # noqa: BLE001 - NVML's own classes of every version
            return f"{type(error).__name__}: {error}"
    return driver.ask(deadline_s) if nvml.is_present(root) else ""


def _loaded(deadline_s: float) -> dict[str, str]:
    from collbench.doctor.loaded import ask

    return ask(deadline_s)


def _facts(machine: Machine, found: Discovery, cards: tuple[driver.Card, ...]) -> dict[str, str]:
    """Facts in the order in which they are read; none is empty."""
    software, facts = machine.software, machine.facts
    models = sorted({card.model for card in cards if card.model})
    told = {
        "GPUs": f"{len(machine.topology.gpus)}{' x ' if models else ''}{', '.join(models)}",
        "compute capability": facts.get("archs") or machine.arch, "driver": software.get("driver", ""),
        "CUDA": _both("torch", software.get("cuda"), "driver", software.get("cuda-driver")),
        "torch": software.get("torch", "not installed"),
        "NCCL": _both("package", software.get("nccl"), "loaded", software.get("nccl-loaded")),
        "fabric": str(machine.fabric), "P2P": _p2p(found), "links": _links(machine),
        "BAR1": _set(f"{card.bar1_mib} MiB" for card in cards if card.bar1_mib),
        "persistence": _set(card.persistence for card in cards),
        "compute mode": _set(card.compute_mode for card in cards),
        "MIG": _set(card.mig for card in cards), "ACS": facts.get("acs", ""), "IOMMU": facts.get("iommu", ""),
        "MPS": facts.get("mps", ""), "shared memory": f"{facts['shm_mib']} MiB" if "shm_mib" in facts else "",
        "descriptors of peers": facts.get("pidfd", ""), "seccomp": facts.get("seccomp", ""),
        "container": facts.get("container", ""), "processors": facts.get("cpus", ""),
        "NUMA nodes": facts.get("numa_nodes", ""),
    }  # fmt: skip
    return {name: value for name, value in told.items() if value}


def _both(one: str, first: str | None, other: str, second: str | None) -> str:
    parts = [f"{version} ({name})" for name, version in ((one, first), (other, second)) if version]
    return ", ".join(parts)


def _set(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _p2p(found: Discovery) -> str:
    """How many pairs can read, write, and do atomics on each other's memory, as the driver says."""
    pairs = found.capture.pairs if found.capture is not None else ()
    if not pairs:
        return ""
    parts = []
    for kind in ("read", "write", "atomics"):
        states = [pair.p2p[kind] for pair in pairs if kind in pair.p2p]
        good = sum(state == "ok" for state in states)
        other = sorted({state for state in states if state != "ok"})
        parts.append(f"{kind} {good} of {len(pairs)} pairs" + (f" ({', '.join(other)})" if other else ""))
    return "; ".join(parts)


def _links(machine: Machine) -> str:
    ends = set(machine.topology.gpus)
    words = {
        f"Gen{link.current_generation} x{link.current_width} now, Gen{link.generation} x{link.width} at best"
        for link in machine.topology.links
        if link.dst in ends and link.kind == "pcie" and link.generation and link.current_generation
    }
    return "; ".join(sorted(words))
