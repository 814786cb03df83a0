"""Fixtures: sysfs trees in a temporary folder."""

from collections.abc import Mapping
from pathlib import Path

import pytest

BRIDGE, GPU, NIC, VGA = "0x060400", "0x030200", "0x020000", "0x030000"
PORT_TYPES = {"root": 4, "up": 5, "down": 6}


class FakeTree:
    """A machine: `chain` adds a device with the bridges above it, `cpu` a hardware thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/bus/pci/devices").mkdir(parents=True)
        (root / "sys/devices/system/cpu").mkdir(parents=True)
        (root / "proc").mkdir()
        self.model("Test CPU 9000")

    def model(self, name: str) -> None:
        (self.root / "proc/cpuinfo").write_text(f"processor\t: 0\nmodel name\t: {name}\n\n")

    def cpus(self, sockets: int, cores: int, threads: int = 2) -> None:
        """Sockets of `cores` cores with one NUMA node each."""
        number = 0
        for socket in range(sockets):
            first = number
            for core in range(cores):
                for _ in range(threads):
                    base = self.root / f"sys/devices/system/cpu/cpu{number}/topology"
                    base.mkdir(parents=True)
                    (base / "physical_package_id").write_text(f"{socket}\n")
                    (base / "core_id").write_text(f"{core}\n")
                    number += 1
            node = self.root / f"sys/devices/system/node/node{socket}"
            node.mkdir(parents=True)
            (node / "cpulist").write_text(f"{first}-{number - 1}\n")

    def chain(self, host: str, *busids: str, **device: str) -> Path:
        """Bridges from the root port down, the last being the device; `device` holds its files."""
        place = self.root / "sys/devices" / host
        for depth, busid in enumerate(busids):
            place /= busid
            if place.is_dir():
                continue
            place.mkdir(parents=True)
            last = depth == len(busids) - 1
            files = (
                {"class": BRIDGE, "vendor": "0x1000", "device": "0xc030"}
                if not last
                else {"class": GPU, "vendor": "0x10de"}
            )
            self.write(place, {**files, **(device if last else {})})
            link = self.root / "sys/bus/pci/devices" / busid
            link.symlink_to(Path("../../..") / place.relative_to(self.root / "sys"))
        return place

    def write(self, place: Path, files: Mapping[str, str]) -> None:
        """Files of a device; a speed such as `5x16` for `max` or `now` writes link speed and width."""
        speeds = {"1": "2.5", "2": "5.0", "3": "8.0", "4": "16.0", "5": "32.0"}
        for name, value in files.items():
            if name in {"max", "now"}:
                generation, width = value.split("x")
                prefix = {"max": "max", "now": "current"}[name]
                (place / f"{prefix}_link_speed").write_text(f"{speeds[generation]} GT/s PCIe\n")
                (place / f"{prefix}_link_width").write_text(f"{width}\n")
            else:
                (place / name).write_text(value + "\n")

    def port(self, place: Path, kind: str, acs: int | None = None, **files: str) -> None:
        """Configuration space of a bridge: its PCI Express port type and ACS control word."""
        config = bytearray(4096)
        config[0x34] = 0x40
        config[0x40:0x44] = bytes([0x10, 0, 0x2 | PORT_TYPES[kind] << 4, 0])
        if acs is not None:
            config[0x100:0x104] = (0x000D | 1 << 16).to_bytes(4, "little")
            config[0x106:0x108] = acs.to_bytes(2, "little")
        (place / "config").write_bytes(bytes(config))
        self.write(place, files)


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    """An empty machine."""
    return FakeTree(tmp_path)


@pytest.fixture
def two_switch_box(tmp_path: Path) -> FakeTree:
    """8 GPUs behind two Gen5 switches with four GPUs each, one socket; a NIC on a root port of its own."""
    tree = FakeTree(tmp_path)
    tree.cpus(1, 16)
    for switch, bus in enumerate((0x10, 0x80)):
        host = f"pci0000:{bus:02x}"
        top = [f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"]
        for gpu in range(4):
            down, end = f"0000:{bus + 2:02x}:{gpu:02x}.0", f"0000:{bus + 3 + gpu:02x}:00.0"
            place = tree.chain(host, *top, down, end, max="5x16", now="1x16", numa_node="0")
            tree.port(place.parent, "down", acs=0x1C if switch else 0, max="5x16", now="1x16")
        tree.port(place.parent.parent, "up", max="5x16", now="5x16")
        tree.port(place.parent.parent.parent, "root", acs=0, max="5x16", now="5x16", vendor="0x1022")
    facts = {"class": "0x020700", "vendor": "0x15b3", "max": "4x16", "numa_node": "0"}
    nic = tree.chain("pci0000:c0", "0000:c0:01.0", "0000:c1:00.0", **facts)
    (nic / "net/ib0").mkdir(parents=True)
    (nic / "net/ib0/speed").write_text("200000\n")
    tree.chain("pci0000:c0", "0000:c0:02.0", "0000:c2:00.0", **{"class": "0x010802", "vendor": "0x144d"})
    return tree
