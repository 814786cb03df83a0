"""NCCL's topology XML: every real capture reads to its truth, everything else is refused by name, all comes back."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.topology import nccl_xml
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError

CORPUS = Path(__file__).resolve().parents[2] / ".." / "shared" / "corpus"
INDEX = CORPUS / "INDEX.csv"
needs_corpus = pytest.mark.skipif(not INDEX.is_file(), reason="the captures are not in this checkout")

TWO_SWITCHES = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17">
    <pci busid="0000:01:00.0" class="0x060400" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:03:00.0" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="120" rank="1" gdr="1"/></pci>
      <pci busid="0000:02:00.0" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="120" rank="0" gdr="1"/></pci>
      <pcilink target="0000:41:00.0"/>
    </pci>
    <pci busid="0000:41:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:42:00.0" class="0x030200" link_speed="2.5 GT/s" link_width="16"/>
      <pci busid="0000:43:00.0" class="0x020700" link_speed="16 GT/s" link_width="8">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" gdr="1"/></nic></pci>
    </pci>
  </cpu>
</system>
"""


def rows() -> list[dict[str, str]]:
    if not INDEX.is_file():
        return []
    with INDEX.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["file"].startswith("nccl-xml/")]


def readable() -> list[dict[str, str]]:
    return [row for row in rows() if "NEGATIVE" not in row["unusual"]]


def name_of(row: dict[str, str]) -> str:
    return Path(row["file"]).stem


def shape(topology: Topology) -> tuple[object, object, object]:
    nodes = {(node.id, node.kind) for node in topology.nodes}
    facts = {(a.src, a.dst, a.kind, a.generation, a.width, a.current_generation) for a in topology.links}
    return nodes, facts, topology.gpus


def truth_groups(text: str, topology: Topology) -> set[frozenset[str]]:
    """Groups of the index as GPU ids: given as numbers, or as parts of bus ids."""
    groups = re.findall(r"\{([^}]*)\}", text)
    return {frozenset(one_gpu(part.strip(), topology) for part in group.split(",")) for group in groups}


def one_gpu(text: str, topology: Topology) -> str:
    devs = {topology.node(gpu).attributes.get("dev"): gpu for gpu in topology.gpus}
    if text in devs:
        return devs[text]
    found = [gpu for gpu in topology.gpus if f":{text}" in f":{topology.node(gpu).attributes['busid']}"]
    assert len(found) == 1, text
    return found[0]


@needs_corpus
@pytest.mark.parametrize("row", readable(), ids=name_of)
def test_captures_read_to_their_truth(row: dict[str, str]) -> None:
    """GPUs, switch groups, processors and fast links of every capture are what its index says."""
    topology = nccl_xml.parse((CORPUS / row["file"]).read_text(encoding="utf-8"))
    assert len(topology.gpus) == int(row["n_gpus"])
    groups = {frozenset(group) for group in topology.groups}
    assert groups == truth_groups(row["gt_switch_groups"], topology)
    assert len(groups) == int(row["gt_switch_groups"].split(":")[0].split()[0])
    if row["gt_sockets_numa"]:
        assert len(topology.sockets) == int(row["gt_sockets_numa"].split()[0])
    fast = {link.kind for link in topology.links} & {LinkKind.NVLINK, LinkKind.XGMI}
    wanted = {"yes": {LinkKind.NVLINK}, "no": set(), "xgmi": {LinkKind.XGMI}}
    assert fast == wanted[row["gt_nvlink"].split()[0]]


@needs_corpus
@pytest.mark.parametrize("row", readable(), ids=name_of)
def test_captures_come_back(row: dict[str, str]) -> None:
    """Writing and reading again gives the same nodes, links, widths and GPU order."""
    topology = nccl_xml.parse((CORPUS / row["file"]).read_text(encoding="utf-8"))
    text, _ = nccl_xml.render(topology)
    assert shape(nccl_xml.parse(text)) == shape(topology)


@needs_corpus
def test_idle_speed_is_no_capacity() -> None:
    """The GB10's emulated 2.5 GT/s is what the link shows now, not what it can do; C2C is the real path."""
    (path,) = CORPUS.glob("nccl-xml/34_*")
    topology = nccl_xml.parse(path.read_text(encoding="utf-8"))
    (up,) = [link for link in topology.links if link.src == "gpu0" and link.kind is LinkKind.PCIE]
    assert (up.generation, up.current_generation, up.capacity_gbps) == (0, 1, None)
    assert [link.capacity_gbps for link in topology.route("gpu0", "socket0")] == [pytest.approx(345.0)]


@needs_corpus
def test_lost_nvlinks_are_named() -> None:
    """One GPU of a uniform set without NVLinks is a disagreement that names it."""
    (path,) = CORPUS.glob("nccl-xml/35_*")
    (note,) = nccl_xml.parse(path.read_text(encoding="utf-8")).disagreements
    assert "gpu1 (0009:06:00.0) has no NVLinks where like GPUs have 18" in note


def test_ranks_order_gpus_and_switches_group_them() -> None:
    """GPUs stand in rank order, not in file order; a device without a `gpu` element counts by its class."""
    topology = nccl_xml.parse(TWO_SWITCHES)
    assert [topology.node(gpu).attributes["busid"] for gpu in topology.gpus] == [
        "0000:03:00.0", "0000:02:00.0", "0000:42:00.0",
    ]  # fmt: skip
    assert topology.groups == (("gpu0", "gpu1", "gpu2"),)  # the two switches are parts of one chip
    disk = TWO_SWITCHES.replace('"0000:42:00.0" class="0x030200"', '"0000:42:00.0" class="0x010802"')
    by_rank = nccl_xml.parse(disk)
    assert [by_rank.node(gpu).attributes["rank"] for gpu in by_rank.gpus] == ["0", "1"]
    assert any("0000:42:00.0: neither bridge, GPU nor NIC" in note for note in by_rank.disagreements)


def test_capacity_is_nominal_and_says_so() -> None:
    """A known speed gives the payload of its generation and width, marked as nominal; an idle one gives none."""
    topology = nccl_xml.parse(TWO_SWITCHES)
    by_end = {link.dst: link for link in topology.links if link.src.startswith("switch")}
    assert by_end["gpu0"].capacity_gbps == pytest.approx(56.75, abs=0.01)
    assert "nominal" in by_end["gpu0"].provenance
    assert by_end["gpu2"].capacity_gbps is None
    assert any("2.5 GT/s" in note for note in topology.disagreements)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not XML"),
        ("<system version='1'><cpu numaid='0'>", "not XML"),
        ("<system>\n<cpu>\n<pci class='0x0302'/></cpu></system>", "line 3: <pci .*busid is missing"),
        ('<system><cpu><pci busid="1:0:0.0" class="0x03" link_width="x"/></cpu></system>', 'link_width="x" is no'),
        ('<graphs version="1"/>', "NCCL graph file"),
        ("<topology/>", "hwloc"),
        ("<nvidia_smi_log/>", "nvidia-smi -q -x"),
        ("<html><body/></html>", "expected the <system> of an NCCL topology"),
        ('<system version="1"/>', "no <cpu> in it"),
        ('<!DOCTYPE system [<!ENTITY a "b">]><system version="1"/>', "document type or entities"),
        ("\tGPU0\tGPU1\nGPU0\tX\tPIX\n", "line 1: .*not XML"),
    ],
)  # fmt: skip
def test_refusals_name_line_and_reason(text: str, says: str) -> None:
    """What is no topology is refused with the place and what was expected."""
    with pytest.raises(TopologyError, match=says):
        nccl_xml.parse(text)


def test_entity_bomb_is_refused_at_once(budget: Callable[[float], Callable[[Callable[[], Any]], Any]]) -> None:
    """Nested entities expand to nothing: they are refused where they are declared."""
    bomb = '<!DOCTYPE s [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9)
    )
    text = bomb + "]><system version='1'>&j;</system>"

    def parse() -> None:
        with pytest.raises(TopologyError, match="entities"):
            nccl_xml.parse(text)

    budget(0.1)(parse)


def test_prompt_before_and_log_after_are_cut() -> None:
    """A file pasted with its prompt and the next prompt reads the same, and lines still count from the top."""
    pasted = "$ cat topo.xml\n" + TWO_SWITCHES + "$ exit\n"
    assert shape(nccl_xml.parse(pasted)) == shape(nccl_xml.parse(TWO_SWITCHES))
    broken = pasted.replace('busid="0000:42:00.0" ', "")
    with pytest.raises(TopologyError, match=r"^line 12:"):
        nccl_xml.parse(broken)


def test_hand_written_files() -> None:
    """A `gpu` makes its `pci` a GPU whatever the class, a `net` may stand without `nic`, a host bridge is no switch."""
    topology = nccl_xml.parse(
        '<system><cpu numaid="0"><pci busid="0:0:0.0" class="0x060000">'
        '<pci busid="0:1:0.0" class="0x060400"><gpu dev="0"/></pci><pci busid="0:2:0.0"><gpu dev="1"/></pci>'
        '<pci busid="0:3:0.0" class="0x020000"><net name="efa0" speed="100000"/></pci>'
        '<pci busid="0:4:0.0" class="0x060400"><nic><net name="b"/></nic><pci busid="0:5:0.0" class="0x03"/></pci>'
        "</pci></cpu></system>"
    )
    assert topology.gpus == ("gpu0", "gpu1", "gpu2")
    assert topology.groups == ()
    assert [n.attributes["net"] for n in topology.nodes if n.kind is NodeKind.NIC] == ["efa0", "b"]
    assert [link.dst for link in topology.route("gpu2", "nic1")] == ["switch0", "nic1"]
    text, _ = nccl_xml.render(topology)
    assert shape(nccl_xml.parse(text)) == shape(topology)


def test_two_hosts_stay_apart() -> None:
    """A fused file of two hosts (host_hash) keeps equal bus ids apart and joins no sockets across hosts."""
    cpu = (
        '<cpu host_hash="0x{0}" numaid="0"><pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="100" rank="{0}">'
    )
    link = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/></gpu></pci></cpu>'
    topology = nccl_xml.parse("<system>" + cpu.format(0) + link + cpu.format(1) + link + "</system>")
    assert topology.gpus == ("gpu0", "gpu1")
    assert not [link for link in topology.links if link.kind is LinkKind.SOCKET]
    assert [link.kind for link in topology.route("gpu0", "gpu1")] == [LinkKind.NVLINK] * 2


def every_kind() -> Topology:
    """A topology with every node and link kind, among them what NCCL has no words for."""
    nodes = [
        Node("cpu a", NodeKind.SOCKET, {"numa": "0", "cores": "64"}), Node("cpu b", NodeKind.SOCKET, {"numa": "1"}),
        Node("hb", NodeKind.HOST_BRIDGE), Node("rp", NodeKind.ROOT_PORT, {"acs": "RR"}),
        Node("sw<1>", NodeKind.SWITCH, {"busid": "0000:01:00.0"}), Node("sw2", NodeKind.SWITCH),
        Node("g0", NodeKind.GPU, {"busid": "0000:02:00.0", "model": 'A "B" & <C>'}), Node("g1", NodeKind.GPU),
        Node("g2", NodeKind.GPU), Node("n0", NodeKind.NIC), Node("n1", NodeKind.NIC), Node("nvs", NodeKind.NVSWITCH),
        Node("nvs2", NodeKind.NVSWITCH),
    ]  # fmt: skip
    pairs = [
        ("cpu a", "cpu b", LinkKind.SOCKET, 0, 0), ("cpu a", "hb", LinkKind.PCIE, 0, 0),
        ("hb", "rp", LinkKind.PCIE, 0, 0), ("rp", "sw<1>", LinkKind.PCIE, 5, 16), ("sw<1>", "g0", LinkKind.PCIE, 5, 16),
        ("sw<1>", "n0", LinkKind.PCIE, 4, 8), ("cpu b", "sw2", LinkKind.PCIE, 2, 16),
        ("sw2", "g1", LinkKind.PCIE, 1, 4), ("sw<1>", "sw2", LinkKind.PCIE, 0, 0),
        ("cpu b", "n1", LinkKind.PCIE, 3, 8), ("g0", "g1", LinkKind.NVLINK, 4, 2), ("g0", "nvs", LinkKind.NVLINK, 4, 9),
        ("g1", "nvs2", LinkKind.NVLINK, 4, 9), ("g2", "cpu b", LinkKind.C2C, 0, 8), ("g1", "g2", LinkKind.XGMI, 0, 1),
        ("n0", "n1", LinkKind.NETWORK, 0, 0), ("cpu b", "hb", LinkKind.MEMORY, 0, 0),
    ]  # fmt: skip
    links = []
    for a, b, kind, generation, width in pairs:
        capacity = 345.0 if kind is LinkKind.C2C else 12.5 if kind is LinkKind.NETWORK else None
        links += [Link(s, d, kind, generation, width, capacity_gbps=capacity) for s, d in ((a, b), (b, a))]
    return Topology(tuple(nodes), tuple(links), "all of it")


def test_every_kind_comes_back() -> None:
    """Nodes and links of every kind survive, also those that NCCL has no words for; the losses are listed."""
    topology = every_kind()
    assert {node.kind for node in topology.nodes} == set(NodeKind)
    assert {link.kind for link in topology.links} == set(LinkKind)
    text, losses = nccl_xml.render(topology)
    back = nccl_xml.parse(text)
    assert shape(back) == shape(topology)
    assert back.name == "all of it"
    told = "\n".join(losses)
    for part in (
        "capacities per direction",
        "attributes of nodes: acs, cores, model",
        "without a bus id (sw2, g1",
        "<collbench>",
    ):
        assert part in told


def test_nccl_would_take_it() -> None:
    """Rules of NCCL's own parser: version first, one blank between attributes, short values, no XML declaration."""
    text, _ = nccl_xml.render(every_kind())
    assert text.startswith('<system version="2" ')  # RCCL's, because xGMI is in it
    assert nccl_xml.render(nccl_xml.parse(TWO_SWITCHES))[0].startswith('<system version="1">')
    for line in text.splitlines():
        assert line.count("<") == line.count(">") == 1
        assert "  " not in line.strip()
        assert all(len(value) < 255 for value in re.findall(r'"([^"]*)"', line))
        assert len(re.findall(r'="', line)) <= 16
    names = set(re.findall(r"<(\w+)", text[: text.index("<collbench>")]))
    assert names <= {"system", "cpu", "pci", "gpu", "nic", "net", "nvlink", "xgmi", "c2c", "pcilink"}


def test_root_ports_are_hidden_from_nccl() -> None:
    """NCCL would take a root port for a switch, and two GPUs below one host bridge for neighbours: it sees neither."""
    text, _ = nccl_xml.render(every_kind())
    seen = text[: text.index("<collbench>")]
    assert 'id="rp"' not in seen
    assert 'id="hb"' not in seen


def test_a_processor_of_no_numa_node_is_a_socket_all_the_same() -> None:
    """Virtual machines have none: NCCL writes numaid="-1", which is no number of a node."""
    text = '<system version="1"><cpu numaid="-1"><pci busid="0000:06:00.0" class="0x030200"/></cpu></system>'
    (socket,) = (node for node in nccl_xml.parse(text).nodes if node.kind is NodeKind.SOCKET)
    assert socket.id == "socket0"
    assert "-1" not in socket.attributes.values()


def test_topology_without_processor_comes_back() -> None:
    """NCCL needs a cpu element; the one that is made up is taken out again on reading."""
    nodes = (Node("sw", NodeKind.SWITCH), Node("g0", NodeKind.GPU), Node("g1", NodeKind.GPU))
    links = tuple(Link(a, b, LinkKind.PCIE, 5, 16) for g in ("g0", "g1") for a, b in (("sw", g), (g, "sw")))
    topology = Topology(nodes, links)
    text, losses = nccl_xml.render(topology)
    assert "<cpu" in text
    assert any("without a processor" in loss for loss in losses)
    assert shape(nccl_xml.parse(text)) == shape(topology)


IDS = st.sampled_from([f"n{i}" for i in range(9)])


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    kinds = draw(st.lists(st.sampled_from(list(NodeKind)), min_size=1, max_size=9))
    nodes = [Node(f"n{i}", kind) for i, kind in enumerate(kinds)]
    link = st.tuples(IDS, IDS, st.sampled_from(list(LinkKind)), st.integers(0, 7), st.sampled_from([0, 1, 4, 16]))
    links = {}
    for a, b, kind, generation, width in draw(st.lists(link, max_size=20)):
        if a != b and {a, b} <= {node.id for node in nodes}:
            links[a, b, kind] = Link(a, b, kind, generation, width)
    return Topology(tuple(nodes), tuple(links.values()))


@settings(max_examples=150, deadline=None)
@given(topologies())
def test_any_graph_comes_back(topology: Topology) -> None:
    """Trees, cycles, one-way links, orphans: whatever a topology may be, its kinds and connections return."""
    back = nccl_xml.parse(nccl_xml.render(topology)[0])
    nodes, links, gpus = shape(topology)
    assert shape(back)[:2] == (nodes, links)
    assert back.gpus == gpus


TAGS = [
    "system",
    "cpu",
    "pci",
    "gpu",
    "nic",
    "net",
    "nvlink",
    "xgmi",
    "c2c",
    "pcilink",
    "collbench",
    "link",
    "without",
    "node",
    "x",
]
KEYS = [
    "busid",
    "class",
    "link_speed",
    "link_width",
    "numaid",
    "host_hash",
    "dev",
    "rank",
    "sm",
    "target",
    "count",
    "tclass",
    "bw",
    "id",
    "kind",
    "src",
    "dst",
    "node",
    "to",
    "generation",
    "width",
    "gcn",
]
VALUES = [
    "", "0", "1", "-3", "x", "0x030200", "0x060400", "0x020000", "0x068000", "0x068001", "0000:01:00.0", "0000:02:00.0",
    "gpu0", "socket0", "nvlink", "pcie", "16 GT/s", "2.5 GT/s", "9" * 20, "9" * 400, "9" * 5000, "86",
]  # fmt: skip


def element(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    attributes = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=6).map(
        lambda d: "".join(f' {k}="{v}"' for k, v in d.items())
    )
    return st.builds(
        lambda n, a, c: f"<{n}{a}>{''.join(c)}</{n}>", st.sampled_from(TAGS), attributes, st.lists(children, max_size=4)
    )


@settings(max_examples=200, deadline=None)
@given(st.recursive(element(st.just("")), element, max_leaves=20))
def test_any_elements_read_or_are_refused(inside: str) -> None:
    """Whatever stands in the elements, the answer is a topology or the one named error."""
    try:
        topology = nccl_xml.parse(f'<system version="1"><cpu numaid="0">{inside}</cpu>{inside}</system>')
    except TopologyError:
        return
    try:
        nccl_xml.render(topology)
    except TopologyError as error:
        if "node id" not in str(error):
            raise


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_refused_or_read(text: str) -> None:
    """Text of any kind raises the named error only."""
    for body in (text, TWO_SWITCHES[: len(text) * 7] + text, f"<system>{text}</system>"):
        try:
            nccl_xml.parse(body)
        except TopologyError:
            continue


@pytest.mark.parametrize("noise", ["<a>", "<a b='c'/>", "\x00\xff", "<!--", "&a;", "<cpu/>", "x\n", "<system>"])
def test_a_megabyte_of_noise_is_quick(
    noise: str, budget: Callable[[float], Callable[[Callable[[], Any]], Any]]
) -> None:
    """1 MB of anything is read or refused within a second."""
    many = noise * (1_000_000 // len(noise))

    def parse() -> None:
        for body in (many, f"<system><cpu>{many}", f"<system>{many}</system>"):
            with pytest.raises(TopologyError):
                nccl_xml.parse(body)

    budget(2.0)(parse)


@pytest.mark.parametrize(
    "device",
    [
        '<pci busid="0:{0:x}:0.0" class="0x0302"><gpu><nvlink target="{0:x}" tclass="0x068000"/></gpu></pci>',
        '<pci busid="0:{0:x}:0.0" class="0x0302"><gpu><nvlink target="0:{0:x}:0.0"/></gpu></pci>',
        '<pci busid="0:{0:x}:0.0" class="0x0604"><pcilink target="0:1:0.0"/></pci>',
        '<nic id="nic0"><net name="a"/></nic>',
    ],
)
def test_a_megabyte_of_devices_is_quick(
    device: str, budget: Callable[[float], Callable[[Callable[[], Any]], Any]]
) -> None:
    """Reading takes time in proportion to the size, whatever the elements are."""
    many = "".join(device.format(i) for i in range(500_000 // len(device)))
    budget(1.0)(lambda: nccl_xml.parse(f"<system><cpu>{many}</cpu></system>"))
