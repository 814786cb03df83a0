"""lspci's tree and sections: buses, bridges, speeds, sockets and names, whole, pasted and damaged."""

import contextlib
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.topology import lspci, lspci_verbose, pci_names
from collbench.topology.graph import LinkKind, NodeKind, Topology, TopologyError

TREE = r"""$ lspci -tv
-+-[0000:00]-+-00.0  Intel Corporation Device 09a2
 |           +-01.0-[01-06]----00.0-[02-06]--+-00.0-[03]----00.0  NVIDIA Corporation GA100 [A100 PCIe 80GB]
 |           |                               +-01.0-[04]----00.0  NVIDIA Corporation GA100 [A100 PCIe 80GB]
 |           |                               +-02.0-[05]--
 |           |                               \-03.0-[06]--+-00.0  Mellanox Technologies MT28908 Family [ConnectX-6]
 |           |                                            \-00.1  Mellanox Technologies MT28908 Family [ConnectX-6]
 |           \-1f.0  Intel Corporation LPC Controller
 +-[0000:80]-+-00.0  Intel Corporation Device 09a2
 |           +-02.0-[81-83]----00.0-[82-83]--+-00.0-[83]--+-00.0  NVIDIA Corporation GA102GL [RTX A6000]
 |           |                               |            \-00.1  NVIDIA Corporation GA102 High Definition Audio
 |           \-03.0  Intel Corporation Device 352a
 \-[0001:00]---00.0-[01]----00.0  NVIDIA Corporation Device 2bb5
"""

EPYC = r"""-+-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 153a
 |           +-01.1-[01]----00.0  NVIDIA Corporation AD102GL [L40S]
 |           +-18.0  Advanced Micro Devices, Inc. [AMD] Device 12c0
 |           +-18.1  Advanced Micro Devices, Inc. [AMD] Device 12c1
 |           +-19.0  Advanced Micro Devices, Inc. [AMD] Device 12c0
 |           \-19.1  Advanced Micro Devices, Inc. [AMD] Device 12c1
 \-[0000:80]---01.1-[81]----00.0  NVIDIA Corporation AD102GL [L40S]
"""


def section(busid: str, head: str, numa: int, role: str, speeds: str, bus: str = "", acs: str = "") -> str:
    """A section of lspci -vv; `speeds` as `32 16 2.5 16`: what the link can do, what it does."""
    best, wide, now, width = speeds.split()
    lines = [f"{busid} {head}", f"\tNUMA node: {numa}"]
    if bus:
        below, last = bus.split("-")
        lines.append(f"\tBus: primary={busid[-7:-5]}, secondary={below}, subordinate={last}, sec-latency=0")
    lines += [
        f"\tCapabilities: [60] Express (v2) {role}, MSI 00",
        f"\t\tLnkCap:\tPort #0, Speed {best}GT/s, Width x{wide}, ASPM L1, Exit Latency L1 <64us",
        f"\t\tLnkSta:\tSpeed {now}GT/s{' (downgraded)' if now != best else ''}, Width x{width}",
        "\t\tLnkCap2: Supported Link Speeds: 2.5-32GT/s, Crosslink- Retimer+ 2Retimers+ DRS-",
    ]
    if acs:
        lines += ["\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+", f"\t\tACSCtl:\t{acs}"]
    return "\n".join(lines) + "\n\n"


SWITCH = "PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)"
GPU = "3D controller: NVIDIA Corporation Device 2bb5 (rev a1)"
CONSOLE = "VGA compatible controller: ASPEED Technology, Inc. ASPEED Graphics Family (rev 52)"
SECTIONS = "".join(
    [
        section(
            "80:01.1", "PCI bridge: AMD Device 153e", 1, "Root Port", "32 16 32 16", "81-84", "ReqRedir- CmpltRedir-"
        ),
        section("81:00.0", SWITCH, 1, "Upstream Port", "32 16 16 8", "82-84"),
        section("82:00.0", SWITCH, 1, "Downstream Port (Slot+)", "32 16 2.5 16", "83-83", "ReqRedir+ CmpltRedir-"),
        section("82:01.0", SWITCH, 1, "Downstream Port (Slot+)", "32 8 32 8", "84-84", "ReqRedir- CmpltRedir-"),
        section("83:00.0", GPU, 1, "Legacy Endpoint", "32 16 2.5 16"),
        section("84:00.0", GPU, 1, "Legacy Endpoint", "32 16 32 8"),
        section("03:00.0", CONSOLE, 0, "Endpoint", "5 1 5 1"),
    ]
)


def busids(topology: Topology, kind: NodeKind = NodeKind.GPU) -> list[str]:
    """Bus ids of the nodes of a kind."""
    return [node.attributes["busid"] for node in topology.nodes if node.kind is kind]


def test_tree_gives_switches_ports_and_order() -> None:
    """GPUs come in the order of their bus ids, those below one switch as a group, audio functions not at all."""
    topology = lspci.parse(TREE)
    assert busids(topology) == ["0000:03:00.0", "0000:04:00.0", "0000:83:00.0", "0001:01:00.0"]
    assert topology.groups == (("gpu0", "gpu1"),)
    assert busids(topology, NodeKind.NIC) == ["0000:06:00.0", "0000:06:00.1"]
    assert busids(topology, NodeKind.SWITCH) == ["0000:01:00.0", "0000:81:00.0"]
    assert busids(topology, NodeKind.ROOT_PORT) == ["0000:00:01.0", "0000:80:02.0", "0001:00:00.0"]
    assert busids(topology, NodeKind.HOST_BRIDGE) == ["pci0000:00", "pci0000:80", "pci0001:00"]
    assert topology.node("gpu0").attributes["model"] == "NVIDIA Corporation GA100 [A100 PCIe 80GB]"
    assert {(link.generation, link.capacity_gbps) for link in topology.links} == {(0, None)}
    assert [link.dst for link in topology.route("gpu0", "nic0")] == ["switch0", "nic0"]
    assert any("names no sockets" in note for note in topology.disagreements)


def test_sockets_of_an_epyc_are_counted_by_its_data_fabric() -> None:
    """Each processor has its own data fabric device on bus 00; root buses are shared out in order, and that is said."""
    topology = lspci.parse(EPYC)
    assert len(topology.sockets) == 2
    assert {link.kind for link in topology.route("gpu0", "gpu1")} == {LinkKind.PCIE, LinkKind.SOCKET}
    assert any("data fabric" in note for note in topology.disagreements)


PASTED: dict[str, Callable[[str], str]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "quoted": lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    "times": lambda text: "".join(f"2025-01-02T03:04:05Z {line}\n" for line in text.splitlines()),
    "indented": lambda text: "".join(f"    {line}\n" for line in text.splitlines()),
    "collapsed": lambda text: "\n".join(" ".join(line.split()) for line in text.splitlines()),
    "hard blanks": lambda text: text.replace(" ", "\xa0"),
    "markup": lambda text: f"<pre><code>{text}</code></pre>",
    "shell": lambda text: f"user@host:~$ lspci\n{text}user@host:~$ ",
}


@pytest.mark.parametrize("text", [TREE, SECTIONS, EPYC], ids=["tree", "sections", "epyc"])
@pytest.mark.parametrize("how", PASTED)
def test_pasted_captures_say_the_same(how: str, text: str) -> None:
    """Prefixes, line ends, lost blanks and markup change nothing."""
    plain, pasted = lspci.parse(text), lspci.parse(PASTED[how](text))
    assert pasted.as_dict() == plain.as_dict()


def test_sections_give_speeds_roles_acs_and_sockets() -> None:
    """A link has the least that both ends can do and what the lower one does; redirecting ports show on the switch."""
    topology = lspci.parse(SECTIONS)
    assert busids(topology) == ["0000:83:00.0", "0000:84:00.0"]
    assert topology.groups == (("gpu0", "gpu1"),)
    links = {(link.src, link.dst): link for link in topology.links}
    up = links["switch0", "gpu0"]
    assert (up.generation, up.width, up.current_generation, up.current_width) == (5, 16, 1, 16)
    assert links["switch0", "gpu1"].width == 8
    uplink = links["root_port0", "switch0"]
    assert (uplink.generation, uplink.current_generation, uplink.current_width) == (5, 4, 8)
    assert up.capacity_gbps is not None
    assert "nominal" in up.provenance
    assert topology.node("switch0").attributes["acs"] == "RR"
    assert topology.node("root_port0").attributes["acs"] == "off"
    assert [topology.node(name).attributes["numa"] for name in topology.sockets] == ["1"]


def test_sections_without_bridges_say_that_the_path_is_unknown() -> None:
    """`lspci -vv -s GPU` shows a device and not where it hangs: it hangs at its socket, and that is said."""
    text = "".join(
        section(f"{bus}:00.0", "3D controller: NVIDIA Corporation GH100 [H100 PCIe]", numa, "Endpoint", "32 16 2.5 16")
        for bus, numa in (("c1", 1), ("41", 0))
    )
    topology = lspci.parse(text)
    assert busids(topology) == ["0000:41:00.0", "0000:c1:00.0"]
    assert [link.dst for link in topology.route("gpu0", "gpu1")] == ["socket0", "socket1", "gpu1"]
    assert "no bridge of this capture leads to 0000:41:00.0, 0000:c1:00.0" in topology.disagreements[0]


def test_sections_without_privileges_are_read_by_position() -> None:
    """`<access denied>` hides roles and speeds: bridges below a root port are taken in turns, speeds stay unknown."""
    keep = [line for line in SECTIONS.splitlines() if "Express" not in line and "Lnk" not in line and "ACS" not in line]
    topology = lspci.parse("\n".join(keep))
    assert topology.groups == (("gpu0", "gpu1"),)
    assert busids(topology, NodeKind.SWITCH) == ["0000:81:00.0"]
    assert {link.generation for link in topology.links} == {0}


def test_graphics_of_the_processor_are_no_gpus_beside_nvidia() -> None:
    """AMD's and Intel's graphics draw the console where NVIDIA's GPUs compute; alone they stay."""
    raphael = "VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Raphael"
    console = section("0a:00.0", raphael, 0, "Endpoint", "16 16 16 16")
    assert busids(lspci.parse(SECTIONS + console)) == ["0000:83:00.0", "0000:84:00.0"]
    assert busids(lspci.parse(console)) == ["0000:0a:00.0"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA Corporation GA102GL [RTX A6000]", NodeKind.GPU),
        ("nVidia Corporation GK110BGL [Tesla K40m]", NodeKind.GPU),
        ("NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330]", NodeKind.GPU),
        ("NVIDIA Corporation Device [10de:2bb5]", NodeKind.GPU),
        ("NVIDIA Corporation Device 2bb5", NodeKind.GPU),
        ("NVIDIA Corporation Device", None),
        ("NVIDIA Corporation Device 22a3", None),
        ("NVIDIA Corporation GA100 [A100 NVSwitch]", None),
        ("NVIDIA Corporation TU104 USB 3.1 Host Controller", None),
        ("NVIDIA Corporation AD102 High Definition Audio Controller", None),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]", NodeKind.GPU),
        ("Intel Corporation Ponte Vecchio XT [Data Center GPU Max 1550]", NodeKind.GPU),
        ("ASPEED Technology, Inc. ASPEED Graphics Family", None),
        ("Mellanox Technologies MT2910 Family [ConnectX-7]", NodeKind.NIC),
        ("Mellanox Technologies ConnectX Family mlx5Gen Virtual Function", None),
        ("Intel Corporation Ethernet Controller X710 for 10GBASE-T", NodeKind.NIC),
        ("Amazon.com, Inc. Elastic Fabric Adapter (EFA)", NodeKind.NIC),
        ("Samsung Electronics Co Ltd NVMe SSD Controller PM9A1", None),
    ],
)
def test_names_tell_gpus_and_network_cards(name: str, kind: NodeKind | None) -> None:
    """A tree prints no classes: names, chips and boards say what a device is."""
    assert pci_names.kind_of_name(name, 0) is kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected what lspci -vv prints"),
        ("hello\n", "line 1: 'hello': .*expected what lspci -vv prints"),
        (TREE.replace("-[0000:00]-+-00.0", "-[0000:00]-[01]-+-00.0"), r"line 2: .*right below bus 0000:00"),
        ("-[0000:00]-+-00.0\n           \\-01.0-[01]----00.0\n", "line 1: .*devices without names: expected lspci -tv"),
        ("-[0000:00]---00.0  A\n      +-01.0  B\n", "line 2: .*a branch at column 7 below no bus"),
    ],
)
def test_damage_is_refused_with_its_line(text: str, said: str) -> None:
    """What cannot be read is quoted, with what was expected."""
    with pytest.raises(TopologyError, match=said):
        lspci.parse(text)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([TREE, SECTIONS, EPYC]), st.integers(0, 2500), st.integers(0, 60), st.text(max_size=6))
def test_damaged_captures_raise_nothing_else(text: str, at: int, lost: int, put: str) -> None:
    """Cut, spliced and truncated captures are read or refused; what is read is a topology."""
    with contextlib.suppress(TopologyError):
        topology = lspci.parse(text[:at] + put + text[at + lost :])
        assert Topology.from_dict(topology.as_dict()) == topology


WORDS = (
    "-[0000:00]-", "+-", "\\-", "01.0", "-[01]-", "-", "  ", "\n", "|", "NVIDIA Corporation GA100",
    "01:00.0 3D controller: NVIDIA", "\n02:00.0 PCI bridge: x", "\n\tBus: primary=02, secondary=02,",
    "\n\tBus: primary=00, secondary=01,", "LnkCap: Speed 8GT/s, Width x", "16", "\n\tNUMA node: 9",
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=60).map("".join))
def test_words_in_any_order_raise_nothing_else(text: str) -> None:
    """A topology comes out, or TopologyError; bridges that lead to themselves end the walk."""
    for call in (lspci.parse, lspci_verbose.parse):
        with contextlib.suppress(TopologyError):
            call(text)


@pytest.mark.parametrize(
    "noise",
    [
        "-[0000:00]-+-00.0\n" + (" " * 11 + "+-01.0-[01]--+-00.0 NVIDIA Corporation GA100\n") * 18_000,
        "-[0000:00]-" + "+-" * 500_000, "01:00.0 3D controller: NVIDIA\n" * 35_000, "LnkCap: Speed " * 70_000,
        "01:00.0 PCI bridge: x\n" + " LnkCap: Speed 8GT/s, Width\n" * 38_000, " " * 1_000_000, "0" * 1_000_000,
    ],
    ids=["branches", "plus", "sections", "one line", "links", "blanks", "digits"],
)  # fmt: skip
def test_a_megabyte_of_noise_is_done_with_at_once(noise: str) -> None:
    """Under a second of processor time, doubled for slow machines."""
    start = time.process_time()
    with contextlib.suppress(TopologyError):
        lspci.parse(noise)
    assert time.process_time() - start < 2
