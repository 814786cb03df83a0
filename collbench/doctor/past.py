"""The machine of a run, looked at afterwards: its warnings, and degraded states by the run's own probes and logs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from collbench.algorithms.known_system import ASSUMED, is_assumed
from collbench.contention.findings import Evidence
from collbench.contention.regimes import detect
from collbench.doctor.described import completed, wired
from collbench.doctor.facts import facts_of
from collbench.doctor.findings import machine_warnings
from collbench.doctor.here import Here
from collbench.errors import CollbenchError, InvalidError, UsageError
from collbench.results.records import Run
from collbench.results.store import RunFolder
from collbench.topology.machine import Machine
from collbench.topology.models import arch_of

__all__ = ["as_recorded", "look_back", "with_said"]

_LOOKED_AT = "python"
"""Software that every record has whose machine collbench looked at itself."""


def look_back(path: Path) -> Here:
    """Read a run folder, also one of another machine; what of it is damaged stands in `missing`.

    Raises:
        UsageError: no such folder.
        InvalidError: no run, one of a newer schema, or one whose record of its machine is of no use.
    """
    with RunFolder.open(path) as folder:
        try:
            machine = as_recorded(folder.run)
        except (CollbenchError, KeyError, TypeError, ValueError) as error:
            raise InvalidError(f"{path}: its record of the machine cannot be read: {error}") from error
        evidence = Evidence.of_run(folder)
    return Here(
        machine, facts_of(machine), tuple(machine_warnings(machine)), tuple(evidence.problems),
        regimes=tuple(detect(evidence)),
    )  # fmt: skip


def as_recorded(run: Run) -> Machine:
    """The machine of a run; what the record of one that collbench never saw leaves out is unsaid, not missing.

    Raises:
        CollbenchError, KeyError, TypeError, ValueError: the record cannot be read.
    """
    machine = Machine.from_dict(run.machine)
    if _LOOKED_AT in machine.software:
        return machine
    models = {machine.topology.node(gpu).attributes.get("model", "") for gpu in machine.topology.gpus}
    arch = arch_of(models.pop()) if len(models) == 1 else ""
    facts = {ASSUMED: "yes", **wired(machine.fabric), **({"arch": arch} if arch else {}), **machine.facts}
    return replace(machine, software=completed(machine.software), facts=facts)


def with_said(here: Here, software: Mapping[str, str], p2p: str) -> Here:
    """With what a user says of a machine whose record does not.

    Raises:
        UsageError: the record says it.
    """
    machine = here.machine
    told = {name: machine.software[name] for name in software if machine.software.get(name, "assumed") != "assumed"}
    told |= {"p2p": machine.facts["p2p"]} if p2p and "p2p" in machine.facts else {}
    if told or not is_assumed(machine):
        what = ", ".join(f"{name} {version}" for name, version in told.items()) or "what was installed"
        raise UsageError(f"the run's record says {what}: ask with --compare what another one would change")
    facts = {**machine.facts, **({"p2p": p2p} if p2p else {})}
    machine = replace(machine, software=completed({**machine.software, **software}), facts=facts)
    return replace(here, machine=machine, facts=facts_of(machine))
