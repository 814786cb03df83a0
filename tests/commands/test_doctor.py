"""`collbench doctor` as users meet it."""

import json
import subprocess
from collections.abc import Callable

import pytest

Shell = Callable[..., subprocess.CompletedProcess[str]]
STORY = ("--for", "sm_120", "--gpus", "8", "--fabric", "pcie", "--cuda", "12.8", "--torch", "2.10")


def test_this_machine(collbench: Shell) -> None:
    """Host algorithms run everywhere; stdout has the answer and stderr nothing."""
    done = collbench("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "host_two_stage" in done.stdout
    assert "GPUs" in done.stdout


def test_json_of_a_described_machine(collbench: Shell) -> None:
    """One object of our schema whose rows have the fields of the design."""
    done = collbench("doctor", *STORY, "--with", "sglang=0.5.8,flashinfer=0.6.2", "--json")
    data = json.loads(done.stdout)
    assert (data["schema"], data["kind"], data["described"], data["ranks"]) == ("collbench/1", "doctor", True, 8)
    found = {row["algorithm"]: row for row in data["rows"]}
    assert found["flashinfer_trtllm_fusion"]["verdict"] == "does_not_run"
    assert "KeyError: 12" in found["sglang_symm_mem"]["reason"]


def test_comparison(collbench: Shell) -> None:
    """What an upgrade changes, and words for nothing."""
    done = collbench("doctor", *STORY, "--p2p", "ok", "--with", "flashinfer=0.6.2", "--compare", "flashinfer=0.7.4")
    assert "does not run -> runs" in done.stdout
    assert "nccl_ring_ll " not in done.stdout
    assert collbench("doctor", *STORY, "--compare", "vllm=0.33").stdout
    same = collbench("doctor", *STORY, "--compare", "torch=2.10,numpy=2.4")
    assert same.stdout == "nothing changes\n"
    data = json.loads(
        collbench("doctor", *STORY, "--compare", "cuda=13.0,driver=590.1", "--p2p", "ok", "--json").stdout
    )
    assert (data["kind"], bool(data["rows"])) == ("doctor-compare", True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--gpus", "8"), "say --for ARCH too"),
        (("--for", "blackwell"), "sm_90 or sm_120"),
        (("--for", "sm_90", "--gpus", "0"), "1 to 256"),
        (("--for", "sm_90", "--deep"), "leave them out"),
        (("--for", "sm_90", "--with", "torch"), "NAME=VERSION"),
        (("--for", "sm_90", "--torch", "new"), "NAME=VERSION"),
        (("--for", "sm_90", "--compare", ""), "say what changes"),
        (("--compare", "gpus=4"), "has what it has"),
        (("--nproc", "0"), "1 to 16"),
        (("-b", "0"), "at least 1"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], told: str, collbench: Shell) -> None:
    done = collbench("doctor", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert told in done.stderr
