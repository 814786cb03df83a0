"""Recognise what a capture is and read it: the one door for `collbench topo --from FILE`."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from collbench.topology import hwloc, lspci, lspci_verbose, numactl, nvlink, smi
from collbench.topology.captured_text import failed_line, lines_of, refuse
from collbench.topology.graph import Topology, TopologyError
from collbench.topology.numactl import NumaNodes
from collbench.topology.nvlink import NvlinkStatus
from collbench.topology.smi import P2pMatrix

__all__ = ["Capture", "CaptureKind", "parse_capture", "read_capture", "read_captures"]

_LARGEST = 16 << 20
_KNOWN = (
    "nvidia-smi topo -m, nvidia-smi topo -p2p, nvidia-smi nvlink -s, lspci -tv, lspci -vv, numactl -H, an NCCL or "
    "hwloc topology file, or a topology of collbench"
)
_XML = re.compile(r"<(system|graphs|topology|nvidia_smi_log|algo)\b")
_MACHINE_FILE = re.compile(r"\A(?:[ \t]*(?:#[^\n]*)?\r?\n)*schema[ \t]*=[ \t]*\"collbench/")
_SMI = "give nvidia-smi topo -m"
_DUMP = "NCCL_TOPO_DUMP_FILE"
_STRANGERS = (
    (r"(?:Weight|Hops|Link Type|Accessible|Bandwidth) between two GPUs|ROCm System Management|\(Topology\) Numa",
     f"a table of rocm-smi, which describes AMD GPUs: give the file that RCCL writes to {_DUMP}"),
    (r"<graphs\b|<graph id=", f"an NCCL graph file (NCCL_GRAPH_DUMP_FILE): give what {_DUMP} writes"),
    (r"# nThread \d|out-of-place\s+in-place|# Avg bus", "output of nccl-tests: collbench nccl-tests --parse reads it"),
    (r"P2P=(?:Enabled|Disabled)|\[P2P \(Peer-to-Peer\) GPU Bandwidth|^[ \t]{0,80}D\\D\s",
     f"output of p2pBandwidthLatencyTest, which holds rates, no paths: {_SMI}"),
    (r"nvbandwidth Version|memcpy CE CPU", f"output of nvbandwidth, which holds rates, no paths: {_SMI}"),
    (r"\| NVIDIA-SMI \d|={6,}NVSMI LOG", f"nvidia-smi's list of GPUs, which holds no paths: {_SMI}"),
    (r"NCCL INFO|NCCL WARN", f"an NCCL log: give the file that {_DUMP} writes"),
    (r"xpu-smi|Xe Link", "a table of xpu-smi, which describes Intel GPUs"),
    (r"^GPU \d+: .*UUID", f"nvidia-smi -L, which holds no paths: {_SMI}"),
    (r"Usage: lspci|Usage: nvidia-smi|topo -- Display topological", "a help text: expected the output of the command"),
)  # fmt: skip


class CaptureKind(StrEnum):
    """What a capture is."""

    TOPO_M = "nvidia-smi topo -m"
    TOPO_P2P = "nvidia-smi topo -p2p"
    NVLINK = "nvidia-smi nvlink -s"
    LSPCI_TREE = "lspci -tv"
    LSPCI_SECTIONS = "lspci -vv"
    NUMACTL = "numactl -H"
    NCCL_XML = "NCCL topology XML"
    HWLOC_XML = "hwloc XML"
    COLLBENCH = "collbench"


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture that was read: its topology, and the record where it says more (P2P states, link rates, NUMA nodes)."""

    kind: CaptureKind
    topology: Topology
    record: tuple[P2pMatrix, ...] | NvlinkStatus | NumaNodes | None = None


def read_capture(path_or_text: Path | str) -> Topology:
    """Topology of a capture, whatever kind it is; a text with line ends is the capture itself, else its path.

    A capture that holds no paths (`topo -p2p`, `nvlink -s`) gives its GPUs with what it says of them as attributes.

    Raises:
        TopologyError: it cannot be read, is damaged, or is none of ours: that is said by name.
    """
    if isinstance(path_or_text, str) and ("\n" in path_or_text or not path_or_text.strip()):
        return parse_capture(path_or_text).topology
    path = Path(path_or_text)
    if path.suffix == ".toml":
        from collbench.topology import catalog

        return catalog.load(path)
    text = _text_of(path)
    try:
        return parse_capture(text).topology
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def read_captures(paths: Sequence[Path]) -> Topology:
    """Topology of several captures of one machine: `nvidia-smi topo -m`, and `-p2p` of any capability.

    Raises:
        TopologyError: as `read_capture`, or they cannot be of one machine: another kind, two of one kind, other GPUs.
    """
    found = [(path, _named(path)) for path in paths]
    whole = [(path, one.topology) for path, one in found if one.kind is CaptureKind.TOPO_M]
    if len(whole) > 1:
        raise TopologyError(f"{whole[1][0]}: a second nvidia-smi topo -m: give one machine at a time")
    topology, said = whole[0][1] if whole else Topology((), ()), dict[str, Path]()
    for path, one in found:
        matrices = one.record if isinstance(one.record, tuple) else ()
        for matrix in matrices:
            if (first := said.setdefault(matrix.attribute, path)) is not path:
                what = matrix.capability or "an unnamed capability (give the line of the call too)"
                raise TopologyError(f"{path}: {what} again, after {first}")
            if topology.gpus and set(matrix.gpus) != set(topology.gpus):
                raise TopologyError(f"{path}: {len(matrix.gpus)} GPUs, where there are {len(topology.gpus)} before it")
        if one.kind is CaptureKind.TOPO_P2P:
            topology = smi.with_p2p(topology, matrices)
    return topology


def _named(path: Path) -> Capture:
    """A capture that goes together with others; what is wrong is said with its path."""
    try:
        found = parse_capture(_text_of(path))
    except TopologyError as error:
        text = str(error)
        raise TopologyError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    if found.kind not in {CaptureKind.TOPO_M, CaptureKind.TOPO_P2P}:
        raise TopologyError(f"{path}: {found.kind} stands alone: only nvidia-smi topo -m and topo -p2p go together")
    return found


def _text_of(path: Path) -> str:
    try:
        with open(path, "rb", opener=_unless_it_waits) as file:
            raw = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TopologyError(f"{path}: cannot be read: {reason}") from None
    if len(raw) > _LARGEST:
        raise TopologyError(f"{path}: larger than {_LARGEST >> 20} MiB: expected a capture of one machine")
    if raw[:2] in {b"\xff\xfe", b"\xfe\xff"}:  # what PowerShell's > writes
        return raw.decode("utf-16", "replace")
    return raw.decode("utf-8", "replace")


def _unless_it_waits(name: str, flags: int) -> int:
    """A pipe that nobody writes to ends at once; one that somebody has opened, as `<(ssh box nvidia-smi)`, is read."""
    file = os.open(name, flags | os.O_NONBLOCK)
    os.set_blocking(file, True)
    return file


def parse_capture(text: str) -> Capture:
    """Recognise and read a capture.

    Raises:
        TopologyError: as `read_capture`.
    """
    if not text.strip("\ufeff\x00 \t\r\n"):
        raise TopologyError(f"empty: expected the output of {_KNOWN}")
    bare = text.lstrip("\ufeff \t\r\n")
    if bare.startswith("{") and '"nodes"' in bare:
        return Capture(CaptureKind.COLLBENCH, _from_json(bare))
    if _MACHINE_FILE.search(bare):
        from collbench.topology import catalog_reader

        return Capture(CaptureKind.COLLBENCH, catalog_reader.read(bare.replace("\r\n", "\n"), "machine file"))
    if (xml := _XML.search(text)) is not None and not _is_prose(text[: xml.start()]):
        return _xml(text)
    lines = lines_of(text)
    found = next((capture for read in _READERS if (capture := read(text, lines)) is not None), None)
    return found if found is not None else _refuse(text, lines)


def _is_prose(before: str) -> bool:
    """Whether an element stands amid text with a matrix of its own, as in a report."""
    return re.search(r"^[ \t]{0,80}GPU0\s", before, re.MULTILINE) is not None


def _from_json(text: str) -> Topology:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"no JSON: {error}: expected what collbench topo --json writes") from None
    if not isinstance(data, dict):
        raise TopologyError("expected what collbench topo --json writes, an object with nodes and links")
    return Topology.from_dict(data)


def _xml(text: str) -> Capture:
    if hwloc.is_hwloc(text):
        return Capture(CaptureKind.HWLOC_XML, hwloc.parse(text))
    from collbench.topology import nccl_xml

    return Capture(CaptureKind.NCCL_XML, nccl_xml.parse(text))


def _matrices(text: str, lines: list[str]) -> Capture | None:
    """`topo -m`, `topo -p2p`, or both in one file."""
    wanted = smi.kinds_in(text, lines)
    if not wanted:
        return None
    p2p = smi.parse_p2p(text) if "p2p" in wanted else ()
    if "matrix" not in wanted:
        nothing = Topology((), ())
        return Capture(CaptureKind.TOPO_P2P, smi.with_p2p(nothing, p2p), p2p)
    return Capture(CaptureKind.TOPO_M, smi.with_p2p(smi.parse_matrix(text), p2p), p2p or None)


def _tree(text: str, lines: list[str]) -> Capture | None:
    return Capture(CaptureKind.LSPCI_TREE, lspci.parse_tree(text)) if lspci.is_tree(lines) else None


def _sections(text: str, lines: list[str]) -> Capture | None:
    if not lspci_verbose.is_sections(lines):
        return None
    return Capture(CaptureKind.LSPCI_SECTIONS, lspci_verbose.parse(text))


def _status(text: str, lines: list[str]) -> Capture | None:
    if not nvlink.is_status(lines):
        return None
    record = nvlink.parse(text)
    return Capture(CaptureKind.NVLINK, record.topology(), record)


def _numa(text: str, lines: list[str]) -> Capture | None:
    if not numactl.is_numactl(lines):
        return None
    record = numactl.parse(text)
    return Capture(CaptureKind.NUMACTL, record.topology(), record)


_READERS: tuple[Callable[[str, list[str]], Capture | None], ...] = (_matrices, _tree, _sections, _status, _numa)


def _refuse(text: str, lines: list[str]) -> NoReturn:
    """Say what it is instead.

    Raises:
        TopologyError: always.
    """
    for pattern, what in _STRANGERS:
        match = re.search(pattern, text, re.MULTILINE)
        if match is not None:
            refuse(lines, text.count("\n", 0, match.start()), f"this is {what}")
    place = failed_line(lines)
    if place is not None:
        refuse(lines, place, f"the command failed: expected the output of {_KNOWN}")
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    refuse(lines, first, f"not recognised: expected the output of {_KNOWN}")
