"""The machine on which nccl-tests ran, as far as its output or the user says."""

import dataclasses
import re
from collections.abc import Sequence

from collbench.errors import UsageError
from collbench.interop.nccl_tests.table import Device, Invocation
from collbench.results.records import Fabric
from collbench.topology import catalog
from collbench.topology.discover import fabric_of
from collbench.topology.discover import machine as discover_machine
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine

__all__ = ["fabric_named", "here", "there", "with_versions"]

_BUS = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})")


def fabric_named(text: str) -> Fabric | None:
    """The fabric of that name; None for an empty text.

    Raises:
        UsageError: there is none of that name.
    """
    if not text:
        return None
    names = [str(fabric) for fabric in Fabric if fabric is not Fabric.HOST]
    if text not in names:
        raise UsageError(f"--fabric {text}: expected one of {', '.join(names)}")
    return Fabric(text)


def here(ranks: int, fabric: Fabric | None) -> Machine:
    """This machine; asked before anything is measured, since results without a fabric cannot be compared.

    Raises:
        UsageError: no GPU is seen, and nobody says what the ranks share.
    """
    found = discover_machine(ranks=ranks)
    if fabric is None and found.fabric is Fabric.HOST:
        raise UsageError("no NVIDIA GPU is seen here, so what the ranks share is unknown: say it with --fabric")
    return dataclasses.replace(found, fabric=fabric or found.fabric)


def there(invocations: Sequence[Invocation], ranks: int, topology: str, fabric: Fabric | None) -> Machine:
    """The machine of a pasted output: a machine file's, or the GPUs that the output lists, without links.

    Where it lists fewer GPUs than ranks, the fact `gpus_listed` says how many; the others are taken for GPUs like the
    one before them: -J lists the first GPU of each process.

    Raises:
        UsageError: what the ranks share cannot be seen and is not said, or there is no such machine file.
    """
    with_rows = [one for one in invocations if one.rows]
    hosts = max(one.hosts for one in with_rows)
    devices = next((one.devices for one in with_rows if one.devices), ())
    graph = catalog.load(catalog.find(topology)) if topology else _listed(devices, ranks)
    if fabric is None and topology:
        fabric = fabric_of(graph, hosts, False, ranks)
    fabric = fabric or _seen(devices, hosts)
    if fabric is None:
        raise UsageError("what the ranks share cannot be seen in the output: say it with --fabric or --topology")
    shared = fabric is Fabric.SHARED_GPU
    listed = len({device.rank for device in devices})
    facts = {"gpus_listed": f"{listed} of {ranks}"} if 0 < listed < ranks and not topology else {}
    return with_versions(Machine(graph, fabric, ranks, hosts, shared, {}, facts), with_rows[0])


def with_versions(machine: Machine, one: Invocation) -> Machine:
    """With the versions that the output names."""
    said = {"nccl": one.nccl, "nccl-tests": one.version}
    software = {**machine.software, **{name: text for name, text in said.items() if text}}
    fabric = Fabric.NETWORK if one.hosts > 1 else machine.fabric
    return dataclasses.replace(machine, software=software, fabric=fabric, hosts=max(machine.hosts, one.hosts))


def _listed(devices: Sequence[Device], ranks: int) -> Topology:
    hosts = list(dict.fromkeys(device.host for device in devices))
    known = {device.rank: device for device in devices}
    nodes = []
    for rank in sorted({*known, *range(ranks)}) if known else ():
        device = known.get(rank) or known[max((other for other in known if other < rank), default=min(known))]
        facts = {"model": device.model}
        if rank in known and (match := _BUS.fullmatch(device.bus)) and len(hosts) == 1:
            facts["busid"] = f"{match[1]}:{match[2]}:{match[3]}.0".lower()
        if len(hosts) > 1:
            facts["host"] = str(hosts.index(device.host))
        nodes.append(Node(f"gpu{rank}", NodeKind.GPU, facts))
    return Topology(tuple(nodes), (), "listed by nccl-tests")


def _seen(devices: Sequence[Device], hosts: int) -> Fabric | None:
    """Several hosts share a network; ranks with one bus id share a GPU. Nothing else can be seen."""
    if hosts > 1:
        return Fabric.NETWORK
    buses = {device.bus for device in devices}
    return Fabric.SHARED_GPU if len(devices) > 1 and len(buses) == 1 and _BUS.fullmatch(min(buses)) else None
