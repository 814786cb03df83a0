"""p2pBandwidthLatencyTest and nvbandwidth: every matrix to its numbers, the right way round, or a named error."""

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.contention.observations import observations
from collbench.errors import InvalidError
from collbench.interop import nvbandwidth, p2p_test
from collbench.interop.matrices import MatrixError
from collbench.interop.pair_probes import from_nvbandwidth, from_p2p_test, read
from collbench.results.probes import Probe
from collbench.results.records import Fabric, Status
from collbench.topology import catalog
from collbench.topology.graph import Node, NodeKind, Topology
from tests.conftest import Budget

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "p2pbw"
FILES = sorted(CORPUS.glob("*.txt")) if CORPUS.is_dir() else []

P2P = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, Invented, pciBusID: 2a, pciDeviceID: 0, pciDomainID:0
Device: 1, Invented, pciBusID: 1b, pciDeviceID: 0, pciDomainID:1
Device: 2, Invented, pciBusID: 3c, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
Device=0 CANNOT Access Peer Device=2
Device=1 CAN Access Peer Device=0
Device=1 CAN Access Peer Device=2
Device=2 CANNOT Access Peer Device=0
Device=2 CAN Access Peer Device=1

P2P Connectivity Matrix
     D\\D     0     1     2
     0\t     1     1     0
     1\t     1     1     1
     2\t     0     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 900.00   9.10   9.20
     1   9.30 900.00   9.40
     2   9.50   9.60 900.00
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2
     0 901.00  50.10   8.20
     1  50.30 901.00  50.40
     2   8.50  50.60 901.00
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 902.00  99.10   9.99
     1  99.30 902.00  99.40
     2   9.98  99.60 902.00
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1      2
     0   1.30   0.51  12.00
     1   0.53   1.30   0.54
     2  13.00   0.56   1.30

   CPU     0      1      2
     0   2.30   2.00   5.00
     1   2.10   2.30   2.00
     2   5.00   2.10   2.30
"""

NVB = """nvbandwidth Version: v0.10.0
Built from Git version: v0.10.0

CUDA Runtime Version: 13.2 (13020)
CUDA Driver Version (API): 13.2 (13020)
Driver Version: 595.71.05

Device 0: NVIDIA Invented (00000000:2a:00)
Device 1: NVIDIA Invented (00000001:1b:00)
Device 2: NVIDIA Invented (00000000:3c:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2
 0     55.00     56.00     57.00

SUM host_to_device_memcpy_ce 168.00

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2
 0       N/A     50.10     50.20
 1     50.30       N/A     50.40
 2     50.50     50.60       N/A

SUM device_to_device_memcpy_read_ce 302.10
COEFFICIENT_OF_VARIATION device_to_device_memcpy_read_ce 0.00

Waived:
Running device_to_device_memcpy_write_sm.
memcpy SM GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1         2
 0      0.00     48.10     48.20
 1     48.30      0.00     48.40
 2     48.50     48.60      0.00

SUM device_to_device_memcpy_write_sm 290.10

Running device_to_device_bidirectional_memcpy_write_ce.
memcpy CE GPU(row) <-> GPU(column) Write1 bandwidth (GB/s)
           0         1         2
 0       N/A     49.00     49.00
 1     49.00       N/A     49.00
 2     49.00     49.00       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_write1 294.00

memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1         2
 0       N/A     98.00     98.10
 1     98.20       N/A     98.30
 2     98.40     98.50       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_total 589.50

Running all_to_one_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1         2
 0     52.00     53.00     54.00

SUM all_to_one_write_ce 159.00

Running device_to_device_latency_sm.
Device to Device Latency SM GPU(row) <-> GPU(column) (ns)
           0         1         2
 0       N/A    720.00    730.00
 1    740.00       N/A    750.00
 2    760.00    770.00       N/A

SUM device_to_device_latency_sm 4470.00
"""


def topology(*busids: str) -> Topology:
    return Topology(tuple(Node(f"gpu{i}", NodeKind.GPU, {"busid": b} if b else {}) for i, b in enumerate(busids)), ())


THREE = topology("", "", "")


def value(probes: tuple[Probe, ...], name: str, src: int, dst: int) -> float | None:
    (found,) = [
        p for p in probes if (p.name, p.src, p.dst, p.pattern) == (name, src, dst, p.pattern) and len(p.flows) == 1
    ]
    return found.value


def test_p2p_numbers() -> None:
    output = p2p_test.parse(P2P)
    assert [device.busid for device in output.devices] == ["0000:2a:00.0", "0001:1b:00.0", "0000:3c:00.0"]
    assert [(t.what, t.enabled, t.both_ways, t.matrix.corner) for t in output.tables] == [
        ("bandwidth", False, False, "D\\D"), ("bandwidth", True, False, "D\\D"), ("bandwidth", True, True, "D\\D"),
        ("latency", True, False, "GPU"), ("latency", True, False, "CPU"),
    ]  # fmt: skip
    assert output.tables[1].matrix.values[2, 1] == 50.6
    assert output.access[0, 2] is False


def test_p2p_probes() -> None:
    """A row writes to a column; what went through host memory is no probe, whatever the title says."""
    found = from_p2p_test(p2p_test.parse(P2P), THREE)
    assert value(found.probes, "bandwidth.copy", 0, 1) == 50.1
    assert value(found.probes, "latency.copy", 2, 1) == 0.56
    blocked = [p for p in found.probes if p.status is Status.UNSUPPORTED and p.name == "bandwidth.copy"]
    assert {(p.src, p.dst) for p in blocked if len(p.flows) == 1} == {(0, 2), (2, 0)}
    both = [p for p in found.probes if p.pattern == "both_ways"]
    assert [(p.value, p.flows) for p in both] == [(99.1, ((0, 1), (1, 0)))]
    assert "bandwidth with P2P disabled: through host memory" in found.left_out


def test_reads_go_the_other_way() -> None:
    found = from_p2p_test(p2p_test.parse(P2P.replace("P2P Writes", "P2P Reads")), THREE)
    assert value(found.probes, "bandwidth.copy", 1, 0) == 50.1
    old = from_p2p_test(p2p_test.parse(P2P.replace(" (P2P Writes)", "")), THREE)
    assert value(old.probes, "bandwidth.copy", 0, 1) == 50.1
    assert any("does not say who writes" in text for text in old.left_out)


def test_nvbandwidth_numbers() -> None:
    output = nvbandwidth.parse(NVB)
    assert (output.version, output.driver, output.skipped, output.problems) == ("v0.10.0", "595.71.05", 1, [])
    assert [(test.name, test.unit) for test in output.tests][-1] == ("device_to_device_latency_sm", "ns")
    assert len(output.tests) == 7


def test_nvbandwidth_probes() -> None:
    """The test's name tells the way, not its arrow: a read test moves from the column's device to the row's."""
    found = from_nvbandwidth(nvbandwidth.parse(NVB), THREE)
    assert value(found.probes, "bandwidth.copy", 1, 0) == 50.1
    assert value(found.probes, "bandwidth.store", 0, 1) == 48.1
    assert value(found.probes, "read_chain", 2, 0) == pytest.approx(0.73)
    assert Counter(p.pattern for p in found.probes) == {"solo": 12, "pair": 6, "both_ways": 1, "2_to_one": 1}
    (fan,) = [p for p in found.probes if p.pattern == "2_to_one"]
    assert (fan.value, fan.flows) == (52.0, ((1, 0), (2, 0)))
    assert any("between host and GPUs" in text for text in found.left_out)


def as_json(text: str = NVB) -> dict[str, Any]:
    """The same tests as `-j` prints them: numbers are text."""
    output = nvbandwidth.parse(text)
    cases = []
    for test in output.tests:
        rows = [[test.matrix.values[row, column] for column in test.matrix.columns] for row in test.matrix.rows]
        cases.append({
            "name": test.name, "status": "Passed", "bandwidth_description": test.title, "sum": test.matrix.total,
            "bandwidth_matrix": [["N/A" if x is None else f"{x:g}" for x in row] for row in rows],
        })  # fmt: skip
    cases.append({"name": "device_to_device_memcpy_write_ce", "status": "Waived"})
    root = {"version": "v0.10.0", "Driver Version": "595.71.05", "testcases": cases,
            "GPU Device list": ["0: NVIDIA Invented (00000000:2a:00): (GPU-0-0)"]}  # fmt: skip
    return {"nvbandwidth": root}


def test_json_gives_the_same_probes() -> None:
    output = nvbandwidth.parse(json.dumps(as_json(), indent=3))
    assert output.skipped == 1
    assert output.devices[0].busid == "0000:2a:00.0"
    assert from_nvbandwidth(output, THREE).probes == from_nvbandwidth(nvbandwidth.parse(NVB), THREE).probes


def test_devices_are_ranks_by_bus_id() -> None:
    other = topology("0000:3c:00.0", "0001:1b:00.0", "0000:2a:00.0")
    found = from_nvbandwidth(nvbandwidth.parse(NVB), other)
    assert value(found.probes, "bandwidth.copy", 1, 2) == 50.1, "device 0 is rank 2"
    with pytest.raises(MatrixError, match="3 devices, but topology"):
        from_nvbandwidth(nvbandwidth.parse(NVB), topology("", ""))


def test_a_matrix_that_was_edited_is_told() -> None:
    """The program's own sum does not fit any more."""
    output = nvbandwidth.parse(NVB.replace("50.60       N/A", "90.60       N/A"))
    assert "adds up to 342.10" in output.problems[0]


def test_they_are_observations_of_the_model() -> None:
    """Copies and read chains are; latencies that hold the start of a copy are none."""
    known = catalog.load(catalog.find("one-plx-4xv100"))
    seen = observations(from_p2p_test(p2p_test.parse(P2P), known).probes, known, 4, Fabric.PCIE)
    assert {one.label.split()[0] for one in seen} == {"bandwidth.copy"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "line 1: 'hello': no matrix of p2pBandwidthLatencyTest"),
        (P2P.replace("  50.10   8.20", "  50.10"), ""),
        ("Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n D\\D 0 1\n 0 1.0\n 1 2.0 3.0", "1 values, expected 2"),
        ("D\\D 0 1\n 0 1.0 fast\n", "'fast' is no number"),
    ],
)
def test_named_errors_of_p2p(text: str, message: str) -> None:
    if not message:
        assert "2 values, expected 3" in p2p_test.parse(text).problems[0]
        return
    with pytest.raises(MatrixError, match=re.escape(message)):
        p2p_test.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "no test of nvbandwidth"),
        ("Running x_ce.\nWaived: \nWaived: \n", "all 2 tests were waived"),
        ("{", "damaged JSON"),
        ('{"a": 1}', "without nvbandwidth's testcases"),
        (
            '{"nvbandwidth": {"testcases": [{"status": "Passed", "name": "t"}]}}',
            "testcases[0] 't': no bandwidth_matrix",
        ),
        ('{"nvbandwidth": ' + "[" * 100_000, "nested too deep"),
    ],
)
def test_named_errors_of_nvbandwidth(text: str, message: str) -> None:
    with pytest.raises(MatrixError, match=re.escape(message)):
        nvbandwidth.parse(text)


USELESS = {
    "05": "no peer access", "10": "without its title", "11": "without its title", "13": "between host and GPUs",
    "17": "no peer access",
}  # fmt: skip


@pytest.mark.skipif(not FILES, reason="the corpus is not here")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:40])
def test_every_number_of_the_corpus(path: Path) -> None:
    """All numbers under a header are read, and become probes or are left out with a sentence."""
    text = path.read_text()
    output = nvbandwidth.parse(text) if "nvbandwidth" in path.name else p2p_test.parse(text)
    parts = output.tests if isinstance(output, nvbandwidth.NvbandwidthOutput) else output.tables
    seen = [f"{x:.2f}" for part in parts for x in part.matrix.values.values() if x is not None]
    numbers = re.findall(r"(?<=[ \t])\d+\.\d+(?=\s|$)", re.sub(r"SUM .*|.*[Vv]ersion.*", "", text))
    whole = re.findall(r"(?<= )\d{3}(?= |$)", text, re.MULTILINE) if path.name[:2] in {"10", "11"} else []
    assert Counter(seen) == Counter(f"{float(x):.2f}" for x in [*numbers, *whole])
    assert output.problems == []
    if path.name[:2] in USELESS:
        with pytest.raises(MatrixError, match=USELESS[path.name[:2]]):
            read(path, topology(*[""] * 8))
    else:
        assert any(p.value for p in read(path, topology(*[""] * 8)).probes)


LINES = P2P.splitlines() + NVB.splitlines()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(LINES) | st.text(max_size=60), max_size=40))
def test_no_text_raises_anything_else(lines: list[str]) -> None:
    for parse in (p2p_test.parse, nvbandwidth.parse):
        try:
            parse("\n".join(lines))
        except InvalidError as error:
            assert "\n" not in str(error)  # noqa: PT017 - both ends are right


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=8,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["testcases", "version", "GPU Device list", "name", "status", "bandwidth_matrix"]), ANY)
def test_no_json_raises_anything_else(key: str, thing: Any) -> None:
    data = as_json()
    place = data["nvbandwidth"] if key in data["nvbandwidth"] else data["nvbandwidth"]["testcases"][1]
    place[key] = thing
    try:
        from_nvbandwidth(nvbandwidth.parse(json.dumps(data)), topology(*[""] * 8))
    except InvalidError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both ends are right


@pytest.mark.parametrize("piece", ["D\\D 0 1\n", "0 1 2\n", "Running x.\n(row)\n0 1\n0 1.0 2.0\n", "0 ", "1.0\n", "#"])
def test_a_megabyte_of_noise_is_quick(piece: str, budget: Budget) -> None:
    text = (piece * (1_000_000 // len(piece) + 1))[:1_000_000]

    def both() -> None:
        for parse in (p2p_test.parse, nvbandwidth.parse):
            try:
                parse(text)
            except InvalidError:
                continue

    budget(2.0, time.process_time)(both)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="cannot be read"):
        read(tmp_path / "none", THREE)
    (tmp_path / "x.txt").write_bytes(P2P.encode("utf-16"))
    assert read(tmp_path / "x.txt", THREE).tool == "p2pBandwidthLatencyTest"
