"""Merge what several sources said about one machine: the PCI tree is sysfs's, differences are listed."""

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from collbench.topology import pcie
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.nvml import NvmlCapture, NvmlGpu
from collbench.topology.nvml_graph import build, gpu_attributes, nvlinks

__all__ = ["add_labels", "add_nvml", "add_xml", "below_one_switch", "without_gpus"]

_FAST = frozenset({LinkKind.NVLINK, LinkKind.XGMI, LinkKind.C2C})
_BRIDGES = frozenset({NodeKind.SWITCH, NodeKind.ROOT_PORT, NodeKind.HOST_BRIDGE})


def add_nvml(base: Topology, capture: NvmlCapture) -> Topology:
    """GPUs that the driver gives to this process, in its order, with model, memory, NVLinks and link state.

    Where sysfs shows none of them (a container without the PCI tree) NVML's own picture stands in, with the processors
    of sysfs. Matched by bus id.
    """
    at = _by_busid(base)
    gpus = capture.usable
    if any(gpu.busid not in at for gpu in gpus):
        missing = [gpu.busid for gpu in gpus if gpu.busid not in at]
        note = f"NVML knows {', '.join(missing)}, which sysfs does not show: the paths are NVML's"
        return _with_sockets(build(capture), base, [note] if base.gpus else [])
    hidden = [node for node in base.gpus if _busid(base, node) not in {gpu.busid for gpu in gpus}]
    notes = list(base.disagreements)
    nvidia = [n for n in hidden if base.node(n).attributes.get("vendor") == "0x10de"]
    if nvidia:
        notes.append(f"sysfs shows {len(nvidia)} NVIDIA GPUs that this process may not use: left out")
    ids = {gpu.busid: at[gpu.busid] for gpu in gpus}
    facts = {ids[gpu.busid]: gpu_attributes(gpu) for gpu in gpus}
    kept = {n.id: n for n in without_gpus(base, nvidia).nodes}
    first = {ids[gpu.busid]: kept[ids[gpu.busid]] for gpu in gpus}
    nodes = [Node(n.id, n.kind, {**facts.get(n.id, {}), **n.attributes}) for n in (first | kept).values()]
    links = [link for link in base.links if link.src in kept and link.dst in kept]
    links = [_with_state(link, ids, gpus, notes) for link in links]
    ends, fast = nvlinks(capture, ids, {busid: _socket_of(base, name) for busid, name in ids.items()})
    notes += _level_quarrels(base, capture, ids)
    return Topology((*_ordered(nodes), *ends), pcie.with_nominal([*links, *fast]), base.name, (), tuple(notes))


def add_labels(base: Topology, labels: Topology, name: str, order: Iterable[str]) -> Topology:
    """Compare with a source that knows GPUs by number only; `order` gives our ids in that numbering.

    Adds NVLinks where no better source knew any.
    """
    numbered = dict(zip(labels.gpus, order, strict=False))
    notes = _switch_quarrels(base, labels, numbered, name)
    if len(labels.gpus) != len(base.gpus):
        notes.append(f"{name} shows {len(labels.gpus)} GPUs, we see {len(base.gpus)}")
        return dataclasses.replace(base, disagreements=(*base.disagreements, *notes))
    return _with_fast(base, labels, numbered, name, notes)


def add_xml(base: Topology, xml: Topology, name: str) -> Topology:
    """Compare with an NCCL topology by bus id, and take its NVLinks where no better source knew any."""
    at = _by_busid(base)
    same = {gpu: at[_busid(xml, gpu)] for gpu in xml.gpus if _busid(xml, gpu) in at}
    notes = [f"{name}: {note}" for note in xml.disagreements] + _switch_quarrels(base, xml, same, name)
    strange = [_busid(xml, gpu) for gpu in xml.gpus if gpu not in same]
    if strange:
        notes.append(f"{name} names {', '.join(strange)}, which we do not see")
    unnamed = [gpu for gpu in base.gpus if gpu not in same.values()]
    if unnamed and xml.gpus:
        notes.append(f"{name} does not name {', '.join(unnamed)}")
    return _with_fast(base, xml, same, name, notes)


def below_one_switch(topology: Topology) -> set[frozenset[str]]:
    """Pairs of GPUs below one common PCIe switch."""
    return {frozenset(pair) for group in topology.groups for pair in itertools.combinations(group, 2)}


def without_gpus(topology: Topology, gone: Iterable[str]) -> Topology:
    """The topology without some GPUs, and without bridges that then lead nowhere."""
    nodes = {node.id: node for node in topology.nodes}
    for name in gone:
        nodes.pop(name, None)
    while True:
        near: dict[str, set[str]] = defaultdict(set)
        for link in topology.links:
            if link.src in nodes and link.dst in nodes:
                near[link.src].add(link.dst)
        dead = [name for name, node in nodes.items() if node.kind in _BRIDGES and len(near[name]) <= 1]
        if not dead:
            break
        for name in dead:
            del nodes[name]
    links = tuple(link for link in topology.links if link.src in nodes and link.dst in nodes)
    return dataclasses.replace(topology, nodes=tuple(nodes.values()), links=links)


def _busid(topology: Topology, name: str) -> str:
    return topology.node(name).attributes.get("busid", "")


def _by_busid(topology: Topology) -> dict[str, str]:
    return {busid: name for name in topology.gpus if (busid := _busid(topology, name))}


def _socket_of(topology: Topology, gpu: str) -> str:
    """Processor above a GPU; empty where none is joined to it."""
    near: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        if link.kind is LinkKind.PCIE:
            near[link.src].append(link.dst)
    queue, seen = [gpu], {gpu}
    for name in queue:
        if topology.node(name).kind is NodeKind.SOCKET:
            return name
        queue += [n for n in near[name] if n not in seen and topology.node(n).kind not in {NodeKind.GPU, NodeKind.NIC}]
        seen.update(near[name])
    return ""


def _with_sockets(topology: Topology, base: Topology, notes: list[str]) -> Topology:
    """Facts of the processors of `base`, by NUMA node where NVML's sockets are such."""
    facts = {
        numa: n for n in base.nodes if n.kind is NodeKind.SOCKET for numa in n.attributes.get("numa", "").split(",")
    }
    sockets = [base.node(name) for name in base.sockets]
    nodes = []
    for node in topology.nodes:
        if node.kind is NodeKind.SOCKET:
            same = sockets[0] if len(sockets) == 1 else facts.get(node.id.removeprefix("socket"))
            nodes.append(Node(node.id, node.kind, same.attributes if same else {}))
        else:
            nodes.append(node)
    notes = [*base.disagreements, *topology.disagreements, *notes]
    return dataclasses.replace(topology, nodes=tuple(nodes), disagreements=tuple(notes))


def _ordered(nodes: Iterable[Node]) -> list[Node]:
    """Sockets first, otherwise as they stand."""
    return sorted(nodes, key=lambda node: node.kind is not NodeKind.SOCKET)


def _with_state(link: Link, ids: Mapping[str, str], gpus: Iterable[NvmlGpu], notes: list[str]) -> Link:
    """The link above a GPU: sysfs's view, completed and doubted by NVML's."""
    gpu = next((g for g in gpus if ids[g.busid] in {link.src, link.dst} and link.kind is LinkKind.PCIE), None)
    if gpu is None:
        return link
    for what, ours, theirs in (
        ("generation", link.generation, gpu.generation_max),
        ("width", link.width, gpu.width_max),
    ):
        if ours and theirs and ours != theirs and link.dst == ids[gpu.busid]:
            notes.append(f"{link.dst} ({gpu.busid}): link {what} at most {ours} by sysfs, {theirs} by NVML")
    return dataclasses.replace(
        link, generation=link.generation or gpu.generation_max, width=link.width or gpu.width_max,
        current_generation=link.current_generation or gpu.generation,
        current_width=link.current_width or gpu.width,
        provenance=link.provenance if link.generation and link.width else f"{link.provenance} and NVML".strip(),
    )  # fmt: skip


def _level_quarrels(base: Topology, capture: NvmlCapture, ids: Mapping[str, str]) -> list[str]:
    ours = below_one_switch(base)
    notes = []
    for pair in capture.pairs:
        if pair.level and pair.a in ids and pair.b in ids:
            theirs = pair.level in {"PIX", "PXB"}
            here = frozenset((ids[pair.a], ids[pair.b])) in ours
            if theirs != here:
                seen = "a common switch" if here else "no common switch"
                notes.append(f"{ids[pair.a]} and {ids[pair.b]}: {pair.level} by NVML, {seen} by sysfs")
    return notes


def _switch_quarrels(base: Topology, other: Topology, same: Mapping[str, str], name: str) -> list[str]:
    """Pairs that one source puts below a common switch and the other does not; pairs with hidden paths say nothing."""
    ours, theirs = below_one_switch(base), below_one_switch(other)
    silent = {frozenset(pair) for pair in other.hidden}
    notes = []
    for a, b in itertools.combinations(same, 2):
        here, there = frozenset((same[a], same[b])) in ours, frozenset((a, b)) in theirs
        if here != there and frozenset((a, b)) not in silent:
            seen = "a common switch" if there else "no common switch"
            notes.append(f"{same[a]} and {same[b]}: {seen} by {name}, {'one' if here else 'none'} by our tree")
    return notes if len(notes) < 8 else [*notes[:7], f"{len(notes) - 7} more pairs differ between {name} and our tree"]  # noqa: PLR2004 - lines that a reader takes in


def _with_fast(base: Topology, other: Topology, same: Mapping[str, str], name: str, notes: list[str]) -> Topology:
    """NVLinks, xGMI and C2C of `other` where we have none; where both have some, counts that differ are listed."""
    have = {link.src for link in base.links if link.kind in _FAST}
    theirs = [link for link in other.links if link.kind in _FAST]
    if not theirs:
        return dataclasses.replace(base, disagreements=(*base.disagreements, *notes))
    if have:
        notes = notes + _count_quarrels(base, other, same, name)
        return dataclasses.replace(base, disagreements=(*base.disagreements, *notes))
    ends = {n.id: n for n in other.nodes if n.kind is NodeKind.NVSWITCH}
    place = {**same, **{end: end for end in ends}}
    place |= {socket: _socket_of(base, base.gpus[0]) for socket in other.sockets if len(base.sockets) == 1}
    taken = [
        dataclasses.replace(link, src=place[link.src], dst=place[link.dst], provenance=link.provenance or name)
        for link in theirs
        if place.get(link.src) and place.get(link.dst)
    ]
    used = {end for link in taken for end in (link.src, link.dst)}
    nodes = (*base.nodes, *(node for end, node in ends.items() if end in used))
    return dataclasses.replace(
        base, nodes=nodes, links=(*base.links, *taken), disagreements=(*base.disagreements, *notes)
    )  # fmt: skip


def _count_quarrels(base: Topology, other: Topology, same: Mapping[str, str], name: str) -> list[str]:
    ours: Counter[str] = Counter()
    theirs: Counter[str] = Counter()
    for counts, topology in ((ours, base), (theirs, other)):
        for link in topology.links:
            if link.kind in {LinkKind.NVLINK, LinkKind.XGMI}:
                counts[link.src] += link.width or 1
    return [
        f"{gpu}: {theirs[label]} NVLinks by {name}, {ours[gpu]} by NVML"
        for label, gpu in same.items()
        if theirs[label] != ours[gpu]
    ]
