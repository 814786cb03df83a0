"""Write a `Topology` as NCCL's topology XML."""

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape

from collbench.topology import pcie
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collbench.topology.nccl_fabric import CPU_CLASS, SWITCH_CLASS
from collbench.topology.nccl_reader import EXTENSION, read

__all__ = ["write"]

_BUSID = 40
_VALUE = 250  # NCCL refuses a file with a longer attribute value (MAX_STR_LEN 255)
_FIELDS = 14  # and skips attributes beyond 16 of one element
_CLASS = {NodeKind.SWITCH: "0x060400", NodeKind.GPU: "0x030200", NodeKind.NIC: "0x020000"}
_CPU = ("affinity", "arch", "vendor", "familyid", "modelid")
_PCI = ("vendor", "device", "subsystem_vendor", "subsystem_device")
_NET = {"net": "name", "net_dev": "dev", "speed_mbps": "speed", "net_port": "port", "gdr": "gdr"}
_GPU = ("dev", "sm", "gcn", "rank", "gdr")
_HELD = {"busid", "class", "numa", "numaid", "host", "role", "target", "busids", *_CPU, *_PCI, *_NET, *_GPU}
_CLEAR = {NodeKind.HOST_BRIDGE, NodeKind.ROOT_PORT}  # what NCCL passes over between a processor and a switch
_UNKNOWN_SWITCH = "fffffff:ff:ff.0"


def write(topology: Topology) -> tuple[str, list[str]]:
    """The XML and one line for each thing that it cannot hold; see `nccl_xml.render`.

    Raises:
        TopologyError: an id that is too long for NCCL's parser.
    """
    for node in topology.nodes:
        if len(_escaped(node.id)) > _VALUE or not node.id.strip() or node.id != node.id.strip():
            raise TopologyError(
                f"node id {node.id[:40]!r}: NCCL's XML takes 1 to {_VALUE} characters without blanks around"
            )
    writer = _Writer(topology)
    body = writer.system()
    implied = read(writer.document(body, []))
    rest = _difference(topology, implied)
    text = writer.document(body, rest)
    return text, [*writer.losses, *_losses(topology, read(text), rest)]


class _Writer:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.losses: list[str] = []
        self._links: dict[str, list[Link]] = defaultdict(list)
        for link in topology.links:
            self._links[link.src].append(link)
        self._sockets = [topology.node(name) for name in topology.sockets]
        if not self._sockets:
            self.losses.append("a machine without a processor: one is made up")
            self._sockets = [Node(_spare_id(topology), NodeKind.SOCKET, {})]
        self._busid = self._bus_ids()
        self._rank = _ranks(topology)
        self._parent, self._wire = self._tree()

    def document(self, body: list[str], rest: list[str]) -> str:
        """Whole file; `rest` goes into an element that NCCL skips."""
        version = 2 if any(link.kind is LinkKind.XGMI for link in self.topology.links) else 1
        extra = [f"  <{EXTENSION}>", *(f"    {line}" for line in rest), f"  </{EXTENSION}>"] if rest else []
        opening = _open("system", {"version": str(version), "name": self.topology.name})
        return "\n".join([f"{opening}>", *body, *extra, "</system>", ""])

    def system(self) -> list[str]:
        """The `cpu` elements with everything below them."""
        lines: list[str] = []
        for index, socket in enumerate(self._sockets):
            roots = [n for n in self.topology.nodes if self._parent.get(n.id) == socket.id]
            numa = socket.attributes.get("numa", "")
            facts = {"id": socket.id, "numaid": numa if numa.isdecimal() else str(index)}
            host = socket.attributes.get("host", "")
            facts |= {"host_hash": f"0x{int(host) + 1:x}"} if host.isdecimal() else {}
            facts |= {name: socket.attributes.get(name, "") for name in _CPU}
            inside = [line for node in roots for line in self._pci(node)]
            lines += _element("cpu", facts, inside)
        return ["  " + line for line in lines]

    def _bus_ids(self) -> dict[str, str]:
        """Bus id of each node on PCI; made up where it has none, because NCCL needs one."""
        nodes = [n for n in self.topology.nodes if n.kind in _CLASS]
        taken = {n.attributes.get("busid", "") for n in nodes}
        spare = (f"ffff:{number // 32:02x}:{number % 32:02x}.0" for number in range(1, 256 * 32))
        free = (busid for busid in spare if busid not in taken)
        known = {n.id: busid for n in nodes if 0 < len(busid := n.attributes.get("busid", "")) <= _BUSID}
        made = {n.id: next(free) for n in nodes if n.id not in known and not _is_virtual(n)}
        if made:
            self.losses.append(
                f"devices without a bus id ({', '.join(made)}): made-up ids stand in until you write the true ones"
            )
        return dict.fromkeys((n.id for n in nodes), "") | known | made

    def _tree(self) -> tuple[dict[str, str], dict[str, Link]]:
        """Parent element of each device and the link above it: PCIe breadth first from all sockets at once."""
        parent: dict[str, str] = {}
        wire: dict[str, Link] = {}
        seen = set(self.topology.sockets)
        queue = deque((socket, socket) for socket in self.topology.sockets)
        while queue:
            here, holder = queue.popleft()
            for link in self._links[here]:
                node = self.topology.node(link.dst)
                if (
                    link.kind is not LinkKind.PCIE
                    or node.id in seen
                    or not (node.kind in _CLASS or node.kind in _CLEAR)
                ):
                    continue
                seen.add(node.id)
                if node.kind in _CLASS:
                    parent[node.id], wire[node.id] = holder, link
                if node.kind not in {NodeKind.GPU, NodeKind.NIC}:
                    queue.append((node.id, node.id if node.kind in _CLASS else holder))
        return self._orphans(parent, wire)

    def _orphans(self, parent: dict[str, str], wire: dict[str, Link]) -> tuple[dict[str, str], dict[str, Link]]:
        """Devices without PCIe to a socket hang at the processor that they are joined to, or at the first one."""
        sockets = set(self.topology.sockets)
        for node in self.topology.nodes:
            if node.kind in _CLASS and node.id not in parent:
                near = (link.dst for link in self._links[node.id] if link.dst in sockets)
                parent[node.id] = next(near, self._sockets[0].id)
        return parent, wire

    def _pci(self, node: Node) -> list[str]:
        wire = self._wire.get(node.id)
        generation = (wire.generation or wire.current_generation) if wire else 0
        facts = {"busid": self._busid[node.id], "id": node.id}
        facts["class"] = node.attributes.get("class") or _CLASS[node.kind]
        if pcie.class_kind(facts["class"], node.attributes.get("vendor", "")) is not node.kind:
            facts["class"] = _CLASS[node.kind]
        facts |= {name: node.attributes.get(name, "") for name in _PCI}
        width = str(wire.width if wire else 0)
        inside = self._inside(node)
        if node.kind is NodeKind.NIC and not self._busid[node.id]:  # a virtual NIC
            return _element("nic", {"id": node.id}, inside)
        return _element("pci", facts, inside, {"link_speed": pcie.speed_text(generation), "link_width": width})

    def _inside(self, node: Node) -> list[str]:
        if node.kind is NodeKind.GPU:
            facts = {name: node.attributes.get(name, "") for name in _GPU} | {"rank": self._rank[node.id]}
            facts["sm"] = facts["sm"] or node.attributes.get("arch", "").removeprefix("sm_")
            inside = [line for link in self._links[node.id] for line in self._fabric(link)]
            return _element("gpu", facts, inside) if inside or any(facts.values()) else []
        if node.kind is NodeKind.NIC:
            nets = _nets(node)
            return nets if not self._busid[node.id] else (_element("nic", {}, nets) if nets else [])
        below = [n for n in self.topology.nodes if self._parent.get(n.id) == node.id]
        return [*(line for child in below for line in self._pci(child)), *self._chip_links(node)]

    def _chip_links(self, node: Node) -> list[str]:
        return [
            line
            for link in self._links[node.id]
            if link.kind is LinkKind.PCIE
            and self.topology.node(link.dst).kind is NodeKind.SWITCH
            and self._parent.get(link.dst) != node.id
            and self._parent.get(node.id) != link.dst
            for line in _element("pcilink", {"target": self._busid[link.dst]}, [])
        ]

    def _fabric(self, link: Link) -> list[str]:
        far = self.topology.node(link.dst)
        count = str(link.width or 1)
        if link.kind is LinkKind.C2C and far.kind is NodeKind.SOCKET and link.capacity_gbps and link.width:
            return _element("c2c", {"bw": f"{link.capacity_gbps * 1000 / link.width:.0f}", "count": count}, [])
        if link.kind not in {LinkKind.NVLINK, LinkKind.XGMI}:
            return []
        facts = {"target": self._busid.get(far.id, ""), "count": count, "tclass": _CLASS[NodeKind.GPU]}
        if far.kind is NodeKind.NVSWITCH and far.attributes.get("role") and far.id == f"{link.src}_nvlink_end":
            facts["target"] = far.attributes.get("target", "")
        elif far.kind is NodeKind.NVSWITCH:
            chip = far.attributes.get("busids", "").split(",")[0] or _UNKNOWN_SWITCH
            facts |= {"target": chip, "tclass": SWITCH_CLASS, "to": far.id}
        elif far.kind is NodeKind.SOCKET:
            facts |= {"target": "fffffff:ff:ff.1", "tclass": CPU_CLASS}
        elif far.kind is not NodeKind.GPU:
            return []
        return _element(str(link.kind), facts, [])


def _ranks(topology: Topology) -> dict[str, str]:
    """Ranks as the GPUs have them where those say the order; else their places. NCCL sets its own on reading."""
    given = [topology.node(gpu).attributes.get("rank", "") for gpu in topology.gpus]
    numbers = [int(rank) for rank in given if rank.isdecimal() and len(rank) < 9]  # noqa: PLR2004 - digits of a rank
    keep = len(numbers) == len(given) and all(a < b for a, b in itertools.pairwise(numbers))
    return dict(zip(topology.gpus, given if keep else map(str, range(len(given))), strict=True))


def _difference(topology: Topology, implied: Topology) -> list[str]:
    """What has to be said beyond NCCL's elements so that the same nodes and links come back."""
    have = {node.id: node for node in implied.nodes}
    want = {node.id: node for node in topology.nodes}
    lines = [_single("without", {"node": name}) for name in have if name not in want]
    lines += [_single("node", {"id": n.id, "kind": str(n.kind)} | _plain(n.attributes)) for n in want.values()
              if n.id not in have or have[n.id].kind is not n.kind]  # fmt: skip
    kept = {_key(link): link for link in implied.links if link.src in want and link.dst in want}
    asked = {_key(link): link for link in topology.links}
    lines += [
        _single("without", dict(zip(("src", "dst", "kind"), key, strict=True))) for key in kept if key not in asked
    ]
    lines += [_single("link", _link_facts(link)) for key, link in asked.items()
              if key not in kept or _link_facts(kept[key]) != _link_facts(link)]  # fmt: skip
    return lines


def _losses(topology: Topology, back: Topology, rest: Iterable[str]) -> list[str]:
    held = {_key(link): link.capacity_gbps for link in back.links}
    stated = [link for link in topology.links if link.capacity_gbps is not None]
    gone = [link for link in stated if held.get(_key(link)) != link.capacity_gbps]
    losses = []
    if gone:
        some = ", ".join(f"{link.src}->{link.dst} {link.capacity_gbps:g} GB/s" for link in gone[:4])
        losses.append(f"capacities per direction of {len(gone)} links: {some}{', ...' if len(gone) > 4 else ''}")  # noqa: PLR2004 - a line of text
    late = sum(link.latency_us is not None for link in topology.links)
    losses += [f"latencies of {late} links"] if late else []
    losses += ["where capacities and latencies come from"] if gone or late else []
    names = sorted({name for node in topology.nodes for name in node.attributes} - _HELD)
    losses += [f"attributes of nodes: {', '.join(names)}"] if names else []
    losses += ["GPU pairs whose PCIe path is hidden"] if topology.hidden else []
    losses += ["the list of disagreements"] if topology.disagreements else []
    if any(not line.startswith("<without") for line in rest):
        losses.append(f"nodes and links that NCCL has no words for: they stand in <{EXTENSION}>, which NCCL skips")
    return losses


def _key(link: Link) -> tuple[str, str, str]:
    return link.src, link.dst, str(link.kind)


def _link_facts(link: Link) -> dict[str, str]:
    numbers = ("generation", "width", "current_generation", "current_width")
    facts = {name: str(getattr(link, name)) for name in numbers if getattr(link, name)}
    return {"src": link.src, "dst": link.dst, "kind": str(link.kind)} | facts


def _nets(node: Node) -> list[str]:
    columns = {to: node.attributes[name].split(",") for name, to in _NET.items() if node.attributes.get(name)}
    count = len(columns.get("name", columns.get("dev", [])))
    rows = [{to: values[i] for to, values in columns.items() if i < len(values)} for i in range(count)]
    return [line for row in rows for line in _element("net", row, [])]


def _is_virtual(node: Node) -> bool:
    return node.kind is NodeKind.NIC and "net" in node.attributes


def _plain(attributes: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in attributes if name.isidentifier() and name not in {"id", "kind"}]
    return {name: attributes[name] for name in names[: _FIELDS - 2]}


def _spare_id(topology: Topology) -> str:
    taken = {node.id for node in topology.nodes}
    return next(name for name in (f"processor{i}" for i in range(len(taken) + 1)) if name not in taken)


def _element(
    name: str, facts: Mapping[str, str], inside: list[str], always: Mapping[str, str] | None = None
) -> list[str]:
    opening = _open(name, facts, always)
    if not inside:
        return [f"{opening}/>"]
    return [f"{opening}>", *("  " + line for line in inside), f"</{name}>"]


def _single(name: str, facts: Mapping[str, str]) -> str:
    return _open(name, facts) + "/>"


def _open(name: str, facts: Mapping[str, str], always: Mapping[str, str] | None = None) -> str:
    """NCCL's parser wants one blank between attributes and double quotes; empty values are left out unless `always`."""
    pairs = {key: value for key, value in facts.items() if value and len(_escaped(value)) <= _VALUE} | dict(
        always or {}
    )
    return f"<{name}" + "".join(f' {key}="{_escaped(value)}"' for key, value in pairs.items())


def _escaped(value: str) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in value)
    return escape(clean, {'"': "&quot;"})
