"""The picture: what it shows, that labels stay apart, that it is safe in a page."""

import itertools
import re
import xml.etree.ElementTree as ET
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.topology import catalog
from collbench.topology.drawing import svg
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology

SVG = "{http://www.w3.org/2000/svg}"
HEAD, BIG, SMALL = 7.4, 6.6, 6.0
"""Widths of a letter of bold names, labels and details, in pixels, as the picture assumes them."""


def parse(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - our own text, parsed to prove that it is well-formed


def machine(gpus: int, per_switch: int = 4, **link: object) -> Topology:
    """A machine of one socket with flat switches."""
    nodes = [Node("socket0", NodeKind.SOCKET, {"model": "EPYC", "cores": "64"})]
    links = []
    fields = {"generation": 5, "width": 16, "capacity_gbps": 54.0, "provenance": "measured: here"} | link
    for number in range(0, gpus, per_switch):
        switch, root = f"switch{number // per_switch}", f"root{number // per_switch}"
        nodes += [Node(root, NodeKind.ROOT_PORT), Node(switch, NodeKind.SWITCH)]
        pairs = [(root, "socket0"), (switch, root)]
        pairs += [(f"gpu{n}", switch) for n in range(number, min(gpus, number + per_switch))]
        for one, two in pairs:
            links += [Link(one, two, LinkKind.PCIE, **fields), Link(two, one, LinkKind.PCIE, **fields)]  # type: ignore[arg-type]  # fields of Link
    nodes += [
        Node(f"gpu{n}", NodeKind.GPU, {"model": "NVIDIA RTX PRO 6000 Blackwell", "busid": f"0000:{n:02x}:00.0"})
        for n in range(gpus)
    ]
    return Topology(tuple(nodes), tuple(links), f"{gpus} GPUs")


def boxes(root: ET.Element) -> dict[str, tuple[float, float, float, float]]:
    """Title of each device's rectangle -> x, y, right, bottom."""
    found = {}
    for group in root.iter(f"{SVG}g"):
        rect = next((r for r in group.findall(f"{SVG}rect") if r.get("class", "").startswith("b ")), None)
        title = group.find(f"{SVG}title")
        if rect is not None and title is not None and title.text:
            x, y, width, height = (float(rect.get(key, "nan")) for key in ("x", "y", "width", "height"))
            found[title.text.split(":")[0]] = (x, y, x + width, y + height)
    return found


def plates(root: ET.Element) -> list[tuple[float, float, float, float]]:
    """Places of the labels at links."""
    rects = [r for group in root.iter(f"{SVG}g") for r in group.findall(f"{SVG}rect") if r.get("class") == "page"]
    sides = [[float(r.get(key, "nan")) for key in ("x", "y", "width", "height")] for r in rects]
    return [(x, y, x + width, y + height) for x, y, width, height in sides]


def overlap(one: tuple[float, float, float, float], two: tuple[float, float, float, float]) -> bool:
    wide = min(one[2], two[2]) - max(one[0], two[0])
    high = min(one[3], two[3]) - max(one[1], two[1])
    return wide > 0.5 and high > 0.5


PICTURES = [*((name, catalog.load(catalog.find(name))) for name in catalog.names()), *(
    (f"{n} GPUs", machine(n)) for n in (1, 2, 4, 8, 16)
), ("16 slow GPUs", machine(16, current_generation=1, current_width=16))]  # fmt: skip


@pytest.mark.parametrize(("name", "topology"), PICTURES, ids=[name for name, _ in PICTURES])
def test_nothing_lies_on_anything(name: str, topology: Topology) -> None:
    """Boxes do not overlap, labels neither each other nor a box, and names fit their boxes."""
    root = parse(svg(topology))
    drawn = boxes(root)
    folded = {node.id for node in topology.nodes} - set(drawn)
    assert {topology.node(node).kind for node in folded} <= {NodeKind.NIC}, "cards below one parent may share a box"
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert all(any(f"{node}:" in title for title in titles) for node in folded)
    for one, two in itertools.combinations(drawn.values(), 2):
        assert not overlap(one, two)
    labels = plates(root)
    assert labels or not any(link.kind is LinkKind.PCIE for link in topology.links)
    for one, two in itertools.combinations(labels, 2):
        assert not overlap(one, two)
    for label, box in itertools.product(labels, drawn.values()):
        assert not overlap(label, box)
    for text in root.iter(f"{SVG}text"):
        if text.get("class") == "n":
            assert "…" not in (text.text or "")


@pytest.mark.parametrize(("name", "topology"), PICTURES, ids=[name for name, _ in PICTURES])
def test_everything_is_inside_and_readable_at_1200_pixels(name: str, topology: Topology) -> None:
    """At a width of 1200 pixels no letter is smaller than 8 pixels."""
    root = parse(svg(topology))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    assert root.get("viewBox") == f"0 0 {width:.0f} {height:.0f}"
    assert min(1.0, 1200 / width) * 10.5 >= 8
    for x, y, right, bottom in boxes(root).values():
        assert x >= 0
        assert right <= width
        assert y >= 0
        assert bottom <= height


def test_order_from_the_socket_down() -> None:
    drawn = boxes(parse(svg(machine(4))))
    tops = [drawn[name][1] for name in ("socket0", "root0", "switch0", "gpu0")]
    assert tops == sorted(tops)
    assert drawn["gpu0"][0] < drawn["gpu1"][0] < drawn["gpu2"][0]


def test_labels_and_titles() -> None:
    """The label says speed and capacity, the title the exact numbers of both directions and their source."""
    text = svg(machine(2, capacity_gbps=53.75, latency_us=0.19))
    assert ">Gen5 x16</text>" in text
    assert ">53.8 GB/s</text>" in text
    assert "gpu0 -&gt; switch0: PCIe, Gen5 x16, 53.75 GB/s, 0.19 us (measured: here)" in text
    assert "switch0 -&gt; gpu0: PCIe, Gen5 x16, 53.75 GB/s, 0.19 us (measured: here)" in text


def test_a_slow_link_says_so_in_words_and_colour() -> None:
    text = svg(machine(1, current_generation=1, current_width=8))
    assert ">Gen1 x8 now</text>" in text
    assert ">of Gen5 x16</text>" in text
    assert 'class="l pcie slow"' in text
    assert "slower now than it can be" in text
    assert "slow" not in re.sub(r"<style>.*?</style>", "", svg(machine(1, current_generation=5, current_width=16)))


def test_directions_that_differ_are_both_shown() -> None:
    links = (
        Link("gpu0", "socket0", LinkKind.PCIE, 5, 16, capacity_gbps=38.0),
        Link("socket0", "gpu0", LinkKind.PCIE, 5, 16, capacity_gbps=51.0),
    )
    nodes = (Node("socket0", NodeKind.SOCKET), Node("gpu0", NodeKind.GPU))
    assert ">↑38, ↓51 GB/s</text>" in svg(Topology(nodes, links))


def test_highlight() -> None:
    """A highlighted link stands out and is in the legend; without highlight there is none."""
    plain, hot = svg(machine(2)), svg(machine(2), highlight=[("switch0", "gpu1")])
    assert hot.count('class="l pcie hot"') == 2  # the link and its sample in the legend
    assert "highlighted" in hot
    assert " hot" not in plain


def test_nvlink_of_every_shape() -> None:
    """A pair is a bow with its label, all pairs of four GPUs are one bar, chips of an NVSwitch are one bar."""
    gpus = tuple(Node(f"gpu{n}", NodeKind.GPU) for n in range(4))

    def joined(ends: list[tuple[str, str]], more: tuple[Node, ...] = ()) -> str:
        links = [
            Link(a, b, LinkKind.NVLINK, 4, 18, capacity_gbps=370.8)
            for one, two in ends
            for a, b in ((one, two), (two, one))
        ]
        return svg(Topology(gpus + more, tuple(links)))

    assert joined([("gpu0", "gpu1")]).count(">NVLink4 x18</text>") == 1
    mesh = joined(list(itertools.combinations([g.id for g in gpus], 2)))
    assert "NVLink between all 4: NVLink4 x18, 371 GB/s per pair" in mesh
    two = joined(
        [*itertools.combinations([g.id for g in gpus], 2), ("gpu4", "gpu5")],
        (Node("gpu4", NodeKind.GPU), Node("gpu5", NodeKind.GPU)),
    )
    assert "NVLink between all 4" in two
    assert two.count(">NVLink4 x18</text>") == 1
    chips = tuple(Node(f"nvswitch{n}", NodeKind.NVSWITCH) for n in range(2))
    behind = joined([(g.id, c.id) for g in gpus for c in chips], chips)
    assert "2 x NVSwitch" in behind
    assert behind.count(">NVLink4 x36</text>") == 4
    assert behind.count(">742 GB/s</text>") == 4


def test_links_without_room_for_labels_are_counted() -> None:
    """Bows beyond a few carry no label; the picture says below how many of each kind there are."""
    text = svg(catalog.load(catalog.find("cube-mesh-8xv100")))
    assert "NVLink2 x1, 20 GB/s: 8 pairs; NVLink2 x2, 40 GB/s: 8 pairs" in text
    widths = {float(width) for width in re.findall(r'class="l nvlink" d="[^"]*" stroke-width="([\d.]+)"', text)}
    assert {2.3, 3.4} <= widths, "two links are drawn thicker than one"


def test_missing_peer_access_is_said() -> None:
    said = "No peer access: what one GPU sends to another goes through host memory"
    assert said in svg(catalog.load(catalog.find("direct-4x4090-no-p2p")))
    assert said not in svg(catalog.load(catalog.find("dual-socket-direct")))


def test_cards_of_one_box_say_what_each_can_do() -> None:
    text = svg(catalog.load(catalog.find("aws-p5-8xh100")))
    assert text.count(">4 NICs</text>") == 8
    assert text.count(">4x56.7 GB/s</text>") == 8


def test_two_links_to_one_processor_stand_side_by_side() -> None:
    """PCIe and C2C of a superchip: two lines, two labels."""
    nodes = (Node("socket0", NodeKind.SOCKET), Node("gpu0", NodeKind.GPU))
    links = (
        Link("gpu0", "socket0", LinkKind.PCIE, 5, 8, capacity_gbps=28.0),
        Link("gpu0", "socket0", LinkKind.C2C, capacity_gbps=345.0),
    )
    root = parse(svg(Topology(nodes, links)))
    one, two = plates(root)
    assert not overlap(one, two)


def test_many_network_cards_become_one_box_per_switch() -> None:
    base = machine(8)
    nics = tuple(Node(f"nic{n}", NodeKind.NIC) for n in range(63))
    links = tuple(Link(nic.id, f"switch{n % 2}", LinkKind.PCIE, 5, 8) for n, nic in enumerate(nics))
    text = svg(Topology(base.nodes + nics, base.links + links))
    assert ">32 NICs</text>" in text
    assert ">31 NICs</text>" in text
    assert "nic62: NIC" in text
    assert float(parse(text).get("width", "0")) <= 1300


def test_a_host_without_gpus() -> None:
    """Sockets with cores and NUMA nodes, those that are not neighbours joined above."""
    nodes = tuple(Node(f"socket{n}", NodeKind.SOCKET, {"cores": "32", "numa_nodes": "2"}) for n in range(3))
    ends = [("socket0", "socket1"), ("socket1", "socket2"), ("socket0", "socket2")]
    text = svg(Topology(nodes, tuple(Link(a, b, LinkKind.SOCKET) for a, b in ends)))
    assert text.count(">32 cores · 2 NUMA nodes</text>") == 3
    assert len(set(boxes(parse(text)))) == 3


def test_an_empty_topology_is_a_picture() -> None:
    assert "no devices" in svg(Topology((), ()))


def test_it_is_accessible_and_fits_both_schemes() -> None:
    text = svg(machine(2))
    root = parse(text)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "2 GPUs: 2 GPUs, 1 switch, 1 socket · 1 group of 2"
    assert "@media screen and (prefers-color-scheme:dark)" in text
    for group in root.iter(f"{SVG}g"):
        assert group.get("transform") or group.find(f"{SVG}title") is not None


def test_colours_are_variables_of_the_picture() -> None:
    """No rule reaches beyond the picture, so that it cannot restyle the page around it."""
    style = svg(machine(1)).split("<style>")[1].split("</style>")[0]
    rules = re.sub(r"@media[^{]*", "", style)
    for selector in re.findall(r"([^{}]+)\{", rules):
        assert all("svg.cbt" in part for part in selector.split(","))


def test_several_in_one_page_have_ids_of_their_own() -> None:
    """Ids differ between topologies, highlights and prefixes; within one picture each is there once."""
    base = machine(2)
    pictures = [svg(base), svg(machine(4)), svg(base, [("gpu0", "switch0")]), svg(base, prefix="second")]
    ids = [re.findall(r' id="([^"]+)"', text) for text in pictures]
    for found in ids:
        assert max(Counter(found).values()) == 1
    for one, two in itertools.combinations(ids, 2):
        assert not set(one) & set(two)


def test_it_is_deterministic() -> None:
    for _, topology in PICTURES[:2]:
        assert svg(topology) == svg(Topology(topology.nodes, topology.links, topology.name))


def test_texts_are_escaped() -> None:
    """Names and models come from captured files: markup in them stays text, control characters go."""
    evil = '<script>alert("1")</script>&\x1b[31m\x00'
    nodes = (Node(evil, NodeKind.SOCKET, {"model": evil}), Node("gpu0", NodeKind.GPU, {"model": evil, "busid": evil}))
    links = (Link("gpu0", evil, LinkKind.PCIE, provenance=evil),)
    text = svg(Topology(nodes, links, evil), prefix='"><script>')
    parse(text)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text


@st.composite
def anything(draw: st.DrawFn) -> Topology:
    kinds = draw(st.lists(st.sampled_from(NodeKind), max_size=12))
    nodes = [
        Node(f"n{i}", kind, draw(st.dictionaries(st.sampled_from(["model", "busid"]), st.text(max_size=9))))
        for i, kind in enumerate(kinds)
    ]
    places = st.integers(0, max(0, len(nodes) - 1))
    ends = st.tuples(places, places, st.sampled_from(LinkKind)).filter(lambda e: e[0] != e[1])
    keys = draw(st.lists(ends, max_size=20, unique=True)) if len(nodes) > 1 else []
    speed = st.sampled_from([0, 1, 4, 16])
    return Topology(tuple(nodes), tuple(Link(f"n{a}", f"n{b}", kind, draw(speed), draw(speed)) for a, b, kind in keys))


@settings(max_examples=150, deadline=None)
@given(anything())
def test_any_topology_can_be_drawn(topology: Topology) -> None:
    """Whatever is wired to whatever: the result is well-formed, and every device is in it."""
    text = svg(topology)
    parse(text)
    for node in topology.nodes:
        assert f"{node.id}: " in text


def test_a_chain_of_a_thousand_switches_is_no_problem() -> None:
    nodes = (Node("socket0", NodeKind.SOCKET), *(Node(f"s{n}", NodeKind.SWITCH) for n in range(1500)))
    links = tuple(Link(one.id, two.id, LinkKind.PCIE) for one, two in itertools.pairwise(nodes))
    parse(svg(Topology(nodes, links)))
