"""What the page says of the machine and of how the run was made."""

from collections.abc import Mapping
from typing import Any

from collbench.errors import CollbenchError
from collbench.results.private import public, public_command, public_facts
from collbench.results.records import Run
from collbench.topology.machine import Machine

__all__ = ["surroundings"]


def surroundings(run: Run) -> tuple[dict[str, Any], Mapping[str, float]]:
    """The page's parts on machine and environment, and each cell's floor in us; `problems` says what is missing."""
    machine, problems = _machine(run)
    floors: Mapping[str, float] = {}
    if machine is not None:
        floors, more = _floors(run)
        problems += more
    context = {
        "problems": problems, "machine": _machine_facts(machine), "topology": machine.topology if machine else None,
        "machine_text": _machine_text(run, machine), "commands": [public_command(words) for words in run.commands],
        "software": public_facts(machine.software if machine else {}),
        "facts": public_facts(machine.facts if machine else {}), "settings": public_facts(run.settings),
        "variables": [(name, public_facts(values)) for name, values in run.environment.items() if values],
    }  # fmt: skip
    return context, floors


def _machine(run: Run) -> tuple[Machine | None, list[str]]:
    if not run.machine:
        return None, ["run.json holds no machine: no topology, no floors"]
    try:
        return Machine.from_dict(run.machine), []
    except (CollbenchError, AttributeError, KeyError, TypeError, ValueError) as error:
        return None, [f"run.json: its machine cannot be read ({public(str(error))}): no topology, no floors"]


def _floors(run: Run) -> tuple[Mapping[str, float], list[str]]:
    from collbench.algorithms.floors import floors_of

    try:
        return floors_of(run), []
    except (CollbenchError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return {}, [f"floors cannot be worked out: {type(error).__name__}: {public(str(error))}"]


def _devices(machine: Machine) -> str:
    kinds: dict[str, int] = {}
    for node in machine.topology.nodes:
        kinds[str(node.kind)] = kinds.get(str(node.kind), 0) + 1
    order = ("gpu", "nic", "nvswitch", "switch", "root_port", "host_bridge", "socket")
    words = {"gpu": "GPU", "nic": "NIC", "nvswitch": "NVSwitch", "switch": "switch"}
    plural = {"switch": "switches", "nvswitch": "NVSwitches"}
    listed = []
    for kind in order:
        word = words.get(kind, kind.replace("_", " "))
        if count := kinds.get(kind, 0):
            listed.append(f"{count} {word if count == 1 else plural.get(kind, word + 's')}")
    return ", ".join(listed) or "no devices"


def _machine_text(run: Run, machine: Machine | None) -> str:
    if machine is None:
        return "The run does not say on which machine it was made."
    groups = machine.topology.groups
    below = f"; groups below one switch: {', '.join(str(len(group)) for group in groups)} GPUs" if groups else ""
    where = f" on {machine.hosts} hosts" if machine.hosts > 1 else ""
    return f"{run.world_size} ranks{where}, fabric {run.fabric}; {_devices(machine)}{below}."


def _machine_facts(machine: Machine | None) -> dict[str, str]:
    found: dict[str, str] = {}
    if machine is None:
        return found
    nodes = machine.topology.nodes
    models = sorted({public(n.attributes["model"]) for n in nodes if str(n.kind) == "gpu" and "model" in n.attributes})
    cores = sum(int(text) for n in nodes if (text := n.attributes.get("cores", "")).isdigit())
    if models:
        found["GPU model"] = ", ".join(models)
    if cores:
        found["cores"] = str(cores)
    found["topology hash"] = machine.topology.digest
    if machine.topology.disagreements:
        found["sources disagree"] = "; ".join(map(public, machine.topology.disagreements))
    return found
