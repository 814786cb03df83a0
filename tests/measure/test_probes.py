"""Microbenchmarks: the plan covers the wiring, answers fold into records, and failures cost their own task only."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from collbench.cli import main
from collbench.contention.regimes import root_of
from collbench.measure.probe_plan import Task, pair_class, plan_probes
from collbench.measure.probes import Prober, fold
from collbench.results.probes import read_probes
from collbench.results.records import Status
from collbench.testing import host_machine
from collbench.topology import catalog
from collbench.topology.graph import Topology


def machine_file(name: str) -> Topology:
    return catalog.load(catalog.find(name))


def test_plan_measures_every_pair_and_every_class_under_load() -> None:
    """Flags and reads for every pair, loads for one pair of each class, everything together."""
    topology = machine_file("two-flat-gen5-switches")
    tasks = plan_probes(8, topology, "cuda")
    assert len([t for t in tasks if t.kind == "flag"]) == 28
    assert len([t for t in tasks if t.kind == "read_chain"]) == 56
    solo = [t for t in tasks if t.mechanism == "load" and t.pattern == "solo"]
    assert {pair_class(topology, *t.flows[0]) for t in solo} == {pair_class(topology, 0, 1), pair_class(topology, 0, 4)}
    patterns = {t.pattern: t.flows for t in tasks if t.mechanism == "store"}
    assert len(patterns["all_to_all"]) == 56
    assert set(patterns["all_to_all_4"]) <= {(a, b) for a in range(4) for b in range(4)}
    assert {a for a, _ in patterns["4_to_one"]} == {4, 5, 6, 7}, "a fan reads across the processor first"


def test_plan_looks_for_write_collapse_where_it_can_show() -> None:
    """It takes one root port to write from and two to write to; two-switch boxes have no third."""
    collapse = {t.pattern: t.flows for t in plan_probes(8, machine_file("two-pex890xx-virtual-switches"), "cuda")}
    topology = machine_file("two-pex890xx-virtual-switches")
    roots = {root_of(topology, dst) for _, dst in collapse["2_below_two_roots"]}
    assert len(roots) == 2
    assert len({root_of(topology, dst) for _, dst in collapse["2_below_one_root"]}) == 1
    flat = plan_probes(8, machine_file("two-flat-gen5-switches"), "cuda")
    assert not [t for t in flat if t.pattern.endswith("roots")]


def test_plan_without_a_topology_still_has_all_pairs() -> None:
    """Ranks on processors have no GPUs in the topology."""
    tasks = plan_probes(4, Topology((), ()), "cpu")
    assert {t.kind for t in tasks} == {"barrier", "flag", "bandwidth"}
    assert [t.pattern for t in tasks if t.kind == "barrier"] == ["", "of_2"]
    assert len(plan_probes(3, Topology((), ()), "cuda", litmus=True)) == 12


def test_bandwidth_is_all_bytes_over_first_start_to_last_end() -> None:
    task = Task("bandwidth", ((0, 1), (2, 1)), "store", "2_to_one", "GB/s")
    late = {"begin": [0.5, 0.5], "end": [1.0, 1.0], "bytes": 1_000_000_000}
    early = {"begin": [0.0, 0.0], "end": [0.4, 0.4], "bytes": 1_000_000_000}
    probe = fold(task, [{"answer": early}, {"answer": {}}, {"answer": late}])
    assert (probe.value, probe.src, probe.dst, probe.bytes) == (2.0, -1, 1, 1_000_000_000)


def test_latency_is_the_slowest_ranks() -> None:
    probe = fold(Task("barrier"), [{"answer": {"us": [1.0, 2.0, 3.0]}}, {"answer": {"us": [4.0, 5.0, 6.0]}}])
    assert probe.value == 5.0
    assert probe.spread == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("answers", "status", "words"),
    [
        ([{"failed": "hung", "reason": "waited"}, {"failed": "peer", "reason": ""}], Status.HUNG, "rank 0: waited"),
        ([{"answer": {}}, {"answer": {}}], Status.CRASHED, "no rank"),
        ([{"answer": {"violations": 0, "looks": 0}}], Status.CRASHED, "never looked"),
        ([{"answer": {"us": []}}], Status.CRASHED, "above zero"),
        ([{"answer": {"us": [-3.0, 1.0, -2.0]}}], Status.WRONG, "came out as -2 us"),
        ([{"answer": {"us": [0.0]}}], Status.WRONG, "came out as 0 us"),
    ],
)
def test_no_answer_is_no_number(answers: list[dict[str, Any]], status: Status, words: str) -> None:
    """Whatever a rank says instead of a number becomes a status with a reason."""
    probe = fold(Task("flag", ((0, 1),)), answers)
    assert (probe.status, probe.value) == (status, None)
    assert words in probe.reason


def test_a_rank_that_dies_costs_its_task_only(tmp_path: Path) -> None:
    """A task that no worker knows fails, the next one runs in the same or a fresh group; nothing is left behind."""
    tasks = [Task("nonsense", ((0, 7),)), Task("barrier")]
    with Prober(host_machine(2), "cpu", tmp_path, timeout_s=10) as prober:
        found = list(prober.run(tasks, 30.0, lambda _: None))
    assert found[0].status is Status.CRASHED
    assert found[1].status is Status.OK
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_killed_costs_its_task_only(tmp_path: Path) -> None:
    """SIGKILL of a worker: its task says so, the next ones run in a fresh group, and no process is left."""
    pids: list[int] = []

    with Prober(host_machine(2), "cpu", tmp_path, timeout_s=20) as prober:

        def kill_second(task: Task) -> None:
            group = prober._team._group
            if task.pattern == "victim" and group is not None:
                os.kill(group.pids[1], signal.SIGKILL)
            pids.extend(group.pids if group is not None else ())

        tasks = [Task("barrier"), Task("barrier", pattern="victim"), Task("barrier")]
        found = list(prober.run(tasks, 60.0, kill_second))
        pids.extend(prober._team._group.pids if prober._team._group else ())
    assert [probe.status for probe in found] == [Status.OK, Status.CRASHED, Status.OK]
    assert "rank 1" in found[1].reason
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_budget_ends_the_probes(tmp_path: Path) -> None:
    with Prober(host_machine(2), "cpu", tmp_path) as prober:
        found = list(prober.run([Task("barrier")], 0.0, lambda _: None))
    assert [(p.status, p.reason) for p in found] == [(Status.NOT_RUN, "the budget of 0 s was used up")]


def test_command_keeps_every_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is what stands in the folder."""
    assert main(["probe", "--host", "--nproc", "2", "--out", str(tmp_path / "run"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    kept, problems = read_probes(tmp_path / "run")
    assert (data["schema"], data["kind"], data["fabric"], problems) == ("collbench/1", "probe", "host", [])
    assert [probe.row() for probe in kept] == data["rows"]
    assert {probe.name for probe in kept} == {"barrier", "flag", "bandwidth.load", "bandwidth.store"}
    assert all(probe.value for probe in kept)


def test_litmus_on_processors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """x86-64 keeps the order of data and flag; the pairs of 8-byte words do tear, so the test is able to see it."""
    assert main(["probe", "--host", "--nproc", "2", "--litmus", "--out", str(tmp_path / "run"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(r["name"], r["status"]) for r in rows} == {("litmus_message", "ok"), ("litmus_torn", "ok")}
    assert [r["value"] for r in rows if r["name"] == "litmus_message"] == [0.0, 0.0]


def test_litmus_without_a_gpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is about GPUs: what processors do is told where somebody asks for them."""
    assert main(["probe", "--litmus", "--nproc", "2", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "no NVIDIA GPU here" in said.err
    assert "--host --litmus" in said.err
    assert not (tmp_path / "run").exists()


def test_probes_of_processors_say_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No state of a fabric is judged, and nobody takes a copy through the cache for a link."""
    assert main(["probe", "--host", "--nproc", "2", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "say nothing of GPUs or links" in out
    assert "untested" not in out


def children_of(pid: int) -> set[int]:
    """Descendants of a process."""
    found = {int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return found | {grandchild for child in found for grandchild in children_of(child)}


def test_a_signal_ends_everything_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """SIGTERM in the middle: exit 130, no process and no working folder left, every line whole."""
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "collbench", "probe", "--host", "--nproc", "8", "--out", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        limit = time.monotonic() + 30
        while not (folder / "probes.jsonl").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        below = children_of(process.pid)
        process.terminate()
        assert process.wait(20) == 130
    assert below
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "probes.jsonl", "run.json"]
    probes, problems = read_probes(folder)
    assert probes
    assert problems == []


def test_a_gpu_that_is_not_there_cannot_be_shared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rather than measuring processors under another name."""
    assert main(["probe", "--share-gpu", "--nproc", "2", "--out", str(tmp_path / "run")]) == 2
    assert "no NVIDIA GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--nproc", "1"], ["--nproc", "99"]])
def test_numbers_of_ranks_that_do_not_fit(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--host", *words]) == 2
    assert "--nproc" in capsys.readouterr().err
