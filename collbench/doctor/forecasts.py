"""What the doctor says of a machine of which only the topology is known, asked with releases that it knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collbench.algorithms.base import known_systems, registry
from collbench.algorithms.predictions import Forecast
from collbench.doctor.described import Described
from collbench.doctor.findings import machine_warnings
from collbench.doctor.verdicts import rows
from collbench.results.records import Fabric
from collbench.topology.graph import NodeKind, Topology
from collbench.topology.machine import Machine
from collbench.topology.models import arch_of

__all__ = ["RELEASES", "Diagnosis", "diagnose"]

RELEASES = {
    "torch": "2.14.1", "cuda": "13.0", "driver": "580", "nccl": "2.30.7", "flashinfer": "0.7.4", "vllm": "0.33.0",
    "sglang": "0.5.23",
}  # fmt: skip
"""Software that the machine is taken to have: the releases that the doctor's facts were read in."""


_OPTIONS = ("torch", "cuda")
"""Of the command; other releases go with `--with`."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The doctor's rows of one collective on GPUs, warnings, how it was asked and by which command.

    Where it was not asked, `asked` says why, and `verdicts` has only what our own records refuse.
    """

    asked: str
    rows: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    command: str = ""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """By algorithm: `runs`, `does_not_run` or `unknown`."""

    @property
    def reasons(self) -> dict[str, str]:
        """By algorithm, where it has one."""
        return {row["algorithm"]: row["reason"] for row in self.rows if row["reason"]}


def diagnose(forecast: Forecast) -> Diagnosis:
    """Ask about the collective of the forecast, algorithms on GPUs only."""
    if forecast.fabric not in {Fabric.PCIE, Fabric.NVLINK}:
        return _unasked(forecast, f"it does not know machines of fabric {forecast.fabric}")
    models = {forecast.topology.node(gpu).attributes.get("model", "") for gpu in forecast.topology.gpus}
    arch = arch_of(models.pop()) if len(models) == 1 else ""
    if not arch:
        return _unasked(forecast, "no compute capability is known of these GPUs")
    machine = _machine(forecast, arch)
    devices = {one.name: one.device for one in (*registry().values(), *known_systems().values())}
    wanted = str(forecast.collective)
    found = [row for row in rows(machine) if row["collective"] == wanted and devices[row["algorithm"]] != "cpu"]
    software = ", ".join(f"{name} {version}" for name, version in RELEASES.items())
    return Diagnosis(
        f"Asked about {forecast.ranks} x {arch} on this topology with {software}.", found,
        [one.line for one in machine_warnings(machine)], _command(forecast, arch),
        {row["algorithm"]: row["verdict"] for row in found},
    )  # fmt: skip


def _unasked(forecast: Forecast, why: str) -> Diagnosis:
    """Nothing is known then, but of kernels of ours that these cards are too old for."""
    refused = {one.name: "does_not_run" for one in forecast.algorithms if forecast.refuses(one)}
    return Diagnosis(f"The doctor was not asked: {why}.", verdicts=refused)


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
    own = {name: version for name, version in RELEASES.items() if name not in _OPTIONS}
    return (
        f"collbench doctor --for {arch} --gpus {forecast.ranks} --fabric {described.fabric} --p2p {described.p2p} "
        f"{' '.join(f'--{name} {RELEASES[name]}' for name in _OPTIONS)} "
        f"--with {','.join(f'{name}={version}' for name, version in own.items())}"
    )
