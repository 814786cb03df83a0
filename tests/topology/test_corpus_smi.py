"""Captures of other people's machines are read to what is known of these machines."""

import csv
import re
from pathlib import Path

import pytest

from collbench.topology import smi
from collbench.topology.capture import parse_capture, read_capture
from collbench.topology.graph import Topology, TopologyError

CORPUS = Path(__file__).resolve().parents[2] / ".." / "shared" / "corpus"
REFUSED = {"topo-m/123_failed-to-run-topology-matrix.txt", "topo-m/84_4xrocm-weight-hops-not-nvidia.txt"}


def _rows(folder: str) -> list[dict[str, str]]:
    index = CORPUS / "INDEX.csv"
    if not index.exists():
        return []
    with index.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["file"].startswith(f"{folder}/")]


MATRICES = [row for row in _rows("topo-m") if row["file"] not in REFUSED]
PEERS = _rows("topo-p2p")
pytestmark = pytest.mark.skipif(not MATRICES, reason="the corpus of captures is not beside this checkout")


def _text(row: dict[str, str]) -> str:
    return (CORPUS / row["file"]).read_bytes().decode("utf-8", "replace")


def _sets(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"gpu{n}" for n in re.split(r",\s*", found)) for found in re.findall(r"\{([\d, ]+)\}", text))


def _groups(truth: str) -> tuple[tuple[str, ...], ...] | None:
    """Groups that INDEX.csv names; None where it says that nobody knows."""
    if truth.startswith(("n/a", "unknown")):
        return None
    if truth.startswith("0 "):
        return ()
    whole = re.match(r"1 tree of (\d+)", truth)
    if whole:
        return (tuple(f"gpu{n}" for n in range(int(whole[1]))),)
    return _sets(truth.split(";", maxsplit=1)[0])


@pytest.mark.parametrize("row", MATRICES, ids=lambda row: row["file"])
def test_matrix_agrees_with_what_is_known(row: dict[str, str]) -> None:
    """GPUs, groups below one switch, processors and NVLinks are those of the machine."""
    topology = read_capture(CORPUS / row["file"])
    assert len(topology.gpus) == int(row["n_gpus"])
    groups = _groups(row["gt_switch_groups"])
    if groups is not None:
        assert topology.groups == groups
    _check_sockets(topology, row["gt_sockets_numa"])
    if row["gt_nvlink"] in {"yes", "no"}:
        assert bool(topology.hidden) == (row["gt_nvlink"] == "yes")


def _check_sockets(topology: Topology, truth: str) -> None:
    affinities = {topology.node(gpu).attributes.get("cpu_affinity", "") for gpu in topology.gpus}
    count = re.match(r"(\d+) ", truth)
    if count is None:
        assert "unknown" in truth
    elif "affinity set" in truth:
        assert len(affinities) == int(count[1])
    else:
        assert len(topology.sockets) == int(count[1])


@pytest.mark.parametrize("row", MATRICES, ids=lambda row: row["file"])
def test_every_pair_joined_by_nvlink_is_listed(row: dict[str, str]) -> None:
    """A count of NV labels in the raw text gives the number of hidden pairs, and each pair has its links."""
    text = _text(row)
    devices = smi.read_matrix(text)
    topology = smi.parse_matrix(text)
    marked = {frozenset(pair) for pair, label in devices.labels.items() if label.startswith("NV")}
    one_way = sum(
        devices.labels[a, b].startswith("NV") != devices.labels[b, a].startswith("NV")
        for a in devices.gpus
        for b in devices.gpus
        if a < b
    )
    assert len(topology.hidden) == len(marked)
    assert len(re.findall(r"NV\d", text)) == 2 * len(marked) - one_way
    for a, b in topology.hidden:
        assert {link.kind for link in topology.route(a, b)} <= {"nvlink", "pcie", "socket"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_no_matrix_is_refused_by_its_line(name: str) -> None:
    """A failed call and the tables of another vendor's tool are named, and their line is quoted."""
    with pytest.raises(TopologyError, match=r"line \d+: '.+': .*(the command failed|rocm-smi)"):
        read_capture(CORPUS / name)


@pytest.mark.parametrize("row", PEERS, ids=lambda row: row["file"])
def test_p2p_matrix_agrees_with_what_is_known(row: dict[str, str]) -> None:
    """States of all pairs are those of the machine."""
    matrices = smi.parse_p2p(_text(row))
    truth = row["gt_switch_groups"]
    for matrix in matrices:
        assert len(matrix.gpus) == int(row["n_gpus"])
        ok = {pair for pair, state in matrix.states.items() if state == "OK"}
        if "by P2P" in truth:
            assert ok == {(a, b) for group in _sets(truth) for a in group for b in group if a != b}
        elif truth != "n/a":
            assert ok == (set() if truth == "no P2P" else set(matrix.states))
    assert parse_capture(_text(row)).topology.gpus == matrices[0].gpus


def test_two_p2p_matrices_of_one_file_are_both_read() -> None:
    """The read and the write matrix of one capture come in their order."""
    row = next(row for row in PEERS if "two matrices" in row["unusual"])
    assert [matrix.capability for matrix in smi.parse_p2p(_text(row))] == ["read", "write"]
