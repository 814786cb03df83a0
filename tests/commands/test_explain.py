"""`collbench explain` on runs of each kind."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.results.probes import Probe, append_probe
from collbench.results.records import Call, Cell, Fabric, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.testing import synthetic_gpu_run
from collbench.topology import catalog
from collbench.topology.machine import Machine

Shell = Callable[..., subprocess.CompletedProcess[str]]
CALL = Call(43_008, 8)
PUSH, RING = Cell("push", CALL, Mode.GRAPH, 122), Cell("nccl_ring_ll", CALL, Mode.GRAPH, 122)
HOST = Cell("host_ring", CALL, Mode.EAGER, 1)


def write(path: Path, fabric: Fabric, times: dict[Cell, float | None]) -> None:
    """A run with one launch; a cell without a time hung."""
    topology = catalog.load(catalog.find("two-flat-gen5-switches"))
    run = Run(
        run_id="r", created="2026-01-01T00:00:00Z", command=(), version="0", fabric=fabric, world_size=8, launches=1,
        cells=tuple(times), machine=Machine(topology, fabric, 8).as_dict(),
    )  # fmt: skip
    with RunFolder.create(path, run) as folder:
        for cell, us in times.items():
            if us is None:
                folder.append(Samples(cell.cell_id, 0, Status.HUNG, "no end"))
            else:
                folder.append(Samples(cell.cell_id, 0, Status.OK, "", (), cell.calls, ((us, us),) * 8))
        folder.finish()


def test_a_run_over_pcie(collbench: Shell, tmp_path: Path) -> None:
    """What fits is split, with the link by name; what is ten times too slow gets a test; what hung is left out."""
    write(tmp_path / "run", Fabric.PCIE, {PUSH: 19.0, RING: 240.0, Cell("islands", CALL, Mode.GRAPH, 122): None})
    done = collbench("explain", "run")
    assert done.returncode == 0, done.stderr
    push, ring, *regimes = done.stdout.splitlines()
    assert re.match(r"\[graph, 122 calls\] push, 43,008 B: \S+ us predicted \(measured 19.0, ", push)
    assert "switch0 -> root0, shared by 16 flows" in push
    assert "Test for NCCL on shared memory or the network" in ring
    assert regimes[0] == ""
    assert any(line.startswith("untested") and "run collbench probe" in line for line in regimes)


def test_one_cell_by_its_name_or_a_part_of_it(collbench: Shell, tmp_path: Path) -> None:
    write(tmp_path / "run", Fabric.PCIE, {PUSH: 19.0, RING: 24.0})
    whole, part = collbench("explain", "run", PUSH.cell_id), collbench("explain", "run", "/push/")
    assert whole.stdout == part.stdout
    assert whole.stdout.count("us predicted") == 1


def test_records(collbench: Shell, tmp_path: Path) -> None:
    write(tmp_path / "run", Fabric.PCIE, {PUSH: 19.0})
    data = json.loads(collbench("explain", "run", "--json").stdout)
    assert (data["schema"], data["kind"]) == ("collbench/1", "explain")
    (row,) = data["rows"]
    assert row["cell_id"] == PUSH.cell_id
    assert row["verdict"] == "explained"
    assert row["measured_us"] == 19.0
    assert row["sentence"].startswith("push")


def test_a_run_on_processors_blames_no_link(collbench: Shell, tmp_path: Path) -> None:
    write(tmp_path / "run", Fabric.HOST, {HOST: 31.5})
    append_probe(tmp_path / "run", Probe("flag", "pair", 0, 1, ((0, 1),), 0, 0.5))
    done = collbench("explain", "run")
    assert "31.5 us measured, not predicted: 8 ranks on processors" in done.stdout
    assert "14 flags in a row 7.00 us at least" in done.stdout
    assert "->" not in done.stdout
    (row,) = json.loads(collbench("explain", "run", "--json").stdout)["rows"]
    assert (row["verdict"], row["parts_us"]) == ("not_modelled", {"flags": 7.0})


def test_cells_on_processors_are_one_table(collbench: Shell, tmp_path: Path) -> None:
    """What holds of all is said once, above; a script gets a line for each cell."""
    other = Cell("host_ring", CALL, Mode.EAGER, 122)
    write(tmp_path / "run", Fabric.HOST, {HOST: 31.5, other: 12.25})
    append_probe(tmp_path / "run", Probe("flag", "pair", 0, 1, ((0, 1),), 0, 0.5))
    head, names, *lines = collbench("explain", "run").stdout.splitlines()
    assert head.startswith("Not predicted: 8 ranks on processors wait")
    assert "flags (flags that fly one after the other) take at least this" in head
    assert names.split() == ["algorithm", "mode", "bytes", "calls", "measured", "flags", "rest", "p99"]
    assert lines[0].split() == ["host_ring", "eager", "43008", "1", "31.5", "7.00", "24.5", "31.5"]
    assert lines[1].split() == ["host_ring", "eager", "43008", "122", "12.2", "7.00", "5.25", "12.2"]
    assert lines[2] == ""


@pytest.mark.parametrize(("fabric", "times"), [
    (Fabric.HOST, {HOST: 31.5, replace(HOST, calls=8): 9.0}), (Fabric.PCIE, {PUSH: 19.0, RING: 240.0}),
])  # fmt: skip
def test_nothing_reaches_beyond_a_terminal(
    on_terminal: Callable[..., str], tmp_path: Path, fabric: Fabric, times: dict[Cell, float | None]
) -> None:
    write(tmp_path / "run", fabric, times)
    told = on_terminal(80, "explain", "run")
    assert "Degraded states" in told
    assert max(map(len, told.splitlines())) <= 80


COPIES = (
    Probe("bandwidth.copy", "solo", 0, 1, ((0, 1),), 1 << 20, 54.0, "GB/s"),
    Probe("bandwidth.load", "solo", 0, 1, ((0, 1),), 1 << 20, 1.45, "GB/s"),
)


def test_a_state_that_the_probes_show_is_named(collbench: Shell, tmp_path: Path) -> None:
    """A pull that takes ten times its prediction where loads go through system memory; the parameters stay priors."""
    write(tmp_path / "run", Fabric.PCIE, {Cell("one_stage_pull", CALL, Mode.GRAPH, 122): 240.0, PUSH: 19.0})
    for probe in COPIES:
        append_probe(tmp_path / "run", probe)
    done = collbench("explain", "run")
    assert "This run shows staging through system memory: rank 1 reads rank 0: 1.4" in done.stdout
    assert "ForceP2P" in done.stdout
    data = json.loads(collbench("explain", "run", "--json").stdout)
    pull = next(row for row in data["rows"] if row["algorithm"] == "one_stage_pull")
    assert (pull["verdict"], pull["found"]["regime"]) == ("unexplained", "staging through system memory")
    states = {row["regime"]: row["state"] for row in data["regimes"]}
    assert (states["staging through system memory"], states["posted-write collapse"]) == ("present", "untested")


def test_a_run_of_probes_alone_names_who_looks_at_it(collbench: Shell, tmp_path: Path) -> None:
    write(tmp_path / "run", Fabric.PCIE, {})
    done = collbench("explain", "run")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "collbench doctor run" in done.stderr


def test_damaged_probes_are_said_and_cost_no_explanation(collbench: Shell, tmp_path: Path) -> None:
    write(tmp_path / "run", Fabric.PCIE, {PUSH: 19.0})
    (tmp_path / "run" / "probes.jsonl").write_text("{broken\n")
    done = collbench("explain", "run")
    assert done.returncode == 0
    assert "probes.jsonl" in done.stderr
    assert "push, 43,008 B" in done.stdout


def test_a_run_on_a_shared_gpu_blames_no_link(collbench: Shell, tmp_path: Path) -> None:
    write(tmp_path / "run", Fabric.SHARED_GPU, {PUSH: 5.0, RING: 24.0})
    done = collbench("explain", "run")
    assert done.stdout.startswith("Ranks share one GPU: no link is involved. 100% of the prediction rests on priors.\n")
    assert done.stdout.count("no link is involved") == done.stdout.count("rests on priors") == 1
    assert "->" not in done.stdout
    (row, _) = json.loads(collbench("explain", "run", "--json").stdout)["rows"]
    assert "no link is involved" in row["sentence"]


def test_a_cell_is_not_blamed_on_ranks_that_came_late_in_others(collbench: Shell, tmp_path: Path) -> None:
    """Single calls on a shared GPU have ranks' times far apart, as their launches queue; the chains do not."""
    single = replace(PUSH, calls=1)
    write(tmp_path / "run", Fabric.SHARED_GPU, {PUSH: 50.0})
    with RunFolder.open(tmp_path / "run") as folder:
        run = replace(folder.run, run_id="both", cells=(PUSH, single))
    with RunFolder.create(tmp_path / "both", run) as folder:
        folder.append(Samples(PUSH.cell_id, 0, Status.OK, "", (), PUSH.calls, ((50.0, 50.0),) * 8))
        folder.append(Samples(single.cell_id, 0, Status.OK, "", (), 1, ((20.0, 20.0),) * 7 + ((60.0, 60.0),)))
        folder.finish()
    told = collbench("explain", "both").stdout
    assert "The run shows no entry skew that would do." in told
    assert "1 cells of single calls has ranks' times 67% apart" in told
    assert "on a shared GPU the model knows captured chains only" in told


def test_a_run_that_lost_its_machine_blames_no_link(collbench: Shell, tmp_path: Path) -> None:
    write(tmp_path / "run", Fabric.PCIE, {PUSH: 19.0})
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": {}}))
    done = collbench("explain", "run")
    assert done.returncode == 0, done.stderr
    assert "not predicted" in done.stdout


@pytest.mark.parametrize(("words", "code", "said"), [
    (("run", "warp"), 2, "no cell of 2 is or contains 'warp'"), (("none",), 2, "none"),
    (("run", "islands"), 3, "none of 1 cells was measured"),
])  # fmt: skip
def test_nothing_to_explain(collbench: Shell, tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    write(tmp_path / "run", Fabric.PCIE, {PUSH: 19.0, Cell("islands", CALL, Mode.GRAPH, 122): None})
    done = collbench("explain", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_parameters_that_cannot_serve_are_refused_as_the_report_does(collbench: Shell, tmp_path: Path) -> None:
    """Those of another fabric, and those of ranks on processors, which no `calibrate` makes."""
    write(tmp_path / "run", Fabric.PCIE, {PUSH: 19.0})
    write(tmp_path / "host", Fabric.HOST, {HOST: 19.0})
    for run, parameters, said in (
        ("host", "run", "its parameters are of fabric pcie, and the run's is host"),
        ("run", "host", "its parameters are of fabric host, and the run's is pcie"),
        ("host", "host", "ranks on processors: the model has no parameters for them"),
    ):
        for command in ("explain", "report"):
            done = collbench(command, run, "--parameters", parameters)
            assert (done.returncode, done.stdout) == (3, "")
            assert done.stderr == f"collbench: {parameters}: {said}\n"
    done = collbench("predict", "two-h200-nvlink", "--parameters", "host")
    assert done.returncode == 3
    assert "ranks on processors" in done.stderr


def test_the_cell_may_stand_behind_the_options(collbench: Shell, tmp_path: Path) -> None:
    write(tmp_path / "run", Fabric.PCIE, {PUSH: 19.0, RING: 30.0})
    for words in (("run", "ring", "--json"), ("run", "--json", "ring"), ("--json", "run", "ring")):
        done = collbench("explain", *words)
        assert done.returncode == 0, done.stderr
        assert [row["algorithm"] for row in json.loads(done.stdout)["rows"]] == ["nccl_ring_ll"]
    done = collbench("explain", "run", "ring", "--json", "push")
    assert (done.returncode, done.stderr) == (2, "collbench: unexpected word 'push'; see collbench explain --help\n")


@pytest.mark.slow
def test_lost_evidence_is_told_and_no_sweep_is_advised(collbench: Shell, tmp_path: Path) -> None:
    """Logs of NCCL were there: to measure again is not what is missing."""
    made = synthetic_gpu_run(tmp_path / "run", sizes=(4096,), launches=1)
    path = made.path / "evidence.jsonl"
    for told in ("evidence.jsonl line 1: not JSON", "evidence.jsonl is missing: what really ran is not known of "):
        if "missing" in told:
            path.unlink()
        else:
            path.write_text("noise\n")
        for command in ("explain", "report"):
            done = collbench(command, "run")
            assert done.returncode == 0
            assert done.stderr.startswith(f"collbench: {told}")
            assert done.stderr.count("\n") == 1
        done = collbench("doctor", "run")
        assert " ".join(done.stdout.split()).count(told) == 2
        assert "run collbench sweep --algorithms nccl" not in done.stdout


@pytest.mark.parametrize("name", ["evidence.jsonl", "probes.jsonl", "gate.json", "parameters.json"])
def test_a_pipe_in_a_run_folder_is_not_waited_for(collbench: Shell, tmp_path: Path, name: str) -> None:
    made = synthetic_gpu_run(tmp_path / "run", sizes=(4096,), launches=1, probed=False)
    (made.path / name).unlink(missing_ok=True)
    os.mkfifo(made.path / name)
    for command in ("explain", "report"):
        done = collbench(command, "run")
        assert done.returncode in {0, 3}
        if name.endswith(".jsonl"):
            assert f"{name}: is no regular file" in done.stderr
    if name == "gate.json":
        assert (done.returncode, done.stderr) == (3, "collbench: run/gate.json: is no regular file: not read\n")


def test_cells_that_differ_in_place_alone_say_so(collbench: Shell, tmp_path: Path) -> None:
    """Of a parsed table of nccl-tests: once as rows of a table, once as sentences."""
    cells = {Cell("other", CALL, Mode.EAGER, 20, place=place): 20.0 + i for i, place in enumerate(("out", "in"))}
    write(tmp_path / "run", Fabric.PCIE, dict(cells))
    lines = [line.split() for line in collbench("explain", "run").stdout.splitlines()[1:4]]
    assert lines[0] == ["algorithm", "mode", "place", "bytes", "calls", "measured"]
    assert [line[2] for line in lines[1:]] == ["out", "in"]
    write(tmp_path / "ours", Fabric.PCIE, {replace(PUSH, place=place): 19.0 for place in ("out", "in")})
    told = collbench("explain", "ours").stdout
    assert "[graph, 122 calls, out of place] push" in told
    assert "[graph, 122 calls, in place] push" in told


def test_what_holds_of_several_cells_is_said_once(collbench: Shell, tmp_path: Path) -> None:
    """With the names of those that it holds of; what holds of one stays with it."""
    late = Cell("push", Call(14_336, 8), Mode.GRAPH, 122)
    write(tmp_path / "run", Fabric.PCIE, {PUSH: 1900.0, late: 1800.0, RING: 24.0})
    text = collbench("explain", "run").stdout
    test = next(line for line in text.splitlines() if "Test for" in line)
    assert text.count("Test for") == 1
    assert test.startswith("Of push: Test for")
    assert text.count("contention does not explain it.") == 2
