"""Names and shapes that other people's scripts read: `cell_id` and every JSON form (docs/design.md section 4)."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.gate.calibration import Calibration
from collbench.gate.launcher import Launcher
from collbench.gate.pairs import PairPlan
from collbench.gate.sides import SessionSpread
from collbench.gate.verdicts import CellVerdict, GateMode, Outcome, Rules, Verdict
from collbench.measure.environment import ALLOWED, ALLOWED_PREFIXES
from collbench.results import lines, summary
from collbench.results.records import (
    SCHEMA,
    Call,
    Cell,
    Collective,
    Fabric,
    Flag,
    Mode,
    Resumed,
    Run,
    Samples,
    Status,
)
from collbench.testing import synthetic_gpu_run
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.machine import Machine

Snapshot = Callable[[str, str], None]

PLAIN = Cell("host_ring", Call(14336, 8, dtype="float32"), Mode.EAGER, 122)
FULL = Cell(
    "nccl/x",
    Call(43008, 4, Collective.ALL_TO_ALL, "sum", "float16", (1, 2, 3, 4), "rmsnorm"),
    Mode.GRAPH, 1, "2.30.7", "in", "cold", "zipf",
)  # fmt: skip
TOPOLOGY = Topology(
    nodes=(
        Node("gpu0", NodeKind.GPU, {"busid": "0000:01:00.0", "model": "X"}),
        Node("gpu1", NodeKind.GPU, {"busid": "0000:02:00.0", "model": "X"}),
        Node("sw0", NodeKind.SWITCH),
    ),
    links=tuple(
        Link(src, dst, LinkKind.PCIE, 5, 16, 1, 16, 56.0, 0.2, "sysfs")
        for gpu in ("gpu0", "gpu1")
        for src, dst in ((gpu, "sw0"), ("sw0", gpu))
    ),
    name="two cards",
    hidden=(("gpu0", "gpu1"),),
    disagreements=("width of gpu0: 16 (sysfs), 8 (nvidia-smi)",),
)
MACHINE = Machine(TOPOLOGY, Fabric.PCIE, 2, software={"torch": "2.13.0"}, facts={"p2p": "ok"})
RUN = Run(
    run_id="20261129-160000", created="2026-11-29T16:00:00Z", command=("collbench", "sweep"), version="0.1.0",
    fabric=Fabric.PCIE, world_size=2, launches=1, cells=(PLAIN,), machine=MACHINE.as_dict(),
    settings={"budget_s": 45.0}, environment={"host_ring": {"OMP_NUM_THREADS": "1"}},
    resumed=(Resumed("2026-11-29T17:00:00Z", ("collbench", "sweep", "--resume", "run")),),
)  # fmt: skip
SAMPLES = Samples(PLAIN.cell_id, 0, Status.OK, "", (Flag.NOISY,), 122, ((1.5, 2.5), (1.25, 2.0)))

JUDGED = CellVerdict(
    "a", Verdict.OK, "", 10.0, 10.1, 1.01, 0.99, 1.03, 1.01, 0.2, 0.8, 0.4, 0.01, 0.03, 0.02, look=8,
    base_us=(10.0,), current_us=(10.1,),
)  # fmt: skip
LAUNCHER = Launcher("env:X=1", (), {}, Path())
PAIRS = PairPlan(LAUNCHER, LAUNCHER, ("--nproc", "2"), ("a",), 1.0, 7, shuffles=True, narrows=True, timeout_s=60.0)
OUTCOME = Outcome(
    GateMode.PAIRED, Rules(controls=("a",), allow_mismatch=("torch",)),
    (JUDGED,),
    ("a fault",), ("a note",), (("b", "unsupported on both sides: why"),), 1.1, 8,
    PAIRS.record(["AB"], [1]) | {"runs": ["x", "y"]},
)  # fmt: skip
CALIBRATION = Calibration(1, (0.02,), SessionSpread(0.01, 5), ((1.03, 11, 38),))


def shape(value: Any, indent: str = "") -> str:
    """Names in order and types of a JSON value; of a list the shape of its first element."""
    if isinstance(value, dict):
        return "object" + "".join(f"\n{indent}  {name}: {shape(v, indent + '  ')}" for name, v in value.items())
    if isinstance(value, list):
        return f"list of {shape(value[0], indent)}" if value else "list"
    names: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "true or false", type(None): "null"}
    return names[type(value)]


def through_json(value: Any) -> Any:
    """What a reader gets."""
    return json.loads(json.dumps(value, allow_nan=False))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topology", TOPOLOGY.as_dict()),
        ("run", RUN.as_dict()),
        ("cell-row", PLAIN.row()),
        ("gate", OUTCOME.as_dict()),
        ("calibrate-gate", CALIBRATION.as_dict()),
    ],
)
def test_shape(name: str, value: dict[str, Any], snapshot: Snapshot) -> None:
    """Names, their order and their types stay as they are."""
    snapshot(f"json-{name}", shape(through_json(value)))


def test_sweep_rows(snapshot: Snapshot) -> None:
    """What `sweep --json` prints: a cell with times and one that has only a reason have the same names."""
    lost = Cell("gloo", Call(14336, 8, dtype="float32"), Mode.EAGER, 1)
    run = replace(RUN, cells=(PLAIN, lost))
    refused = Samples(lost.cell_id, 0, Status.UNSUPPORTED, "torch is not installed")
    data = summary.as_json(summary.rows(run, [SAMPLES, refused], {PLAIN.cell_id: 0.5}, {PLAIN.cell_id: 1.0}))
    assert (data["schema"], data["kind"]) == (SCHEMA, "sweep")
    snapshot("json-sweep", "\n".join(shape(through_json(row)) for row in data["rows"]))
    assert set(data["rows"][0]) >= {
        *PLAIN.row(), "status", "reason", "flags", "p50_us", "p99_us", "min_us", "iterations", "launches", "floor_us",
        "predicted_us",
    }  # fmt: skip
    # the slower rank of each iteration: 1.5 and 2.5
    assert (data["rows"][0]["p50_us"], data["rows"][0]["min_us"], data["rows"][0]["iterations"]) == (2.0, 1.5, 2)
    assert (data["rows"][1]["p50_us"], data["rows"][1]["status"]) == (None, "unsupported")


def test_dry_run_json(collbench: Callable[..., subprocess.CompletedProcess[str]], snapshot: Snapshot) -> None:
    """What `sweep --dry-run --json` prints; it measures nothing and leaves nothing behind."""
    words = ("--nproc", "2", "-b", "1K", "--algorithms", "host_ring", "--calls", "1")
    done = collbench("sweep", "--dry-run", "--json", *words)
    assert done.returncode == 0, done.stderr
    snapshot("json-plan", shape(json.loads(done.stdout)))


JSON_COMMANDS = {
    "doctor": ("doctor", "--for", "sm_120", "--gpus", "2", "--json"),
    "doctor-compare": ("doctor", "--for", "sm_120", "--torch", "2.10", "--compare", "torch=2.14", "--json"),
    "doctor-run": ("doctor", "run", "--json"),
    "advice": ("advise", "--topology", "two-flat-gen5-switches", "--workload", "eagle3-verify", "--json"),
    "advice-run": ("advise", "run", "--workload", "moe-61-decode", "--json"),
    "explain": ("explain", "run", "/push/-/sum/bfloat16/43008/8/graph/122/", "--json"),
    "probe": ("probe", "--host", "--nproc", "2", "--json"),
}


@pytest.mark.parametrize("name", JSON_COMMANDS)
def test_json_of_commands(
    name: str, collbench: Callable[..., subprocess.CompletedProcess[str]], snapshot: Snapshot, tmp_path: Path
) -> None:
    """What each prints with `--json`: one object with schema and kind."""
    if "run" in JSON_COMMANDS[name]:
        synthetic_gpu_run(tmp_path / "run", launches=1, iterations=3)
    done = collbench(*JSON_COMMANDS[name])
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == SCHEMA
    snapshot(f"json-{name}", shape(data))


def test_samples_line(snapshot: Snapshot) -> None:
    """One line of samples.jsonl, in full."""
    line = lines.encode(SAMPLES)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    snapshot("json-samples-line", line.decode())
    assert lines.decode(lines.parse_json(line)) == SAMPLES


def test_cell_id(snapshot: Snapshot) -> None:
    """Baselines and exports of older runs find their cells by it."""
    snapshot("cell_id", "\n".join(cell.cell_id for cell in (PLAIN, FULL)))
    assert {cell.cell_id.count("/") for cell in (PLAIN, FULL)} == {12}


def test_records_survive_their_json() -> None:
    """What is written can be read back without loss."""
    assert Topology.from_dict(through_json(TOPOLOGY.as_dict())) == TOPOLOGY
    assert Cell.from_row(through_json(FULL.row())) == FULL
    assert through_json(Run.from_dict(through_json(RUN.as_dict())).as_dict()) == through_json(RUN.as_dict())


def test_topology_names() -> None:
    """The names that docs/design.md promises to readers of `topo --json`."""
    data = TOPOLOGY.as_dict()
    assert (data["schema"], data["kind"]) == (SCHEMA, "topology")
    assert {"nodes", "links", "groups", "hidden", "disagreements"} <= set(data)
    assert {"id", "kind"} <= set(data["nodes"][0])
    assert {"src", "dst", "class", "capacity_gbps", "latency_us", "provenance"} <= set(data["links"][0])
    assert data["groups"] == [["gpu0", "gpu1"]]
    kinds = {"gpu", "nic", "switch", "root_port", "host_bridge", "socket", "nvswitch"}
    assert {str(kind) for kind in NodeKind} == kinds


def test_words_of_closed_sets() -> None:
    """Statuses, flags, fabrics and modes are names that scripts compare with."""
    assert [*Status] == ["ok", "unsupported", "wrong", "hung", "crashed", "out_of_memory", "not_run"]
    assert [*Flag] == ["noisy", "implausible", "throttled"]
    assert [*Fabric] == ["pcie", "nvlink", "mixed", "network", "host", "shared-gpu"]
    assert [*Mode] == ["eager", "graph"]


def test_docs_name_the_environment_that_passes(root: Path) -> None:
    """The allow-list is written down where users look for it."""
    text = (root / "docs" / "design.md").read_text(encoding="utf-8")
    assert [name for name in sorted({*ALLOWED, *ALLOWED_PREFIXES}) if f"`{name}`" not in text] == []
