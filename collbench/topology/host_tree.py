"""The host tree of a topology: what hangs on which socket, root port or switch."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from collbench.topology.graph import LinkKind, NodeKind, Topology

__all__ = ["ENDS", "FABRIC", "below", "children", "parents"]

ENDS = frozenset({NodeKind.GPU, NodeKind.NIC})
"""Kinds of nodes below which nothing hangs."""

FABRIC = frozenset({LinkKind.NVLINK, LinkKind.XGMI, LinkKind.NETWORK})
"""Kinds of links that are no part of the tree."""

_ORDER = tuple(NodeKind(kind) for kind in ("socket", "host_bridge", "root_port", "switch", "gpu", "nic"))


def parents(topology: Topology) -> dict[str, str]:
    """Node -> the node above it in the host tree, "" for a root; what only hangs on NVLink or a network is left out."""
    kinds = {node.id: node.kind for node in topology.nodes}
    around: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        ends = {kinds[link.src], kinds[link.dst]}
        inside = link.kind is LinkKind.C2C and not ends & {NodeKind.SOCKET, NodeKind.HOST_BRIDGE}
        if link.kind not in FABRIC | {LinkKind.SOCKET} and not inside:
            around[link.src].append(link.dst)
            around[link.dst].append(link.src)
    parent: dict[str, str] = {}
    for kind in _ORDER:
        free = [node.id for node in topology.nodes if node.kind is kind and node.id not in parent]
        if kind is NodeKind.SWITCH:
            free = [node_id for node_id in free if around[node_id]]
        if kind is NodeKind.SOCKET:  # all at once, so that what two sockets share hangs at the nearer one
            _descend(free, around, kinds, parent)
        else:
            for node_id in free:
                _descend([node_id] if node_id not in parent else [], around, kinds, parent)
    return parent


def _descend(
    starts: Iterable[str], around: Mapping[str, list[str]], kinds: Mapping[str, NodeKind], parent: dict[str, str]
) -> None:
    queue = deque(starts)
    parent.update(dict.fromkeys(queue, ""))
    while queue:
        node_id = queue.popleft()
        if kinds[node_id] in ENDS:
            continue  # nothing hangs below a GPU or a network card
        for other in around.get(node_id, ()):
            if other not in parent and kinds[other] is not NodeKind.NVSWITCH:
                parent[other] = node_id
                queue.append(other)


def children(topology: Topology, parent: Mapping[str, str]) -> dict[str, list[str]]:
    """Node -> its children ("" -> the roots), ordered by the first GPU below each."""
    place = {node.id: index for index, node in enumerate(topology.nodes)}
    rank = {gpu: index for index, gpu in enumerate(topology.gpus)}
    first: dict[str, int] = {}
    for node_id in parent:
        at, value = node_id, rank.get(node_id, len(place))
        while at:
            first[at] = min(first.get(at, len(place)), value)
            at = parent[at]
    found: dict[str, list[str]] = defaultdict(list)
    for node_id in sorted(parent, key=lambda n: (first[n], place[n])):
        found[parent[node_id]].append(node_id)
    return dict(found)


def below(node_id: str, children: Mapping[str, list[str]]) -> list[str]:
    """A node and all below it, parents first."""
    found = [node_id]
    for at in found:
        found += children.get(at, [])
    return found
