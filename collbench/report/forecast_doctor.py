"""What the doctor says of a machine of which only the topology is known, asked with releases that it knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collbench.algorithms.base import known_systems, registry
from collbench.algorithms.predictions import Forecast
from collbench.doctor import rows as doctor_rows
from collbench.doctor.described import Described
from collbench.doctor.findings import machine_warnings
from collbench.report.canvas import Table
from collbench.report.private import public
from collbench.results.records import Fabric
from collbench.topology.graph import NodeKind, Topology
from collbench.topology.machine import Machine
from collbench.topology.models import arch_of

__all__ = ["Diagnosis", "diagnose"]

RELEASES = {
    "torch": "2.14.1", "cuda": "13.0", "driver": "580", "nccl": "2.30.7", "flashinfer": "0.7.4", "vllm": "0.33.0",
    "sglang": "0.5.23",
}  # fmt: skip
"""Software that the machine is taken to have: the releases that the doctor's facts were read in."""

_WORDS = {"runs": "runs", "does_not_run": "does not run", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Verdicts by algorithm, a table of them, warnings, and how the doctor was asked; all empty if it was not."""

    verdicts: Mapping[str, str]
    table: Table | None
    warnings: Sequence[str]
    asked: str
    command: str = ""


def diagnose(forecast: Forecast) -> Diagnosis:
    """Ask about the collective of the forecast, algorithms on GPUs only."""
    if forecast.fabric not in {Fabric.PCIE, Fabric.NVLINK}:
        return Diagnosis(
            {}, None, (), f"The doctor was not asked: it does not know machines of fabric {forecast.fabric}."
        )
    models = {forecast.topology.node(gpu).attributes.get("model", "") for gpu in forecast.topology.gpus}
    arch = arch_of(models.pop()) if len(models) == 1 else ""
    if not arch:
        return Diagnosis({}, None, (), "The doctor was not asked: no compute capability is known of these GPUs.")
    machine = _machine(forecast, arch)
    devices = {one.name: one.device for one in (*registry().values(), *known_systems().values())}
    wanted = str(forecast.collective)
    rows = [row for row in doctor_rows(machine) if row["collective"] == wanted and devices[row["algorithm"]] != "cpu"]
    software = ", ".join(f"{name} {version}" for name, version in RELEASES.items())
    return Diagnosis(
        {row["algorithm"]: row["verdict"] for row in rows}, _table(rows),
        [public(one.line) for one in machine_warnings(machine)],
        f"Asked about {forecast.ranks} x {arch} on this topology with {software}.", _command(forecast, arch),
    )  # fmt: skip


def _described(forecast: Forecast, arch: str) -> Described:
    fabric = "pcie" if forecast.fabric is Fabric.PCIE else "nvlink"
    return Described(arch, forecast.ranks, fabric, _peers(forecast.topology), RELEASES)


def _peers(topology: Topology) -> str:
    off = any(topology.node(gpu).attributes.get("peer_access") == "none" for gpu in topology.gpus)
    return "off" if off else "ok"


def _machine(forecast: Forecast, arch: str) -> Machine:
    topology = forecast.topology
    sockets = [node for node in topology.nodes if node.kind is NodeKind.SOCKET]
    machine = _described(forecast, arch).machine()
    cpu = next((node.attributes["model"] for node in sockets if "model" in node.attributes), "")
    facts = {**machine.facts, "sockets": str(len(sockets)), "cpu": cpu}
    return replace(machine, topology=topology, facts=facts)


def _command(forecast: Forecast, arch: str) -> str:
    described = _described(forecast, arch)
    return (
        f"collbench doctor --for {arch} --gpus {forecast.ranks} --fabric {described.fabric} --p2p {described.p2p} "
        f"--with {','.join(f'{name}={version}' for name, version in RELEASES.items())}"
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What does not run first; algorithms of which the same is said share a line."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for word in ("does_not_run", "unknown", "runs"):
        for row in rows:
            if row["verdict"] == word:
                said = (_WORDS[word], *(public(str(row[name])) for name in ("reason", "remedy", "source")))
                groups.setdefault(said, []).append(row["algorithm"])
    lines = [[", ".join(names), *said] for said, names in groups.items()]
    columns = ["algorithm", "verdict", "reason", "what would change it", "source"]
    return Table("The doctor's verdicts", [(name, False) for name in columns], lines)
