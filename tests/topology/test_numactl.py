"""`numactl -H`: processors with gaps, memory, distances; what does not add up is listed."""

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.topology import numactl
from collbench.topology.graph import TopologyError

TWO = """available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3 8 9 10 11
node 0 size: 2048 MB
node 0 free: 100 MB
node 1 cpus: 4 5 6 12 13 15
node 1 size: 3072 MB
node distances:
node   0   1
  0:  10  32
  1:  32  10
"""


def test_nodes_distances_and_gaps() -> None:
    """A processor that is missing leaves a gap; memory and distances are as printed."""
    found = numactl.parse(TWO)
    assert [node.number for node in found.nodes] == [0, 1]
    assert found.nodes[1].cpus == (4, 5, 6, 12, 13, 15)
    assert found.distances == {(0, 0): 10, (0, 1): 32, (1, 0): 32, (1, 1): 10}
    assert found.disagreements == ()
    topology = found.topology()
    assert topology.sockets == ("socket0", "socket1")
    facts = topology.node("socket1").attributes
    assert facts == {"numa": "1", "threads": "6", "cpu_affinity": "4-6,12-13,15", "memory_gib": "3.0"}
    assert len(topology.links) == 2


def test_prompts_prefixes_and_other_text_do_no_harm() -> None:
    """Log prefixes, quotes and lines around it change nothing."""
    for prefix in ("> ", "2025-01-02 10:00:00 INFO ", "[1,0]<stdout>:", "\t"):
        text = "$ numactl -H\n" + "".join(f"{prefix}{line}\n" for line in TWO.splitlines()) + "done\n"
        assert numactl.parse(text) == numactl.parse(TWO)


def test_nodes_of_memory_alone_and_what_does_not_add_up() -> None:
    """A node without processors is no socket; counts and distances that contradict each other are listed."""
    text = TWO.replace("2 nodes", "4 nodes").replace("  1:  32", "  1:  21") + "node 2 cpus:\nnode 2 size: 500 MB\n"
    found = numactl.parse(text)
    assert found.disagreements == ("4 nodes are announced, 3 listed", "distance of node 0 to 1 is 32, of 1 to 0 21")
    topology = found.topology()
    assert topology.sockets == ("socket0", "socket1")
    assert topology.disagreements[-1] == "NUMA nodes without processors: 2"


@pytest.mark.parametrize("text", ["", "hello\n", "available: 2 nodes (0-1)\n", "No NUMA available on this system\n"])
def test_without_nodes_it_is_refused(text: str) -> None:
    """The line is quoted and an example of what was expected given."""
    with pytest.raises(TopologyError, match=r"line 1: .*expected what numactl -H prints"):
        numactl.parse(text)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 250), st.integers(0, 30), st.text(max_size=5))
def test_damaged_captures_raise_nothing_else(at: int, lost: int, put: str) -> None:
    """Cut and spliced captures are read or refused."""
    with contextlib.suppress(TopologyError):
        numactl.parse(TWO[:at] + put + TWO[at + lost :]).topology()


@pytest.mark.parametrize("noise", ["node 0 cpus: " + "1 " * 500_000, "1: " + " 1" * 500_000, "available: " * 90_000])
def test_a_megabyte_of_noise_is_done_with_at_once(noise: str) -> None:
    """Under a second of processor time, doubled for slow machines."""
    start = time.process_time()
    with contextlib.suppress(TopologyError):
        numactl.parse(noise)
    assert time.process_time() - start < 2
