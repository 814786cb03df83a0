"""Behind a fault under MPS the daemon is restarted, and only what answers then is used."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from collbench.algorithms.base import Algorithm
from collbench.contention.traffic import Schedule
from collbench.measure.group import GroupFailure
from collbench.measure.launcher import Launcher
from collbench.measure.team import Place
from collbench.results.records import Collective, Fabric, Support
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine

HOST = Machine(Topology((Node("socket0", NodeKind.SOCKET),), ()), Fabric.HOST, ranks=2)
ANY = Algorithm(
    name="any", collective=Collective.ALL_REDUCE, summary="", reference="", runner="nowhere:Nobody", family="test",
    traffic=lambda _call, _topology: Schedule(()), support=lambda _machine, _call: Support.yes(), device="cpu",
)  # fmt: skip


class Mps:
    """A daemon that restarts."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def restart_and_check(self, health: Callable[[], str]) -> str:
        self._done.append("restart")
        return health()

    def __exit__(self, *_: object) -> None:
        self._done.append("exit")


class Team:
    """Workers that start or do not."""

    running = False

    def __init__(self, done: list[str], *, starts: bool) -> None:
        self._done, self._starts = done, starts

    def start(self, order: Mapping[str, Any]) -> None:
        del order
        self._done.append("start")
        if not self._starts:
            raise GroupFailure("crashed", "it is gone")

    def run(self, *_: object) -> list[dict[str, Any]]:
        return []

    def stop(self, *, kill: bool) -> None:
        self._done.append("kill" if kill else "stop")

    def leave(self) -> None:
        self._done.append("leave")

    def obey(self, order: Mapping[str, Any]) -> None:
        self._done.append(f"obey {order['do']}")


@pytest.mark.parametrize("starts", [True, False])
def test_a_fault_under_mps_restarts_it_and_asks_whether_the_gpu_answers(tmp_path: Path, *, starts: bool) -> None:
    done: list[str] = []
    launcher = Launcher(HOST, Place(2, 2), tmp_path, 30.0, done.append)
    launcher._mps, launcher._team = Mps(done), Team(done, starts=starts)  # type: ignore[assignment]
    launcher.after_failure(ANY)
    assert done == ["kill", "restart", "start", "stop" if starts else "kill"]
    assert launcher.sick == ("" if starts else "the GPU does not answer since a cell failed: it is gone")
    launcher.close()
    assert done[4:] == ["leave", "obey stop", "exit"]


def test_without_mps_a_failure_ends_the_workers_alone(tmp_path: Path) -> None:
    done: list[str] = []
    launcher = Launcher(HOST, Place(2, 2), tmp_path, 30.0, done.append)
    launcher._team = Team(done, starts=False)  # type: ignore[assignment]
    launcher.after_failure(ANY)
    assert (done, launcher.sick) == (["kill"], "")
