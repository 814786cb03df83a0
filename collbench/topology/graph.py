"""The topology: a directed graph of devices with one link per direction."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx

from collbench.errors import InvalidError
from collbench.results.records import SCHEMA
from collbench.results.schema import version_of
from collbench.topology.elements import (
    PCIE_GENERATIONS,
    Link,
    LinkKind,
    Node,
    NodeKind,
    TopologyError,
    check_link,
    link_dict,
    link_from_dict,
)

__all__ = ["PCIE_GENERATIONS", "Link", "LinkKind", "Node", "NodeKind", "Topology", "TopologyError"]

_TRANSIT_FORBIDDEN = frozenset({"gpu", "nic"})
_HOP_COST = {"nvlink": 0.5, "xgmi": 0.5, "c2c": 0.5, "pcie": 1.0, "memory": 1.0, "socket": 2.0, "network": 10.0}


@dataclass(frozen=True)
class Topology:
    """Directed graph of a machine (or of several joined by a network). Immutable; `rank_order` maps rank to GPU id.

    `hidden` lists GPU pairs whose PCIe path a label such as NV# hides; `disagreements` what sources said differently.

    Raises:
        TopologyError: a link to an unknown node, a doubled node or link, a capacity or latency that is not positive.
    """

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    name: str = ""
    hidden: tuple[tuple[str, str], ...] = ()
    disagreements: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self._by_id) != len(self.nodes):
            twice = next(n.id for i, n in enumerate(self.nodes) if n.id in {m.id for m in self.nodes[:i]})
            raise TopologyError(f"node {twice!r} stands twice: every node needs an id of its own")
        seen: set[tuple[str, str, str]] = set()
        for link in self.links:
            check_link(link, self._by_id, seen)
            seen.add((link.src, link.dst, link.kind))

    @cached_property
    def _by_id(self) -> dict[str, Node]:
        return {node.id: node for node in self.nodes}

    def node(self, node_id: str) -> Node:
        """The node of that id.

        Raises:
            TopologyError: there is none.
        """
        if node_id not in self._by_id:
            raise TopologyError(f"no node {node_id!r} in topology {self.name or '(unnamed)'}")
        return self._by_id[node_id]

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Ids of the GPUs in the order in which they stand, which is the order of ranks."""
        return tuple(node.id for node in self.nodes if node.kind is NodeKind.GPU)

    @cached_property
    def sockets(self) -> tuple[str, ...]:
        """Ids of the processors."""
        return tuple(node.id for node in self.nodes if node.kind is NodeKind.SOCKET)

    @cached_property
    def _best_link(self) -> dict[tuple[str, str], Link]:
        best: dict[tuple[str, str], Link] = {}
        for link in self.links:
            kept = best.get((link.src, link.dst))
            if kept is None or _HOP_COST[link.kind] < _HOP_COST[kept.kind]:
                best[link.src, link.dst] = link
        return best

    @cached_property
    def _routes(self) -> dict[tuple[str, str], tuple[Link, ...]]:
        return {}

    def route(self, src: str, dst: str) -> tuple[Link, ...]:
        """Links from `src` to `dst` in order, cheapest kind first (NVLink before PCIe before sockets before network).

        GPUs and NICs forward nothing for others (a NIC only from its host to the network). Cached.

        Raises:
            TopologyError: an unknown node, or no path.
        """
        if (src, dst) not in self._routes:
            self.node(src), self.node(dst)
            path = self._paths(src).get(dst)
            if path is None:
                raise TopologyError(f"no route from {src} to {dst}: the topology has no links that join them")
            self._routes[src, dst] = tuple(self._best_link[hop] for hop in itertools.pairwise(path))
        return self._routes[src, dst]

    def _paths(self, src: str) -> Mapping[str, list[str]]:
        """Cheapest path from `src` to every node that it reaches: one search for each source, not for each pair."""
        if src not in self._paths_from:
            leads_on = {node.id for node in self.nodes if node.id == src or self._forwards(node.id)}

            def cost(near: str, far: str, edge: Mapping[str, Any]) -> float | None:
                del far
                return float(edge["cost"]) if near in leads_on else None

            self._paths_from[src] = nx.single_source_dijkstra_path(self._digraph, src, weight=cost)
        return self._paths_from[src]

    @cached_property
    def _paths_from(self) -> dict[str, Mapping[str, list[str]]]:
        return {}

    def _forwards(self, node_id: str) -> bool:
        kind = self._by_id[node_id].kind
        return kind not in _TRANSIT_FORBIDDEN or (kind is NodeKind.NIC and node_id in self._networked)

    @cached_property
    def _networked(self) -> frozenset[str]:
        return frozenset(end for link in self.links if link.kind is LinkKind.NETWORK for end in (link.src, link.dst))

    @cached_property
    def _digraph(self) -> "nx.DiGraph[str]":
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(node.id for node in self.nodes)
        for (src, dst), link in self._best_link.items():
            graph.add_edge(src, dst, cost=_HOP_COST[link.kind], link=link)
        return graph

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Largest sets of at least two GPUs below one common PCIe switch, in rank order; empty where none is known."""
        tree: nx.Graph[str] = nx.Graph()
        tree.add_nodes_from(n.id for n in self.nodes if n.kind in {NodeKind.SWITCH, NodeKind.GPU})
        for link in self.links:
            if link.kind is LinkKind.PCIE and link.src in tree and link.dst in tree:
                tree.add_edge(link.src, link.dst)
        gpus = [[g for g in self.gpus if g in part] for part in nx.connected_components(tree)]
        return tuple(sorted((tuple(g) for g in gpus if len(g) > 1), key=lambda g: self.gpus.index(g[0])))

    def cut(self, sources: Iterable[str], targets: Iterable[str]) -> tuple[float, tuple[Link, ...]]:
        """Least capacity in GB/s that separates two sets of nodes, and the links that make it up.

        Links of unknown capacity count as infinite; an infinite cut has no links.

        Raises:
            TopologyError: an unknown node, an empty set, or sets that overlap.
        """
        from_set, to_set = set(sources), set(targets)
        if not from_set or not to_set or from_set & to_set:
            raise TopologyError(f"cut: {sorted(from_set)} and {sorted(to_set)} must be two disjoint sets of nodes")
        graph: nx.DiGraph[Any] = nx.DiGraph()
        for (src, dst), link in self._best_link.items():
            capacity = {} if link.capacity_gbps is None else {"capacity": link.capacity_gbps}
            graph.add_edge(src, dst, **capacity)
        for end in from_set | to_set:
            self.node(end)
            edge = (("source",), end) if end in from_set else (end, ("sink",))
            graph.add_edge(*edge)
        try:
            value, (near, far) = nx.minimum_cut(graph, ("source",), ("sink",))
        except nx.NetworkXUnbounded:
            return float("inf"), ()
        edges = tuple(link for (a, b), link in self._best_link.items() if a in near and b in far)
        return float(value), edges

    @cached_property
    def digest(self) -> str:
        """Hash of what the machine can do, independent of ids, order, present link speed and provenance."""
        colour = {n.id: _hash(n.kind, n.attributes.get("model", "")) for n in self.nodes}
        for _ in range(len(self.nodes).bit_length() + 2):
            around: dict[str, list[str]] = {node_id: [] for node_id in colour}
            for link in self.links:
                around[link.src].append(_hash("out", link.link_class, colour[link.dst]))
                around[link.dst].append(_hash("in", link.link_class, colour[link.src]))
            colour = {node_id: _hash(own, *sorted(around[node_id])) for node_id, own in colour.items()}
        return _hash(*sorted(colour.values()))

    def as_dict(self) -> dict[str, Any]:
        """JSON form of `collbench topo --json` (docs/design.md section 4)."""
        return {
            "schema": SCHEMA,
            "kind": "topology",
            "name": self.name,
            "nodes": [{"id": n.id, "kind": str(n.kind), **dict(n.attributes)} for n in self.nodes],
            "links": [link_dict(link) for link in self.links],
            "groups": [list(group) for group in self.groups],
            "hidden": [list(pair) for pair in self.hidden],
            "disagreements": list(self.disagreements),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Topology":
        """Inverse of `as_dict`.

        Raises:
            TopologyError: a field is missing or is of the wrong kind.
        """
        _check_form(data)
        try:
            nodes = tuple(
                Node(n["id"], NodeKind(n["kind"]), {k: str(v) for k, v in n.items() if k not in {"id", "kind"}})
                for n in data["nodes"]
            )
            links = tuple(link_from_dict(row) for row in data["links"])
            hidden = tuple((str(a), str(b)) for a, b in data.get("hidden", ()))
            return cls(nodes, links, str(data.get("name", "")), hidden, tuple(map(str, data.get("disagreements", ()))))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TopologyError(f"topology: {type(error).__name__}: {error}") from error

    def as_json(self) -> str:
        """`as_dict` as text, one line."""
        return json.dumps(self.as_dict())


def _check_form(data: Mapping[str, Any]) -> None:
    """Refuse by name what `from_dict` cannot take: a newer schema, missing lists, rows without their keys."""
    if "schema" in data:
        try:
            version_of(data, "topology")
        except InvalidError as error:
            raise TopologyError(str(error)) from None
    for name, keys in (("nodes", ("id", "kind")), ("links", ("src", "dst", "kind"))):
        rows = data.get(name)
        if not isinstance(rows, list | tuple):
            found = "is missing" if name not in data else f"is a {type(rows).__name__}"
            raise TopologyError(f"topology: {name!r} {found}, expected a list, as collbench topo --json writes")
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping) or not all(isinstance(row.get(key), str) for key in keys):
                raise TopologyError(f"topology: {name}[{number}]: expected an object with texts {', '.join(keys)}")


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
