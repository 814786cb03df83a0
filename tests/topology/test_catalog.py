"""Machine files: those that come with collbench, the strict reader, the writer."""

import contextlib
import itertools
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.topology import catalog, catalog_reader
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collbench.topology.toml_table import parse_toml

SMALL = """\
schema = "collbench/1"
name = "small"

[sources]
page = "a page"

[classes.port]
kind = "pcie"
generation = 5
width = 16
capacity_gbps = 54
source = { speed = "reported: {page}", capacity_gbps = "measured: {page}, one copy" }

[[switches]]
id = "switch0"

[[gpus]]
count = 2
numa = 1

[[links]]
class = "port"
from = "gpu[0-1]"
to = "switch0"
"""


def read(text: str) -> Topology:
    return catalog_reader.read(text, "small.toml")


def loaded(name: str) -> Topology:
    return catalog.load(catalog.find(name))


def latency(topology: Topology, src: str, dst: str) -> float:
    return sum(link.latency_us or 0.0 for link in topology.route(src, dst))


def test_flat_switches_meet_at_one_uplink() -> None:
    """What the published copies between the switches saw: 53.8 GB/s, whatever the number of flows."""
    topology = loaded("two-flat-gen5-switches")
    cut, links = topology.cut(*topology.groups)
    assert cut == 53.8
    assert len(links) == 1
    assert latency(topology, "gpu0", "gpu1") == pytest.approx(0.68 - 0.30, abs=0.01)
    assert latency(topology, "gpu0", "gpu4") == pytest.approx(1.07 - 0.30, abs=0.01)


def test_root_and_leaf_switches_keep_off_the_processor() -> None:
    """Peer traffic stays in the switches; two leaves' uplinks carry what four copies across the roots reached."""
    topology = loaded("root-leaf-switches")
    for src, dst in itertools.permutations(topology.gpus, 2):
        assert all(topology.node(link.src).kind in {NodeKind.GPU, NodeKind.SWITCH} for link in topology.route(src, dst))
    assert topology.cut(*topology.groups)[0] == pytest.approx(108.6)


def test_virtual_switches_of_one_chip_meet_inside_it() -> None:
    topology = loaded("two-pex890xx-virtual-switches")
    inside = topology.route("gpu0", "gpu2")
    assert LinkKind.C2C in {link.kind for link in inside}
    across = topology.route("gpu0", "gpu4")
    assert LinkKind.SOCKET in {link.kind for link in across}
    # reads of 128 B take 1.315 us across and 0.725 us inside: twice the difference of the routes
    assert 2 * (latency(topology, "gpu0", "gpu4") - latency(topology, "gpu0", "gpu1")) == pytest.approx(0.59, abs=0.005)


def test_nvlink_is_preferred_on_nvswitch() -> None:
    topology = loaded("nvswitch-8gpu")
    assert {link.kind for link in topology.route("gpu0", "gpu7")} == {LinkKind.NVLINK}
    assert topology.node("gpu7").attributes["busid"] == "0000:d8:00.0"


def test_small_file() -> None:
    """Classes, ranges, counts, attributes and cited sources come out as links in both directions."""
    topology = read(SMALL)
    assert topology.gpus == ("gpu0", "gpu1")
    assert topology.node("gpu0").attributes == {"numa": "1"}
    assert len(topology.links) == 4
    assert topology.links[0] == Link(
        "gpu0", "switch0", LinkKind.PCIE, 5, 16, capacity_gbps=54.0,
        provenance="speed reported: a page; capacity measured: a page, one copy",
    )  # fmt: skip


def test_directions_may_differ() -> None:
    """[forward, back] in a link overrides the class; one_way leaves the way back out."""
    extra = 'capacity_gbps = [38, 51]\nsource = "measured: both ways"\n'
    there, back = read(SMALL + extra).links[:2]
    assert (there.capacity_gbps, back.capacity_gbps) == (38.0, 51.0)
    assert there.provenance == "measured: both ways"
    assert {link.dst for link in read(SMALL + "one_way = true\n").links} == {"switch0"}


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("width = 16", "widht = 16", 10, "unknown key 'widht' in [classes.port]: did you mean 'width'?"),
        ("count = 2", "count = 2\ncolour = 1", 19, "unknown key 'colour' in [[gpus]]"),
        ('name = "small"', "", 1, "the file has no 'name'"),
        ("count = 2", "", 17, "[[gpus]]: expected either id"),
        ("generation = 5", 'generation = "5"', 9, "generation is a text in quotes, expected a whole number"),
        ("generation = 5", "generation = true", 9, "generation is true or false"),
        ("generation = 5", "generation = 99", 9, "generation = 99, expected 1 to 15"),
        ('kind = "pcie"', 'kind = "usb"', 8, "kind 'usb': expected one of pcie"),
        ("capacity_gbps = 54\n", "capacity_gbps = 0\n", 11, "capacity_gbps = 0, expected a finite number above zero"),
        ("capacity_gbps = 54\n", "capacity_gbps = -3.5\n", 11, "above zero"),
        ("capacity_gbps = 54\n", "capacity_gbps = nan\n", 11, "above zero"),
        ("capacity_gbps = 54\n", "capacity_gbps = inf\n", 11, "above zero"),
        ("capacity_gbps = 54\n", "capacity_gbps = [1, 2, 3]\n", 11, "lists 3 numbers"),
        ("capacity_gbps = 54\n", 'capacity_gbps = "54"\n', 11, "expected a number"),
        ('speed = "reported: {page}", ', "", 12, "source has no 'speed'"),
        ("measured: {page}, one copy", "{page}", 12, "begin it with one of 'measured: '"),
        ("measured: {page}", "measured: {pgae}", 12, "no 'pgae' in [sources]"),
        ("capacity_gbps = 54\n", "capacity_gbps = 54\nlatency_us = 1\n", 13, "source has no 'latency_us'"),
        ('class = "port"', 'class = "prot"', 22, "class 'prot': expected one of port"),
        ('to = "switch0"', 'to = "switch1"', 24, "there is no node 'switch1'"),
        ('to = "switch0"', "", 21, "[[links]] has no 'to'"),
        ('"gpu[0-1]"', '"gpu[1-0]"', 23, "expected a range upwards"),
        ('"gpu[0-1]"', '"gpu[0"', 23, "one range such as gpu[0-3]"),
        ('to = "switch0"', 'to = "switch0"\nlatency_us = 2', 25, "needs a source of its own"),
        ("collbench/1", "collbench/2", 1, "schema 'collbench/2': expected 'collbench/1'"),
        ("count = 2", "count = 2\nbad line", 19, "no TOML"),
        ('id = "switch0"', "id = 7", 15, "id is a whole number, expected a text"),
        ("numa = 1", 'peer_access = "none"', 17, "[[gpus]] has no 'peer_access_source'"),
        ("numa = 1", 'peer_access = "some"\npeer_access_source = "reported: x"', 19, "expected one of direct, none"),
        ("numa = 1", 'peer_access = "none"\npeer_access_source = "x"', 20, "begin it with one of 'measured: '"),
        ('id = "switch0"', 'id = "switch0"\npeer_access = "none"', 16, "peer_access is a fact of GPUs"),
    ],
)
def test_a_fault_is_refused_with_its_line(old: str, new: str, line: int, says: str) -> None:
    assert old in SMALL
    with pytest.raises(TopologyError) as caught:
        read(SMALL.replace(old, new, 1))
    assert str(caught.value).startswith(f"small.toml:{line}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 5000, "0x" + "f" * 5000, "-9223372036854775809"])
def test_a_whole_number_of_more_than_64_bits_is_no_toml(digits: str) -> None:
    """Python reads such numbers up to a limit of its own, and then fails to print or to convert them."""
    with pytest.raises(TopologyError, match=r"^small.toml: no TOML: a whole number has more than TOML's 64 bits$"):
        read(SMALL.replace("width = 16", f"width = {digits}"))
    with pytest.raises(TopologyError, match=r"^small.toml: no TOML: nested too deep$"):
        read("a = " + "[" * 5000)
    assert parse_toml("a = [9223372036854775807]") == {"a": [2**63 - 1]}


def test_a_class_without_source_is_refused() -> None:
    text = "\n".join(row for row in SMALL.splitlines() if not row.startswith("source ="))
    with pytest.raises(TopologyError, match=r"small.toml:7: \[classes.port\] has no 'source'"):
        read(text)


def test_what_the_graph_refuses_names_the_file() -> None:
    with pytest.raises(TopologyError, match=r"small.toml: node 'switch0' stands twice"):
        read(SMALL + '[[switches]]\nid = "switch0"\n')


def test_hidden_pairs_must_be_pairs() -> None:
    with pytest.raises(TopologyError, match="expected a list of pairs"):
        read(SMALL.replace('name = "small"', 'name = "small"\nhidden = [["gpu0"]]'))


def test_find_takes_names_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(SMALL)
    assert catalog.find(str(path)) == path
    assert catalog.find("one-plx-4xv100").name == "one-plx-4xv100.toml"
    assert catalog.find("one-plx-4xv100.toml").name == "one-plx-4xv100.toml"
    with pytest.raises(UsageError, match=r"no machine file 'none'.*two-flat-gen5-switches"):
        catalog.find("none")
    with pytest.raises(
        UsageError, match=r"no machine file 'my/two-flat-gen5-switch.toml': did you mean two-flat-gen5-.*\?$"
    ):
        catalog.find("my/two-flat-gen5-switch.toml")


def test_load_names_what_it_cannot_read(tmp_path: Path) -> None:
    """A missing file, a folder, bytes that are no text, a file far too large."""
    binary, large = tmp_path / "binary.toml", tmp_path / "large.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    large.write_bytes(b"#" * (2 << 20))
    for path, says in ((tmp_path / "no", "No such file"), (tmp_path, "directory"), (binary, "UTF-8"), (large, "1 MiB")):
        with pytest.raises(TopologyError, match=says) as caught:
            catalog.load(path)
        assert str(path) in str(caught.value)


def test_an_installed_package_finds_its_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel the files lie inside the package."""
    package = tmp_path / "collbench"
    (package / "topology").mkdir(parents=True)
    shutil.copytree(catalog.folder(), package / "topologies")
    monkeypatch.setattr(catalog, "__file__", str(package / "topology" / "catalog.py"))
    assert catalog.folder() == package / "topologies"
    assert "two-flat-gen5-switches" in catalog.names()


def test_the_schema_example_is_a_machine_file(root: Path) -> None:
    """The first example of topologies/README.md reads as it stands."""
    example = (root / "topologies" / "README.md").read_text().split("```toml\n")[1].split("```")[0]
    topology = catalog_reader.read(example, "README.md")
    assert topology.gpus == ("gpu0", "gpu1")
    assert {link.capacity_gbps for link in topology.links if link.src == "socket0"} == {51.0}


def test_a_discovered_topology_can_be_written() -> None:
    """Links that nobody measured, one-way links, odd texts and attributes of any name come back."""
    nodes = (
        Node("socket0", NodeKind.SOCKET, {"cores": "64", "odd key": 'a "quoted" \n text', "numa": "007"}),
        Node("0000:06:00.0", NodeKind.GPU, {"model": "H200\x1b[31m"}),
        Node("gpu1", NodeKind.GPU),
    )
    links = (
        Link("socket0", "0000:06:00.0", LinkKind.PCIE, 5, 16, 1, 16, provenance="sysfs"),
        Link("gpu1", "0000:06:00.0", LinkKind.NVLINK, 4, 18, capacity_gbps=370.8, provenance="NVML; nominal: x"),
        Link("socket0", "gpu1", LinkKind.C2C, latency_us=0.1),
    )
    topology = Topology(nodes, links, "", (("0000:06:00.0", "gpu1"),), ("sysfs says 1, NVML says 2",))
    again = read(catalog.dumps(topology))
    assert {node.id: dict(node.attributes) for node in again.nodes} == {n.id: dict(n.attributes) for n in nodes}
    assert again.gpus == topology.gpus
    assert again.links[:2] == links[:2]
    assert again.links[2].provenance == "reported: no source recorded"
    assert (again.hidden, again.disagreements) == (topology.hidden, topology.disagreements)
    assert read(catalog.dumps(again)) == again


def test_an_id_with_brackets_cannot_be_written() -> None:
    with pytest.raises(TopologyError, match="brackets"):
        catalog.dumps(Topology((Node("gpu[0-1]", NodeKind.GPU),), ()))


texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
numbers = st.none() | st.floats(1e-6, 1e6)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    ids = draw(
        st.lists(texts.filter(lambda t: t.strip() and not set("[]") & set(t)), min_size=1, max_size=6, unique=True)
    )
    nodes = [
        Node(i, draw(st.sampled_from(NodeKind)), draw(st.dictionaries(st.sampled_from(["model", "x y"]), texts)))
        for i in ids
    ]
    ends = st.tuples(st.sampled_from(ids), st.sampled_from(ids), st.sampled_from(LinkKind)).filter(
        lambda e: e[0] != e[1]
    )
    keys = draw(st.lists(ends, max_size=8, unique=True)) if len(ids) > 1 else []
    small = st.integers(0, 15)
    links = [
        Link(*key, draw(small), draw(small), draw(small), draw(small), draw(numbers), draw(numbers), draw(texts))
        for key in keys
    ]
    return Topology(tuple(nodes), tuple(links), draw(texts), (), tuple(draw(st.lists(texts, max_size=2))))


@settings(max_examples=60, deadline=None)
@given(topologies())
def test_whatever_is_written_can_be_read(topology: Topology) -> None:
    """Capacities, latencies and speeds come back exactly; what is written a second time is the same text."""
    text = catalog.dumps(topology)
    again = read(text)
    assert again.gpus == topology.gpus

    def numbers_of(links: tuple[Link, ...]) -> set[tuple[object, ...]]:
        return {(x.src, x.dst, x.kind, x.link_class, x.capacity_gbps, x.latency_us, x.current_width) for x in links}

    assert numbers_of(again.links) == numbers_of(topology.links)
    assert read(catalog.dumps(again)) == again


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=200), st.integers(0, len(SMALL)))
def test_noise_raises_nothing_but_the_named_error(noise: str, where: int) -> None:
    for text in (noise, SMALL[:where] + noise + SMALL[where:]):
        with contextlib.suppress(TopologyError):
            read(text)


def test_a_megabyte_of_noise_is_refused_quickly(budget: object) -> None:
    def refuse() -> None:
        with pytest.raises(TopologyError):
            read("[[gpus]]\nid = 'x'\n" * 50_000)

    budget(1.0)(refuse)  # type: ignore[operator]  # the fixture of tests/conftest.py
