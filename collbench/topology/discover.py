"""Find out what this machine is: ask every source, merge, say where they disagree."""

import importlib
import itertools
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from collbench.errors import CollbenchError
from collbench.results.records import Fabric
from collbench.topology import child, merge, nvml, software, sysfs
from collbench.topology.graph import LinkKind, NodeKind, Topology, TopologyError
from collbench.topology.machine import Machine
from collbench.topology.nvml import NvmlCapture

__all__ = ["Discovery", "Source", "discover", "fabric_of", "machine"]

_FAST = frozenset({LinkKind.NVLINK, LinkKind.XGMI})
_NVIDIA = {"", "0x10de"}
_Answer = TypeVar("_Answer")
_LARGEST = 16 << 20  # characters of a topology file; NCCL itself reads at most some 256 elements


@dataclass(frozen=True, slots=True)
class Source:
    """What became of one source: `status` is `ok`, `absent` (it does not apply here) or `failed`, with the reason."""

    name: str
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Discovery:
    """The merged topology, what became of each source, and the driver's own words where there is a driver."""

    topology: Topology
    sources: tuple[Source, ...]
    capture: NvmlCapture | None = None


def discover(
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    library: Any = None,  # noqa: ANN401 - pynvml has no types
    deadline_s: float = 10.0,
) -> Discovery:
    """Topology of this machine (or of the recorded tree `root`).

    Sources: sysfs, the driver (NVML), `nvidia-smi topo -m`, and the file that NCCL_TOPO_FILE names. sysfs saw the
    hardware and wins; the others add what it cannot see, and where they differ stands in `disagreements`. Every source
    may hang or fail: each has `deadline_s` seconds, and costs nothing but itself. `library` replaces pynvml.
    """
    ask = _Ask()
    topology = ask("sysfs", lambda: sysfs.read(root))
    if topology is None:  # sysfs.read raises nothing by contract; if it did, one processor remains
        topology = sysfs.read(root / "nothing-here")
    local = root == Path("/")
    capture = None
    if library is None and not (local and nvml.is_present(root)):
        ask.absent("nvml", "no NVIDIA driver is loaded")
        ask.absent("nvidia-smi", "no NVIDIA driver is loaded")
    else:
        capture = ask("nvml", lambda: nvml.read(library, deadline_s))
        topology = merge.add_nvml(topology, capture) if capture is not None else topology
        if local and library is None:
            topology = _add_smi(ask, topology, capture, environ, deadline_s)
    topology = _add_file(ask, topology, environ.get("NCCL_TOPO_FILE", ""))
    return Discovery(topology, tuple(ask.sources), capture)


class _Ask:
    """Runs one source after the other and keeps what became of it."""

    def __init__(self) -> None:
        self.sources: list[Source] = []

    def __call__(self, name: str, read: Callable[[], _Answer]) -> _Answer | None:
        try:
            answer = read()
        except (CollbenchError, ImportError, OSError, ValueError) as error:
            self.sources.append(Source(name, "failed", str(error)))
            return None
        self.sources.append(Source(name, "ok"))
        return answer

    def absent(self, name: str, reason: str) -> None:
        """A source that does not apply here."""
        self.sources.append(Source(name, "absent", reason))


def _add_smi(
    ask: _Ask, topology: Topology, capture: NvmlCapture | None, environ: Mapping[str, str], deadline_s: float
) -> Topology:
    """Compare with the matrix of nvidia-smi, whose numbers count the GPUs by bus id, all of them."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        ask.absent("nvidia-smi", "there is no nvidia-smi in PATH")
        return topology

    def read() -> Topology:
        text = child.output([program, "topo", "-m"], deadline_s, environ)
        matrix: Topology = importlib.import_module("collbench.topology.smi").parse_matrix(text)
        return matrix

    labels = ask("nvidia-smi", read)
    if labels is None:
        return topology
    if capture is not None and len(capture.usable) != len(labels.gpus):
        return topology  # it shows GPUs that this process may not use: NVML's levels were compared already
    at = {topology.node(name).attributes.get("busid"): name for name in topology.gpus}
    order = [at[gpu.busid] for gpu in capture.gpus if gpu.busid in at] if capture is not None else topology.gpus
    return merge.add_labels(topology, labels, "nvidia-smi", order)


def _add_file(ask: _Ask, topology: Topology, name: str) -> Topology:
    if not name:
        ask.absent("nccl-xml", "NCCL_TOPO_FILE is not set")
        return topology

    def read() -> Topology:
        from collbench.topology import nccl_xml

        with Path(name).open(encoding="utf-8", errors="replace") as file:
            return nccl_xml.parse(file.read(_LARGEST))

    xml = ask("nccl-xml", read)
    return topology if xml is None else merge.add_xml(topology, xml, "NCCL_TOPO_FILE")


def fabric_of(topology: Topology, hosts: int = 1, share_gpu: bool = False, ranks: int = 1) -> Fabric:  # noqa: FBT001, FBT002 - the words of Machine
    """What `ranks` ranks share.

    The network over several hosts, the processor without NVIDIA GPUs, one GPU where `share_gpu` puts more ranks than
    GPUs on it; otherwise NVLink, PCIe, or both where pairs differ.
    """
    gpus = cuda_gpus(topology)
    if hosts > 1:
        return Fabric.NETWORK
    if not gpus:
        return Fabric.HOST
    if share_gpu and ranks > len(gpus):
        return Fabric.SHARED_GPU
    used = gpus[: max(ranks, 2)]
    fast = {_is_fast(topology, a, b) for a, b in itertools.combinations(used, 2)}
    if fast == {True}:
        return Fabric.NVLINK
    return Fabric.MIXED if True in fast else Fabric.PCIE


def cuda_gpus(topology: Topology) -> tuple[str, ...]:
    """GPUs of NVIDIA (or of a vendor that nobody said), in rank order."""
    return tuple(name for name in topology.gpus if topology.node(name).attributes.get("vendor", "") in _NVIDIA)


def _is_fast(topology: Topology, a: str, b: str) -> bool:
    try:
        return {link.kind for link in topology.route(a, b)} <= _FAST
    except TopologyError:
        return False


def machine(
    ranks: int, hosts: int = 1, share_gpu: bool = False, discovery: Discovery | None = None  # noqa: FBT001, FBT002 - the words of Machine
) -> Machine:  # fmt: skip
    """This machine as algorithms see it.

    Imports no torch; `nccl` is the installed package's version until a worker has asked the library that it loaded.
    """
    found = discovery or discover()
    versions = software.versions()
    facts = software.host_facts() | _cpu_facts(found.topology) | _gpu_facts(found.topology)
    if found.capture is not None:
        facts |= _driver_facts(found.capture)
        versions |= {"driver": found.capture.driver} if found.capture.driver else {}
        versions |= {"cuda-driver": found.capture.cuda_driver} if found.capture.cuda_driver else {}
    fabric = fabric_of(found.topology, hosts, share_gpu, ranks)
    return Machine(found.topology, fabric, ranks, hosts, share_gpu, versions, facts)


def _cpu_facts(topology: Topology) -> dict[str, str]:
    sockets = [topology.node(name).attributes for name in topology.sockets]
    totals = {
        name: sum(int(facts[name]) for facts in sockets if facts.get(name, "").isdecimal())
        for name in ("cores", "threads", "numa_nodes")
    }
    models = sorted({facts["model"] for facts in sockets if facts.get("model")})
    known = {name: str(total) for name, total in totals.items() if total}
    return known | {"sockets": str(len(sockets))} | ({"cpu": ", ".join(models)} if models else {})


def _gpu_facts(topology: Topology) -> dict[str, str]:
    """`acs` (`on` where a port redirects traffic between GPUs), `link_generation` and `link_width` of the GPUs."""
    facts = {}
    states = [n.attributes["acs"].split(",") for n in topology.nodes if "acs" in n.attributes]
    if states and topology.gpus:
        facts["acs"] = "on" if any({"RR", "CR"} & set(flags) for flags in states) else "off"
    ends = set(topology.gpus)
    links = [link for link in topology.links if link.dst in ends and link.kind is LinkKind.PCIE]
    for name, values in (
        ("link_generation", {link.generation for link in links}),
        ("link_width", {link.width for link in links}),
    ):
        if values - {0}:
            facts[name] = ",".join(str(value) for value in sorted(values - {0}))
    kinds = {link.kind for link in topology.links}
    if topology.gpus:
        facts["nvlink"] = "yes" if LinkKind.NVLINK in kinds else "no"
        facts["nvswitch"] = "yes" if any(_is_nvswitch(n.kind, n.attributes) for n in topology.nodes) else "no"
        facts["multicast"] = "unknown"
    return facts


def _is_nvswitch(kind: NodeKind, attributes: Mapping[str, str]) -> bool:
    return kind is NodeKind.NVSWITCH and "role" not in attributes


_P2P = {"ok": "ok", "unknown": "unknown", "disabled by registry key": "disabled"}
"""Short words of `Machine.facts` for what NVML says of a pair; whatever else it says means `ns`, not supported."""


def _driver_facts(capture: NvmlCapture) -> dict[str, str]:
    gpus = capture.usable
    archs = sorted({gpu.compute_capability for gpu in gpus if gpu.compute_capability}, key=float)
    facts = {"arch": "sm_" + archs[0].replace(".", "")} if archs else {}
    if len(archs) > 1:
        facts["archs"] = ",".join("sm_" + a.replace(".", "") for a in archs)
    memory = [gpu.memory_mib for gpu in gpus if gpu.memory_mib]
    facts |= {"gpu_memory_gib": f"{min(memory) / 1024:.1f}"} if memory else {}
    busy = [gpu.busid for gpu in gpus if gpu.processes]
    facts |= {"busy_gpus": ",".join(busy)} if busy else {}
    for fact, kinds in (("p2p", ("read", "write")), ("p2p_atomics", ("atomics",))):
        states = [pair.p2p[kind] for pair in capture.pairs for kind in kinds if kind in pair.p2p]
        if states:
            facts[fact] = _P2P.get(next((state for state in states if state != "ok"), "ok"), "ns")
    return facts
