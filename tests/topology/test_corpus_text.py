"""Captures of lspci, numactl, nvlink and hwloc from other people's machines are read to what is known of these."""

import csv
import re
from pathlib import Path

import pytest

from collbench.topology import nvlink
from collbench.topology.capture import CaptureKind, parse_capture, read_capture
from collbench.topology.graph import LinkKind, TopologyError
from collbench.topology.numactl import NumaNodes
from collbench.topology.nvlink import NvlinkStatus

CORPUS = Path(__file__).resolve().parents[2] / ".." / "shared" / "corpus"
KINDS = {
    "lspci-vv": CaptureKind.LSPCI_SECTIONS, "lspci-vvv": CaptureKind.LSPCI_SECTIONS, "lspci-tv": CaptureKind.LSPCI_TREE,
    "numactl": CaptureKind.NUMACTL, "nvidia-smi-nvlink": CaptureKind.NVLINK, "hwloc": CaptureKind.HWLOC_XML,
}  # fmt: skip


def _rows() -> list[dict[str, str]]:
    index = CORPUS / "INDEX.csv"
    if not index.exists():
        return []
    with index.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ROWS = [row for row in _rows() if row["file"].startswith("lspci/")]
FOREIGN = [row["file"] for row in _rows() if row["file"].startswith(("nccl-tests/", "p2pbw/"))]
pytestmark = pytest.mark.skipif(not ROWS, reason="the corpus of captures is not beside this checkout")


def _text(row: dict[str, str]) -> str:
    return (CORPUS / row["file"]).read_bytes().decode("utf-8", "replace")


def _of_kind(*kinds: CaptureKind) -> list[dict[str, str]]:
    return [row for row in ROWS if _kind(row) in kinds]


def _kind(row: dict[str, str]) -> CaptureKind:
    name = row["file"].split("_", 1)[1]
    return next(kind for start, kind in KINDS.items() if re.match(rf"{start}[-.]", name))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_is_recognised(row: dict[str, str]) -> None:
    """Every file is read as what it is, and every GPU reaches every other where paths are known."""
    capture = parse_capture(_text(row))
    assert capture.kind is _kind(row)
    if capture.topology.links:
        for gpu in capture.topology.gpus:
            for other in capture.topology.gpus:
                capture.topology.route(gpu, other)


@pytest.mark.parametrize(
    "row",
    _of_kind(CaptureKind.LSPCI_TREE, CaptureKind.LSPCI_SECTIONS, CaptureKind.HWLOC_XML),
    ids=lambda row: row["file"],
)
def test_pci_trees_agree_with_what_is_known(row: dict[str, str]) -> None:
    """GPUs, the buses of those below one switch, and sockets are the machine's."""
    topology = read_capture(CORPUS / row["file"])
    assert len(topology.gpus) == int(row["n_gpus"])
    truth = row["gt_switch_groups"]
    groups = {frozenset(topology.node(gpu).attributes["busid"][5:7] for gpu in group) for group in topology.groups}
    if "{" in truth:
        assert groups == {frozenset(found.split(",")) for found in re.findall(r"\{([0-9a-f,]+)\}", truth)}
    elif truth.startswith("0 "):
        assert groups == set()
    sockets = re.match(r"(\d+)", row["gt_sockets_numa"])
    if sockets:
        assert len(topology.sockets) == int(sockets[1])
    if "NVSwitch" in row["gt_nvlink"]:
        joined = {link.src for link in topology.links if link.kind is LinkKind.NVLINK}
        assert set(topology.gpus) < joined
    if truth == "GPU with NIC":
        assert [link.dst for link in topology.route("gpu0", "nic2")][-2:] == ["switch1", "nic2"]


@pytest.mark.parametrize("row", _of_kind(CaptureKind.NUMACTL), ids=lambda row: row["file"])
def test_numa_nodes_agree_with_the_text(row: dict[str, str]) -> None:
    """Nodes and processors are as many as the text lists; distances are symmetric."""
    record = parse_capture(_text(row)).record
    assert isinstance(record, NumaNodes)
    lists = re.findall(r"node \d+ cpus:([ \d]*)", _text(row))
    assert [list(node.cpus) for node in record.nodes] == [[int(n) for n in found.split()] for found in lists]
    assert len(record.distances) == len(lists) ** 2
    assert record.disagreements == ()
    if "239 is absent" in row["unusual"]:
        assert 239 not in record.nodes[1].cpus


@pytest.mark.parametrize("row", _of_kind(CaptureKind.NVLINK), ids=lambda row: row["file"])
def test_nvlinks_agree_with_what_is_known(row: dict[str, str]) -> None:
    """As many links with a rate as the text has lines with one, and as the index says."""
    record = parse_capture(_text(row)).record
    assert isinstance(record, NvlinkStatus)
    assert sum(gpu.active for gpu in record.gpus) == len(re.findall(r"Link \d+: [\d.]+ GB/s", _text(row)))
    if row["n_gpus"].isdecimal():
        assert len(record.gpus) == int(row["n_gpus"])
    truth = row["gt_nvlink"]
    if each := re.search(r"(?<!of )\b(\d+) links", truth):
        assert {gpu.active for gpu in record.gpus} == {int(each[1])}
    if truth == "no":
        assert not any(gpu.active for gpu in record.gpus)
    if "{0,1} only" in truth:
        assert [gpu.active > 0 for gpu in record.gpus] == [True, True, False]
    if "GPU1 only" in truth:
        assert [gpu.active for gpu in record.gpus] == [0, 2, 0]


def test_a_gpu_without_links_keeps_its_number() -> None:
    """The bad capture names GPU 6 alone."""
    row = next(row for row in ROWS if "bad" in row["file"])
    assert [(gpu.number, gpu.active) for gpu in nvlink.parse(_text(row)).gpus] == [(6, 0)]


@pytest.mark.parametrize("name", FOREIGN)
def test_outputs_of_other_programs_are_refused(name: str) -> None:
    """Rates and logs are no topology: refused in one line that quotes where it stands."""
    with pytest.raises(TopologyError, match=r": line \d+: '.*': (this is|not recognised)") as error:
        read_capture(CORPUS / name)
    assert "\n" not in str(error.value)
