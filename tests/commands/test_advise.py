"""`collbench advise` as users meet it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.doctor.described import Described
from collbench.results.probes import Probe, append_probe
from collbench.results.records import Mode, Status
from collbench.testing import synthetic_gpu_run, synthetic_run
from collbench.workload import find

MACHINE = Described("sm_120", 8, "pcie", "ok", {"torch": "2.13.0"}).machine()
Shell = Callable[..., subprocess.CompletedProcess[str]]


def test_from_a_topology_alone(collbench: Shell) -> None:
    """Says that it is the model, gives break-even, settings and the warning."""
    words = ("--topology", "two-flat-gen5-switches", "--workload", "eagle3-verify")
    done = collbench("advise", *words, "--compare", "nvswitch-8gpu")
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "reach into its own" in text, "the model's intervals are wide, so the best is not alone"
    told = ("nothing was measured", "Speculation pays if an all-reduce of 43008 bytes", "rewired as nvswitch-8gpu")
    assert [part for part in (*told, "What servers are best told", "do not carry over") if part not in text] == []


def test_from_a_run(collbench: Shell, tmp_path: Path) -> None:
    """Says that it was measured, and that one launch gives no interval."""
    run = synthetic_run(
        tmp_path / "run", costs={"nccl_ring_ll": (20.0, 0.1), "push": (4.0, 0.5)}, modes=(Mode.GRAPH,), machine=MACHINE
    )
    done = collbench("advise", str(run.path), "--workload", "moe-61-decode")
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout
    assert "no interval: one launch" in done.stdout
    assert "push instead of nccl_ring_ll saves" in done.stdout
    text = " ".join(done.stdout.split())
    assert "In short: push at batch 1, " in text
    assert "against nccl_ring_ll; of what servers run or can be told to run, nccl_ring_ll (" in text
    assert "Without an interval" in text


def test_rewiring_from_a_run_is_the_models_on_both(collbench: Shell, tmp_path: Path) -> None:
    """Measured times are not set against predicted ones: the run's own topology is predicted too."""
    run = synthetic_gpu_run(tmp_path / "run", launches=1, iterations=3)
    words = ("--workload", "eagle3-verify", "--compare", "nvswitch-8gpu")
    done = collbench("advise", str(run.path), *words)
    assert done.returncode == 0, done.stderr
    assert "by the model on both: rewired as nvswitch-8gpu" in " ".join(done.stdout.split())
    data = json.loads(collbench("advise", str(run.path), *words, "--json").stdout)
    sources = (data["source"], data["wired"]["source"], data["rewired"]["source"])
    assert sources == ("run", "model", "model")
    assert "NCCL_P2P_LEVEL=SYS" in done.stdout, "its ranks meet beyond one switch"


def test_damage_of_a_run_is_said(collbench: Shell, tmp_path: Path) -> None:
    """On stderr, once per damaged line; the advice stands on what is whole."""
    run = synthetic_gpu_run(tmp_path / "run", launches=1, iterations=3)
    for name in ("samples.jsonl", "probes.jsonl"):
        with (run.path / name).open("a") as file:
            file.write("{torn\n")
    done = collbench("advise", str(run.path))
    assert done.returncode == 0
    assert done.stderr.count("samples.jsonl line") == done.stderr.count("probes.jsonl line") == 1
    assert "tokens/s" in done.stdout


def test_degraded_states_that_the_probes_show_are_in_the_advice(collbench: Shell, tmp_path: Path) -> None:
    run = synthetic_gpu_run(tmp_path / "run", launches=1, iterations=3)
    append_probe(run.path, Probe("bandwidth.copy", "solo", 6, 7, ((6, 7),), 1 << 20, 6.5, "GB/s"))
    text = " ".join(collbench("advise", str(run.path)).stdout.split())
    assert "downtrained link: rank 6 to 7: 6.5 GB/s" in text


def test_sizes_between_measured_ones_name_the_sweep_that_measures_them(collbench: Shell, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", costs={"push": (4.0, 0.5)}, modes=(Mode.GRAPH,), sizes=(4096, 32768))
    text = " ".join(collbench("advise", str(run.path)).stdout.split())
    assert "no time at 114688, 458752 bytes: push." in text
    assert "What joining calls saves is not measured with an interval: collbench sweep" in text
    assert "collbench sweep --sizes 14336,114688,458752 --launches 5" in text


def test_sizes_too_far_apart_name_the_sweep_too(collbench: Shell, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", costs={"push": (4.0, 0.5)}, modes=(Mode.GRAPH,), sizes=(1024, 1048576))
    done = collbench("advise", str(run.path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert (
        "no time at 14336, 114688, 458752 bytes: push: measure them with collbench sweep --sizes 14336,114688,458752"
        in done.stderr
    )


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("topology", ["two-flat-gen5-switches", "nvswitch-8gpu"])
def test_it_fits_a_terminal(columns: int, topology: str, on_terminal: Callable[..., str]) -> None:
    """But for settings, which are pasted as they stand; joining is one table."""
    lines = on_terminal(columns, "advise", "--topology", topology).splitlines()
    assert [line for line in lines if len(line) > columns and "=" not in line] == []
    assert sum("oining calls" in line for line in lines) == 1
    at = next(i for i, line in enumerate(lines) if line.startswith("batch  algorithm"))
    assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["1", "8", "32"]


def test_advice_knows_machines_without_peer_access_and_without_gpus(collbench: Shell) -> None:
    """No setting makes NCCL go directly there; ranks on processors are not predicted."""
    apart = collbench("advise", "--topology", "two-switches-8x4090-no-p2p")
    assert apart.returncode == 0
    assert "No peer access: all bytes go through host memory" in apart.stdout
    assert "NCCL_P2P_LEVEL" not in apart.stdout
    assert "NCCL: set the line below, which starts nccl_" in apart.stdout
    host = collbench("advise", "--topology", "cpu-host")
    assert (host.returncode, host.stdout) == (3, "")
    assert "has no GPUs: ranks on processors are not predicted" in host.stderr


def test_a_file_of_a_user_with_a_baseline_beside_it(collbench: Shell, tmp_path: Path) -> None:
    """The baseline's path is as seen from the file that names it."""
    (tmp_path / "mine").mkdir()
    source = find("eagle3-verify").read_text().replace('name = "eagle3-verify"', 'name = "verify"')
    (tmp_path / "mine" / "verify.toml").write_text(source.replace('"moe-61-decode"', '"plain.toml"'))
    plain = find("moe-61-decode").read_text().replace('name = "moe-61-decode"', 'name = "plain"')
    (tmp_path / "mine" / "plain.toml").write_text(plain)
    done = collbench("advise", "--topology", "two-flat-gen5-switches", "--workload", "mine/verify.toml")
    assert done.returncode == 0, done.stderr
    assert "Speculation pays" in done.stdout


def test_json(collbench: Shell) -> None:
    done = collbench("advise", "--topology", "two-flat-gen5-switches", "--workload", "dense-80-decode", "--json")
    data = json.loads(done.stdout)
    assert (data["schema"], data["kind"], data["source"]) == ("collbench/1", "advice", "model")
    assert {row["batch"] for row in data["rows"]} == {1, 8, 32, 128}
    assert {"algorithm", "step_us", "tokens_per_s", "interval_us", "comm_us"} <= set(data["rows"][0])


def test_the_list(collbench: Shell) -> None:
    assert "eagle3-verify" in collbench("advise", "--list").stdout


NEGATIVE = """
schema = "collbench/1"
name = "bad"
summary = "s"
source = "s"
batches = [1]
step = {other_us = -5.0, source = "s"}
calls = [{collective = "all_reduce", count = 1, bytes_per_token = 1024}]
"""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((), 2, "a run folder, or --topology"),
        (("run", "--topology", "nvswitch-8gpu"), 2, "a run folder, or --topology"),
        (("missing",), 2, "missing"),
        (("--topology", "nowhere"), 2, "no machine file"),
        (("--topology", "nvswitch-8gpu", "--workload", "nothing"), 2, "no workload"),
        (("--topology", "nvswitch-8gpu", "--workload", "bad.toml"), 3, "other_us -5.0"),
        (("--topology", "nvswitch-8gpu", "--nproc", "9"), 2, "9 ranks"),
        (("missing", "--nproc", "4"), 2, "goes with --topology"),
        (("--topology", "broken.json"), 3, "broken.json"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], code: int, told: str, collbench: Shell, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(NEGATIVE)
    (tmp_path / "broken.json").write_text("{")
    done = collbench("advise", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert told in done.stderr


def test_runs_that_cannot_be_used(collbench: Shell, tmp_path: Path) -> None:
    """Without samples, of a newer schema, without a cell that ended ok: one line, exit code 3."""
    failing = {"a": (Status.CRASHED, "it died")}
    made = {
        "empty": synthetic_run(tmp_path / "empty", costs={"a": (1.0, 1.0)}, finish=False),
        "newer": synthetic_run(tmp_path / "newer", costs={"a": (1.0, 1.0)}),
        "failed": synthetic_run(tmp_path / "failed", costs={"a": (1.0, 1.0)}, failing=failing),
    }
    (made["empty"].path / "samples.jsonl").write_text("")
    text = (made["newer"].path / "run.json").read_text()
    (made["newer"].path / "run.json").write_text(text.replace("collbench/1", "collbench/9"))
    for name, told in (
        ("empty", "no cell that ended ok"),
        ("newer", "collbench/9"),
        ("failed", "no cell that ended ok"),
    ):
        done = collbench("advise", str(made[name].path))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
        assert told in done.stderr


@pytest.mark.parametrize("name", ["box.toml", "nvswitch-8gpu"])
def test_a_machine_in_the_place_of_a_run_names_the_option(name: str, collbench: Shell, tmp_path: Path) -> None:
    (tmp_path / "box.toml").write_text("", encoding="utf-8")
    done = collbench("advise", name)
    said = f"collbench: {name} is no run folder: did you mean --topology {name}?\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_a_folder_of_launches_names_those_inside(collbench: Shell, tmp_path: Path) -> None:
    synthetic_run(tmp_path / "out" / "00-baseline", sizes=(1024,))
    done = collbench("advise", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"00-baseline; take one, as in collbench advise {tmp_path / 'out' / '00-baseline'}\n")
    assert "holds no run but 1 launch" in done.stderr


def test_advice_from_some_cells_of_a_run(collbench: Shell, tmp_path: Path) -> None:
    """As `export --only` takes them; a topology has none."""
    costs = {"nccl_ring_ll": (20.0, 0.1), "push": (4.0, 0.5)}
    run = synthetic_run(tmp_path / "run", costs=costs, modes=(Mode.GRAPH,), machine=MACHINE)
    done = collbench("advise", str(run.path), "--only", "algorithm=nccl_ring_ll", "--json")
    assert {row["algorithm"] for row in json.loads(done.stdout)["rows"]} == {"nccl_ring_ll"}
    refused = collbench("advise", "--topology", "two-h200-nvlink", "--only", "algorithm=push")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--only goes with a run folder" in refused.stderr
