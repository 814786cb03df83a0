"""This machine: what was found out, and warnings about what makes collectives slow or impossible."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from collbench.contention.findings import Finding as Regime
from collbench.doctor import driver
from collbench.doctor.container import host_state
from collbench.doctor.facts import facts_of, pairs_of
from collbench.doctor.findings import Finding, warnings_of
from collbench.topology.discover import discover
from collbench.topology.discover import machine as make_machine
from collbench.topology.machine import Machine

__all__ = ["Here", "look"]

_DEADLINE_S = 1.5
_DEEP_S = 8.0
_DEFAULT_RANKS = 8
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Here:
    """The machine, facts to print in order, warnings, and what was not found out.

    `pairs` has a row for every two GPUs; `regimes` what a run tells of degraded states of the fabric, if there is one.
    """

    machine: Machine
    facts: Mapping[str, str]
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    pairs: tuple[Mapping[str, Any], ...] = ()
    regimes: tuple[Regime, ...] = ()


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
    pairs = pairs_of(found.capture)
    findings = warnings_of(machine, found, known, environ)
    return Here(_as_loaded(machine), facts_of(machine, known, pairs), findings, tuple(missing), tuple(pairs))


def _as_loaded(machine: Machine) -> Machine:
    """Verdicts are about the NCCL that a process gets, where that is known, and not about the package's."""
    loaded = machine.software.get("nccl-loaded", "").partition(",")[0]
    return replace(machine, software={**machine.software, "nccl": loaded}) if loaded else machine


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
