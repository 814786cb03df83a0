"""hwloc's XML: packages, switches, GPUs by bus id, and the matrix of NVLink bandwidths."""

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.topology import hwloc
from collbench.topology.graph import LinkKind, NodeKind, Topology, TopologyError


def bridge(busid: str, below: str, inside: str) -> str:
    """A bridge object with what hangs below it."""
    return (
        f'<object type="Bridge" bridge_type="1-1" bridge_pci="0000:[{below}]" pci_busid="0000:{busid}"'
        f' pci_type="0604 [10b5:9781] [10b5:9781] b0 00">{inside}</object>'
    )


def gpu(busid: str, index: int) -> str:
    """A GPU with NVML's device in it."""
    return (
        f'<object type="PCIDev" gp_index="{index}" pci_busid="0000:{busid}" pci_type="0302 [10de:1db8] [10de:0] a1 00">'
        f'<object type="OSDev" gp_index="{index + 100}" name="nvml{index}" osdev_type="12">'
        '<info name="GPUModel" value="Tesla V100-SXM3-32GB"/></object></object>'
    )


PORTS = bridge("02:00.0", "03-03", gpu("03:00.0", 1)) + bridge("02:01.0", "04-04", gpu("04:00.0", 2))
SWITCH = bridge("01:00.0", "02-04", PORTS)
NVSWITCH = '<object type="PCIDev" gp_index="7" pci_busid="0000:08:00.0" pci_type="0680 [10de:1ac2] [10de:0] a1 00"/>'
FILE = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">\n'
    '<object type="Machine" os_index="0"><object type="Package" os_index="0">'
    '<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-08]">'
    f"{bridge('00:01.0', '01-04', SWITCH)}{bridge('00:02.0', '08-08', NVSWITCH)}</object></object>"
    '<object type="Package" os_index="1"><object type="Bridge" bridge_type="0-1" bridge_pci="0000:[80-81]">'
    f"{bridge('80:01.0', '81-81', gpu('81:00.0', 3))}</object></object></object>\n"
    '<distances2hetero nbobjs="4" kind="25" name="NVLinkBandwidth">'
    '<indexes length="9">OSDev:101 OSDev:102 </indexes><indexes length="9">OSDev:103 PCIDev:7 </indexes>'
    '<u64values length="9">0 50000 0 25000 50000 0 0 25000 0 0 </u64values>'
    '<u64values length="9">0 0 25000 25000 0 0 </u64values></distances2hetero></topology>\n'
)


def test_packages_switches_and_gpus() -> None:
    """GPUs stand in the order of their bus ids below their switches and packages, with their models."""
    topology = hwloc.parse(FILE)
    assert topology.gpus == ("gpu0", "gpu1", "gpu2")
    assert topology.groups == (("gpu0", "gpu1"),)
    assert topology.node("gpu2").attributes["busid"] == "0000:81:00.0"
    assert topology.node("gpu2").attributes["model"] == "Tesla V100-SXM3-32GB"
    assert [topology.node(name).attributes["numa"] for name in topology.sockets] == ["0", "1"]
    assert [link.kind for link in topology.route("gpu1", "gpu2")].count(LinkKind.SOCKET) == 1


def test_nvlink_bandwidths() -> None:
    """Each number above zero is a link in GB/s, to a GPU or to an NVSwitch."""
    topology = hwloc.parse(FILE)
    links = {(link.src, link.dst): link.capacity_gbps for link in topology.links if link.kind is LinkKind.NVLINK}
    assert links["gpu0", "gpu1"] == links["gpu1", "gpu0"] == 50
    assert links["gpu0", "nvswitch0"] == links["nvswitch0", "gpu0"] == 25
    assert len(links) == 6
    assert topology.node("nvswitch0").kind is NodeKind.NVSWITCH


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FILE.replace("50000 0 25000 50000", "50000"), "13 numbers for 4 devices: expected 16"),
        (FILE.replace("0000:03:00.0", "zz"), "line 4: .*no bus id"),
        (FILE[:-20], "not XML"),
        ('<system version="1"></system>', "expected <topology>"),
        (FILE.replace('"hwloc2.dtd">', '"x.dtd" [<!ENTITY a "b">]>'), "entities"),
    ],
)
def test_damage_is_refused(text: str, said: str) -> None:
    """A matrix that does not add up, a bus id that is none, a cut file, another root, entities."""
    with pytest.raises(TopologyError, match=said):
        hwloc.parse(text)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(FILE)), st.integers(0, 40), st.text(max_size=5))
def test_damaged_files_raise_nothing_else(at: int, lost: int, put: str) -> None:
    """Cut and spliced files are read or refused."""
    with contextlib.suppress(TopologyError):
        topology = hwloc.parse(FILE[:at] + put + FILE[at + lost :])
        assert Topology.from_dict(topology.as_dict()) == topology


def test_a_megabyte_of_noise_is_done_with_at_once() -> None:
    """Under a second of processor time, doubled for slow machines."""
    start = time.process_time()
    for noise in ('<topology><object type="a"' + " " * 1_000_000, FILE + "<u64values" * 50_000):
        with contextlib.suppress(TopologyError):
            hwloc.parse(noise)
    assert time.process_time() - start < 2
