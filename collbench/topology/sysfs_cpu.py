"""Processors, cores and NUMA nodes from sysfs and /proc/cpuinfo."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from collbench.topology.graph import Node, NodeKind

__all__ = ["Processor", "read_processors", "read_text"]

_MODEL = re.compile(r"^(?:model name|Processor|cpu model|Model Name)\s*:\s*(.+)$", re.MULTILINE)
_LIST = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_LONGEST = 1 << 20  # bytes; no file that is read here comes near it


@dataclass(slots=True)
class Processor:
    """One package: its cores (package-wide numbers), hardware threads, NUMA nodes and name."""

    package: int
    cores: set[int] = field(default_factory=set)
    threads: int = 0
    numa: set[int] = field(default_factory=set)
    model: str = ""

    def node(self, node_id: str) -> Node:
        """As a node of a topology; `numa` lists the ids of its NUMA nodes."""
        numa = sorted(self.numa)
        attributes = {
            "cores": str(len(self.cores) or self.threads), "threads": str(self.threads),
            "numa_nodes": str(len(numa) or 1), "numa": ",".join(map(str, numa)), "model": self.model,
        }  # fmt: skip
        return Node(node_id, NodeKind.SOCKET, {key: value for key, value in attributes.items() if value})


def read_text(path: Path) -> str:
    """Content of a small file without blanks around it; empty where it is absent, unreadable or no text."""
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST).decode("utf-8", "replace").strip()
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return ""


def read_processors(root: Path) -> list[Processor]:
    """Packages of the machine whose tree `root` is; one package where sysfs says nothing.

    Cores that are offline have no topology and are not counted.
    """
    info = read_text(root / "proc/cpuinfo")
    base = root / "sys/devices/system"
    nodes = _numa_of_cpu(base / "node")
    packages: dict[int, Processor] = {}
    for cpu in _numbered(base / "cpu", "cpu"):
        topology = base / f"cpu/cpu{cpu}/topology"
        package, core = read_text(topology / "physical_package_id"), read_text(topology / "core_id")
        if not _is_number(package):
            continue
        processor = packages.setdefault(int(package), Processor(int(package)))
        processor.threads += 1
        processor.cores.add(int(core) if _is_number(core) else cpu)
        processor.numa.update(nodes.get(cpu, ()))
    if not packages:
        packages = _from_cpuinfo(info)
    model = _MODEL.search(info)
    for processor in packages.values():
        processor.model = " ".join(model[1].split()) if model else ""
    return [packages[key] for key in sorted(packages)]


def _from_cpuinfo(info: str) -> dict[int, Processor]:
    """Containers may hide sysfs; /proc/cpuinfo still counts threads and (on x86) packages and cores."""
    packages: dict[int, Processor] = {}
    for index, block in enumerate(info.split("\n\n")):
        if not re.search(r"^processor\s*:", block, re.MULTILINE):
            continue
        package = re.search(r"^physical id\s*:\s*(\d{1,6})\s*$", block, re.MULTILINE)
        core = re.search(r"^core id\s*:\s*(\d{1,6})\s*$", block, re.MULTILINE)
        processor = packages.setdefault(int(package[1]) if package else 0, Processor(int(package[1]) if package else 0))
        processor.threads += 1
        processor.cores.add(int(core[1]) if core else index)
    return packages or {0: Processor(0)}


def _numa_of_cpu(base: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for node in _numbered(base, "node"):
        for first, last in _LIST.findall(read_text(base / f"node{node}/cpulist")):
            for cpu in range(int(first), min(int(last or first), int(first) + 4096) + 1):
                found[cpu].append(node)
    return found


def _numbered(base: Path, prefix: str) -> list[int]:
    try:
        names = [entry.name for entry in base.iterdir()]
    except OSError:
        return []
    numbers = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return sorted(int(number) for number in numbers if _is_number(number))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 6  # noqa: PLR2004 - digits of any CPU or package number
