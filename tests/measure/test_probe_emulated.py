"""`collbench probe --share-gpu` from the command line to the kernels, 8 processes on a GPU that the processor plays.

Workers, channel, MPS daemon, shared memory, the bench and the device code are the real ones; the driver below them and
torch are tests/packages/emulated. What a real device would do with memory order, time and residency is not shown.
"""

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collbench.algorithms.cuda.compile import source
from collbench.cli import main
from collbench.measure import probes
from collbench.measure.probe_plan import plan_probes
from collbench.measure.probe_sweep import take_probes
from collbench.results.probes import read_probes
from collbench.results.records import Fabric, Status
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
ONE = Topology((Node("gpu0", NodeKind.GPU),), (), "one GPU")
SHARED = Machine(ONE, Fabric.SHARED_GPU, 8, share_gpu=True, facts={"arch": "sm_90"})
MAIN = """
#include <sched.h>
static const ProbeArgs* job;
static void body() {
  Fiber* self = current;
  run_probe(*job, self->block);
  self->done = true;
  leave();
}
extern "C" void emulate(const ProbeArgs* args, u32 blocks, u32 threads_per_block, u64 seed) {
  job = args;
  per_block = threads_per_block, blocks_of_rank = blocks, random_state = seed * 2654435761u + 88172645463325252ull;
  barriers.assign(blocks, Barrier{}), warps.assign(blocks * 16, Barrier{});
  fibers = std::vector<Fiber>(blocks * threads_per_block);
  for (unsigned i = 0; i < fibers.size(); ++i) {
    Fiber& f = fibers[i];
    f.rank = 0, f.block = i / per_block, f.thread = i % per_block;
    f.stack.resize(1 << 15);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, body, 0);
  }
  unsigned turns = 0;
  for (unsigned left = (unsigned)fibers.size(); left != 0;) {
    if (++turns % 16 == 0) sched_yield();  // the ranks are more than the processors
    Fiber& f = fibers[draw() % (unsigned)fibers.size()];
    if (f.done) continue;
    current = &f;
    swapcontext(&scheduler, &f.context);
    if (f.done) --left;
  }
}
"""
Emulated = Callable[..., Path]
BUSY = "the time came out as -"
"""How a launch ends that the load of this machine hid; what it measures is no time of a GPU anyway."""


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device code for one rank."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to build the device code for the CPU")
    text, folder = source(probes=True), tmp_path_factory.mktemp("probe")
    device = text[text.index('#line 1 "probes.cuh"') :]
    (folder / "probe.cc").write_text(f'#include "emulator.h"\n{device}\n{MAIN}')
    words = ["-std=c++17", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-shared", "-fPIC"]
    headers = f"-I{ROOT / 'tests' / 'algorithms' / 'cuda'}"
    command = [compiler, *words, headers, str(folder / "probe.cc"), "-o", str(folder / "probe.so")]
    subprocess.run(command, check=True, timeout=100)
    return folder / "probe.so"


@pytest.fixture
def gpu(kernel: Path, fake_mps: pytest.MonkeyPatch, tmp_path: Path) -> Emulated:
    """One GPU for this process and its workers; gives the folder that all of them share."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    shutil.copy(kernel, folder / "probe.so")
    packages = f"{ROOT / 'tests' / 'packages' / 'emulated'}:{ROOT}"
    fake_mps.setenv("COLLBENCH_EMULATED", str(folder))
    fake_mps.setenv("PYTHONPATH", packages)
    fake_mps.setenv("CUDA_VISIBLE_DEVICES", "0")
    fake_mps.setattr(probes, "_BENCH", {"cuda": ("emulated:bench", ("numpy",))})
    fake_mps.setattr("collbench.topology.discover.machine", lambda **_: SHARED)

    def fault(text: str = "", deadline_ms: int = 20_000) -> Path:
        fake_mps.setenv("COLLBENCH_EMULATED_FAULT", text)
        fake_mps.setenv("COLLBENCH_EMULATED_DEADLINE_MS", str(deadline_ms))
        return folder

    return fault


def probe(out: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """Run the command in this process: exit code, its JSON, its stderr."""
    code = main(["probe", "--share-gpu", "--nproc", "8", "--budget", "300s", "--out", str(out), "--json", *words])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_ranks_measure_everything(gpu: Emulated, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every task of the whole plan ends ok, with one record each; no memory of the device is left, and no daemon."""
    folder = gpu()
    code, data, said = probe(tmp_path / "run", capsys)
    told = [
        (row["name"], row["pattern"], row["status"], row["reason"]) for row in data["rows"] if row["status"] != "ok"
    ]
    bad = [one for one in told if not one[-1].startswith(BUSY)]
    assert (code, bad) == (0, []), said
    assert len(data["rows"]) == len(plan_probes(8, ONE, "cuda"))
    assert all(row["value"] > 0 for row in data["rows"] if row["status"] == "ok")
    launches = {"launch", "launch_eager", "launch_alone", "launch_meet", "launch_early"}
    names = {*launches, "barrier", "barrier_fence", "flag", "read_chain"}
    assert names < {row["name"] for row in data["rows"]}
    assert (data["fabric"], read_probes(tmp_path / "run")[1]) == ("shared-gpu", [])
    states = {row["regime"]: row["state"] for row in data["regimes"]}
    assert states["posted-write collapse"] == "untested", "there are no links to judge"
    assert [path.name for path in folder.iterdir()] == ["probe.so"]


@pytest.mark.timeout(300)
def test_eight_ranks_pass_the_litmus(gpu: Emulated, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every ordered pair: no message overtakes its flag on x86; vectors that are written word by word are seen torn."""
    gpu()
    code, data, said = probe(tmp_path / "run", capsys, "--litmus")
    assert code == 0, said
    messages = [row for row in data["rows"] if row["name"] == "litmus_message"]
    torn = [row for row in data["rows"] if row["name"] == "litmus_torn"]
    assert {(row["src"], row["dst"]) for row in messages} == {(a, b) for a in range(8) for b in range(8) if a != b}
    assert {(row["status"], row["value"]) for row in messages} == {("ok", 0.0)}
    assert all("without fences" in row["reason"] for row in messages)
    assert len(torn) == 56
    assert sum(row["value"] for row in torn) > 0
    order = next(row for row in data["regimes"] if row["regime"] == "memory order")
    assert (order["state"], order["evidence"]) == ("absent", "56 pairs keep the order")


@pytest.mark.timeout(120)
def test_a_rank_that_dies_costs_its_task(gpu: Emulated, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under MPS a fault takes all clients along: the daemon is started anew, the next task runs in a fresh group."""
    gpu("die 5 barrier_fence")
    monkey = pytest.MonkeyPatch()
    monkey.setattr("collbench.measure.probe_plan.plan_probes", few)
    try:
        code, data, _ = probe(tmp_path / "run", capsys)
    finally:
        monkey.undo()
    told = {row["name"]: (row["status"], row["reason"]) for row in data["rows"]}
    assert code == 0
    assert told["barrier_fence"][0] == "crashed"
    assert "rank 5" in told["barrier_fence"][1]
    assert {name: told[name][0] for name in ("launch", "barrier", "flag")} == dict.fromkeys(
        ("launch", "barrier", "flag"), "ok"
    )


def few(*args: Any, **options: Any) -> list[Any]:
    """The first tasks of the plan: launch, barriers and a flag."""
    tasks = plan_probes(*args, **options)
    return [*tasks[:3], next(task for task in tasks if task.kind == "flag")]


@pytest.mark.timeout(120)
def test_a_rank_that_stays_away_ends_by_the_kernels_own_deadline(
    gpu: Emulated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others wait in their kernels, give up and say for whom: nobody waits for the supervisor's deadline."""
    gpu("away 3 barrier", deadline_ms=3000)
    monkey = pytest.MonkeyPatch()
    monkey.setattr("collbench.measure.probe_plan.plan_probes", few)
    try:
        code, data, _ = probe(tmp_path / "run", capsys)
    finally:
        monkey.undo()
    told = {row["name"]: (row["status"], row["reason"]) for row in data["rows"]}
    assert code == 0
    assert told["barrier"][0] == "hung"
    assert "rank 3" in told["barrier"][1]
    assert told["flag"][0] == "ok"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_sweeps_probes_calibrate_a_shared_gpu(gpu: Emulated, tmp_path: Path) -> None:
    """The short plan behind a sweep, on the same workers, and parameters from it."""
    gpu()
    before = signal.getsignal(signal.SIGINT)
    out, said = tmp_path / "run", list[str]()
    out.mkdir()
    take_probes(out, SHARED, 60.0, said.append)
    taken, problems = read_probes(out)
    told = [(one.name, one.status, one.reason) for one in taken if one.status is not Status.OK]
    bad = [one for one in told if not one[-1].startswith(BUSY)]
    assert (bad, problems) == ([], []), said
    assert len(taken) == len(plan_probes(8, ONE, "cuda", short=True))
    assert (out / "parameters.json").is_file()
    assert signal.getsignal(signal.SIGINT) is before
