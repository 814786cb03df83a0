"""The matrices of nvidia-smi: read as printed and as people paste them, refused with the line where damaged."""

import contextlib
import random
import re
import textwrap
import time
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.topology import smi
from collbench.topology.graph import LinkKind, NodeKind, Topology, TopologyError

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_0
"""

TWO_PAIRS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tSYS\tSYS\tPXB\tSYS\t0-31,64-95\t0\t\tN/A
GPU1\tPIX\t X \tSYS\tSYS\tPXB\tSYS\t0-31,64-95\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tPHB\tSYS\tNODE\t32-63,96-127\t1\t\tN/A
GPU3\tSYS\tSYS\tPHB\t X \tSYS\tNODE\t32-63,96-127\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tSYS\tNODE\tNODE\tSYS\t X \t\t\t\t
"""

LABELS = (
    "X PIX SYS SYS PXB SYS", "PIX X SYS SYS PXB SYS", "SYS SYS X PHB SYS NODE",
    "SYS SYS PHB X SYS NODE", "PXB PXB SYS SYS X SYS", "SYS SYS NODE NODE SYS X",
)  # fmt: skip

P2P = """\
 \tGPU0\tGPU1\tGPU2\t
 GPU0\tX\tOK\tCNS\t
 GPU1\tOK\tX\tCNS\t
 GPU2\tCNS\tCNS\tX\t

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
"""


def wrapped(text: str, width: int) -> str:
    """As a terminal of that width shows it."""
    lines = text.expandtabs(8).split("\n")
    return "\n".join(line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width))


def underlined(text: str, escape: str) -> str:
    """With the header underlined as on a terminal; `escape` is what became of the escape character."""
    header, rest = text.split("\n", 1)
    return f"{escape}[4m" + header.replace("\t", f"{escape}[0m\t{escape}[4m") + f"{escape}[0m\n{rest}"


def before(prefix: str) -> Callable[[str], str]:
    """Put the prefix before every line."""
    return lambda text: "\n".join(prefix + line for line in text.split("\n"))


PASTED: Mapping[str, Callable[[str], str]] = {
    "as printed": lambda text: text,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "CR": lambda text: text.replace("\n", "\r"),
    "byte order mark": lambda text: "\ufeff" + text,
    "blanks for tabs": lambda text: text.expandtabs(8),
    "no-break spaces": lambda text: text.expandtabs(8).replace(" ", "\xa0"),
    "collapsed blanks": lambda text: re.sub(r"[ \t]+", " ", text),
    "stripped": lambda text: "\n".join(map(str.strip, text.split("\n"))),
    "padded to the window": lambda text: "\n".join(line.ljust(230) for line in text.expandtabs(8).split("\n")),
    "indented": lambda text: textwrap.indent(text, "        "),
    "colours": lambda text: underlined(text, "\x1b"),
    "colours without escape": lambda text: underlined(text, ""),
    "colours with U+FFFD": lambda text: underlined(text, "\ufffd"),
    "colours spelled out": lambda text: underlined(text, "^["),
    "blank lines between": lambda text: text.replace("\n", "\n\n"),
    "quoted mail": before("> "),
    "line numbers": before("   12  "),
    "timestamps": before("2025-11-04T12:33:01.123456Z "),
    "log lines": before("[2025-11-04 12:33:01,123][INFO] node-3: "),
    "mpirun --tag-output": before("[1,0]<stdout>:"),
    "an added file of a diff": before("+"),
    "Markdown": lambda text: f"My GPU0 is slow:\n```shell\n{text}```\nThanks\n",
    "Markdown table": lambda text: "\n".join("| " + line.replace("\t", " | ") + " |" for line in text.split("\n")),
    "bold names": lambda text: re.sub(r"(GPU\d)", r"**\1**", text),
    "HTML": lambda text: f"<pre><code>{text}</code></pre>",
    "prompts": lambda text: f"me@node07:~$ nvidia-smi topo -m\n{text}me@node07:~$ \n",
    "JSON string": lambda text: '{"topo": "' + text.replace("\n", "\\n").replace("\t", "\\t") + '"}',
    "fused header": lambda text: re.sub(r"(GPU\d)\t(?=GPU)", r"\1", text),
    "header lost": lambda text: text.split("\n", 1)[1],
    "fused labels": lambda text: text.replace("SYS\tPHB", "SYSPHB").replace("PXB\tPXB", "PXBPXB"),
    "twice": lambda text: text + "\n" + text,
    "after a list of GPUs": lambda text: "GPU 0: NVIDIA A100 (UUID: GPU-1234)\n" + text,
    "window of 80 columns": lambda text: wrapped(text, 80),
    "window of 62 columns": lambda text: wrapped(text, 62),
    "window of 50 columns": lambda text: wrapped(text, 50),
}


@pytest.mark.parametrize("legend", [LEGEND, ""], ids=["legend", "no legend"])
@pytest.mark.parametrize("how", PASTED)
def test_reads_what_people_paste(how: str, legend: str) -> None:
    """Every label, processor list and NUMA node is as printed, whatever was done to the text."""
    devices = smi.read_matrix(PASTED[how](TWO_PAIRS + legend))
    assert devices.names == ("GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1")
    for name, row in zip(devices.names, LABELS, strict=True):
        assert [devices.labels[name, other] for other in devices.names] == row.split()
    cells = [(devices.affinities[gpu].cpus, devices.affinities[gpu].numa) for gpu in devices.gpus]
    assert cells == [("0-31,64-95", "0")] * 2 + [("32-63,96-127", "1")] * 2


def test_topology_says_what_the_labels_say() -> None:
    """PIX gives a switch, PXB one above it, PHB a host bridge, SYS two processors; nothing has a known speed."""
    topology = smi.parse_matrix(TWO_PAIRS + LEGEND)
    assert topology.groups == (("gpu0", "gpu1"),)
    assert topology.hidden == () == topology.disagreements
    labels = {n.attributes["label"] for n in topology.nodes if n.kind is NodeKind.SWITCH}
    assert labels == {"PIX", "PXB"}
    assert len(topology.sockets) == 2
    assert {link.kind for link in topology.links} == {LinkKind.PCIE, LinkKind.SOCKET}
    assert all(link.capacity_gbps is None and not link.generation and not link.width for link in topology.links)
    assert {link.provenance for link in topology.links} == {"nvidia-smi topo -m"}
    assert topology.node("gpu2").attributes == {"numa": "1", "cpu_affinity": "32-63,96-127"}
    assert [n.attributes["name"] for n in topology.nodes if n.kind is NodeKind.NIC] == ["mlx5_0", "mlx5_bond_0"]
    bridges = [n.id for n in topology.nodes if n.kind is NodeKind.HOST_BRIDGE]
    assert any(link.dst in bridges for link in topology.route("gpu2", "gpu3"))
    assert "socket" in {link.kind for link in topology.route("gpu0", "gpu2")}


def rows(*lines: str) -> str:
    """A matrix without header from rows of labels."""
    return "".join(f"GPU{index}\t" + "\t".join(line.split()) + "\n" for index, line in enumerate(lines))


def test_nvlink_hides_pcie_and_is_listed() -> None:
    """A pair with NV# is hidden, has as many links as it says, and shares no switch unless others say so."""
    topology = smi.parse_matrix(rows("X NV4 PIX NODE", "NV4 X PIX NODE", "PIX PIX X NODE", "NODE NODE NODE X"))
    assert topology.hidden == (("gpu0", "gpu1"),)
    assert topology.groups == (("gpu0", "gpu1", "gpu2"),)
    (link,) = topology.route("gpu0", "gpu1")
    assert (link.kind, link.width, link.generation, link.capacity_gbps) == (LinkKind.NVLINK, 4, 0, None)
    assert smi.parse_matrix(rows("X NV4 SYS", "NV4 X SYS", "SYS SYS X")).groups == ()


def test_directions_that_differ_are_kept_and_listed() -> None:
    """NV6 one way and NV4 the other are two links of their own widths, and the difference is said."""
    topology = smi.parse_matrix(rows("X NV6", "NV4 X"))
    assert topology.route("gpu0", "gpu1")[0].width == 6
    assert topology.route("gpu1", "gpu0")[0].width == 4
    assert any("NV6" in note and "NV4" in note for note in topology.disagreements)
    one_way = smi.parse_matrix(rows("X PIX SYS", "SYS X SYS", "SYS SYS X"))
    assert one_way.groups == ()
    assert any("PIX" in note and "SYS" in note for note in one_way.disagreements)


def test_a_degraded_nvlink_is_seen_through_the_switch() -> None:
    """One GPU with 17 of 18 links keeps its 17, and the others their 18."""
    lines = [["NV17" if 2 in {a, b} else "NV18" for b in range(4)] for a in range(4)]
    for index, line in enumerate(lines):
        line[index] = "X"
    topology = smi.parse_matrix(rows(*map(" ".join, lines)))
    widths = {link.src: link.width for link in topology.links if link.dst == "nvswitch0"}
    assert widths == {"gpu0": 18, "gpu1": 18, "gpu2": 17, "gpu3": 18}
    assert len(topology.hidden) == 6


def test_blank_affinity_shifts_nothing() -> None:
    """A blank list of processors leaves the NUMA node where it is; N/A is no value."""
    header = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    topology = smi.parse_matrix(header + "GPU0\t X \tSYS\t\t1\t\tN/A\nGPU1\tSYS\t X \t0,2,4\tN/A\t\t3\n")
    assert topology.node("gpu0").attributes == {"numa": "1"}
    assert topology.node("gpu1").attributes == {"cpu_affinity": "0,2,4", "gpu_numa": "3"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("\tGPU0\tGPU1\nFailed to run topology matrix\n", r"line 2: 'Failed to run topology matrix'.*failed"),
        ("\tGPU0\tGPU1\n", r"line 1: 'GPU0 GPU1': no rows"),
        ("\tGPU0\tGPU1\tGPU2\n" + rows("X PIX SYS", "PIX X SYS"), r"line 3.*GPU2.*missing"),
        (rows("X PIX SYS", "PIX X", "SYS SYS X"), r"line 2: 'GPU1 PIX X': row GPU1 has 2 of 3 labels"),
        (rows("X PIX SYS", "PIX X QQQ", "SYS SYS X"), r"line 2: .*then 'QQQ': expected X, PIX"),
        ("\tGPU0\tGPU1\n" + rows("X DIS", "DIS X"), r"line 2: .*'DIS' after 1 of 2 labels: expected X, PIX"),
        (rows("X N/A", "N/A X"), r"line 1: 'GPU0 X N/A': no rows in it: expected what nvidia-smi topo -m prints"),
        (rows("X PIX", "X PIX"), r"line 2: .*expected X, the device itself"),
        (rows("X X", "PIX X"), r"line 1: .*X in more than one column"),
        (TWO_PAIRS[:200], r"line \d: '.*': .*expected"),
        ("no matrix at all\n", r"line 1: 'no matrix at all': no rows"),
    ],
)  # fmt: skip
def test_damage_is_refused_with_its_line(text: str, said: str) -> None:
    """What cannot be read is quoted in one line that says what was expected."""
    with pytest.raises(TopologyError, match=said) as error:
        smi.parse_matrix(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_p2p_states_and_call() -> None:
    """States are kept for each direction, the call is taken from the line above, and differences are listed."""
    (matrix,) = smi.parse_p2p("$ nvidia-smi topo -p2p w\n" + P2P)
    assert (matrix.capability, matrix.attribute, matrix.gpus) == ("write", "p2p_write", ("gpu0", "gpu1", "gpu2"))
    assert matrix.row("gpu0") == "gpu1 OK, gpu2 CNS"
    (other,) = smi.parse_p2p(P2P.replace("GPU1\tOK", "GPU1\tDR"))
    assert (other.capability, other.attribute) == ("", "p2p")
    assert other.disagreements == ("gpu0 to gpu1 is OK, gpu1 to gpu0 is DR",)


@pytest.mark.parametrize("call", [smi.parse_matrix, smi.parse_p2p])
@pytest.mark.parametrize(
    "noise",
    [
        "GPU0 " + "X" * 1_000_000, " " * 1_000_000, "GPU0\tX" + "\t" * 1_000_000, "GPU0 " * 200_000,
        "GPU0 X " + "0-1," * 250_000, "\x1b[" * 500_000, "<pre" * 250_000, "mlx5" + "_0" * 500_000, "GPU0" * 250_000,
        "".join(random.Random(7).choices([chr(code) for code in range(256)], k=1_000_000)),
    ],
    ids=["labels", "blanks", "tabs", "names", "affinity", "escapes", "tags", "card", "fused", "bytes"],
)  # fmt: skip
def test_a_megabyte_of_noise_is_done_with_at_once(call: Callable[[str], object], noise: str) -> None:
    """No expression backtracks: a megabyte takes under a second of processor time, doubled for slow machines."""
    start = time.process_time()
    with contextlib.suppress(TopologyError):
        call(noise)
    assert time.process_time() - start < 2


WORDS = st.sampled_from(
    ["GPU0", "GPU1", "GPU2", "GPU", "NIC0", "mlx5_0", "X", "PIX", "NV4", "NV99", "NV0", "SYS", "SOC", "OK", "CNS",
     "N/A", "0-3", "1", "\t", "\n", "\n", " ", "\r", "CPU Affinity", "GPU NUMA ID", "=", ":", "|", "\x1b[4m",
     "GPU\u0663", "²"],
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(WORDS, st.text(max_size=4)), max_size=60).map(" ".join))
def test_words_of_a_matrix_in_any_order_raise_nothing_else(text: str) -> None:
    """A topology comes out, or TopologyError."""
    for call in (smi.parse_matrix, smi.parse_p2p):
        try:
            found = call(text)
        except TopologyError:
            continue
        if isinstance(found, Topology):
            assert Topology.from_dict(found.as_dict()) == found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(TWO_PAIRS)), st.integers(0, 40), st.text("GPUNX0\t\n ", max_size=6))
def test_a_damaged_matrix_raises_nothing_else(at: int, lost: int, put: str) -> None:
    """Cut, spliced and truncated matrices are read or refused."""
    for text in (TWO_PAIRS[:at], TWO_PAIRS[:at] + put + TWO_PAIRS[at + lost :]):
        try:
            topology = smi.parse_matrix(text)
        except TopologyError:
            continue
        assert topology.gpus
