"""Classes of wiring, as published tables name them, -> topologies: `topologies/classes.toml`."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from collbench.topology import catalog
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collbench.topology.pcie import with_nominal
from collbench.topology.toml_table import parse_toml

__all__ = ["FILE", "class_topology"]

FILE = "classes"
"""Stem of the file, which is no machine."""

_PCIE_WIDTH = 16


@cache
def _classes() -> Mapping[str, Any]:
    path = catalog.folder() / f"{FILE}.toml"
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TopologyError(f"{path}: {error}: install collbench again") from error


@cache
def class_topology(name: str, generation: int, ranks: int) -> Topology | None:
    """Topology of a class of wiring at a PCIe generation, for so many GPUs; None where the class is not known.

    Ranks are its first GPUs. A class that is a machine file is known at that machine's generation only.

    Raises:
        TopologyError: the installed file is damaged.
    """
    row = _classes().get(name)
    if not isinstance(row, dict):
        return None
    try:
        found = _built(name, row, generation, ranks)
    except (KeyError, TypeError) as error:
        raise TopologyError(f"{FILE}.toml, class {name!r}: {type(error).__name__}: {error}") from error
    return found if found is not None and len(found.gpus) >= ranks else None


def _built(name: str, row: Mapping[str, Any], generation: int, ranks: int) -> Topology | None:
    if "machine" in row:
        known = generation == row["generation"]
        return catalog.load(catalog.find(row["machine"])) if known else None
    if "nvswitch" in row:
        version = row["nvswitch"].get(str(generation))
        return _nvswitch(name, version, row["links"], min(ranks, row["gpus"])) if version else None
    return _shape(name, row, generation, ranks)


def _nvswitch(name: str, version: int, links: int, gpus: int) -> Topology:
    nodes = [Node("nvswitch0", NodeKind.NVSWITCH), *(Node(f"gpu{i}", NodeKind.GPU) for i in range(gpus))]
    wires = [
        Link(a, b, LinkKind.NVLINK, version, links, provenance=f"nominal: class {name}")
        for i in range(gpus)
        for a, b in (("nvswitch0", f"gpu{i}"), (f"gpu{i}", "nvswitch0"))
    ]
    return Topology(tuple(nodes), with_nominal(wires), name)


def _shape(name: str, row: Mapping[str, Any], generation: int, ranks: int) -> Topology:
    """GPUs fill sockets evenly: half of the ranks on each of two, as published runs place them."""
    nodes: list[Node] = []
    links: list[Link] = []
    made = 0
    for socket in range(row["sockets"]):
        share = -(-ranks // row["sockets"]) * (socket + 1)
        nodes.append(Node(f"socket{socket}", NodeKind.SOCKET))
        for number in range(row["roots"]):
            gpus = range(made, min(made + row["gpus"], share, ranks))
            made = max(made, gpus.stop)
            if gpus:
                _below_root(nodes, links, f"{socket}.{number}", gpus, generation, switch=row.get("switches", True))
    links += [
        Link(f"socket{a}", f"socket{1 - a}", LinkKind.SOCKET, provenance=f"class {name}")
        for a in range(row["sockets"] if row["sockets"] > 1 else 0)
    ]
    gpus_last = sorted(nodes, key=lambda node: node.kind is NodeKind.GPU)
    return Topology(tuple(gpus_last), tuple(links), name)


def _below_root(
    nodes: list[Node], links: list[Link], where: str, gpus: range, generation: int, *, switch: bool
) -> None:
    socket, root = f"socket{where.partition('.')[0]}", f"root{where}"
    nodes.append(Node(root, NodeKind.ROOT_PORT))
    links += _both(root, socket, 0)
    above = root
    if switch:
        above = f"switch{where}"
        nodes.append(Node(above, NodeKind.SWITCH))
        links += _both(above, root, generation)
    for gpu in gpus:
        nodes.append(Node(f"gpu{gpu}", NodeKind.GPU))
        links += _both(f"gpu{gpu}", above, generation)


def _both(a: str, b: str, generation: int) -> Iterator[Link]:
    """A link in both directions; a root port's way into its processor has no width of its own."""
    for src, dst in ((a, b), (b, a)):
        yield Link(src, dst, LinkKind.PCIE, generation, _PCIE_WIDTH if generation else 0, provenance="class of wiring")
