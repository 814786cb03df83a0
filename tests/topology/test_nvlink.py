"""`nvidia-smi nvlink -s`: rates and states of links, forms of links that are down, GPUs that differ from their like."""

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.topology import nvlink
from collbench.topology.graph import TopologyError

STATUS = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000000)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
\t Link 2: <inactive>
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000001)
         Link 0: 26.562 GB/s
         Link 1: 26.562 GB/s
         Link 2: 26.562 GB/s
GPU 2: NVIDIA A100-PCIE-40GB
NVML: Unable to retrieve NVLink information as all links are inActive
GPU 3: NVIDIA L4 (UUID: GPU-00000000-0000-0000-0000-000000000003)
"""


def test_rates_and_states() -> None:
    """Each link has its rate or is down; a GPU with a message, or with nothing, has none."""
    found = nvlink.parse(STATUS)
    assert [gpu.number for gpu in found.gpus] == [0, 1, 2, 3]
    assert found.gpus[0].rates == (26.562, 26.562, None)
    assert [gpu.active for gpu in found.gpus] == [2, 3, 0, 0]
    assert [gpu.model for gpu in found.gpus][2:] == ["NVIDIA A100-PCIE-40GB", "NVIDIA L4"]
    assert found.disagreements == ("gpu0: links 2 of 3 are down",)
    facts = found.topology().node("gpu1").attributes
    assert facts == {"model": "NVIDIA H100 80GB HBM3", "nvlinks": "3", "nvlink_gbps": "26.562"}


def test_a_gpu_with_fewer_links_than_its_like_is_listed() -> None:
    """Two GPUs of one model with different numbers of links differ, and nobody says that a link is down."""
    found = nvlink.parse(STATUS.replace("\t Link 2: <inactive>\n", ""))
    assert found.disagreements == ("gpu0: 2 NVLinks are up, 3 on another NVIDIA H100 80GB HBM3",)


def test_capabilities_of_the_same_links_are_no_links() -> None:
    """A block of `nvlink -c` behind the status names links again and adds none."""
    more = "GPU 0: NVIDIA H100 80GB HBM3\n\t Link 0, P2P is supported: true\n\t Link 7, Link is supported: false\n"
    assert nvlink.parse(STATUS + more) == nvlink.parse(STATUS)


@pytest.mark.parametrize("prefix", ["> ", "2025-01-02 10:00:00 INFO ", "[1,0]<stdout>:", "    "])
def test_prefixes_do_no_harm(prefix: str) -> None:
    """Log prefixes, quotes and a prompt change nothing."""
    text = "$ nvidia-smi nvlink -s\n" + "".join(f"{prefix}{line}\n" for line in STATUS.splitlines())
    assert nvlink.parse(text) == nvlink.parse(STATUS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no NVLink in it"),
        ("GPU 0: NVIDIA L4 (UUID: GPU-1)\nGPU 1: NVIDIA L4 (UUID: GPU-2)\n", "line 1: .*no NVLink in it: expected"),
        ("Link 0: 25 GB/s\n", "line 1: 'Link 0: 25 GB/s': a link before any GPU"),
    ],
)
def test_what_names_no_link_is_refused(text: str, said: str) -> None:
    """A list of GPUs alone is none, and a link needs a GPU above it."""
    with pytest.raises(TopologyError, match=said):
        nvlink.parse(text)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 500), st.integers(0, 60), st.text(max_size=5))
def test_damaged_captures_raise_nothing_else(at: int, lost: int, put: str) -> None:
    """Cut and spliced captures are read or refused."""
    with contextlib.suppress(TopologyError):
        nvlink.parse(STATUS[:at] + put + STATUS[at + lost :]).topology()


@pytest.mark.parametrize(
    "noise",
    [
        "".join(f"GPU {n % 9999}: A\nLink 0: 1 GB/s\n" for n in range(38_000)), "GPU 0: " + "A " * 500_000,
        "GPU 0: A\n" + "Link 0: " * 120_000, "GPU 0: A (UUID: " * 60_000,
    ],
    ids=["gpus", "model", "links", "ids"],
)  # fmt: skip
def test_a_megabyte_of_noise_is_done_with_at_once(noise: str) -> None:
    """Under a second of processor time, doubled for slow machines."""
    start = time.process_time()
    with contextlib.suppress(TopologyError):
        nvlink.parse(noise)
    assert time.process_time() - start < 2
