"""Read NCCL's and RCCL's topology XML into a `Topology`."""

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from collbench.topology import pcie
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.nccl_fabric import join_fabric
from collbench.topology.xml_tree import Element, read_tree

__all__ = ["EXTENSION", "read"]

_Kind = TypeVar("_Kind", bound=StrEnum)

EXTENSION = "collbench"
"""Element with the nodes and links that NCCL's own elements cannot express; NCCL skips elements of unknown names."""

_OTHERS = {
    "graphs": "an NCCL graph file (NCCL_GRAPH_DUMP_FILE), not a topology: give what NCCL_TOPO_DUMP_FILE writes",
    "topology": "an hwloc file: give what NCCL_TOPO_DUMP_FILE writes",
    "nvidia_smi_log": "the output of nvidia-smi -q -x: give `nvidia-smi topo -m` or what NCCL_TOPO_DUMP_FILE writes",
    "algo": "an MSCCL algorithm, not a topology",
}
_CPU = ("numaid", "arch", "vendor", "familyid", "modelid", "affinity")
_PCI = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")
_GPU = ("dev", "rank", "sm", "gdr", "gcn")
_NET = {"name": "net", "dev": "net_dev", "speed": "speed_mbps", "port": "net_port", "gdr": "gdr"}
_CPUS = 512
_FAST = 3  # Gen3: every GPU and switch of the last ten years reaches it


def read(text: str) -> Topology:
    """Topology of an NCCL or RCCL dump.

    `cpu` elements become sockets (NCCL writes one per NUMA node), bridges become switches (NCCL names a switch by its
    upstream port and leaves root ports out), all NVSwitch chips of a file one NVSwitch, as in NCCL.

    Raises:
        TopologyError: not a topology of NCCL; names line and element.
    """
    root = read_tree(text, ("system", "graphs"))
    if root.name != "system":
        raise root.error(_OTHERS.get(root.name, "expected the <system> of an NCCL topology"))
    return Reader(root).topology()


@dataclass(slots=True)
class GpuPlace:
    """A GPU found on the walk: its `pci` and (where there is one) `gpu` element, and where it hangs."""

    pci: Element
    gpu: Element | None
    parent: str
    socket: str
    host: int
    id: str = ""

    def number(self, name: str) -> int | None:
        """`rank` or `dev`, None where it is not given."""
        return self.gpu.integer(name) if self.gpu is not None and self.gpu.get(name) else None

    @property
    def busid(self) -> str:
        """Bus id of the `pci` element."""
        return pcie.normal_busid(self.pci.get("busid"))


class Reader:
    """Nodes and links collected on one walk over the elements; what refers to bus ids is resolved after it."""

    def __init__(self, root: Element) -> None:
        self.root = root
        self.nodes: dict[str, Node] = {}
        self.links: dict[tuple[str, str, LinkKind], Link] = {}
        self.notes: list[str] = []
        self.gpus: list[GpuPlace] = []
        self.switches: dict[tuple[int, str], str] = {}
        self._counts: Counter[NodeKind] = Counter()
        self._slow: list[str] = []
        self._chip_links: list[tuple[Element, str, int]] = []

    def topology(self) -> Topology:
        """Everything, sockets and switches before GPUs, GPUs in the order of their ranks."""
        hosts = {name: i for i, name in enumerate(dict.fromkeys(c.get("host_hash") for c in self.root.all("cpu")))}
        count = sum(1 for _ in self.root.all("cpu"))
        if not 0 < count <= _CPUS:
            raise self.root.error(f"{count or 'no'} <cpu> in it, expected 1 to {_CPUS}")
        sockets = defaultdict(list)
        for cpu in self.root.all("cpu"):
            sockets[hosts[cpu.get("host_hash")]].append(self._cpu(cpu, hosts, len(hosts) > 1))
        for near in sockets.values():
            for a, b in itertools.combinations(near, 2):
                self.join(a, b, LinkKind.SOCKET)
        self._place_gpus()
        self._join_chips()
        join_fabric(self)
        self._note_slow()
        for extension in self.root.all(EXTENSION):
            self._extend(extension)
        ordered = sorted(self.nodes.values(), key=lambda node: _RANK[node.kind])
        links = pcie.with_nominal(self.links.values())
        return Topology(tuple(ordered), links, self.root.get("name"), (), tuple(self.notes))

    def add(self, kind: NodeKind, wanted: str, attributes: Mapping[str, str]) -> str:
        """Add a node under `wanted`, or under the next free name of its kind; gives the id."""
        while not wanted or wanted in self.nodes:
            wanted = f"{kind}{self._counts[kind]}"
            self._counts[kind] += 1
        self.nodes[wanted] = Node(wanted, kind, {k: v for k, v in attributes.items() if v})
        return wanted

    def link(self, link: Link) -> None:
        """Add one direction; a second link of the same kind between the same ends adds its width."""
        key = (link.src, link.dst, link.kind)
        if key in self.links:
            link = dataclasses.replace(link, width=link.width + self.links[key].width)
        self.links[key] = link

    def join(self, a: str, b: str, kind: LinkKind, **facts: float | str | None) -> None:
        """Add both directions of a link."""
        self.link(Link(a, b, kind, **facts))  # type: ignore[arg-type]  # the callers name fields of Link
        self.link(Link(b, a, kind, **facts))  # type: ignore[arg-type]  # same

    def _cpu(self, cpu: Element, hosts: Mapping[str, int], many: bool) -> str:  # noqa: FBT001 - private, one call
        numa = cpu.get("numaid") if cpu.get("numaid").isdecimal() else ""  # NCCL writes -1 where the kernel knows none
        attributes = {name: cpu.get(name) for name in _CPU} | {"numaid": numa, "numa": numa}
        host = hosts[cpu.get("host_hash")]
        if many:
            attributes["host"] = str(host)
        default = f"host{host}_socket{numa}" if many else f"socket{numa}"
        socket = self.add(NodeKind.SOCKET, cpu.get("id") or (default if numa else ""), attributes)
        for child in cpu.children:
            if child.name == "pci":
                self._pci(child, socket, socket, host)
            elif child.name == "nic":  # a virtual NIC without a bus id
                self._nic(child, child, socket)
        return socket

    def _pci(self, pci: Element, parent: str, socket: str, host: int) -> None:
        if not pci.get("busid"):
            raise pci.error("busid is missing")
        kind = _kind_of(pci)
        inside = list(pci.all("pci"))
        if kind is NodeKind.GPU:
            cards: list[Element | None] = [*pci.all("gpu")] or [None]
            self.gpus += [GpuPlace(pci, gpu, parent, socket, host) for gpu in cards]
        elif kind is NodeKind.NIC:
            self._nic(pci, pci, parent)
        elif kind in {NodeKind.SWITCH, NodeKind.HOST_BRIDGE} or (kind is None and inside):
            parent = self._switch(pci, parent, host, kind or NodeKind.SWITCH)
        elif kind is None:
            self.notes.append(f"{pci.get('busid')}: neither bridge, GPU nor NIC (class {pci.get('class')!r}): left out")
        for child in inside:
            self._pci(child, parent, socket, host)

    def _switch(self, pci: Element, parent: str, host: int, kind: NodeKind) -> str:
        busid = pcie.normal_busid(pci.get("busid"))
        wanted = pci.get("id") if pci.get("id") not in self.nodes else ""
        switch = self.add(kind, wanted, {"busid": busid} | {name: pci.get(name) for name in _PCI})
        self.switches.setdefault((host, busid), switch)
        self.wire(pci, parent, switch, NodeKind.SWITCH)
        self._chip_links += [(link, switch, host) for link in pci.all("pcilink")]
        if next(pci.all("nic"), None) is not None:  # bridges of combined cards carry their NIC themselves
            self.join(switch, self._nic(pci, None, switch), LinkKind.PCIE)
        return switch

    def _nic(self, holder: Element, pci: Element | None, parent: str) -> str:
        nets = [net for nic in (holder, *holder.all("nic")) for net in nic.all("net")]
        attributes = {to: ",".join(net.get(name) for net in nets) for name, to in _NET.items()}
        attributes = {name: value for name, value in attributes.items() if value.strip(",")}
        attributes["busid"] = pcie.normal_busid(holder.get("busid"))
        attributes |= {name: holder.get(name) for name in _PCI}
        wanted = holder.get("id") if holder.get("id") not in self.nodes else ""
        nic = self.add(NodeKind.NIC, wanted, attributes)
        if pci is not None:
            self.wire(pci, parent, nic, NodeKind.NIC)
        return nic

    def wire(self, pci: Element, parent: str, node: str, kind: NodeKind) -> None:
        """Join a device and what is above it.

        NCCL's `link_speed` is the most that both ends can do, except where an idle or emulated link shows 2.5 GT/s (or
        5 GT/s on a GPU or switch): that is kept as the present speed only.
        """
        generation, width = pcie.generation_of(pci.get("link_speed")), pci.integer("link_width")
        width = width if 0 < width <= 32 else 0  # noqa: PLR2004 - PCIe has no wider link; 63 and 255 mean unknown
        slow = generation == 1 or (generation and generation < _FAST and kind is not NodeKind.NIC)
        if slow:
            self._slow.append(f"{node} ({pci.get('busid')}, {pci.get('link_speed')})")
        self.join(
            parent, node, LinkKind.PCIE, generation=0 if slow else generation, width=width,
            current_generation=generation if slow else 0, provenance="NCCL XML",
        )  # fmt: skip

    def _place_gpus(self) -> None:
        for name in ("rank", "dev"):
            keys = [(gpu.host, gpu.number(name)) for gpu in self.gpus]
            if None not in {key[1] for key in keys} and len(set(keys)) == len(keys):
                self.gpus.sort(key=lambda gpu, name=name: (gpu.host, gpu.number(name)))  # type: ignore[misc]
                break
        for place in self.gpus:
            attributes = {"busid": place.busid} | {name: place.pci.get(name) for name in _PCI}
            if place.gpu is not None:
                attributes |= {name: place.gpu.get(name) for name in _GPU}
            place.id = self.add(NodeKind.GPU, place.pci.get("id"), attributes)
            self.wire(place.pci, place.parent, place.id, NodeKind.GPU)

    def _join_chips(self) -> None:
        """`pcilink` joins two switches that are parts of one chip."""
        for link, switch, host in self._chip_links:
            other = self.switches.get((host, pcie.normal_busid(link.get("target"))))
            if other is None or other == switch:
                self.notes.append(f"{switch}: pcilink to {link.get('target')!r}, which is no other switch of this file")
            else:
                self.links.setdefault(
                    (switch, other, LinkKind.PCIE), Link(switch, other, LinkKind.PCIE, provenance="NCCL XML pcilink")
                )

    def _note_slow(self) -> None:
        if self._slow:
            self.notes.append(
                "link speeds of an idle or emulated link, not taken as what it can do: " + ", ".join(self._slow)
            )

    def _extend(self, extension: Element) -> None:
        """What our own writer added: nodes and links that NCCL has no words for, and those that it would imply."""
        gone = {item.get("node") for item in extension.all("without") if item.get("node")}
        self.nodes = {name: node for name, node in self.nodes.items() if name not in gone}
        self.links = {k: v for k, v in self.links.items() if v.src not in gone and v.dst not in gone}
        for item in extension.all("without"):
            if not item.get("node"):
                self.links.pop((item.get("src"), item.get("dst"), _member(LinkKind, item)), None)
        for item in extension.all("node"):
            attributes = {k: v for k, v in item.attributes.items() if k not in {"id", "kind"}}
            self.nodes[item.get("id")] = Node(item.get("id"), _member(NodeKind, item), attributes)
        for item in extension.all("link"):
            link = Link(
                item.get("src"), item.get("dst"), _member(LinkKind, item), item.integer("generation"),
                item.integer("width"), item.integer("current_generation"), item.integer("current_width"),
                provenance="NCCL XML, collbench",
            )  # fmt: skip
            self.links[link.src, link.dst, link.kind] = link


_RANK = {kind: index for index, kind in enumerate(
    (NodeKind.SOCKET, NodeKind.HOST_BRIDGE, NodeKind.ROOT_PORT, NodeKind.SWITCH, NodeKind.GPU, NodeKind.NIC,
     NodeKind.NVSWITCH)
)}  # fmt: skip


def _kind_of(pci: Element) -> NodeKind | None:
    """What a `pci` element is: by what it holds, as in NCCL, and where it holds nothing by its class."""
    named = pcie.class_kind(pci.get("class"), pci.get("vendor")) if pci.get("class") else None
    if pci.get("class").lower().startswith("0x0600") and next(pci.all("pci"), None) is not None:
        return NodeKind.HOST_BRIDGE  # hand-written files; NCCL itself writes none
    if next(pci.all("gpu"), None) is not None:
        return NodeKind.GPU
    if next(pci.all("nic"), None) is not None and named is not NodeKind.SWITCH:
        return NodeKind.NIC
    return named


def _member(kinds: type[_Kind], item: Element) -> _Kind:
    try:
        return kinds(item.get("kind"))
    except ValueError:
        raise item.error(f"kind {item.get('kind')!r} is none of {', '.join(kinds)}") from None
