"""The machines that come with collbench: all there, each complete, and like the real captures that exist of them."""

import itertools
from pathlib import Path

import pytest

from collbench.topology import catalog, catalog_reader, host_tree
from collbench.topology.capture import read_capture
from collbench.topology.gpus import has_peer_access, vendor
from collbench.topology.graph import LinkKind, Topology

GROUPS = {
    "aws-g5-8xa10g": [], "aws-p5-8xh100": [], "connectx8-switch-pairs": [2, 2, 2, 2], "cpu-host": [],
    "cube-mesh-8xv100": [2, 2, 2, 2], "direct-4x4090-no-p2p": [], "dual-socket-8xl40s": [], "dual-socket-direct": [],
    "four-switches-16gpu": [4, 4, 4, 4], "nvswitch-8gpu": [], "nvswitch-8xb200": [], "nvswitch-8xh200": [2, 2, 2, 2],
    "one-plx-4xv100": [4], "partitioned-gen5-switches": [2, 2, 2, 2], "root-leaf-switches": [4, 4], "two-arc-b70": [],
    "two-flat-gen5-switches": [4, 4], "two-pex890xx-virtual-switches": [2, 2, 2, 2],
    "two-h200-nvlink": [], "two-switches-8x4090-no-p2p": [4, 4], "xgmi-mesh-8xmi355x": [],
}  # fmt: skip
"""Every machine and the sizes of its groups."""

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"

CAPTURES = {
    "two-flat-gen5-switches": "topo-m/87_8xrtxpro6000-2switch-flat-nolegend.txt",
    "root-leaf-switches": "topo-m/88_8xrtxpro6000-hierarchical-pix-pxb-node.txt",
    "two-pex890xx-virtual-switches": "topo-m/85_8xrtxpro6000-asus-pex890xx-ansi.txt",
    "dual-socket-direct": "topo-m/90_8gpu-phb-sys-2socket.txt",
    "direct-4x4090-no-p2p": "topo-m/30_4x4090-node-sys.txt",
    "two-switches-8x4090-no-p2p": "topo-m/43_8x4090-2switch-tabs.txt",
    "nvswitch-8xh200": "topo-m/97_8xh200-gcp-a3ultra-8nics-ansi-in-log.txt",
    "cube-mesh-8xv100": "topo-m/69_8xv100-sxm2-hybrid-cube.txt",
    "nvswitch-8gpu": "nccl-xml/10_oci-h100-baremetal.xml",
}
"""What was captured on the machine itself, or on one of the same model."""


def loaded(name: str) -> Topology:
    return catalog.load(catalog.find(name))


def test_the_machines_are_there() -> None:
    assert set(GROUPS) == set(catalog.names())
    assert len(GROUPS) >= 16


@pytest.mark.parametrize("name", GROUPS)
def test_a_machine_is_complete(name: str) -> None:
    """Every link says who saw it, numbers say how they came about, and every GPU reaches every other."""
    topology = loaded(name)
    assert topology.name == name
    assert [len(group) for group in topology.groups] == GROUPS[name]
    for link in topology.links:
        assert catalog_reader.has_basis(link.provenance)
        assert "{" not in link.provenance
    for src, dst in itertools.permutations(topology.gpus, 2):
        route = topology.route(src, dst)
        assert route[0].capacity_gbps
        assert route[-1].dst == dst


@pytest.mark.parametrize("name", GROUPS)
def test_a_machine_survives_the_writer(name: str) -> None:
    topology = loaded(name)
    again = catalog_reader.read(catalog.dumps(topology), "again.toml")
    assert again == topology
    assert again.digest == topology.digest


@pytest.mark.parametrize("name", GROUPS)
def test_the_readme_lists_it(name: str, root: Path) -> None:
    lines = (root / "topologies" / "README.md").read_text().splitlines()
    rows = [row for row in lines if row.startswith(f"| [{name}]")]
    assert len(rows) == 1
    assert f"({name}.toml)" in rows[0]


def test_who_made_the_cards_and_who_reaches_whom() -> None:
    """Machines without peer access and of other vendors are known as such; all else is NVIDIA with peer access."""
    assert {name for name in GROUPS if not has_peer_access(loaded(name))} == {
        "aws-g5-8xa10g", "direct-4x4090-no-p2p", "two-switches-8x4090-no-p2p",
    }  # fmt: skip
    others = {name: vendor(loaded(name)) for name in GROUPS if vendor(loaded(name)) != "NVIDIA"}
    assert others == {"two-arc-b70": "Intel", "xgmi-mesh-8xmi355x": "AMD", "cpu-host": ""}


def relations(topology: Topology) -> dict[tuple[int, int], tuple[int, bool | None, bool | None]]:
    """Of each pair of ranks: NVLinks between them, whether they share a switch, and a processor; None where unknown."""
    parents = host_tree.parents(topology)
    gpus = topology.gpus
    fast = {(link.src, link.dst): link.width for link in topology.links if link.kind is LinkKind.NVLINK}
    hidden = {frozenset(pair) for pair in topology.hidden}
    found = {}
    for (i, a), (j, b) in itertools.combinations(enumerate(gpus), 2):
        switched = {dst for src, dst in fast if src == a and topology.node(dst).kind == "nvswitch"}
        links = fast.get((a, b), 0) or next((fast[a, switch] for switch in switched), 0)
        together = None if frozenset((a, b)) in hidden else any({a, b} <= set(group) for group in topology.groups)
        tops = [_top(gpu, parents) for gpu in (a, b)]
        near = tops[0] == tops[1] if all(top in topology.sockets for top in tops) else None
        found[i, j] = links, together, near
    return found


def _top(node: str, parents: "dict[str, str]") -> str:
    while parents.get(node):
        node = parents[node]
    return node


@pytest.mark.parametrize("name", ["topology.json", "nccl-topology.xml", "nvidia-smi.txt"])
def test_two_h200_are_like_what_was_captured_of_them(name: str, root: Path) -> None:
    """Eighteen NVLinks each, whoever tells; only the label NV18 hides that both lie on one PCIe bus."""
    captured = read_capture(root / "docs" / "measurements" / "h200-x2" / "captures" / name)
    (mine,), (seen,) = relations(loaded("two-h200-nvlink")).values(), relations(captured).values()
    assert mine == (18, False, True)
    assert seen[0] == 18
    assert seen[1] in {False, None}


@pytest.mark.parametrize("name", CAPTURES)
def test_a_machine_is_like_its_capture(name: str) -> None:
    """Pairs share NVLinks, switches and processors as what was captured there says, where it says anything."""
    if not CORPUS.is_dir():
        pytest.skip(f"{CORPUS} is not here")
    captured = read_capture(CORPUS / CAPTURES[name])
    mine, seen = relations(loaded(name)), relations(captured)
    several = len(captured.sockets) > 1  # one alone: the processors' borders may be switched off there
    assert set(mine) == set(seen)
    for pair, (links, together, near) in seen.items():
        assert mine[pair][0] == links
        assert together is None or mine[pair][1] == together
        assert near is None or not several or mine[pair][2] == near
