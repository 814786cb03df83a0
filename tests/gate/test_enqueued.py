"""What two runs enqueued, told beside their times."""

import json
from pathlib import Path

from collbench.gate.enqueued import enqueued_differences
from collbench.results.records import Mode
from collbench.results.store import RunFolder
from collbench.testing import SyntheticRun, synthetic_run

COSTS = {"push": (4.0, 0.1), "islands": (5.0, 0.1), "nccl_auto": (6.0, 0.1)}


def a_run(path: Path, **kernels: tuple[str, ...]) -> SyntheticRun:
    """A run whose launches have these texts of evidence in turn, by algorithm."""
    made = synthetic_run(path, costs=COSTS, sizes=(1024, 4096), modes=(Mode.GRAPH,), calls=(122,), launches=2)
    with (made.path / "evidence.jsonl").open("w") as file:
        for cell in made.run.cells:
            for launch, text in enumerate(kernels.get(cell.algorithm, ())):
                word = "choice" if cell.algorithm == "nccl_auto" else "kernel"
                line = {"cell_id": cell.cell_id, "launch": launch, "evidence": {word: text}}
                file.write(json.dumps(line) + "\n")
    return made


def told(base: SyntheticRun, current: SyntheticRun) -> list[str]:
    return enqueued_differences(base.path, current.path, [cell.cell_id for cell in base.run.cells])


def test_who_starts_early_on_one_side_only_is_named(tmp_path: Path) -> None:
    early = a_run(tmp_path / "a", push=("push 1x64+pdl",) * 2, islands=("islands 1x64+pdl",) * 2)
    late = a_run(tmp_path / "b", push=("push 1x64",) * 2, islands=("islands 1x64+pdl",) * 2)
    assert told(early, late) == ["programmatic launch on base only: push"]
    assert told(late, early) == ["programmatic launch on current only: push"]
    assert told(early, early) == []


def test_grids_kernels_and_choices_stand_beside_each_other(tmp_path: Path) -> None:
    """A grid that varies over launches differs only where no launch of the other side had it."""
    a = a_run(tmp_path / "a", push=("push 1x64", "push 2x32"), islands=("islands 1x64",), nccl_auto=("Ring/LL",))
    b = a_run(tmp_path / "b", push=("push 2x32", "push 4x32"), islands=("staged 2x64",), nccl_auto=("Tree/LL",))
    assert told(a, b) == [
        "kernel: islands islands, staged", "NCCL's choice: nccl_auto Ring/LL, Tree/LL", "grid: islands 1x64, 2x64",
    ]  # fmt: skip


def test_a_side_without_evidence_is_named(tmp_path: Path) -> None:
    """Nothing is said where neither has any; damage costs no comparison."""
    a, b = a_run(tmp_path / "a", push=("push 1x64",)), a_run(tmp_path / "b")
    assert told(a, b) == [f"what was enqueued is not compared: {b.path} has no evidence of it"]
    assert told(b, b) == []
    (b.path / "evidence.jsonl").write_bytes(b"\xff\xfe{" * 9)
    assert "not compared" in told(a, b)[0]
    with RunFolder.open(b.path) as folder:
        assert folder.run.cells
