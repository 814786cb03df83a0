"""`collbench doctor` as users meet it."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.results.probes import Probe, append_probe
from collbench.testing import host_machine, synthetic_gpu_run, synthetic_run
from tests.interop.nccl_tests.layouts import PLAIN

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
    assert re.search(r"runs \d+, does not run \d+, unknown \d+; --json names them", " ".join(unchanged.split()))
    assert collbench("doctor", *STORY, "--compare", "vllm=0.33").stdout
    same = collbench("doctor", *STORY, "--compare", "torch=2.10,cuda=12.8")
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


def test_a_machine_file_is_asked_as_its_words_are(collbench: Shell) -> None:
    """Number, model, fabric and peer access of its GPUs are the file's; a change of one of them leaves its wiring."""
    drawn = json.loads(collbench("doctor", "--for", "two-flat-gen5-switches", "--torch", "2.10", "--json").stdout)
    said = json.loads(collbench("doctor", "--for", "sm_120", "--torch", "2.10", "--p2p", "ok", "--json").stdout)
    verdicts = [{row["algorithm"]: row["verdict"] for row in one["rows"]} for one in (drawn, said)]
    assert verdicts[0] == verdicts[1]
    off = json.loads(collbench("doctor", "--for", "two-switches-8x4090-no-p2p", "--json").stdout)
    found = {row["algorithm"]: row["verdict"] for row in off["rows"]}
    assert (off["facts"]["p2p"], off["facts"]["arch"], found["push"]) == ("off", "sm_89", "does_not_run")
    wider = collbench("doctor", "--for", "two-flat-gen5-switches", "--compare", "fabric=nvlink").stdout
    assert "vllm_custom_all_reduce" in wider


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--for", "two-flat-gen5-switches", "--gpus", "4"), "--gpus and --fabric: two-flat-gen5-switches says them"),
        (("--for", "cpu-host"), "--for cpu-host: none of its GPUs is a model of NVIDIA's that is known here"),
        (("--for", "sm_90", "--torch", "foo"), "--torch 'foo': expected a version, such as 2.14"),
        (("--for", "two-flat-gen5-switches", "--gpus", "0"), "--gpus and --fabric: two-flat-gen5-switches says them"),
        (("--for", "nope.toml"), "--for nope.toml: no such file"),
    ],
)
def test_a_machine_that_cannot_be_asked_about(words: tuple[str, ...], told: str, collbench: Shell) -> None:
    done = collbench("doctor", *words)
    assert (done.returncode, done.stderr) == (2, f"collbench: {told}\n")


def test_a_machine_of_two_kinds_of_gpu_is_not_judged_by_the_first(collbench: Shell, tmp_path: Path) -> None:
    """Nor does a strange note on peer access end it."""
    drawn = json.loads(collbench("topo", "--from", "two-h200-nvlink", "--json").stdout)
    first, second = (node for node in drawn["nodes"] if node["kind"] == "gpu")
    first["p2p"] = "garbage, , gpu1"
    file = tmp_path / "two.json"
    file.write_text(json.dumps(drawn))
    assert "2 x sm_90" in collbench("doctor", "--for", str(file)).stdout
    second["model"] = "NVIDIA RTX PRO 6000"
    file.write_text(json.dumps(drawn))
    done = collbench("doctor", "--for", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "its GPUs differ (sm_120, sm_90): ask for one of them" in done.stderr


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


def test_a_run_of_another_tool(collbench: Shell, tmp_path: Path) -> None:
    """What its record leaves out is unsaid: nothing is called missing, and options say it."""
    (tmp_path / "posted.txt").write_text(PLAIN)
    words = ("--fabric", "pcie", "--topology", "two-flat-gen5-switches")
    assert collbench("nccl-tests", "--parse", "posted.txt", "--out", "posted", *words).returncode == 0
    text = " ".join(collbench("doctor", "posted").stdout.split())
    assert "torch not said" in text
    assert "compute capability sm_120" in text, "by the model that the machine file names"
    assert "posted-write collapse: it cannot be here" in text
    found = {row["algorithm"]: row for row in json.loads(collbench("doctor", "posted", "--json").stdout)["rows"]}
    for name in ("nccl_ring_ll", "push", "gloo", "vllm_forced_one_stage", "host_all_to_all_push", "symm_one_shot"):
        assert found[name]["verdict"] == "unknown", name
    assert not [row["algorithm"] for row in found.values() if row["verdict"] == "runs"]
    said = ("--torch", "2.12", "--p2p", "ok", "--with", "vllm=0.33,driver=590.1")
    found = {row["algorithm"]: row for row in json.loads(collbench("doctor", "posted", *said, "--json").stdout)["rows"]}
    assert [found[name]["verdict"] for name in ("nccl_ring_ll", "push", "vllm_forced_one_stage")] == ["runs"] * 3
    assert found["symm_one_shot"]["verdict"] == "unknown", "atomics between GPUs on PCIe"


def test_what_a_record_says_is_not_said_again(collbench: Shell, tmp_path: Path) -> None:
    synthetic_gpu_run(tmp_path / "run", launches=1, iterations=3, facts={"p2p": "ok"})
    synthetic_run(tmp_path / "here", machine=host_machine(2))
    for words, told in (
        (("run", "--with", "nccl=2.28.9"), "says nccl 2.30.7: ask with --compare"),
        (("run", "--p2p", "off"), "says p2p ok"),
        (("here", "--torch", "2.12"), "says what was installed"),
    ):
        done = collbench("doctor", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert told in done.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_fit_and_text_keeps_its_column(columns: int, collbench: Shell) -> None:
    """A name that is longer than its column stands on a line of its own."""
    lines = collbench("doctor", COLUMNS=str(columns)).stdout.splitlines()
    assert [line for line in lines if len(line) > columns] == []
    at = lines.index("  host_one_stage_push_joined_2")
    assert lines[at + 1].startswith(" " * 28 + "host_one_stage_push on 2 messages")


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
        (("--for", "sm_90", "--torch", "new"), "expected a version"),
        (("--for", "sm_90", "--compare", ""), "say what changes"),
        (("--compare", "gpus=4"), "has what it has"),
        (("--for", "sm_90", "--compare", "torhc=2.14"), "no rule knows 'torhc'; did you mean torch?"),
        (("--compare", "gpu=4"), "did you mean gpus?"),
        (("--for", "sm_90", "--with", "falshinfer=0.7.4"), "did you mean flashinfer?"),
        (("--for", "sm_90", "--with", "nvidia-nccl-cu13=2.30"), "did you mean nccl?"),
        (("--for", "sm_90", "--with", "gpus=4"), "known are b12x, cuda, "),
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
