"""sysfs: trees of several machines, whole and damaged."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.topology import pci_config, sysfs
from collbench.topology.graph import LinkKind, NodeKind

if TYPE_CHECKING:
    from tests.topology.conftest import FakeTree


def test_two_switch_box(two_switch_box: "FakeTree") -> None:
    """Eight GPUs come out in two groups of four, with switches, root ports, what links can do and what they do now."""
    topology = sysfs.read(two_switch_box.root)
    assert topology.groups == (tuple(f"gpu{i}" for i in range(4)), tuple(f"gpu{i}" for i in range(4, 8)))
    kinds = [link.dst.rstrip("0123456789") for link in topology.route("gpu0", "gpu7")]
    assert kinds == ["switch", "root_port", "host_bridge", "socket", "host_bridge", "root_port", "switch", "gpu"]
    assert len(topology.route("gpu0", "gpu1")) == 2
    (up,) = [link for link in topology.links if link.src == "gpu0"]
    assert (up.link_class, up.current_generation, up.current_width) == ("pcie5x16", 1, 16)
    assert up.capacity_gbps == pytest.approx(56.75, abs=0.01)
    assert "nominal" in up.provenance
    assert topology.disagreements == ()


def test_acs_and_makers_stand_on_the_bridges(two_switch_box: "FakeTree") -> None:
    """A switch shows what its downstream ports redirect; downstream ports are no nodes of their own."""
    topology = sysfs.read(two_switch_box.root)
    acs = {node.id: node.attributes.get("acs") for node in topology.nodes if node.kind is NodeKind.SWITCH}
    assert acs == {"switch0": "off", "switch1": "CR,RR,UF"}
    assert topology.node("switch0").attributes["maker"] == "Broadcom"
    assert topology.node("root_port0").attributes["maker"] == "AMD"


def test_only_what_leads_to_gpus_and_nics_is_shown(two_switch_box: "FakeTree") -> None:
    """The drive and its root port are left out; the NIC is there with its speed."""
    topology = sysfs.read(two_switch_box.root)
    busids = {node.attributes.get("busid") for node in topology.nodes}
    assert "0000:c1:00.0" in busids
    assert not busids & {"0000:c2:00.0", "0000:c0:02.0"}
    (nic,) = [node for node in topology.nodes if node.kind is NodeKind.NIC]
    assert (nic.attributes["net"], nic.attributes["speed_mbps"]) == ("ib0", "200000")


def test_roles_without_privileges(two_switch_box: "FakeTree") -> None:
    """Without the configuration space root port, upstream and downstream are told by their places."""
    tree = two_switch_box
    whole = sysfs.read(tree.root)
    for path in tree.root.rglob("config"):
        path.write_bytes(path.read_bytes()[:64])
    plain = sysfs.read(tree.root)
    assert plain.groups == whole.groups
    assert [node.id for node in plain.nodes] == [node.id for node in whole.nodes]
    assert not any("acs" in node.attributes for node in plain.nodes)


def test_dual_socket(tree: "FakeTree") -> None:
    """GPUs hang at the socket of their NUMA node; sockets have cores, NUMA nodes and a model, and are joined."""
    tree.cpus(2, 4)
    tree.chain("pci0000:00", "0000:00:01.0", "0000:01:00.0", max="4x16", numa_node="0")
    tree.chain("pci0000:80", "0000:80:01.0", "0000:81:00.0", max="4x8", numa_node="1")
    topology = sysfs.read(tree.root)
    assert topology.groups == ()
    assert [link.kind for link in topology.route("gpu0", "gpu1")].count(LinkKind.SOCKET) == 1
    facts = topology.node("socket1").attributes
    assert facts == {"cores": "4", "threads": "8", "numa_nodes": "1", "numa": "1", "model": "Test CPU 9000"}
    assert topology.route("socket1", "gpu1")[-1].link_class == "pcie4x8"


def test_cascaded_switches_are_one_group(tree: "FakeTree") -> None:
    """A switch below a switch is a node of its own, and its GPUs belong to the outer group."""
    tree.cpus(1, 1)
    top = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    tree.chain(*top, "0000:02:00.0", "0000:03:00.0", max="4x16")
    tree.chain(*top, "0000:02:01.0", "0000:04:00.0", "0000:05:00.0", "0000:06:00.0", max="4x16")
    topology = sysfs.read(tree.root)
    assert topology.groups == (("gpu0", "gpu1"),)
    assert sum(node.kind is NodeKind.SWITCH for node in topology.nodes) == 2


def test_unreadable_files_leave_gaps(two_switch_box: "FakeTree") -> None:
    """A file that cannot be read costs its own fact, which is said; everything else is there."""
    tree = two_switch_box
    gpu = next(tree.root.rglob("0000:13:00.0/vendor")).parent.resolve()
    for place in (gpu, gpu.parent):
        for name in ("max_link_speed", "current_link_speed"):
            (place / name).unlink()
            (place / name).mkdir()  # reading a folder fails for root, too
    topology = sysfs.read(tree.root)
    (up,) = [link for link in topology.links if link.src == "gpu0"]
    assert (up.generation, up.width, up.capacity_gbps) == (0, 16, None)
    assert any("gpu0 (0000:13:00.0)" in note for note in topology.disagreements)
    assert len(topology.gpus) == 8


def test_link_loops_and_dead_links_are_named(two_switch_box: "FakeTree") -> None:
    """A symlink that runs in a circle or ends nowhere costs its device only."""
    tree = two_switch_box
    for busid, target in (("0000:e0:00.0", "0000:e1:00.0"), ("0000:e1:00.0", "0000:e0:00.0"), ("0000:e2:00.0", "gone")):
        (tree.root / "sys/bus/pci/devices" / busid).symlink_to(target)
    topology = sysfs.read(tree.root)
    assert len(topology.gpus) == 8
    assert [note.split(":", 1)[1][:5] for note in topology.disagreements] == ["e0:00", "e1:00", "e2:00"]


def test_absolute_links_stay_inside_the_recording(two_switch_box: "FakeTree") -> None:
    """A tree that was recorded with absolute links is read from the recording, not from this machine."""
    tree = two_switch_box
    for link in (tree.root / "sys/bus/pci/devices").iterdir():
        place = Path(os.path.realpath(link)).relative_to(tree.root)
        link.unlink()
        link.symlink_to(Path("/") / place)
    assert len(sysfs.read(tree.root).gpus) == 8


def test_consoles_and_virtual_functions_are_no_ranks(tree: "FakeTree") -> None:
    """A server's VGA chip and a NIC's virtual function are left out; AMD and Intel cards are GPUs."""
    tree.cpus(1, 1)
    for number, vendor in enumerate(("0x1a03", "0x1002", "0x8086", "0x102b")):
        tree.chain(
            "pci0000:00", f"0000:00:0{number + 1}.0", f"0000:0{number + 1}:00.0", **{"class": "0x030000"}, vendor=vendor
        )
    tree.chain("pci0000:00", "0000:00:1f.0", **{"class": "0x030000"}, vendor="0x8086")
    nic = tree.chain("pci0000:00", "0000:00:09.0", "0000:09:00.1", **{"class": "0x020000"}, vendor="0x15b3")
    (nic / "physfn").symlink_to("../0000:09:00.0")
    (nic.parent / "0000:09:00.0").mkdir()
    topology = sysfs.read(tree.root)
    assert [topology.node(gpu).attributes["vendor"] for gpu in topology.gpus] == ["0x1002", "0x8086"]
    assert not [node for node in topology.nodes if node.kind is NodeKind.NIC]


def test_nothing_at_all_is_one_processor(tmp_path: Path) -> None:
    """An empty tree gives one socket and no links; /proc/cpuinfo alone counts cores and packages."""
    assert [node.kind for node in sysfs.read(tmp_path).nodes] == [NodeKind.SOCKET]
    (tmp_path / "proc").mkdir()
    block = "processor\t: {0}\nmodel name\t: X\nphysical id\t: {1}\ncore id\t\t: {2}\n"
    text = "\n".join(block.format(i, i // 4, i % 2) for i in range(8))
    (tmp_path / "proc/cpuinfo").write_text(text)
    sockets = sysfs.read(tmp_path)
    assert [(n.attributes["cores"], n.attributes["threads"]) for n in sockets.nodes] == [("2", "4"), ("2", "4")]


def test_this_machine_reads_quickly(budget: Callable[[float], Callable[[Callable[[], Any]], Any]]) -> None:
    """The tree of the machine under test reads, with at least one processor that has cores."""
    topology = budget(0.2)(sysfs.read)
    assert int(topology.node(topology.sockets[0]).attributes["cores"]) >= 1


@given(st.binary(max_size=600))
def test_configuration_space_of_any_kind(config: bytes) -> None:
    """Damaged configuration spaces, loops of capabilities among them, give an answer or none."""
    assert pci_config.port_type(config) in {None, *range(16)}
    flags = pci_config.acs_flags(b"\0" * 256 + config)
    assert flags is None or set(flags.split(",")) <= {"SV", "TB", "RR", "CR", "UF", "EC", "DT", "off"}
