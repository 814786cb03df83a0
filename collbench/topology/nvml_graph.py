"""A `Topology` from what NVML said: switches and sockets by the levels of pairs, NVLinks by neighbour."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping

from collbench.topology import pcie
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.nccl_fabric import NVLINK_GENERATIONS
from collbench.topology.nvml import NvmlCapture, NvmlGpu

__all__ = ["build", "gpu_attributes"]

_RANK = {"SELF": 0, "PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}
_SOURCE = "NVML"


def build(capture: NvmlCapture) -> Topology:
    """GPUs in the order of their bus ids.

    A switch stands for each set of GPUs that NVML joins by PIX, one above it where PXB joins more; how many switches a
    path of PXB really has is not said. NUMA nodes become sockets, or the sets that are not joined by SYS.
    """
    return _Builder(capture).topology()


def gpu_attributes(gpu: NvmlGpu) -> dict[str, str]:
    """Facts of a GPU as attributes of its node."""
    facts = {
        "busid": gpu.busid, "model": gpu.model, "numa": "" if gpu.numa is None else str(gpu.numa),
        "arch": arch(gpu), "memory_gib": f"{gpu.memory_mib / 1024:.1f}" if gpu.memory_mib else "",
        "processes": "" if gpu.processes is None else str(gpu.processes),
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value}


def arch(gpu: NvmlGpu) -> str:
    """Compute capability as `sm_90`."""
    return "sm_" + gpu.compute_capability.replace(".", "") if gpu.compute_capability else ""


class _Builder:
    def __init__(self, capture: NvmlCapture) -> None:
        self._capture = capture
        self._id = {gpu.busid: f"gpu{index}" for index, gpu in enumerate(capture.usable)}
        self._nodes: list[Node] = []
        self._links: list[Link] = []
        self._pairs = [p for p in capture.pairs if p.a in self._id and p.b in self._id]
        self._level = {frozenset((p.a, p.b)): _RANK[p.level] for p in self._pairs if p.level}

    def topology(self) -> Topology:
        """Assemble sockets, switches, GPUs and NVSwitches."""
        socket_of = self._sockets()
        above = self._switches(socket_of)
        for gpu in self._capture.usable:
            self._nodes.append(Node(self._id[gpu.busid], NodeKind.GPU, gpu_attributes(gpu)))
            self._join(
                above.get(gpu.busid, socket_of[gpu.busid]), self._id[gpu.busid],
                gpu.generation_max, gpu.width_max, gpu.generation, gpu.width,
            )  # fmt: skip
        fabric = nvlinks(self._capture, self._id, socket_of)
        links = pcie.with_nominal([*self._links, *fabric[1]])
        hidden = [(self._id[p.a], self._id[p.b]) for p in self._pairs if not p.level]
        return Topology((*self._nodes, *fabric[0]), links, "", tuple(hidden), self._capture.problems)

    def _sockets(self) -> dict[str, str]:
        """Socket of each GPU by bus id; adds the sockets, each joined to each."""
        sets = self._joined(_RANK["NODE"])
        named = {gpu.busid: gpu.numa for gpu in self._capture.usable}
        keys = {busid: index for index, members in enumerate(sets) for busid in members}
        if all(numa is not None for numa in named.values()):
            keys = {busid: numa or 0 for busid, numa in named.items()}
        names = [f"socket{key}" for key in sorted(set(keys.values()))] or ["socket0"]
        self._nodes += [Node(name, NodeKind.SOCKET, {}) for name in names]
        self._links += [Link(a, b, LinkKind.SOCKET, provenance=_SOURCE) for a, b in itertools.permutations(names, 2)]
        return {busid: f"socket{key}" for busid, key in keys.items()}

    def _switches(self, socket_of: Mapping[str, str]) -> dict[str, str]:
        """Switch right above each GPU that has one; adds the switches."""
        above: dict[str, str] = {}
        inner = [members for members in self._joined(_RANK["PIX"]) if len(members) > 1]
        count = itertools.count()
        for members in (m for m in self._joined(_RANK["PXB"]) if len(m) > 1):
            parent = socket_of[members[0]]
            if members not in inner:
                parent = self._switch(f"switch{next(count)}", parent)
                above |= dict.fromkeys(members, parent)
            for leaf in (m for m in inner if m[0] in members):
                above |= dict.fromkeys(leaf, self._switch(f"switch{next(count)}", parent))
        return above

    def _switch(self, name: str, parent: str) -> str:
        self._nodes.append(Node(name, NodeKind.SWITCH, {}))
        self._join(parent, name, 0, 0, 0, 0)
        return name

    def _joined(self, most: int) -> list[list[str]]:
        """Sets of GPUs joined by levels of at most `most`, in bus order."""
        sets: list[list[str]] = []
        for gpu in self._capture.usable:
            near = [s for s in sets if any(self._level.get(frozenset((other, gpu.busid)), 9) <= most for other in s)]
            sets = [s for s in sets if s not in near] + [[*itertools.chain(*near), gpu.busid]]
        return sorted(sorted(s) for s in sets)

    def _join(self, a: str, b: str, generation: int, width: int, now: int, now_width: int) -> None:
        for src, dst in ((a, b), (b, a)):
            self._links.append(Link(src, dst, LinkKind.PCIE, generation, width, now, now_width, provenance=_SOURCE))


def nvlinks(
    capture: NvmlCapture, ids: Mapping[str, str], socket_of: Mapping[str, str]
) -> tuple[list[Node], list[Link]]:
    """Nodes and links of the NVLinks of the GPUs in `ids` (bus id to node id)."""
    widths: dict[tuple[str, str], int] = defaultdict(int)
    generation: dict[str, int] = {}
    ends: dict[str, Node] = {}
    for gpu in (g for g in capture.usable if g.busid in ids):
        name = ids[gpu.busid]
        generation[name] = _generation(gpu)
        for link in gpu.nvlinks:
            far = _far_end(link.remote, link.remote_type, name, ids, socket_of.get(gpu.busid, ""))
            if far not in {*ids.values(), *socket_of.values()}:
                ends[far] = Node(far, NodeKind.NVSWITCH, {} if far == "nvswitch0" else {"role": "unknown far end"})
                widths[far, name] += link.count
            elif far not in ids.values():
                widths[far, name] += link.count
            widths[name, far] += link.count
    return list(ends.values()), [*_links(widths, generation)]


def _links(widths: Mapping[tuple[str, str], int], generation: Mapping[str, int]) -> Iterable[Link]:
    for (src, dst), width in widths.items():
        version = generation.get(src, 0) or generation.get(dst, 0)
        yield Link(src, dst, LinkKind.NVLINK, version, width, version, width, provenance=_SOURCE)


def _far_end(remote: str, kind: str, name: str, ids: Mapping[str, str], socket: str) -> str:
    if remote in ids and ids[remote] != name:
        return ids[remote]
    if kind == "cpu" and socket:
        return socket
    return f"{name}_nvlink_end" if kind == "gpu" else "nvswitch0"


def _generation(gpu: NvmlGpu) -> int:
    """NVLink version by compute capability: what the driver calls version counts differently."""
    return NVLINK_GENERATIONS.get(int(gpu.compute_capability.replace(".", "") or 0), 0)
