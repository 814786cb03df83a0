"""The PCI tree and the processors from sysfs; the root path is a parameter, so that a recorded tree can be read."""

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from collbench.topology import pci_config, pcie
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.sysfs_cpu import Processor, read_processors, read_text

__all__ = ["read"]

_BUSID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_FACTS = ("vendor", "device", "class", "subsystem_vendor", "subsystem_device")
_MAKERS = {
    "0x10b5": "PLX",
    "0x1000": "Broadcom",
    "0x11f8": "Microchip",
    "0x1022": "AMD",
    "0x8086": "Intel",
    "0x10de": "NVIDIA",
}
_WIDEST = 32


def read(root: Path = Path("/")) -> Topology:
    """GPUs and NICs with everything above them up to the processors; processors alone where there are none.

    What cannot be read stays unknown (generation or width 0, no `acs`) and is listed in `disagreements`; nothing is
    raised for it. Bridges that lead to no GPU or NIC are left out, and so are virtual functions of NICs.
    """
    processors = read_processors(root)
    walk = _Walk(processors)
    for path in _devices(root / "sys/bus/pci/devices", root, walk.notes):
        walk.device(path, root)
    return walk.topology()


@dataclass(slots=True)
class _Port:
    """One PCI function on the way from a host bridge to a device."""

    busid: str
    path: Path
    role: int | None = None


class _Walk:
    def __init__(self, processors: list[Processor]) -> None:
        self.notes: list[str] = []
        self._sockets = {f"socket{p.package}": p for p in processors}
        self._nodes = {name: p.node(name) for name, p in self._sockets.items()}
        self._links: dict[tuple[str, str], Link] = {}
        self._ids: dict[str, str] = {}  # bus id -> node id
        self._counts: Counter[NodeKind] = Counter()
        self._acs: dict[str, set[str]] = {}
        for a, b in itertools.permutations(self._sockets, 2):
            self._links[a, b] = Link(a, b, LinkKind.SOCKET, provenance="sysfs")

    def topology(self) -> Topology:
        """Everything, with the ACS state of the ports that lead to GPUs and NICs on their nodes."""
        for name, states in self._acs.items():
            node = self._nodes[name]
            flags = sorted({flag for state in states for flag in state.split(",")} - {"off"})
            self._nodes[name] = Node(name, node.kind, {**node.attributes, "acs": ",".join(flags) or "off"})
        order = list(NodeKind)
        nodes = sorted(self._nodes.values(), key=lambda n: order.index(n.kind) if n.kind is not NodeKind.SOCKET else -1)
        return Topology(tuple(nodes), pcie.with_nominal(self._links.values()), "", (), tuple(self.notes))

    def device(self, path: Path, root: Path) -> None:
        """Add a GPU or NIC and the bridges above it; anything else is passed over."""
        kind = pcie.class_kind(read_text(path / "class"), read_text(path / "vendor"))
        if kind not in {NodeKind.GPU, NodeKind.NIC} or (kind is NodeKind.NIC and (path / "physfn").exists()):
            return
        host, ports = _chain(path)
        if kind is NodeKind.GPU and not ports[:-1] and ports[-1].busid.split(":")[1] == "00" and _is_integrated(path):
            return
        above, port = self._host_bridge(host, path), None
        for bridge in ports[:-1]:
            above, port = self._bridge(bridge, above, port), bridge
        attributes = _device_facts(path, root, kind)
        self._attach(kind, ports[-1], above, port, attributes)

    def _host_bridge(self, name: str, device: Path) -> str:
        if name in self._ids:
            return self._ids[name]
        numa = read_text(device / "numa_node")
        socket = next((s for s, p in self._sockets.items() if numa.isdecimal() and int(numa) in p.numa), "")
        if not socket:
            socket = next(iter(self._sockets))
            if len(self._sockets) > 1:
                self.notes.append(
                    f"{name}: sysfs names no NUMA node ({numa or 'unreadable'}): taken as one of {socket}"
                )
        known = {"busid": name, "numa": numa} if numa.isdecimal() else {"busid": name}
        node = self._add(NodeKind.HOST_BRIDGE, name, known)
        self._join(socket, node, 0, 0, 0, 0)
        return node

    def _bridge(self, port: _Port, above: str, holder: _Port | None) -> str:
        if port.busid in self._ids:
            node = self._ids[port.busid]
        elif port.role == pci_config.DOWNSTREAM:
            node = self._ids[port.busid] = above  # a port of the switch above, not a device of its own
        else:
            kind = NodeKind.ROOT_PORT if port.role == pci_config.ROOT_PORT else NodeKind.SWITCH
            attributes = _facts(port.path)
            attributes["maker"] = _MAKERS.get(attributes.get("vendor", ""), "")
            node = self._attach(kind, port, above, holder, attributes)
        state = pci_config.acs_flags(_config(port.path))
        if state is not None and port.role != pci_config.UPSTREAM:
            self._acs.setdefault(node, set()).add(state)
        return node

    def _attach(self, kind: NodeKind, port: _Port, above: str, holder: _Port | None, facts: Mapping[str, str]) -> str:
        node = self._add(kind, port.busid, {"busid": port.busid, **facts})
        top = holder.path if holder else None
        ends = [end for end in (port.path, top) if end is not None]
        if kind is NodeKind.ROOT_PORT or top is None:  # inside the processor: there is no link to read
            self._join(above, node, 0, 0, 0, 0)
            return node
        generation, width = (_least(end, "max", part) for part, end in (("speed", ends), ("width", ends)))
        now = [_least(ends[:1], "current", part) or _least(ends[1:], "current", part) for part in ("speed", "width")]
        if not generation or not width:
            self.notes.append(f"{node} ({port.busid}): sysfs does not say what its link can do")
        self._join(above, node, generation, width, *now)
        return node

    def _add(self, kind: NodeKind, busid: str, attributes: Mapping[str, str]) -> str:
        name = f"{kind}{self._counts[kind]}"
        self._counts[kind] += 1
        self._ids[busid] = name
        self._nodes[name] = Node(name, kind, {key: value for key, value in attributes.items() if value})
        return name

    def _join(self, a: str, b: str, generation: int, width: int, now: int, now_width: int) -> None:
        for src, dst in ((a, b), (b, a)):
            self._links[src, dst] = Link(
                src, dst, LinkKind.PCIE, generation, width, now, now_width, provenance="sysfs"
            )  # fmt: skip


def _devices(base: Path, root: Path, notes: list[str]) -> Iterator[Path]:
    """Real places of the devices, in the order of their bus ids, which is the order of CUDA among equal GPUs."""
    try:
        names = sorted(entry.name for entry in base.iterdir() if _BUSID.fullmatch(entry.name))
    except OSError:
        return
    for name in sorted(names, key=lambda text: [int(part, 16) for part in re.split("[:.]", text)]):
        try:
            target = base / name
            link = target.readlink() if target.is_symlink() else None
            if link is not None and link.is_absolute():  # a recorded tree that kept its absolute links
                target = root / link.relative_to("/")
            place = Path(os.path.realpath(target, strict=True))
            if _BUSID.fullmatch(place.name):
                yield place
        except (OSError, ValueError) as error:
            notes.append(f"{name}: sysfs cannot be followed ({type(error).__name__})")


def _chain(path: Path) -> tuple[str, list[_Port]]:
    """Host bridge, then the ports from the root down to the device itself."""
    host = "pci" + path.name[:-5]
    ports: list[_Port] = []
    for index, part in enumerate(path.parts):
        place = Path(*path.parts[: index + 1])
        if _HOST_BRIDGE.fullmatch(part):
            host, ports = part, []
        elif _BUSID.fullmatch(part):
            ports.append(_Port(part, place, pci_config.port_type(_config(place))))
    _guess_roles(ports[:-1])
    return host, ports


def _guess_roles(bridges: list[_Port]) -> None:
    """Without privileges the capability is hidden: below a root port, upstream and downstream ports take turns."""
    before = pci_config.DOWNSTREAM
    for index, port in enumerate(bridges):
        if port.role not in {pci_config.ROOT_PORT, pci_config.UPSTREAM, pci_config.DOWNSTREAM}:
            if index == 0:
                port.role = pci_config.ROOT_PORT
            else:
                port.role = pci_config.DOWNSTREAM if before == pci_config.UPSTREAM else pci_config.UPSTREAM
        before = port.role


def _config(path: Path) -> bytes:
    try:
        with (path / "config").open("rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _least(ends: list[Path], when: str, part: str) -> int:
    """Smaller of what the ends of a link say, 0 where none says anything."""
    texts = (read_text(end / f"{when}_link_{part}") for end in ends)
    if part == "speed":
        return min((found for text in texts if (found := pcie.generation_of(text))), default=0)
    return min((int(t) for t in texts if t.isdecimal() and 0 < int(t) <= _WIDEST), default=0)


def _facts(path: Path) -> dict[str, str]:
    return {name: text for name in _FACTS if (text := read_text(path / name))}


def _device_facts(path: Path, root: Path, kind: NodeKind) -> dict[str, str]:
    facts = _facts(path)
    numa = read_text(path / "numa_node")
    facts["numa"] = numa if numa.isdecimal() else ""
    if kind is NodeKind.GPU:
        information = read_text(root / f"proc/driver/nvidia/gpus/{path.name}/information")
        model = re.search(r"^Model:\s*(.+)$", information, re.MULTILINE)
        facts["model"] = " ".join(model[1].split()) if model else ""
        return facts
    ports = [*_names(path / "net")]
    facts["net"] = ",".join(ports)
    speeds = [read_text(path / "net" / port / "speed") for port in ports]
    facts["speed_mbps"] = ",".join(s for s in speeds if s.isdecimal())
    facts["infiniband"] = ",".join(_names(path / "infiniband"))
    return facts


def _names(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []


def _is_integrated(path: Path) -> bool:
    """Graphics inside an Intel processor: it is on bus 0, and no rank will run on it."""
    return read_text(path / "vendor") == "0x8086"
