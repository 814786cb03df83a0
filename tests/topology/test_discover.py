"""Discover: several sources, one machine; what they say differently is listed."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collbench.results.records import Fabric
from collbench.topology import discover, merge, nccl_xml, nvml
from collbench.topology.discover import Discovery, fabric_of
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.nvml import NvLink, NvmlCapture, NvmlGpu, Pair

if TYPE_CHECKING:
    from tests.topology.conftest import FakeTree

BUSIDS = tuple(f"0000:{bus:02x}:00.0" for bus in (0x13, 0x14, 0x15, 0x16, 0x83, 0x84, 0x85, 0x86))


def capture(*busids: str, level: Callable[[int, int], str] | None = None, **facts: Any) -> NvmlCapture:
    """What the driver of the two-switch box says, or what `facts` change of each GPU."""
    gpus = tuple(
        NvmlGpu(i, busid, **{"model": "Test GPU", "compute_capability": "12.0", "generation_max": 5, "generation": 5,
                             "width_max": 16, "width": 16, "memory_mib": 98304, "numa": 0, **facts})
        for i, busid in enumerate(busids)
    )  # fmt: skip
    pairs = tuple(
        Pair(a, b, (level or same_switch)(i, j), {"read": "ok", "write": "ok", "atomics": "not supported"})
        for i, a in enumerate(busids) for j, b in enumerate(busids) if i < j
    )  # fmt: skip
    return NvmlCapture(gpus, pairs, "580.82.07", "13.0")


def same_switch(i: int, j: int) -> str:
    return "PIX" if i // 4 == j // 4 else "NODE"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[NvmlCapture], None]:
    """Let the driver say this."""

    def say(answer: NvmlCapture) -> None:
        monkeypatch.setattr(nvml, "read", lambda *_: answer)

    return say


def test_sources_agree(two_switch_box: "FakeTree", asked: Callable[[NvmlCapture], None]) -> None:
    """The tree is sysfs's, NVML names the cards; nothing to disagree about, and each source has its state."""
    asked(capture(*BUSIDS))
    found = discover.discover(two_switch_box.root, {}, library=object())
    assert found.topology.disagreements == ()
    assert [len(group) for group in found.topology.groups] == [4, 4]
    assert found.topology.node("gpu0").attributes["model"] == "Test GPU"
    assert {s.name: s.status for s in found.sources} == {"sysfs": "ok", "nvml": "ok", "nccl-xml": "absent"}


def test_disagreements_are_listed_and_sysfs_wins(
    two_switch_box: "FakeTree", asked: Callable[[NvmlCapture], None]
) -> None:
    """A label and a link generation that contradict the PCI tree are both told, by GPU and bus id; the tree stays."""
    asked(capture(*BUSIDS, level=lambda i, j: "PIX" if (i, j) == (0, 4) else same_switch(i, j), generation_max=4))
    topology = discover.discover(two_switch_box.root, {}, library=object()).topology
    assert "gpu0 and gpu4: PIX by NVML, no common switch by sysfs" in topology.disagreements
    assert "gpu0 (0000:13:00.0): link generation at most 5 by sysfs, 4 by NVML" in topology.disagreements
    assert [len(group) for group in topology.groups] == [4, 4]
    assert topology.route("gpu0", "gpu1")[0].generation == 5


def test_only_the_gpus_of_this_process(two_switch_box: "FakeTree", asked: Callable[[NvmlCapture], None]) -> None:
    """GPUs that the driver does not give are left out with their switches, and the order is the driver's."""
    answer = capture(*BUSIDS[4:])
    asked(NvmlCapture(answer.gpus, answer.pairs, visible=(BUSIDS[6], BUSIDS[4])))
    topology = discover.discover(two_switch_box.root, {}, library=object()).topology
    assert [topology.node(gpu).attributes["busid"] for gpu in topology.gpus] == [BUSIDS[6], BUSIDS[4]]
    assert sum(node.kind is NodeKind.SWITCH for node in topology.nodes) == 1
    assert "sysfs shows 6 NVIDIA GPUs that this process may not use: left out" in topology.disagreements


def test_container_without_the_pci_tree(tree: "FakeTree", asked: Callable[[NvmlCapture], None]) -> None:
    """Where sysfs shows no GPU, NVML's own picture stands, with the processors of sysfs."""
    tree.cpus(1, 8)
    asked(capture(*BUSIDS))
    topology = discover.discover(tree.root, {}, library=object()).topology
    assert [len(group) for group in topology.groups] == [4, 4]
    assert topology.node("socket0").attributes["cores"] == "8"


def test_nvlinks_are_added_to_the_tree(two_switch_box: "FakeTree", asked: Callable[[NvmlCapture], None]) -> None:
    """NVLinks come from the driver, because sysfs cannot see them."""
    asked(capture(*BUSIDS, compute_capability="9.0", nvlinks=(NvLink("0000:f0:00.0", "switch", 6, 18),)))
    found = discover.discover(two_switch_box.root, {}, library=object())
    assert [link.link_class for link in found.topology.route("gpu0", "gpu7")] == ["nvlink4x18"] * 2
    assert fabric_of(found.topology, ranks=8) is Fabric.NVLINK
    (up,) = [a for a in found.topology.links if a.src == "gpu0" and a.kind is LinkKind.NVLINK]
    assert up.capacity_gbps == pytest.approx(18 * 20.6)


def test_nccl_file_is_compared_by_bus_id(
    two_switch_box: "FakeTree", asked: Callable[[NvmlCapture], None], tmp_path: Path
) -> None:
    """NCCL_TOPO_FILE that flattens the switches is a disagreement; one that cannot be read is a failed source."""
    asked(capture(*BUSIDS))
    flat = "".join(f'<pci busid="{b}" class="0x030200" link_speed="" link_width="0"/>' for b in reversed(BUSIDS))
    path = tmp_path / "topo.xml"
    path.write_text(f'<system version="1"><cpu numaid="0">{flat}</cpu></system>')
    found = discover.discover(two_switch_box.root, {"NCCL_TOPO_FILE": str(path)}, library=object())
    notes = found.topology.disagreements
    assert "gpu7 and gpu6: no common switch by NCCL_TOPO_FILE, one by our tree" in notes
    assert notes[-1] == "5 more pairs differ between NCCL_TOPO_FILE and our tree"
    path.write_text("<graphs/>")
    failed = discover.discover(two_switch_box.root, {"NCCL_TOPO_FILE": str(path)}, library=object()).sources[-1]
    assert (failed.name, failed.status) == ("nccl-xml", "failed")
    assert "graph file" in failed.reason
    gone = discover.discover(two_switch_box.root, {"NCCL_TOPO_FILE": "/nowhere"}, library=object()).sources[-1]
    assert gone.status == "failed"


def test_nvlinks_of_the_nccl_file(two_switch_box: "FakeTree", tmp_path: Path) -> None:
    """Without a driver the file's NVLinks are taken; they are matched by bus id and end at their NVSwitch."""
    link = '<gpu dev="{0}" sm="90" rank="{0}"><nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/></gpu>'
    gpus = "".join(f'<pci busid="{b}" class="0x030200">{link.format(i)}</pci>' for i, b in enumerate(BUSIDS))
    path = tmp_path / "topo.xml"
    path.write_text(f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>')
    topology = discover.discover(two_switch_box.root, {"NCCL_TOPO_FILE": str(path)}).topology
    assert [hop.kind for hop in topology.route("gpu1", "gpu6")] == [LinkKind.NVLINK] * 2
    assert [len(group) for group in topology.groups] == [4, 4]


def test_labels_are_compared_by_number(two_switch_box: "FakeTree") -> None:
    """A matrix that knows GPUs by number only is matched in the order of the driver."""
    base = discover.discover(two_switch_box.root, {}).topology
    matrix = nvml.to_topology(capture(*BUSIDS, level=lambda i, j: "PIX" if i // 2 == j // 2 else "NODE"))
    notes = merge.add_labels(base, matrix, "nvidia-smi", base.gpus).disagreements
    assert "gpu0 and gpu2: no common switch by nvidia-smi, one by our tree" in notes
    same = nvml.to_topology(capture(*BUSIDS))
    assert merge.add_labels(base, same, "nvidia-smi", base.gpus).disagreements == ()
    fewer = nvml.to_topology(capture(*BUSIDS[:4]))
    assert "nvidia-smi shows 4 GPUs, we see 8" in merge.add_labels(base, fewer, "nvidia-smi", base.gpus).disagreements


def test_a_driver_that_hangs_costs_its_own_source(two_switch_box: "FakeTree") -> None:
    """The topology of sysfs is there in time, NVML is failed with the reason."""
    library = SimpleNamespace(nvmlInit=lambda: time.sleep(3))
    begin = time.monotonic()
    found = discover.discover(two_switch_box.root, {}, library, deadline_s=0.1)
    assert time.monotonic() - begin < 2
    assert len(found.topology.gpus) == 8
    (failed,) = [source for source in found.sources if source.status == "failed"]
    assert failed.name == "nvml"
    assert "no answer within 0.1 s" in failed.reason


def test_smi_that_hangs_or_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: Callable[[NvmlCapture], None]
) -> None:
    """nvidia-smi is asked with a deadline; hanging, failing and printing nonsense are failures of that source alone."""
    monkeypatch.setattr(nvml, "is_present", lambda _: True)
    asked(capture(*BUSIDS))
    program = tmp_path / "nvidia-smi"
    reasons = []
    for body in ("sleep 5", "echo broken >&2; exit 9", "echo nonsense"):
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        found = discover.discover(environ={"PATH": f"{tmp_path}:/usr/bin:/bin"}, deadline_s=0.3)
        (smi,) = [source for source in found.sources if source.name == "nvidia-smi"]
        assert smi.status == "failed"
        assert len(found.topology.gpus) == 8
        reasons.append(smi.reason)
    assert "within 0.3 s" in reasons[0]
    assert "nvidia-smi: broken" in reasons[1]
    monkeypatch.setenv("PATH", "/nowhere")
    assert discover.discover(environ={"PATH": "/nowhere"}).sources[2].status == "absent"


def card(index: int, **attributes: str) -> Node:
    return Node(f"gpu{index}", NodeKind.GPU, attributes)


def joined(kind: LinkKind, *pairs: tuple[int, int], count: int = 4, **attributes: str) -> Topology:
    nodes = (Node("s", NodeKind.SOCKET), *(card(i, **attributes) for i in range(count)))
    ends = [("s", f"gpu{i}", LinkKind.PCIE) for i in range(count)] + [(f"gpu{a}", f"gpu{b}", kind) for a, b in pairs]
    return Topology(nodes, tuple(Link(*end, kind) for a, b, kind in ends for end in ((a, b), (b, a))))


ALL_PAIRS = [(a, b) for a in range(4) for b in range(a + 1, 4)]


@pytest.mark.parametrize(
    ("topology", "ranks", "share", "hosts", "fabric"),
    [
        (joined(LinkKind.NVLINK, *ALL_PAIRS), 4, False, 1, Fabric.NVLINK),
        (joined(LinkKind.NVLINK, (0, 1), (2, 3)), 4, False, 1, Fabric.MIXED),
        (joined(LinkKind.NVLINK, (0, 1), (2, 3)), 2, False, 1, Fabric.NVLINK),
        (joined(LinkKind.NVLINK), 4, False, 1, Fabric.PCIE),
        (joined(LinkKind.NVLINK, count=1), 1, False, 1, Fabric.PCIE),
        (joined(LinkKind.NVLINK, count=1), 8, True, 1, Fabric.SHARED_GPU),
        (joined(LinkKind.NVLINK, *ALL_PAIRS), 4, True, 1, Fabric.NVLINK),
        (joined(LinkKind.NVLINK, *ALL_PAIRS), 8, False, 2, Fabric.NETWORK),
        (joined(LinkKind.NVLINK, vendor="0x1002"), 4, False, 1, Fabric.HOST),
        (joined(LinkKind.NVLINK, count=0), 8, False, 1, Fabric.HOST),
    ],
)
def test_fabric(topology: Topology, ranks: int, share: bool, hosts: int, fabric: Fabric) -> None:  # noqa: FBT001 - a column of the table
    """What the ranks share follows from the links between the GPUs that they use."""
    assert fabric_of(topology, hosts, share, ranks) is fabric


def test_machine_of_a_gpu_box(two_switch_box: "FakeTree", asked: Callable[[NvmlCapture], None]) -> None:
    """Facts name what algorithms ask: architecture, P2P, ACS, links; the driver's version is software."""
    asked(capture(*BUSIDS, processes=2))
    found = discover.discover(two_switch_box.root, {}, library=object())
    machine = discover.machine(8, discovery=found)
    assert (machine.arch, machine.fabric, machine.ranks) == ("sm_120", Fabric.PCIE, 8)
    facts = machine.facts
    assert (facts["p2p"], facts["p2p_atomics"], facts["multicast"]) == ("ok", "ns", "unknown")
    assert (facts["acs"], facts["link_generation"], facts["link_width"]) == ("on", "5", "16")
    assert facts["busy_gpus"].split(",") == list(BUSIDS)
    assert (machine.software["driver"], machine.software["cuda-driver"]) == ("580.82.07", "13.0")
    assert machine.fingerprint["hard"]["acs"] == "on"


def test_machine_without_gpus(tree: "FakeTree") -> None:
    """Host ranks share sockets, cores and NUMA nodes."""
    tree.cpus(2, 4)
    machine = discover.machine(8, discovery=discover.discover(tree.root, {}))
    assert machine.fabric is Fabric.HOST
    assert (machine.facts["cores"], machine.facts["threads"], machine.facts["numa_nodes"]) == ("8", "16", "2")
    assert "acs" not in machine.facts


def test_this_machine_is_found_quickly(budget: Callable[[float], Callable[[Callable[[], Any]], Any]]) -> None:
    """Without a driver everything is there in 0.3 s; with one, its process takes the time that it takes."""
    machine = budget(5.0 if nvml.is_present() else 0.3)(lambda: discover.machine(2))
    assert machine.software["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert int(machine.facts["cores"]) >= 1


def test_no_torch_is_imported() -> None:
    """Versions come from metadata: a machine is found out without importing what is measured on it."""
    code = "import sys; from collbench.topology import discover; discover.machine(8); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_discovery_of_a_recorded_tree_comes_back_through_nccl_xml(two_switch_box: "FakeTree") -> None:
    """What sysfs found, root ports and host bridges among it, survives NCCL's XML."""
    topology = discover.discover(two_switch_box.root, {}).topology
    back = nccl_xml.parse(nccl_xml.render(topology)[0])
    assert {(n.id, n.kind) for n in back.nodes} == {(n.id, n.kind) for n in topology.nodes}
    assert {(a.src, a.dst, a.link_class) for a in back.links} == {(a.src, a.dst, a.link_class) for a in topology.links}
    assert isinstance(Discovery(back, ()).topology, Topology)
