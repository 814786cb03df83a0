"""Where the nodes of a topology stand in the picture: rows by kind, columns by the PCIe tree."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from collbench.topology import host_tree
from collbench.topology.graph import Link, LinkKind, NodeKind, Topology

__all__ = ["Box", "Join", "Layout", "arrange"]

MANY_LEAVES = 16
"""Above so many columns, network cards that share a parent become one box."""

_MARGIN, _BAR, _LEAF_HEIGHT = 24.0, 40.0, 54.0
_LEAF_WIDTHS = (56.0, 132.0)
_PAGE = 1200.0
_LINE = 14.0
_SOCKET_WIDTHS = (150.0, 240.0)
_NAME_WIDTHS = (56.0, 112.0)
_LETTER, _PAD = 7.4, 12.0
_SMALL, _CORES = 6.3, 24  # letters of small type; room for cores and NUMA node behind a processor's name


@dataclass(slots=True)
class Box:
    """One rectangle: the nodes that it stands for (several where network cards are folded), its place and size."""

    nodes: tuple[str, ...]
    kind: NodeKind
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = _BAR

    @property
    def middle(self) -> float:
        """X of the centre."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True)
class Join:
    """A drawn line between two boxes: links up from `low` to `high` and down again (either may be empty)."""

    low: str
    high: str
    up: tuple[Link, ...]
    down: tuple[Link, ...]

    @property
    def first(self) -> Link:
        """A link that stands for all when its kind and speed are asked for."""
        return (self.up or self.down)[0]


@dataclass(slots=True)
class Layout:
    """Boxes by the id of their first node; `tree` holds the vertical lines, `side` all others."""

    boxes: dict[str, Box] = field(default_factory=dict)
    tree: list[Join] = field(default_factory=list)
    side: list[Join] = field(default_factory=list)
    bars: list[str] = field(default_factory=list)
    least: dict[str, float] = field(default_factory=dict)
    root_gap: float = 44.0
    width: float = 0.0
    height: float = 0.0


def arrange(topology: Topology, top: float, labels: Mapping[tuple[str, str], Sequence[str]]) -> Layout:
    """Lay a topology out below `top`. `labels` holds the lines of text that stand at each link (src, dst)."""
    parent = host_tree.parents(topology)
    children = host_tree.children(topology, parent)
    sockets = set(topology.sockets)
    labelled = any({link.src, link.dst} <= sockets and labels[link.src, link.dst] for link in topology.links)
    layout = Layout(root_gap=112.0 if labelled else 44.0)
    roots = children.pop("", [])
    _fold(topology, children, layout)
    for node in topology.nodes:
        if node.id in parent and not any(node.id in box.nodes for box in layout.boxes.values()):
            layout.boxes[node.id] = Box((node.id,), node.kind)
    _least_widths(topology, layout, labels)
    _columns(layout, children, [root for root in roots if root in layout.boxes])
    rows = _rows(topology, layout, parent)
    _joins(topology, layout, parent)
    _heights(layout, rows, top, labels)
    _bottom(topology, layout, labels)
    return layout


def _fold(topology: Topology, children: dict[str, list[str]], layout: Layout) -> None:
    """Where there are too many columns, one box for all network cards that hang below one parent."""
    gpus = set(topology.gpus)
    nics = {node.id for node in topology.nodes if node.kind is NodeKind.NIC}
    if len(gpus) + len(nics) <= MANY_LEAVES:
        return
    for node_id in [key for key, below in children.items() if len(below) > 1]:
        bare = [
            c
            for c in children.get(node_id, [])
            if not gpus & set(under := host_tree.below(c, children)) and nics & set(under)
        ]
        cards = [n for c in bare for n in host_tree.below(c, children) if n in nics]
        if len(cards) > 1:
            kept = [c for c in children[node_id] if c not in bare]
            for gone in (n for c in bare for n in host_tree.below(c, children)):
                children.pop(gone, None)
            place = children[node_id].index(bare[0])
            children[node_id] = [*kept[:place], cards[0], *kept[place:]]
            layout.boxes[cards[0]] = Box(tuple(cards), NodeKind.NIC)


def _least_widths(topology: Topology, layout: Layout, labels: Mapping[tuple[str, str], Sequence[str]]) -> None:
    """Least width of each box: its name fits, and so do the labels at a GPU's or network card's links."""
    low, high = _SOCKET_WIDTHS
    sockets = max(1, len(topology.sockets))
    for key, box in layout.boxes.items():
        width = min(max(_LETTER * len(box.nodes[0]) + _PAD, _NAME_WIDTHS[0]), _NAME_WIDTHS[1])
        if box.kind is NodeKind.SOCKET:
            model = _SMALL * (len(topology.node(key).attributes.get("model", "")) + _CORES)
            width = min(max(_PAGE / sockets - layout.root_gap - _MARGIN, low), max(high, model))
        layout.least[key] = width
    for link in topology.links:
        for end in (link.src, link.dst):
            if end in layout.boxes and layout.boxes[end].kind in host_tree.ENDS:
                rows = labels[link.src, link.dst]
                letter = 7.0 if rows and rows[0].endswith(" now") else _SMALL  # bold, as drawing_shapes writes it
                layout.least[end] = max(layout.least[end], letter * max(map(len, rows), default=0))


def _columns(layout: Layout, children: Mapping[str, list[str]], roots: Sequence[str]) -> None:
    placed = [n for root in roots for n in host_tree.below(root, children)]
    for gone in set(layout.boxes) - set(placed):
        del layout.boxes[gone]
    leaves = [n for n in placed if not children.get(n) and layout.boxes[n].kind in host_tree.ENDS]
    low, high = _LEAF_WIDTHS
    layout.width = _spread(layout, children, roots, low)
    if leaves and layout.width < _PAGE:
        wide = min(high, low + (_PAGE - layout.width) / len(leaves))
        layout.width = _spread(layout, children, roots, wide)


def _spread(layout: Layout, children: Mapping[str, list[str]], roots: Sequence[str], leaf: float) -> float:
    """Give every box its x and width for leaves of a width; gives the width of the picture."""
    room: dict[str, float] = {}
    left = _MARGIN
    for root in roots:
        tree = host_tree.below(root, children)
        for node_id in reversed(tree):
            below = children.get(node_id, [])
            inner = sum(room[child] for child in below) + _gaps(below, children)
            ends = layout.boxes[node_id].kind in host_tree.ENDS
            room[node_id] = max(inner, layout.least[node_id], leaf if ends else 0.0)
        _place(layout, children, tree, room, left)
        left += room[root] + layout.root_gap
    return left - (layout.root_gap if roots else 0.0) + _MARGIN


def _place(
    layout: Layout, children: Mapping[str, list[str]], tree: Sequence[str], room: dict[str, float], left: float
) -> None:
    """Set x and width of every box of one tree, whose nodes come parents first."""
    start = {tree[0]: left}
    for node_id in tree:
        below = children.get(node_id, [])
        at = start[node_id] + (room[node_id] - sum(room[child] for child in below) - _gaps(below, children)) / 2
        for index, child in enumerate(below):
            start[child] = at
            if len(below) == 1 and layout.boxes[child].kind in host_tree.ENDS:  # as wide as what it hangs on
                room[child] = min(room[node_id], _LEAF_WIDTHS[1])
                start[child] = start[node_id] + (room[node_id] - room[child]) / 2
            at += room[child] + _gaps(below[index : index + 2], children)
        layout.boxes[node_id].x, layout.boxes[node_id].width = start[node_id], room[node_id]
    for node_id in reversed(tree):
        if below := children.get(node_id, []):
            _narrow(layout.boxes[node_id], layout.least[node_id], [layout.boxes[child].middle for child in below])


def _narrow(box: Box, least: float, below: Sequence[float]) -> None:
    """Sockets and switches span what hangs below them; root ports and host bridges only the lines to it."""
    if box.kind in {NodeKind.ROOT_PORT, NodeKind.HOST_BRIDGE}:
        box.width = max(least, below[-1] - below[0] + 48.0)
        box.x = (below[0] + below[-1] - box.width) / 2


def _gap(pair: Sequence[str], children: Mapping[str, list[str]]) -> float:
    return 16.0 if any(len(host_tree.below(node_id, children)) > 2 for node_id in pair) else 6.0  # noqa: PLR2004 - a chain needs none


def _gaps(below: Sequence[str], children: Mapping[str, list[str]]) -> float:
    return sum(_gap(pair, children) for pair in pairwise(below))


def _rows(topology: Topology, layout: Layout, parent: Mapping[str, str]) -> dict[str, int]:
    """Box -> row from the top; switches below switches go one row down, GPUs and network cards share the last row."""
    kinds = {node.id: node.kind for node in topology.nodes}
    depth: dict[str, int] = {}
    for node_id in layout.boxes:
        at, switches = parent.get(node_id, ""), 0
        while at:
            switches += kinds[at] is NodeKind.SWITCH
            at = parent[at]
        ends = layout.boxes[node_id].kind in host_tree.ENDS
        base = {NodeKind.SOCKET: 0, NodeKind.HOST_BRIDGE: 1, NodeKind.ROOT_PORT: 2}
        depth[node_id] = 10_000 if ends else base.get(layout.boxes[node_id].kind, 3 + switches)
    used = sorted(set(depth.values()))
    return {node_id: used.index(row) for node_id, row in depth.items()}


def _joins(topology: Topology, layout: Layout, parent: Mapping[str, str]) -> None:
    """Collect the lines: up the tree, and all others between boxes."""
    owner = {node_id: key for key, box in layout.boxes.items() for node_id in box.nodes}
    pairs: dict[tuple[str, str, LinkKind], tuple[list[Link], list[Link]]] = {}
    for link in topology.links:
        src, dst = owner.get(link.src, link.src), owner.get(link.dst, link.dst)
        if src == dst or src not in layout.boxes or dst not in layout.boxes:
            continue
        if (dst, src, link.kind) in pairs:
            pairs[dst, src, link.kind][1].append(link)
        else:
            pairs.setdefault((src, dst, link.kind), ([], []))[0].append(link)
    for (src, dst, kind), (there, back) in pairs.items():
        low, high, up, down = (dst, src, back, there) if parent.get(dst) == src else (src, dst, there, back)
        join = Join(low, high, tuple(up), tuple(down))
        tree = parent.get(low) == high and kind not in host_tree.FABRIC | {LinkKind.SOCKET}
        (layout.tree if tree else layout.side).append(join)


def _heights(
    layout: Layout, rows: Mapping[str, int], top: float, labels: Mapping[tuple[str, str], Sequence[str]]
) -> None:
    lines: dict[int, int] = defaultdict(int)
    for join in layout.tree:
        at = max((len(labels.get((link.src, link.dst), ())) for link in (*join.up, *join.down)), default=0)
        lines[rows[join.low]] = max(lines[rows[join.low]], at)
    y = top
    for row in range(max(rows.values(), default=-1) + 1):
        here = [layout.boxes[node_id] for node_id, at in rows.items() if at == row]
        y += (24.0 + _LINE * lines[row]) if row else 0.0
        for box in here:
            box.y, box.height = y, _LEAF_HEIGHT if box.kind in host_tree.ENDS else _BAR
        y += max(box.height for box in here)
    layout.height = y


def _bottom(topology: Topology, layout: Layout, labels: Mapping[tuple[str, str], Sequence[str]]) -> None:
    """Bars below the GPUs: NVSwitches (those with the same neighbours as one) and network switches."""
    near: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        if link.kind in host_tree.FABRIC and link.dst not in layout.boxes and link.src in layout.boxes:
            near[link.dst].append(link.src)
    same: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in topology.nodes:
        if node.id not in layout.boxes and node.id in near:
            same[tuple(sorted(set(near[node.id])))].append(node.id)
    low = layout.height
    for ends, nodes in same.items():
        touched = [layout.boxes[end] for end in ends]
        left, right = min(box.x for box in touched), max(box.x + box.width for box in touched)
        links = [link for link in topology.links if link.dst in nodes or link.src in nodes]
        above = [layout.boxes[key] for key in layout.bars]
        under = max((b.y + b.height for b in above if b.x < right and left < b.x + b.width), default=layout.height)
        y = under + 24.0 + _LINE * max((len(labels.get((link.src, link.dst), ())) for link in links), default=0)
        layout.boxes[nodes[0]] = Box(tuple(nodes), topology.node(nodes[0]).kind, left, y, right - left)
        layout.bars.append(nodes[0])
        for end in ends:
            up = tuple(link for link in links if link.dst in layout.boxes[end].nodes)
            down = tuple(link for link in links if link.src in layout.boxes[end].nodes)
            layout.side.append(Join(end, nodes[0], down, up))
        low = max(low, y + _BAR)
    layout.height = low
    _rest(topology, layout)


def _rest(topology: Topology, layout: Layout) -> None:
    """What no box reaches, such as an NVSwitch without links, in a row of its own; lines between bars."""
    owned = {node_id for box in layout.boxes.values() for node_id in box.nodes}
    rest = [node for node in topology.nodes if node.id not in owned]
    for index, node in enumerate(rest):
        layout.boxes[node.id] = Box((node.id,), node.kind, _MARGIN + index * 130.0, layout.height + 24.0, 120.0)
        layout.bars.append(node.id)
    if rest:
        layout.height += 24.0 + _BAR
        layout.width = max(layout.width, _MARGIN * 2 + len(rest) * 130.0 - 10.0)
    owner = {node_id: key for key in layout.bars for node_id in layout.boxes[key].nodes}
    seen: dict[tuple[str, str], list[Link]] = defaultdict(list)
    for link in topology.links:
        one, two = owner.get(link.src, ""), owner.get(link.dst, "")
        if one and two and one != two:
            seen[min(one, two), max(one, two)].append(link)
    for (one, two), links in seen.items():
        layout.side.append(Join(one, two, tuple(links), ()))
