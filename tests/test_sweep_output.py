"""What a sweep prints beside its files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collbench.results.records import Fabric, Run
from collbench.sweep_output import crowding


def _run(ranks: int, threads: str) -> Run:
    machine: dict[str, Any] = {"facts": {"threads": threads}}
    return Run("r", "2026-01-01", (), "0", Fabric.HOST, ranks, 1, (), machine=machine)


def test_crowding_is_told_with_what_to_do() -> None:
    (text,) = crowding(_run(8, "2"))
    assert text.startswith("8 ranks take turns on 2 hardware threads: ")
    assert "--nproc 2 gives each rank a thread" in text
    (alone,) = crowding(_run(8, "1"))
    assert "--nproc" not in alone
    assert crowding(_run(2, "2")) == []


@pytest.mark.parametrize("columns", [80, 120])
def test_a_plan_names_what_cannot_run_once(on_terminal: Callable[..., str], tmp_path: Path, columns: int) -> None:
    words = ("sweep", "--dry-run", "--nproc", "2", "-b", "1K", "--algorithms", "host_ring,nccl_ring_ll")
    lines = on_terminal(columns, *words).splitlines()

    assert sum("/host_ring/" in line for line in lines) == 2
    lost = [line for line in lines if "nccl_ring_ll" in line]
    assert len(lost) == 1
    assert lost[0].startswith("unsupported  nccl_ring_ll, 4 of 4 cells: ")
    assert not (tmp_path / "reports").exists()
