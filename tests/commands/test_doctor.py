"""`collbench doctor` as users meet it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.results.probes import Probe, append_probe
from collbench.testing import synthetic_gpu_run

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
    changed, _, unchanged = done.stdout.partition("\nunchanged ")
    assert "nccl_ring_ll" not in changed
    assert "nccl_ring_ll" in unchanged
    assert collbench("doctor", *STORY, "--compare", "vllm=0.33").stdout
    same = collbench("doctor", *STORY, "--compare", "torch=2.10,numpy=2.4")
    assert same.stdout.startswith("nothing changes\nunchanged ")
    data = json.loads(
        collbench("doctor", *STORY, "--compare", "cuda=13.0,driver=590.1", "--p2p", "ok", "--json").stdout
    )
    assert (data["kind"], bool(data["rows"])) == ("doctor-compare", True)
    named = [
        *(row["algorithm"] for row in data["rows"]),
        *(name for names in data["unchanged"].values() for name in names),
    ]
    assert sorted(named) == sorted(
        row["algorithm"] for row in json.loads(collbench("doctor", *STORY, "--json").stdout)["rows"]
    )


def test_algorithms_on_processors_are_one_line_beside_gpus(collbench: Shell) -> None:
    """Last and together on a machine with GPUs, each with what it does on one without."""
    text = " ".join(collbench("doctor", *STORY).stdout.split())
    assert text.count("on processors, without a GPU.") == 1
    runs = text.partition("runs (")[2].partition("does not run (")[0]
    assert runs.index("nccl_ring_ll") < runs.index("host_two_stage")
    assert "chunks are summed" not in runs
    assert "chunks are summed" in collbench("doctor").stdout


def test_would_cuda_13_help(collbench: Shell) -> None:
    """Not with anything that failed for weeks: only what was unknown of our kernels' driver changes its reason."""
    with_ = ("--with", "sglang=0.5.9,flashinfer=0.6.2")
    done = collbench("doctor", *STORY, *with_, "--compare", "cuda=13.0", "--json")
    data = json.loads(done.stdout)
    failing = ("vllm_custom_all_reduce", "sglang_symm_mem", "flashinfer_trtllm_fusion", "deepep_low_latency")
    assert set(failing) <= set(data["unchanged"]["does_not_run"])
    assert "nccl_tree_ll" in data["unchanged"]["runs"]
    changed = {row["algorithm"]: row for row in data["rows"]}
    assert "driver 580" in changed["push"]["before"]["reason"]
    assert "driver" not in changed["push"]["after"]["reason"]


def test_a_gpu_by_its_model(collbench: Shell) -> None:
    """The name that is on the card is as good as its compute capability."""
    by_model, by_arch = (collbench("doctor", "--for", word, "--json").stdout for word in ("RTX PRO 6000", "sm_120"))
    assert json.loads(by_model)["rows"] == json.loads(by_arch)["rows"]


def test_a_run_of_another_machine(collbench: Shell, tmp_path: Path) -> None:
    """Its machine is asked about, not this one; its probes are tested, with threshold, evidence and remedy."""
    path = synthetic_gpu_run(tmp_path / "run", launches=1, iterations=3, facts={"acs": "on", "arch": "sm_120"}).path
    append_probe(path, Probe("bandwidth.copy", "solo", 6, 7, ((6, 7),), 1 << 20, 6.5, "GB/s"))
    done = collbench("doctor", "run")
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    for part in ("GPUs 8", "ACS redirects traffic", "regime present downtrained link: rank 6 to 7: 6.5 GB/s",
                 "threshold: ratio below 0.8", "reseat the card", "regime absent", "regime untested"):  # fmt: skip
        assert part in words, part
    data = json.loads(collbench("doctor", "run", "--json").stdout)
    states = {row["regime"]: row["state"] for row in data["regimes"]}
    assert (states["downtrained link"], states["memory order"]) == ("present", "untested")
    assert (data["ranks"], data["fabric"], data["described"]) == (8, "pcie", False)


def test_runs_that_cannot_be_used(collbench: Shell, tmp_path: Path) -> None:
    """One line each: no such folder, a newer schema, a machine that cannot be read."""
    newer, lost = (
        synthetic_gpu_run(tmp_path / name, launches=1, iterations=3).path / "run.json" for name in ("a", "b")
    )
    newer.write_text(newer.read_text().replace("collbench/1", "collbench/9"))
    lost.write_text(json.dumps(json.loads(lost.read_text()) | {"machine": {"fabric": "ether"}}))
    for name, code, told in (
        ("none", 2, "no such run folder"),
        ("a", 3, "collbench/9"),
        ("b", 3, "record of the machine"),
    ):
        done = collbench("doctor", name)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
        assert told in done.stderr


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
        (("run", "--deep"), "leave them out beside a run"),
        (("run", "--for", "sm_90"), "leave them out beside --for"),
        (("-b", "0"), "at least 1"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], told: str, collbench: Shell) -> None:
    done = collbench("doctor", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert told in done.stderr
