"""The probes of a sweep: short, last, kept with the run, and never a reason to lose it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.contention.calibrate import read_parameters
from collbench.errors import InvalidError
from collbench.measure import probe_sweep
from collbench.measure.plan import Options
from collbench.measure.probe_plan import Task, pair_class, plan_probes
from collbench.measure.probe_sweep import probe_seconds, take_probes
from collbench.measure.probes import Prober
from collbench.results.probes import Probe, read_probes
from collbench.results.records import Fabric, Status
from collbench.testing import host_machine, synthetic_gpu_run
from collbench.topology import catalog
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--algorithms", "host_ring", "-b", "256", "--calls", "1", "-n", "3")
Run = Callable[[Sequence[Task]], Iterator[Probe]]


def topology(name: str = "two-flat-gen5-switches") -> Topology:
    return catalog.load(catalog.find(name))


def gpus() -> Machine:
    return Machine(topology(), Fabric.PCIE, 8)


def test_the_short_plan_still_sees_every_class_and_every_link() -> None:
    """One pair of each class, copies through every rank's link in both directions, all patterns of degraded states."""
    box = topology("two-pex890xx-virtual-switches")
    tasks, whole = plan_probes(8, box, "cuda", short=True), plan_probes(8, box, "cuda")
    assert len(tasks) < 0.3 * len(whole)
    assert set(tasks) <= set(whole), "it measures nothing that collbench probe does not"
    classes = {pair_class(box, a, b) for a in range(8) for b in range(8) if a != b}
    for kind in ("flag", "read_chain"):
        assert {pair_class(box, *t.flows[0]) for t in tasks if t.kind == kind} == classes
    copies = [t.flows[0] for t in tasks if (t.mechanism, t.pattern) == ("copy", "solo")]
    assert {src for src, _ in copies} == {dst for _, dst in copies} == set(range(8))
    patterns = {t.pattern for t in tasks}
    assert {"both_ways", "all_to_all", "2_below_one_root", "2_below_two_roots"} <= patterns
    assert "all_to_all_4" in {t.pattern for t in plan_probes(8, topology(), "cuda", short=True)}


@pytest.mark.parametrize(("budget_s", "seconds"), [(None, 20.0), (45.0, 9.0), (600.0, 20.0), (4.0, 0.0)])
def test_a_part_of_the_budget_is_kept(budget_s: float | None, seconds: float) -> None:
    assert probe_seconds(Options(budget_s=budget_s), gpus()) == pytest.approx(seconds)
    assert probe_seconds(Options(budget_s=budget_s), host_machine(2)) == pytest.approx(min(3.0, seconds))


def test_where_there_is_nothing_to_probe() -> None:
    """One rank has no peer, ranks of several hosts share no memory, and --no-probe says no."""
    assert probe_seconds(Options(), host_machine(1)) == 0.0
    assert probe_seconds(Options(probe=False), host_machine(8)) == 0.0
    assert probe_seconds(Options(), Machine(topology(), Fabric.NETWORK, 16, hosts=2)) == 0.0


def test_they_are_kept_and_taken_once(tmp_path: Path) -> None:
    """A second call, as of a resumed sweep, takes what is missing only; a damaged file is begun anew."""
    said: list[str] = []
    take_probes(tmp_path, host_machine(2), 20.0, said.append)
    probes, problems = read_probes(tmp_path)
    assert (len(probes), problems) == (len(plan_probes(2, Topology((), ()), "cpu", short=True)), [])
    assert all(probe.status is Status.OK for probe in probes)
    assert said[0].startswith(f"probes: {len(probes)} of {len(probes)} in ")
    take_probes(tmp_path, host_machine(2), 20.0, said.append)
    assert len(said) == 1
    text = (tmp_path / "probes.jsonl").read_text()
    (tmp_path / "probes.jsonl").write_text("".join(text.splitlines(keepends=True)[:2]))
    take_probes(tmp_path, host_machine(2), 20.0, said.append)
    assert said[1].startswith(f"probes: {len(probes) - 2} of {len(probes) - 2} in ")
    (tmp_path / "probes.jsonl").write_text(text[:-20])
    take_probes(tmp_path, host_machine(2), 20.0, said.append)
    assert len(read_probes(tmp_path)[0]) == len(probes)
    assert [path.name for path in tmp_path.iterdir()] == ["probes.jsonl"]


def fake(monkeypatch: pytest.MonkeyPatch, run: Run, enter: Exception | None = None) -> None:
    """A prober that gives what `run` gives, or cannot even start."""

    class Fake:
        def __init__(self, *args: object, **options: object) -> None:
            return None

        def __enter__(self) -> Any:
            if enter is not None:
                raise enter
            return SimpleNamespace(run=lambda tasks, *_: run(tasks))

        def __exit__(self, *args: object) -> None:
            return None

    monkeypatch.setattr(probe_sweep, "Prober", Fake)


def test_what_they_show_becomes_the_runs_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the short plan alone, on figures that the model itself gives: launch and the links are identified."""
    whole = read_probes(synthetic_gpu_run(tmp_path / "whole", launches=1, iterations=3).path)[0]
    given = {(probe.name, probe.pattern, probe.flows): probe for probe in whole}

    def run(tasks: Sequence[Task]) -> Iterator[Probe]:
        keys = [(task.name, task.pattern, task.flows) for task in tasks]
        yield from (given[key] for key in keys if key in given)

    fake(monkeypatch, run)
    begin = time.monotonic()
    take_probes(tmp_path, gpus(), 9.0, lambda _: None)
    assert time.monotonic() - begin < 20
    assert read_parameters(tmp_path) is not None
    fitted = json.loads((tmp_path / "parameters.json").read_text())
    identified = {row["name"] for row in fitted["rows"] if row["identified"]}
    assert "launch.graph" in identified
    assert {row["state"] for row in fitted["regimes"]} <= {"absent", "untested"}


def test_a_degraded_fabric_is_said_when_the_sweep_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the table of times right now reads what they are worth."""

    def run(tasks: Sequence[Task]) -> Iterator[Probe]:
        for task in tasks:
            if task.pattern == "solo" and task.mechanism in {"load", "copy"}:
                value = 1.45 if task.mechanism == "load" else 54.0
                yield Probe(task.name, task.pattern, *task.ends, task.flows, 1 << 20, value, task.unit)

    fake(monkeypatch, run)
    said: list[str] = []
    take_probes(tmp_path, gpus(), 9.0, said.append)
    assert [line for line in said if line.startswith("degraded: staging through system memory: ")]
    assert (tmp_path / "parameters.json").is_file()


@pytest.mark.parametrize("status", [Status.HUNG, Status.CRASHED])
def test_the_first_that_hangs_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    """What came before is kept, the failure stands there with its reason, nothing else is tried."""

    def run(tasks: Sequence[Task]) -> Iterator[Probe]:
        yield Probe(tasks[0].name, tasks[0].pattern, value=1.2)
        yield Probe(tasks[1].name, tasks[1].pattern, status=status, reason="rank 3 waited 2 s for rank 4")
        raise AssertionError("asked again")

    fake(monkeypatch, run)
    said: list[str] = []
    take_probes(tmp_path, Machine(topology(), Fabric.SHARED_GPU, 8, share_gpu=True), 9.0, said.append)
    assert [probe.status for probe in read_probes(tmp_path)[0]] == [Status.OK, status]
    assert said[0] == f"probes: 1 of 39, then barrier {status}: rank 3 waited 2 s for rank 4"


def test_what_cannot_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MPS daemon that does not come, a full disk: the sweep's cells are measured all the same."""
    fake(monkeypatch, lambda _: iter(()), InvalidError("nvidia-cuda-mps-control: no answer"))
    said: list[str] = []
    take_probes(tmp_path, gpus(), 9.0, said.append)
    assert said == ["probes: 0 of 39: nvidia-cuda-mps-control: no answer"]


def sweep(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "collbench.sweep", *words], env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_sweep_takes_them_unless_told_otherwise(tmp_path: Path) -> None:
    """The option is kept in the run; a gate's launches leave them out by a variable, which old releases ignore."""
    done = sweep("--nproc", "2", *QUICK, "--out", str(tmp_path / "with"))
    assert done.returncode == 0, done.stderr
    assert "probes: " in done.stderr
    assert (tmp_path / "with" / "probes.jsonl").is_file()
    for name, words, variables in (("option", ["--no-probe"], {}), ("variable", [], {"COLLBENCH_NO_PROBE": "1"})):
        done = sweep("--nproc", "2", *QUICK, *words, "--out", str(tmp_path / name), **variables)
        assert (done.returncode, "probes" in done.stderr) == (0, False)
        assert not (tmp_path / name / "probes.jsonl").exists()
        assert json.loads((tmp_path / name / "run.json").read_text())["settings"]["probe"] is False
    assert sweep("--resume", str(tmp_path / "option")).returncode == 0
    assert not (tmp_path / "option" / "probes.jsonl").exists()


def test_a_sweep_that_is_stopped_in_its_probes_is_resumed(tmp_path: Path) -> None:
    """Every cell is there, exit 143, no work folder; resuming takes the rest of the probes and no cell again."""
    run = tmp_path / "run"
    words = [sys.executable, "-m", "collbench.sweep", "--nproc", "8", *QUICK, "--out", str(run)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        limit = time.monotonic() + 40
        while not (run / "probes.jsonl").exists() and time.monotonic() < limit:
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        told = process.stderr.read().decode()
        assert process.wait(20) in {143, 0}, told
    cells = (run / "samples.jsonl").read_text()
    done = sweep("--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert (run / "samples.jsonl").read_text() == cells
    assert len(read_probes(run)[0]) == len(plan_probes(8, Topology((), ()), "cpu", short=True))
    assert sorted(path.name for path in run.iterdir() if path.name.startswith(".")) == []


def test_a_prober_of_nothing_needs_no_workers(tmp_path: Path) -> None:
    with Prober(host_machine(2), "cpu", tmp_path) as prober:
        assert list(prober.run([], 1.0, lambda _: None)) == []
