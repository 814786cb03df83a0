"""One door for captures: each kind is recognised and read, every other thing is refused by its name."""

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.topology import catalog
from collbench.topology.capture import CaptureKind, parse_capture, read_capture
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-7\t0\nGPU1\tPIX\t X \t0-7\t0\n"
PEERS = " \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n\nLegend:\n\n  X    = Self\n  CNS  = Chipset not supported\n"
XML = (
    '<system version="1"><cpu numaid="0" arch="x86_64"><pci busid="0000:01:00.0" class="0x030200"'
    ' link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80" rank="0"/></pci></cpu></system>\n'
)
HWLOC = """<?xml version="1.0"?>
<topology version="2.0"><object type="Machine"><object type="Package" gp_index="1"/></object></topology>
"""
NUMACTL = "available: 1 nodes (0)\nnode 0 cpus: 0 1 2 3\nnode 0 size: 1000 MB\nnode distances:\nnode   0\n  0:  10\n"
NVLINK = "GPU 0: NVIDIA A100 (UUID: GPU-00000000-0000-0000-0000-000000000000)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\n"
TREE = (
    "-[0000:00]-+-00.0  Host bridge\n"
    "           \\-01.0-[01]----00.0  NVIDIA Corporation GA100 [A100 PCIe 80GB]\n"
)  # fmt: skip
SECTIONS = (
    "01:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 80GB] (rev a1)\n"
    "\tNUMA node: 0\n"
    "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported\n"
    "\t\tLnkSta:\tSpeed 16GT/s, Width x16\n"
)


def test_each_kind_is_recognised() -> None:
    """What the text holds says what it is, whatever the file is called."""
    kinds = {
        MATRIX: CaptureKind.TOPO_M, PEERS: CaptureKind.TOPO_P2P,
        XML: CaptureKind.NCCL_XML, HWLOC: CaptureKind.HWLOC_XML,
        NUMACTL: CaptureKind.NUMACTL, NVLINK: CaptureKind.NVLINK, TREE: CaptureKind.LSPCI_TREE,
        SECTIONS: CaptureKind.LSPCI_SECTIONS,
    }  # fmt: skip
    for text, kind in kinds.items():
        assert parse_capture(text).kind is kind
        assert parse_capture("\ufeff" + text.replace("\n", "\r\n")).kind is kind


def test_p2p_alone_gives_gpus_with_states_and_no_paths() -> None:
    """A -p2p matrix has no paths: GPUs without links; together with topo -m its states are attributes there."""
    alone = parse_capture("nvidia-smi topo -p2p r\n" + PEERS).topology
    assert alone.gpus == ("gpu0", "gpu1")
    assert alone.links == ()
    assert alone.node("gpu0").attributes == {"p2p_read": "gpu1 CNS"}
    both = parse_capture(MATRIX + "\n$ nvidia-smi topo -p2p w\n" + PEERS).topology
    assert both.groups == (("gpu0", "gpu1"),)
    assert both.disagreements == ()
    assert both.node("gpu1").attributes["p2p_write"] == "gpu0 CNS"


def test_files_of_collbench_are_read_back(tmp_path: Path) -> None:
    """The TOML and the JSON that `collbench topo` writes give the same topology."""
    topology = Topology(
        (Node("gpu0", NodeKind.GPU), Node("switch0", NodeKind.SWITCH)),
        (Link("gpu0", "switch0", LinkKind.PCIE, 4, 16), Link("switch0", "gpu0", LinkKind.PCIE, 4, 16)),
        "small",
    )
    (tmp_path / "small.toml").write_text(catalog.dumps(topology))
    (tmp_path / "small.json").write_text(topology.as_json())
    assert read_capture(tmp_path / "small.json") == topology
    assert read_capture(tmp_path / "small.toml").digest == topology.digest


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_of_shells(tmp_path: Path, encoding: str) -> None:
    """What a shell's > writes is read, that of PowerShell too; bytes that are no UTF-8 do no harm."""
    path = tmp_path / "topo.txt"
    path.write_bytes(MATRIX.encode(encoding))
    assert read_capture(path).groups == (("gpu0", "gpu1"),)
    path.write_bytes(b"\xff\xfa\x80 login banner\n" + MATRIX.encode())
    assert read_capture(str(path)).groups == (("gpu0", "gpu1"),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("\n \r\n\t\n", "empty"),
        ("\tGPU0\tGPU1\nFailed to run topology matrix\n", "line 2: 'Failed to run .*': the command failed"),
        ("bash: nvidia-smi: command not found\n", "line 1: .*the command failed"),
        ("==== Weight between two GPUs ====\n      GPU0  GPU1\nGPU0  0     15\nGPU1  15    0\n", "rocm-smi.*AMD"),
        ('<graphs version="1"><graph id="0" pattern="4" nchannels="1"></graph></graphs>\n', "graph"),
        ("Tue Nov  4 2025\n| NVIDIA-SMI 550.54 Driver Version: 550.54 |\n", "line 2: .*holds no paths"),
        ("# nThread 1 nGpus 8 minBytes 8 maxBytes 8\n", "nccl-tests"),
        ("node:1:1 [0] NCCL INFO Bootstrap\n", "an NCCL log"),
        ("dear all, my machine is slow\n", "line 1: 'dear all, my machine is slow': not recognised"),
        ("\x00\x01\x02\x7fELF\x00\x00", "not recognised"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\n", "GPU1"),
        ('{"nodes": [', "no JSON"),
        ('{"nodes": 3}', "topology"),
        ("<system", "XML"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    """The error is one line that begins with the file and names what is wrong with it."""
    path = tmp_path / "capture.txt"
    path.write_bytes(text.encode())
    with pytest.raises(TopologyError, match=said) as error:
        read_capture(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """No file, a folder, a name that no file can have, and a file too large for a capture."""
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.truncate((16 << 20) + 1)
    for path, said in (
        (tmp_path / "none.txt", "cannot be read: No such file"), (tmp_path, "cannot be read: Is a directory"),
        (tmp_path / "a\0b", "cannot be read"), (large, "larger than 16 MiB"),
    ):  # fmt: skip
        with pytest.raises(TopologyError, match=said):
            read_capture(path)


@pytest.mark.parametrize(
    "noise",
    ["\n" * 1_000_000, "-[0000:00]-+-" * 80_000, "<system " * 120_000, '{"nodes":' + "[" * 1_000_000, "a" * 1_000_000],
    ids=["line ends", "buses", "tags", "brackets", "letters"],
)
def test_a_megabyte_of_noise_is_done_with_at_once(noise: str) -> None:
    """No reader that is asked backtracks: under a second of processor time, doubled for slow machines."""
    start = time.process_time()
    with contextlib.suppress(TopologyError):
        parse_capture(noise)
    assert time.process_time() - start < 2


PIECES = st.sampled_from([MATRIX, PEERS, XML, HWLOC, NUMACTL, NVLINK, TREE, SECTIONS])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_captures_raise_nothing_else(data: st.DataObject) -> None:
    """Two captures run together, cut and spliced with noise, are read or refused in one line."""
    text = data.draw(PIECES) + data.draw(st.sampled_from(["", MATRIX, NVLINK, TREE]))
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.text(max_size=8)) + text[at + data.draw(st.integers(0, 40)) :]
    said, topology = "", None
    try:
        topology = parse_capture(text).topology
    except TopologyError as error:
        said = str(error)
    assert "\n" not in said
    assert said or (topology is not None and Topology.from_dict(topology.as_dict()) == topology)
