"""The log reader takes NCCL's lines as releases print them, and anything else without complaint."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.algorithms.nccl_log import Choice, parse

CORPUS = Path(__file__).resolve().parents[2] / ".." / "shared" / "corpus" / "nccl-tests"

LOG_230 = """\
NCCL version 2.30.7+cuda13.3
box:42:42 [0] NCCL INFO NCCL_ALGO set by environment to Ring
box:42:42 [0] NCCL INFO NCCL_MAX_CTAS set by environment to 2.
box:42:60 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 24.000000/24.000000, type PHB/PIX, sameChannels 1
box:42:60 [0] NCCL INFO  0 : GPU/0-a4000 GPU/0-a9000
box:42:60 [0] NCCL INFO Pattern 1, crossNic 0, nChannels 2, bw 24.000000/24.000000, type PHB/PIX, sameChannels 1
box:42:60 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
box:42:60 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM
box:42:60 [0] NCCL INFO Channel 01 : 0[0] -> 2[1] via SHM/direct/direct
box:42:60 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
box:42:42 [0] NCCL INFO AllReduce: 14336 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
box:42:42 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}
"""


def test_reads_what_a_run_of_2_30_says() -> None:
    """Version, choice per size, graphs, transports per pair, channels and the environment that NCCL saw."""
    log = parse(LOG_230)
    assert log.version == "2.30.7+cuda13.3"
    assert log.choice("AllReduce", 14336) == Choice("Ring", "LL", "AllReduce", 14336, 2)
    assert log.choice("AllReduce", 8) == Choice("Ring", "Simple", "AllReduce", 8, 1)
    assert log.choice("AllReduce", 9) is None
    assert [g.text for g in log.graphs] == ["ring 2 x 24 GB/s PHB", "balanced tree 2 x 24 GB/s PHB"]
    assert log.transports == {(0, 1): "P2P/CUMEM", (0, 2): "SHM/direct/direct", (3, 0): "NET/IB/0/GDRDMA"}
    assert log.transport_summary == "NET/IB/0/GDRDMA x 1, P2P/CUMEM x 1, SHM/direct/direct x 1"
    assert log.channels == 2
    assert log.environment == {"NCCL_ALGO": "Ring", "NCCL_MAX_CTAS": "2"}
    assert not log.has_fallback_graph


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("NCCL INFO 1048576 Bytes -> Algo 1 proto 2 time 123.456", "Ring/Simple"),
        ("AllReduce: 1048576 Bytes -> Algo COLLNET_CHAIN proto LL128 channel{Lo..Hi}={0..7}", "CollNetChain/LL128"),
        ("AllReduce: 1048576 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..7} comm 0x5", "NVLSTree/Simple"),
        ("NCCL INFO Best tuning, algorithm, TREE, protocol, LL", "Tree/LL"),
        ("NCCL INFO AllReduce [Symmetric]: 1048576 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1",
         "symmetric AllReduce_AGxLL_R"),
        ("NCCL INFO 1048576 Bytes -> Algo 77 proto 9 time 1", "77/9"),
    ],
)  # fmt: skip
def test_spelling_of_releases(line: str, name: str) -> None:
    """Numbers (to 2.23), capitals, the tuner's line (2.31 on) and symmetric kernels give the same words."""
    choice = parse(f"box:1:1 [0] {line}").choice("AllReduce", 1048576)
    assert choice is not None
    assert choice.name == name


def test_the_made_up_graph_is_flagged() -> None:
    """`falling back to simple order`, or a graph of 0.1 GB/s, is a warning that names the control row."""
    told = parse("x NCCL WARN Could not find a path for pattern 4, falling back to simple order\n")
    assert told.has_fallback_graph
    assert "no path for ring" in told.evidence()["warning"]
    assert "nccl_ring_ll" in told.evidence()["warning"]
    shown = parse("NCCL INFO Pattern 4, crossNic 0, nChannels 1, bw 0.100000/0.100000, type SYS/PIX, sameChannels 1")
    assert shown.has_fallback_graph
    assert parse("NCCL WARN Cuda failure 'out of memory'").evidence() == {"warning": "Cuda failure 'out of memory'"}


def test_control_characters_do_not_reach_the_record() -> None:
    """Colours and control characters are taken out before anything is read."""
    log = parse("\x1b[31mNCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\x1b[0m\x07")
    assert log.transports == {(0, 1): "P2P/CUMEM"}


@given(st.text())
def test_no_text_raises(text: str) -> None:
    """Whatever stands in a log, it is read."""
    assert parse(text).evidence() is not None


@given(st.lists(st.sampled_from(LOG_230.split()), max_size=60), st.lists(st.integers(0, 10**30), max_size=3))
def test_no_mixture_of_its_own_words_raises(words: list[str], numbers: list[int]) -> None:
    """Torn and interleaved lines are skipped or read, never fatal."""
    log = parse(" ".join(words) + "\n" + "\n".join(f"AllReduce: {n} Bytes -> Algo {n} proto {n}" for n in numbers))
    assert log.choice("AllReduce", 0) is None or log.choices


def test_a_megabyte_of_noise_is_read_quickly() -> None:
    """Lines are cut and patterns bounded, so size costs linear time."""
    line = "Channel 00/0 : 0[0] -> 1[1] via " * 300 + "AllReduce: 1 Bytes -> Algo " * 300
    assert parse((line + "\n") * 60).choices == ()


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus beside the repository")
@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("10_nccl-info-interleaved_all_reduce_perf_4_gpu.txt", 4),
        ("11_nccl-info-interleaved_sendrecv_perf_2_gpu.txt", 2),
    ],
)
def test_real_logs(name: str, pairs: int) -> None:
    """Logs of NCCL 2.20 on A100s, mixed with nccl-tests' table: all pairs of the ring use direct pointers."""
    log = parse((CORPUS / name).read_text())
    assert log.version == "2.20.5+cuda12.4"
    assert log.channels == 24
    ring = {(i, (i + 1) % pairs): "P2P/direct pointer/read" for i in range(pairs)}
    assert {pair: word for pair, word in log.transports.items() if pair in ring} == ring
    assert not log.has_fallback_graph
