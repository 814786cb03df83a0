"""Crowding: said only where it is known that ranks on processors outnumber their hardware threads."""

from typing import Any

import pytest

from collbench.results.crowding import crowded, hardware_threads, turns
from collbench.results.records import Fabric, Run


def _run(ranks: int, machine: dict[str, Any], fabric: Fabric = Fabric.HOST) -> Run:
    return Run("r", "2026-01-01", (), "0", fabric, ranks, 1, (), machine=machine)


@pytest.mark.parametrize(
    ("machine", "threads"),
    [({}, 0), ({"facts": None}, 0), ({"facts": {"threads": "x"}}, 0), ({"facts": {"threads": "2"}}, 2)],
)
def test_threads_are_those_that_the_record_names(machine: dict[str, Any], threads: int) -> None:
    assert hardware_threads(machine) == threads
    assert crowded(8, Fabric.HOST, machine) is (threads == 2)


def test_turns_are_told_of_ranks_on_processors_alone() -> None:
    two = {"facts": {"threads": "2"}}

    assert turns(_run(8, two)) == "8 ranks took turns on 2 hardware threads"
    assert turns(_run(8, {"facts": {"threads": "1"}})) == "8 ranks took turns on 1 hardware thread"
    assert (turns(_run(2, two)), turns(_run(8, two, Fabric.PCIE)), turns(_run(8, {}))) == ("", "", "")
