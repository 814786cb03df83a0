"""What `numactl -H` prints: processors, memory and distances of NUMA nodes."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from collbench.topology.captured_text import lines_of, refuse
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology

__all__ = ["NumaNode", "NumaNodes", "is_numactl", "parse"]

_AVAILABLE = re.compile(r"\bavailable: (\d{1,4}) nodes?\b")
_CPUS = re.compile(r"\bnode (\d{1,4}) cpus:(?P<cpus>[\d ]*)$")
_SIZE = re.compile(r"\bnode (\d{1,4}) (size|free): (\d{1,9}) MB")
_DISTANCE = re.compile(r"(?<!\S)(\d{1,4}):((?:[ \t]+\d{1,4}){1,1024})[ \t]*$")
_MOST = 4096


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One node; `cpus` may have gaps, and is empty for memory alone. Memory in MiB, None where it is not said."""

    number: int
    cpus: tuple[int, ...]
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class NumaNodes:
    """All nodes; `distances[a, b]` as the firmware says, 10 to itself; `disagreements` lists what does not add up."""

    nodes: tuple[NumaNode, ...]
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    disagreements: tuple[str, ...] = ()

    def topology(self) -> Topology:
        """A socket for each node with processors; nodes with memory alone are listed, no GPU is known here."""
        own = [node for node in self.nodes if node.cpus] or list(self.nodes)
        nodes = tuple(Node(f"socket{node.number}", NodeKind.SOCKET, _facts(node)) for node in own)
        links = tuple(
            Link(a.id, b.id, LinkKind.SOCKET, provenance="numactl -H") for a, b in itertools.permutations(nodes, 2)
        )
        bare = [str(node.number) for node in self.nodes if node not in own]
        notes = [f"NUMA nodes without processors: {', '.join(bare)}"] if bare else []
        return Topology(nodes, links, "", (), (*self.disagreements, *notes))


def is_numactl(lines: list[str]) -> bool:
    """Whether some line is `available: 2 nodes (0-1)` or lists the processors of a node."""
    return any(_AVAILABLE.search(line[:200]) or _CPUS.search(line.strip()) for line in lines if "node" in line)


def parse(text: str) -> NumaNodes:
    """Read a `numactl -H` capture.

    Raises:
        TopologyError: no nodes in it; quotes the line and says what was expected.
    """
    lines = lines_of(text)
    cpus: dict[int, tuple[int, ...]] = {}
    memory: dict[int, int] = {}
    distances: dict[tuple[int, int], int] = {}
    notes: list[str] = []
    said = None
    for line in (raw.strip() for raw in lines if raw):
        if (match := _AVAILABLE.search(line[:200])) is not None:
            said = int(match[1])
        elif (match := _CPUS.search(line)) is not None:
            cpus[int(match[1])] = tuple(int(word) for word in match["cpus"].split()[:_MOST] if len(word) < 7)  # noqa: PLR2004 - no processor has such a number
        elif (match := _SIZE.search(line[:200])) is not None and match[2] == "size":
            memory[int(match[1])] = int(match[3])
        elif cpus and (match := _DISTANCE.search(line[:4000])) is not None:
            row = [int(word) for word in match[2].split()]
            distances |= {(int(match[1]), to): value for to, value in zip(sorted(cpus), row, strict=False)}
    if not cpus:
        place = next((i for i, line in enumerate(lines) if line.strip()), 0)
        refuse(lines, place, "no NUMA node in it: expected what numactl -H prints, `node 0 cpus: 0 1 2 ...`")
    if said is not None and said != len(cpus):
        notes.append(f"{said} nodes are announced, {len(cpus)} listed")
    notes += [
        f"distance of node {a} to {b} is {value}, of {b} to {a} {distances[b, a]}"
        for (a, b), value in distances.items()
        if a < b and distances.get((b, a), value) != value
    ]
    nodes = tuple(NumaNode(number, found, memory.get(number)) for number, found in sorted(cpus.items()))
    return NumaNodes(nodes, distances, tuple(notes))


def _facts(node: NumaNode) -> dict[str, str]:
    facts = {"numa": str(node.number)}
    if node.cpus:
        facts |= {"threads": str(len(node.cpus)), "cpu_affinity": _ranges(node.cpus)}
    if node.memory_mib is not None:
        facts["memory_gib"] = f"{node.memory_mib / 1024:.1f}"
    return facts


def _ranges(numbers: tuple[int, ...]) -> str:
    """`0-63,128-191`, as other tools write lists of processors."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
