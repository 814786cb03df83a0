"""Output of p2pBandwidthLatencyTest or nvbandwidth as probes, so that it can stand in for `collbench probe`.

Taken are only numbers that mean what a probe means: copies, loads and stores between two GPUs alone, both ways, from
all to one and from one to all, and chains of dependent reads. Left out, each with a sentence: copies with P2P disabled,
those of pairs without peer access, matrices without a title, what involves the host. Latencies of
p2pBandwidthLatencyTest are kept as `latency.copy`; no parameter of the model is fitted to them, since they hold what it
costs to start a copy.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collbench.interop import nvbandwidth, p2p_test
from collbench.interop.matrices import Matrix, MatrixError, PciDevice
from collbench.measure.probe_plan import pair_class
from collbench.results.probes import SEVERAL, Probe
from collbench.results.records import Status
from collbench.topology.graph import Topology
from collbench.topology.pcie import normal_busid

__all__ = ["PairProbes", "from_nvbandwidth", "from_p2p_test", "read"]

_LARGEST = 64 << 20
_MECHANISMS: Mapping[tuple[str, str], str] = {
    ("ce", "read"): "copy", ("ce", "write"): "copy", ("sm", "read"): "load", ("sm", "write"): "store",
}  # fmt: skip
_NO_ACCESS = "no peer access: a copy through host memory"
_SOLO = re.compile(r"device_to_device_memcpy_(read|write)_(ce|sm)")
_BOTH = re.compile(r"device_to_device_bidirectional_memcpy_(read|write)_(ce|sm)")
_FAN = re.compile(r"(all_to_one|one_to_all)_write_(ce|sm)")


@dataclass(frozen=True, slots=True)
class PairProbes:
    """Probes with ranks in the order of the topology's GPUs, and what was left out, as sentences."""

    tool: str
    probes: tuple[Probe, ...]
    left_out: tuple[str, ...]


def read(path: Path, topology: Topology) -> PairProbes:
    """The probes in a file of either tool; its devices are matched with the topology's GPUs by bus id.

    Raises:
        MatrixError: it cannot be read, has no matrix that can, more devices than the topology has GPUs, or nothing of
            use.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise MatrixError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > _LARGEST:
        raise MatrixError(f"{path}: larger than {_LARGEST >> 20} MiB")
    text = raw.decode("utf-16" if raw[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8", "replace")
    try:
        if nvbandwidth.looks_like_json(text) or re.search(r"nvbandwidth|^Running \w+\.", text, re.MULTILINE):
            found = from_nvbandwidth(nvbandwidth.parse(text), topology)
        else:
            found = from_p2p_test(p2p_test.parse(text), topology)
    except MatrixError as error:
        raise MatrixError(f"{path}: {error}") from None
    if not any(probe.status is Status.OK for probe in found.probes):
        why = "; ".join(found.left_out) or "no matrix between GPUs"
        raise MatrixError(f"{path}: nothing that a probe could be: {why}")
    return found


def from_p2p_test(output: p2p_test.P2pOutput, topology: Topology) -> PairProbes:
    """Probes of p2pBandwidthLatencyTest.

    Raises:
        MatrixError: more devices than GPUs.
    """
    rank = _ranks(output.devices, _size(table.matrix for table in output.tables), topology)
    probes: list[Probe] = []
    left_out = list(output.problems)
    for table in output.tables:
        if not table.what:
            left_out.append("a matrix without its title: nobody says what was measured")
        elif not table.enabled:
            left_out.append(f"{table.what} with P2P disabled: through host memory")
        elif table.what == "latency":
            probes += _latencies(table, rank) if table.matrix.corner == "GPU" else ()
        elif table.both_ways:
            probes += _both_ways(table.matrix, "copy", rank)
        else:
            if table.writes is None:
                left_out.append("the title does not say who writes: taken as from the row's device to the column's")
            probes += _solo(table.matrix, "copy", rank, by_row=table.writes is not False)
    access = {(rank[a], rank[b]): can for (a, b), can in output.access.items() if a in rank and b in rank}
    judged = [_judged(probe, access) for probe in probes]
    if any(probe.status is not Status.OK for probe in judged):
        left_out.append(_NO_ACCESS)
    kept = tuple(_representatives(judged, topology))
    return PairProbes("p2pBandwidthLatencyTest", kept, tuple(dict.fromkeys(left_out)))


def from_nvbandwidth(output: nvbandwidth.NvbandwidthOutput, topology: Topology) -> PairProbes:
    """Probes of nvbandwidth.

    Raises:
        MatrixError: more devices than GPUs.
    """
    between = [test for test in output.tests if not re.search(r"host", test.name)]
    rank = _ranks(output.devices, _size(test.matrix for test in between), topology)
    probes: list[Probe] = []
    left_out = list(output.problems)
    if len(between) < len(output.tests):
        left_out.append(f"{len(output.tests) - len(between)} matrices between host and GPUs")
    for test in between:
        found = list(_representatives(_of_test(test, rank), topology))
        if not found:
            left_out.append(f"{test.name}: {test.title or 'no title'}: no probe measures that")
        probes += found
    return PairProbes("nvbandwidth", tuple(probes), tuple(dict.fromkeys(left_out)))


def _of_test(test: nvbandwidth.NvbandwidthTest, rank: Mapping[int, int]) -> Iterator[Probe]:
    """The name says which way the data go: the arrow in the title points the other way."""
    if match := _SOLO.fullmatch(test.name):
        yield from _solo(test.matrix, _MECHANISMS[match[2], match[1]], rank, by_row=match[1] == "write")
    elif match := _BOTH.fullmatch(test.name):
        if "Total" in test.title or not re.search(r"(?:Read|Write)[12]", test.title):
            yield from _both_ways(test.matrix, _MECHANISMS[match[2], match[1]], rank)
    elif match := _FAN.fullmatch(test.name):
        yield from _fan(test.matrix, _MECHANISMS[match[2], "write"], rank, to_one=match[1] == "all_to_one")
    elif test.name == "device_to_device_latency_sm":
        for (row, column), value in _between(test.matrix, rank):
            yield Probe("read_chain", "pair", column, row, ((column, row),), 0, value / 1e3)


def _between(matrix: Matrix, rank: Mapping[int, int]) -> Iterator[tuple[tuple[int, int], float]]:
    """Values above zero between two devices, by rank."""
    for (row, column), value in matrix.values.items():
        if row != column and value:
            yield (rank[row], rank[column]), value


def _solo(matrix: Matrix, mechanism: str, rank: Mapping[int, int], *, by_row: bool) -> Iterator[Probe]:
    for (row, column), value in _between(matrix, rank):
        src, dst = (row, column) if by_row else (column, row)
        yield Probe(f"bandwidth.{mechanism}", "solo", src, dst, ((src, dst),), 0, value, "GB/s")


def _both_ways(matrix: Matrix, mechanism: str, rank: Mapping[int, int]) -> Iterator[Probe]:
    for (a, b), value in sorted(_between(matrix, rank)):
        if a < b:
            yield Probe(f"bandwidth.{mechanism}", "both_ways", SEVERAL, SEVERAL, ((a, b), (b, a)), 0, value, "GB/s")


def _representatives(probes: Iterable[Probe], topology: Topology) -> Iterator[Probe]:
    """Of those both ways one pair of each class, as `collbench probe` takes them; all others."""
    seen: set[tuple[str, str]] = set()
    for probe in sorted(probes, key=lambda probe: probe.status is not Status.OK):
        word = (probe.name, pair_class(topology, *probe.flows[0]))
        if probe.pattern != "both_ways" or word not in seen:
            seen |= {word} if probe.pattern == "both_ways" else set()
            yield probe


def _fan(matrix: Matrix, mechanism: str, rank: Mapping[int, int], *, to_one: bool) -> Iterator[Probe]:
    """Of the first device alone: one pattern is one observation."""
    ranks = sorted(rank[column] for column in matrix.columns)
    value = matrix.values.get((0, matrix.columns[0]))
    if len(ranks) < 3 or not value or matrix.rows != (0,):  # noqa: PLR2004 - with two it is a pair
        return
    one = rank[matrix.columns[0]]
    others = [peer for peer in ranks if peer != one]
    flows = tuple((peer, one) if to_one else (one, peer) for peer in others)
    pattern = f"{len(others)}_to_one" if to_one else f"one_to_{len(others)}"
    src, dst = (SEVERAL, one) if to_one else (one, SEVERAL)
    yield Probe(f"bandwidth.{mechanism}", pattern, src, dst, flows, 0, value, "GB/s")


def _latencies(table: p2p_test.P2pTable, rank: Mapping[int, int]) -> Iterator[Probe]:
    for (row, column), value in _between(table.matrix, rank):
        src, dst = (row, column) if table.writes is not False else (column, row)
        yield Probe("latency.copy", "pair", src, dst, ((src, dst),), 4, value)


def _judged(probe: Probe, access: Mapping[tuple[int, int], bool]) -> Probe:
    """Without peer access in either direction of a flow, the number is a copy through host memory."""
    pairs = {pair for a, b in probe.flows for pair in ((a, b), (b, a))}
    if all(access.get(pair, True) for pair in pairs):
        return probe
    return replace(probe, value=None, status=Status.UNSUPPORTED, reason=_NO_ACCESS)


def _size(matrices: Iterator[Matrix]) -> int:
    return max((max((*matrix.columns, *matrix.rows)) + 1 for matrix in matrices), default=0)


def _ranks(devices: Sequence[PciDevice], size: int, topology: Topology) -> dict[int, int]:
    """Rank by device number: by bus id where both know it, else in order."""
    gpus = topology.gpus
    count = max(size, max((device.index + 1 for device in devices), default=0))
    if count > len(gpus):
        raise MatrixError(
            f"{count} devices, but topology {topology.name or '(unnamed)'} has {len(gpus)} GPUs: another machine's?"
        )
    at = {normal_busid(topology.node(gpu).attributes.get("busid", "")): rank for rank, gpu in enumerate(gpus)}
    matched = {device.index: at[device.busid] for device in devices if device.busid and device.busid in at}
    if len(matched) == count and len(set(matched.values())) == count:
        return matched
    return {index: index for index in range(count)}
