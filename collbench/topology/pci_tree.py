"""PCI devices that know their bus ids and their bridges' buses, put together into a `Topology`."""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collbench.topology import pcie
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology

__all__ = ["PciDevice", "build", "without_consoles"]

_DEPTH = 64


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function: `busid` as `0000:bb:dd.f`, `kind` GPU or NIC, None for a bridge and anything else.

    `secondary` is the bus below a bridge as `0000:bb`, empty for a device; `role` is `root`, `upstream`, `downstream`
    or empty where nobody said; generation and width 0 where unknown, `numa` and `acs` empty.
    """

    busid: str
    kind: NodeKind | None = None
    secondary: str = ""
    role: str = ""
    generation: int = 0
    width: int = 0
    current_generation: int = 0
    current_width: int = 0
    numa: str = ""
    acs: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def bus(self) -> str:
        """Its bus as `0000:bb`."""
        return self.busid[:-5]

    @property
    def place(self) -> tuple[int, ...]:
        """Order of bus ids, which is the order of CUDA among equal GPUs."""
        return tuple(int(part, 16) for part in re.split("[:.]", self.busid))


def build(devices: Iterable[PciDevice], sockets: Mapping[str, str], source: str, notes: Iterable[str] = ()) -> Topology:
    """GPUs and NICs with the bridges above them, host bridges by root bus, sockets.

    `sockets` maps a root bus to what tells its processor from others, such as its NUMA node; a root bus that it lacks
    takes the NUMA node of its devices, else the one socket that is unknown. GPUs stand in the order of their bus ids.
    Bridges that lead to no GPU or NIC are left out. A device whose bus no bridge of the capture leads to hangs right at
    its socket, unless that bus is among `sockets`.
    """
    return _Tree({device.busid: device for device in devices}, dict(sockets), source, list(notes)).topology()


def without_consoles(devices: Iterable[PciDevice]) -> list[PciDevice]:
    """Devices less the graphics of AMD and Intel beside GPUs of NVIDIA: they draw a console, no rank runs on them."""
    found = list(devices)
    vendors = {device.attributes.get("vendor") for device in found if device.kind is NodeKind.GPU}
    if "0x10de" not in vendors or len(vendors) == 1:
        return found
    return [
        dataclasses.replace(d, kind=None) if d.kind is NodeKind.GPU and d.attributes.get("vendor") != "0x10de" else d
        for d in found
    ]


class _Tree:
    def __init__(self, devices: dict[str, PciDevice], sockets: dict[str, str], source: str, notes: list[str]) -> None:
        self._devices = devices
        self._above = {d.secondary: d for d in devices.values() if d.secondary}
        self._roots = sockets
        self._source = source
        self._notes = notes
        self._nodes: dict[str, Node] = {}
        self._links: list[Link] = []
        self._ids: dict[str, str] = {}
        self._count: Counter[NodeKind] = Counter()
        self._acs: dict[str, set[str]] = defaultdict(set)

    def topology(self) -> Topology:
        """Walk up from each GPU and NIC."""
        ends = sorted((d for d in self._devices.values() if d.kind is not None), key=lambda d: d.place)
        chains = [(end, self._chain(end)) for end in ends]
        keys = {end.busid: self._socket_key(end, chain) for end, chain in chains}
        for key in sorted({*keys.values(), *self._roots.values()} or {""}):
            name = self._new(NodeKind.SOCKET, f"socket {key}", {"numa": key} if key.isdecimal() else {})
            for other in [n for n, node in self._nodes.items() if node.kind is NodeKind.SOCKET and n != name]:
                self._links += [
                    Link(a, b, LinkKind.SOCKET, provenance=self._source) for a, b in ((other, name), (name, other))
                ]
        loose = [end for end, chain in chains if not chain and end.bus not in self._roots]
        for end, chain in chains:
            self._hang(end, chain, self._ids[f"socket {keys[end.busid]}"])
        if loose:
            shown = ", ".join(end.busid for end in loose[:8])
            self._notes.append(f"no bridge of this capture leads to {shown}: which switch it hangs on is unknown")
        for name, flags in self._acs.items():
            node = self._nodes[name]
            text = ",".join(sorted({f for state in flags for f in state.split(",")} - {"off"})) or "off"
            self._nodes[name] = Node(name, node.kind, {**node.attributes, "acs": text})
        order = list(NodeKind)
        nodes = sorted(self._nodes.values(), key=lambda n: -1 if n.kind is NodeKind.SOCKET else order.index(n.kind))
        return Topology(tuple(nodes), pcie.with_nominal(self._links), "", (), tuple(self._notes))

    def _chain(self, end: PciDevice) -> list[PciDevice]:
        """Bridges above a device, from the root down."""
        chain: list[PciDevice] = []
        bus = end.bus
        while bus in self._above and len(chain) < _DEPTH and self._above[bus] not in chain:
            chain.insert(0, self._above[bus])
            bus = chain[0].bus
        return chain

    def _socket_key(self, end: PciDevice, chain: list[PciDevice]) -> str:
        root = chain[0].bus if chain else end.bus
        said = next((d.numa for d in (end, *chain[::-1]) if d.numa), "")
        return self._roots.get(root, "") or said

    def _hang(self, end: PciDevice, chain: list[PciDevice], socket: str) -> None:
        if not chain and end.bus not in self._roots:
            self._attach(end.kind or NodeKind.GPU, end, socket, None)
            return
        above, port, before = self._host_bridge(chain[0].bus if chain else end.bus, socket), None, "downstream"
        for index, bridge in enumerate(chain):
            role = bridge.role or ("root" if index == 0 else "downstream" if before == "upstream" else "upstream")
            above = self._bridge(bridge, role, above, port)
            port, before = bridge, role
        self._attach(end.kind or NodeKind.GPU, end, above, port)

    def _host_bridge(self, bus: str, socket: str) -> str:
        if bus not in self._ids:
            name = self._new(NodeKind.HOST_BRIDGE, bus, {"busid": f"pci{bus}"})
            self._join(socket, name, (0, 0, 0, 0))
        return self._ids[bus]

    def _bridge(self, bridge: PciDevice, role: str, above: str, port: PciDevice | None) -> str:
        if bridge.busid in self._ids:
            name = self._ids[bridge.busid]
        elif role == "downstream" and port is not None:
            name = self._ids[bridge.busid] = above  # a port of the switch above, not a device of its own
        else:
            name = self._attach(NodeKind.ROOT_PORT if role == "root" else NodeKind.SWITCH, bridge, above, port)
        if bridge.acs and role != "upstream":
            self._acs[name].add(bridge.acs)
        return name

    def _attach(self, kind: NodeKind, device: PciDevice, above: str, port: PciDevice | None) -> str:
        facts = {"busid": device.busid, "numa": device.numa, **device.attributes}
        name = self._new(kind, device.busid, {key: text for key, text in facts.items() if text})
        if kind is NodeKind.ROOT_PORT:  # inside the processor: there is no link to read
            self._join(above, name, (0, 0, 0, 0))
            return name
        ends = [device, *([port] if port else [])]
        best = [
            min((v for v in values if v), default=0)
            for values in zip(*((e.generation, e.width) for e in ends), strict=True)
        ]
        now = [device.current_generation or (port.current_generation if port else 0)]
        now.append(device.current_width or (port.current_width if port else 0))
        self._join(above, name, (best[0], best[1], now[0], now[1]))
        return name

    def _new(self, kind: NodeKind, key: str, facts: Mapping[str, str]) -> str:
        name = self._ids[key] = f"{kind}{self._count[kind]}"
        self._count[kind] += 1
        self._nodes[name] = Node(name, kind, facts)
        return name

    def _join(self, a: str, b: str, speeds: tuple[int, int, int, int]) -> None:
        for src, dst in ((a, b), (b, a)):
            self._links.append(Link(src, dst, LinkKind.PCIE, *speeds, provenance=self._source))
