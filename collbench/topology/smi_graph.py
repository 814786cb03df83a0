"""A `Topology` from the labels of `nvidia-smi topo -m`: only what the labels say, and what they hide listed."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping

from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.label_rows import is_gpu
from collbench.topology.smi_levels import LEVELS, LabelledDevices, Pairs
from collbench.topology.smi_sockets import sockets_of

__all__ = ["build"]

_SOURCE = "nvidia-smi topo -m"
_MOST_NVLINKS = 18
"""Links of one GPU: 18 on H100, B200; more than that to all its peers together go through NVSwitches."""


def build(devices: LabelledDevices) -> Topology:
    """GPUs `gpu0`, ... in the order of the columns, network cards `nic0`, ...

    A leaf switch stands for each set of GPUs that PIX joins, one above for what PXB joins (how many there really are is
    not said); a host bridge for what PHB joins; sockets by NUMA affinity, else by SYS. Network cards alone on one
    bridge hang below a root port: they may be ports of one card. PCIe links have no generation, width or capacity.
    NV# hides where a pair hangs on PCIe: such pairs are in `hidden`, share a switch only where other labels say so, and
    hang right at their socket where none does. Pairs with more NVLinks than a GPU has are joined through `nvswitch0`.
    """
    return _Builder(devices).topology()


class _Builder:
    def __init__(self, devices: LabelledDevices) -> None:
        self._devices = devices
        self._pairs = Pairs(devices)
        cards = [name for name in devices.names if not is_gpu(name)]
        self._id = {gpu: gpu.lower() for gpu in devices.gpus} | {name: f"nic{i}" for i, name in enumerate(cards)}
        self._nodes: dict[str, Node] = {}
        self._links: list[Link] = []
        self._count: Counter[NodeKind] = Counter()
        self._notes: list[str] = [*devices.notes, *self._pairs.notes]

    def topology(self) -> Topology:
        """Assemble from the sockets down."""
        pairs = self._pairs
        pix, pxb, phb = (pairs.joined(LEVELS[label]) for label in ("PIX", "PXB", "PHB"))
        for sets, label, what in ((pix, "PIX", "one bridge"), (pxb, "PXB", "one switch")):
            self._notes += pairs.contradictions(sets, LEVELS[label], what)
        sockets = sockets_of(self._devices, pairs, phb)
        self._notes += sockets.notes
        self._nodes |= {name: Node(name, NodeKind.SOCKET, facts) for name, facts in sockets.facts.items()}
        for a, b in itertools.permutations(sockets.facts, 2):
            self._links.append(Link(a, b, LinkKind.SOCKET, provenance=_SOURCE))
        for members in phb:
            socket = sockets.of.get(members[0], "")
            above = self._host_bridge(members, socket)
            for tree in (t for t in pxb if t[0] in members):
                self._tree(tree, [leaf for leaf in pix if leaf[0] in tree], above)
        self._nvlinks()
        hidden = tuple((self._id[a], self._id[b]) for a, b in pairs.hidden)
        order = list(NodeKind)
        nodes = sorted(self._nodes.values(), key=lambda n: -1 if n.kind is NodeKind.SOCKET else order.index(n.kind))
        return Topology(tuple(nodes), tuple(self._links), "", hidden, tuple(self._notes))

    def _host_bridge(self, members: list[str], socket: str) -> str:
        """Node that a set of devices hangs on: the socket where a hidden path leaves the bridge unknown."""
        if not socket or (len(members) == 1 and members[0] in self._pairs.without_place):
            return socket
        return self._new(NodeKind.HOST_BRIDGE, socket, {})

    def _tree(self, members: list[str], leaves: list[list[str]], above: str) -> None:
        """Devices joined by at most PXB, with those that PIX joins below a bridge of their own."""
        gpus = [name for name in members if is_gpu(name)]
        if len(leaves) > 1:
            kind = NodeKind.SWITCH if gpus else NodeKind.ROOT_PORT
            above = self._new(kind, above, {"label": "PXB"})
        for leaf in leaves:
            parent = above
            kind = NodeKind.SWITCH if any(is_gpu(name) for name in leaf) else NodeKind.ROOT_PORT
            if len(leaf) > 1 and not (kind is NodeKind.ROOT_PORT and len(leaves) > 1):
                parent = self._new(kind, above, {"label": "PIX"})
            for name in leaf:
                self._device(name, parent)

    def _device(self, name: str, above: str) -> None:
        kind = NodeKind.GPU if is_gpu(name) else NodeKind.NIC
        node = self._id[name]
        self._nodes[node] = Node(node, kind, self._facts(name))
        self._join(above, node)

    def _facts(self, name: str) -> Mapping[str, str]:
        if not is_gpu(name):
            shown = self._devices.cards.get(name, name)
            return {"name": shown}
        cells = self._devices.affinities[name]
        facts = {"numa": cells.numa, "cpu_affinity": cells.cpus, "gpu_numa": cells.gpu_numa}
        return {key: text for key, text in facts.items() if text}

    def _new(self, kind: NodeKind, above: str, facts: Mapping[str, str]) -> str:
        name = f"{kind}{self._count[kind]}"
        self._count[kind] += 1
        self._nodes[name] = Node(name, kind, facts)
        self._join(above, name)
        return name

    def _join(self, above: str, below: str) -> None:
        if above:
            for src, dst in ((above, below), (below, above)):
                self._links.append(Link(src, dst, LinkKind.PCIE, provenance=_SOURCE))

    def _nvlinks(self) -> None:
        """NVLinks as the rows say them, each direction for itself."""
        counts = {(self._id[a], self._id[b]): n for (a, b), n in self._pairs.nvlinks.items()}
        switches = 0
        for members in _islands(counts):
            inside = {pair: n for pair, n in counts.items() if pair[0] in members}
            if _through_switches(inside):
                self._nvswitch(f"nvswitch{switches}", inside)
                switches += 1
            else:
                self._links += [
                    Link(a, b, LinkKind.NVLINK, 0, n, provenance=_SOURCE) for (a, b), n in inside.items()
                ]  # fmt: skip

    def _nvswitch(self, name: str, counts: Mapping[tuple[str, str], int]) -> None:
        self._nodes[name] = Node(name, NodeKind.NVSWITCH, {})
        out: Counter[str] = Counter()
        back: Counter[str] = Counter()
        for (a, b), n in counts.items():
            out[a], back[b] = max(out[a], n), max(back[b], n)
        for (a, b), n in counts.items():
            if n != min(out[a], back[b]):
                self._notes.append(f"{a} to {b}: NV{n}, but {a} has {out[a]} and {b} {back[b]} links to other GPUs")
        self._links += [Link(gpu, name, LinkKind.NVLINK, 0, n, provenance=_SOURCE) for gpu, n in out.items()]
        self._links += [Link(name, gpu, LinkKind.NVLINK, 0, n, provenance=_SOURCE) for gpu, n in back.items()]


def _through_switches(counts: Mapping[tuple[str, str], int]) -> bool:
    """Whether a GPU would need more links than any has, if each peer had its own."""
    total: Counter[str] = Counter()
    for (a, _), n in counts.items():
        total[a] += n
    return max(total.values()) > max(_MOST_NVLINKS, *counts.values())


def _islands(counts: Mapping[tuple[str, str], int]) -> list[set[str]]:
    """GPUs that NVLinks join, in the order in which they come."""
    near: dict[str, set[str]] = defaultdict(set)
    for a, b in counts:
        near[a].add(b)
        near[b].add(a)
    found: list[set[str]] = []
    for gpu in near:
        if any(gpu in island for island in found):
            continue
        island, queue = {gpu}, [gpu]
        for name in queue:
            new = near[name] - island
            island |= new
            queue += new
        found.append(island)
    return found
