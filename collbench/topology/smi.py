"""What `nvidia-smi topo -m` and `nvidia-smi topo -p2p` print: label matrices read into records and topologies."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from collbench.topology import label_matrix, smi_graph
from collbench.topology.captured_text import failed_line, lines_of, refuse
from collbench.topology.graph import Node, NodeKind, Topology, TopologyError
from collbench.topology.label_matrix import LabelMatrix
from collbench.topology.smi_affinity import Affinity, affinity_of, columns_of
from collbench.topology.smi_levels import LabelledDevices

__all__ = ["P2P_STATES", "P2pMatrix", "kinds_in", "matrix_of", "parse_matrix", "parse_p2p", "read_matrix", "with_p2p"]

P2P_STATES: Mapping[str, str] = {
    "OK": "status ok", "CNS": "chipset not supported", "GNS": "GPU not supported", "TNS": "topology not supported",
    "NS": "not supported", "DR": "disabled by registry key", "U": "unknown", "N/A": "not available",
}  # fmt: skip
"""Cells of `nvidia-smi topo -p2p`, by its legend."""

_LABEL = re.compile(r"NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|X")
_STATE = re.compile(r"X|OK|CNS|GNS|TNS|NS|DR|N/A|NA|U")
_LABELS = "X, PIX, PXB, PHB, NODE, SYS (SOC) or NV and a number of links"
_STATES = f"X, {', '.join(P2P_STATES)}"
_CALL = re.compile(r"topo\s+(?:--?p2p(?:_caps)?|-p2p)[\s=]+([rwnap])\b")
_P2P_WORDS = re.compile(
    r"topo\s+--?p2p|Status Ok|^[ \t]{0,80}CNS[ \t]{0,8}=|P2P Connectivity|P2P (?:Read|Write)", re.MULTILINE
)
_NIC_LEGEND = re.compile(r"\b(NIC\d{1,4})\s*:\s*([A-Za-z][\w.\-]*)\s*$")
_CAPABILITIES = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pcie"}


@dataclass(frozen=True, slots=True)
class P2pMatrix:
    """What the driver allows between GPUs: `states[a, b]` is one of `P2P_STATES`, `a` and `b` named `gpu0`, `gpu1`, ...

    `capability` is `read`, `write`, `nvlink`, `atomics` or `pcie` where a line above the matrix names the call, else
    empty. OK says what the driver would do, not that a peer access works.
    """

    capability: str
    gpus: tuple[str, ...]
    states: Mapping[tuple[str, str], str]
    disagreements: tuple[str, ...] = field(default=())

    @property
    def attribute(self) -> str:
        """Name of the attribute that holds a row of it on a GPU node: `p2p_read`, or `p2p`."""
        return f"p2p_{self.capability}" if self.capability else "p2p"

    def row(self, gpu: str) -> str:
        """One GPU's row as text: `gpu1 OK, gpu2 CNS`."""
        return ", ".join(f"{other} {self.states[gpu, other]}" for other in self.gpus if other != gpu)


def kinds_in(text: str, lines: list[str]) -> set[str]:
    """Which matrices a capture holds, whole or damaged: `matrix` of `topo -m`, `p2p` of `topo -p2p`."""
    whole, broken = label_matrix.read_matrices(_without(lines, _STATE, _STATES), _LABEL, _LABELS)
    states, damaged = label_matrix.read_matrices(lines, _STATE, _STATES)
    named = _P2P_WORDS.search(text) is not None
    peers = [m for m in states if _is_p2p(m, named=named)]
    kinds = {"p2p"} if peers else set()
    if any(len(m.names) > 1 or not _is_p2p(m, named=named) for m in whole):
        kinds.add("matrix")
    if not kinds and (broken or damaged):
        kinds.add("p2p" if not broken or named else "matrix")
    return kinds


def read_matrix(text: str) -> LabelledDevices:
    """Labels and affinities of a `topo -m` capture, before anything is concluded from them.

    The largest matrix is read where there are several; prompts, log lines and colours around it do no harm.

    Raises:
        TopologyError: there is no whole matrix; quotes the line and says what was expected.
    """
    return matrix_of(lines_of(text))


def parse_matrix(text: str) -> Topology:
    """Topology of a `topo -m` capture; see `smi_graph.build` for what follows from labels.

    Raises:
        TopologyError: as `read_matrix`.
    """
    lines = lines_of(text)
    return smi_graph.build(matrix_of(lines))


def matrix_of(lines: list[str]) -> LabelledDevices:
    """As `read_matrix`, from cleaned lines."""
    found, failed = label_matrix.read_matrices(_without(lines, _STATE, _STATES), _LABEL, _LABELS)
    if not found:
        _none(lines, failed, "nvidia-smi topo -m", "a row for each GPU such as `GPU0  X  PIX  SYS`")
    matrix = max(found, key=lambda m: (len(m.gpus), len(columns_of(m.header))))
    if not matrix.gpus:
        refuse(lines, matrix.line, "a matrix without a GPU: expected rows GPU0, GPU1, ...")
    notes = [*matrix.notes, *_others(matrix, found), *(f"not read: {error}" for error in failed)]
    columns = columns_of(matrix.header)
    affinities: dict[str, Affinity] = {}
    for gpu in matrix.gpus:
        affinities[gpu], strange = affinity_of(matrix.tails.get(gpu, ""), columns)
        if strange:
            notes.append(f"row {gpu}: {strange[:60]!r} after the labels is no affinity and was not read")
    cards = {match[1]: match[2] for line in lines if (match := _NIC_LEGEND.search(line[-200:]))}
    return LabelledDevices(matrix.names, matrix.labels, affinities, cards, tuple(notes))


def _others(matrix: LabelMatrix, found: list[LabelMatrix]) -> list[str]:
    different = [m for m in found if m is not matrix and m.labels != matrix.labels]
    if not different:
        return []
    lines = ", ".join(str(m.line + 1) for m in different[:8])
    return [f"{len(found)} matrices in this capture: read the one of line {matrix.line + 1}, not those of line {lines}"]


def _without(lines: list[str], label: re.Pattern[str], expected: str) -> list[str]:
    """The lines with those of whole matrices of another kind left blank, for captures that hold both."""
    found = label_matrix.read_matrices(lines, label, expected)[0]
    other = (m for m in found if len(m.names) > 1 or (label is _LABEL and columns_of(m.header)))
    gone = {index for matrix in other for index in range(matrix.line, matrix.last + 1)}
    return ["" if index in gone else line for index, line in enumerate(lines)] if gone else lines


def parse_p2p(text: str) -> tuple[P2pMatrix, ...]:
    """All matrices of a `topo -p2p` capture in their order.

    Raises:
        TopologyError: there is none, or one is damaged; quotes the line and says what was expected.
    """
    lines = _without(lines_of(text), _LABEL, _LABELS)
    found, failed = label_matrix.read_matrices(lines, _STATE, _STATES)
    named = _P2P_WORDS.search(text) is not None
    found = [m for m in found if _is_p2p(m, named=named)]
    if not found:
        _none(lines, failed, "nvidia-smi topo -p2p", "a row for each GPU such as `GPU0  X  OK  CNS`")
    if failed:
        raise failed[0]
    return tuple(_p2p(matrix, _capability(lines, matrix.line, bool(index))) for index, matrix in enumerate(found))


def _is_p2p(matrix: LabelMatrix, *, named: bool) -> bool:
    """A matrix of one GPU says X in both kinds: the words around it and its affinity columns tell them apart."""
    if matrix.gpus != matrix.names:
        return False
    return len(matrix.names) > 1 or (named and not columns_of(matrix.header))


def _p2p(matrix: LabelMatrix, capability: str) -> P2pMatrix:
    names = {gpu: gpu.lower() for gpu in matrix.gpus}
    states = {(names[a], names[b]): state.replace("NA", "N/A") for (a, b), state in matrix.labels.items() if a != b}
    notes = [
        f"{a} to {b} is {states[a, b]}, {b} to {a} is {states[b, a]}"
        for a, b in states
        if a < b and states[a, b] != states[b, a]
    ]
    return P2pMatrix(capability, tuple(names.values()), states, tuple(notes))


def _capability(lines: list[str], before: int, later: bool) -> str:  # noqa: FBT001 - whether another matrix stands above
    """Letter of the call that a line above the matrix names."""
    for index in range(before, max(-1, before - 40), -1):
        match = _CALL.search(lines[index][:400])
        if match:
            return _CAPABILITIES[match[1]]
        if later and "Status Ok" in lines[index]:
            break  # the legend of the matrix above
    return ""


def with_p2p(topology: Topology, matrices: tuple[P2pMatrix, ...]) -> Topology:
    """The topology with the rows of P2P matrices as attributes of its GPUs; of these alone where it has no node."""
    nodes = {node.id: node for node in topology.nodes}
    notes = list(topology.disagreements)
    alone = not nodes
    for matrix in matrices:
        notes += matrix.disagreements
        for gpu in matrix.gpus:
            if gpu not in nodes and not alone:
                notes.append(f"topo -p2p names {gpu}, topo -m does not")
                continue
            old = nodes.get(gpu, Node(gpu, NodeKind.GPU))
            row = {matrix.attribute: matrix.row(gpu)} if len(matrix.gpus) > 1 else {}
            nodes[gpu] = Node(gpu, NodeKind.GPU, {**old.attributes, **row})
    return Topology(tuple(nodes.values()), topology.links, topology.name, topology.hidden, tuple(notes))


def _none(lines: list[str], failed: list[TopologyError], command: str, expected: str) -> NoReturn:
    """Say why there is no matrix.

    Raises:
        TopologyError: always.
    """
    if failed:
        raise failed[0]
    place = failed_line(lines)
    if place is not None:
        refuse(lines, place, f"the command failed: expected what {command} prints, {expected}")
    filled = [index for index, line in enumerate(lines) if line.strip()]
    header = next((i for i in filled if re.search(r"\bGPU\d", lines[i][:2000])), None)
    if not filled:
        raise TopologyError(f"empty: expected what {command} prints, {expected}")
    refuse(lines, filled[0] if header is None else header, f"no rows in it: expected what {command} prints, {expected}")
