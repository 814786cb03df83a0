"""Starts and ends an algorithm's workers on all hosts, and the MPS daemon that they share."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.algorithms.base import Algorithm
from collbench.measure.group import GroupFailure
from collbench.measure.placement import devices
from collbench.measure.team import Place, ServerPool, Team
from collbench.topology.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collbench.measure.shared_gpu import MpsServer

__all__ = ["Launcher"]

_HEALTH_DEADLINE_S = 60.0


class Launcher:
    """The workers of one algorithm at a time. `say` hears what became of libraries that were to be preloaded.

    A `pool` that is given outlives the launcher: several of them then share its fork servers.
    """

    def __init__(
        self, machine: Machine, place: Place, folder: Path, timeout_s: float, say: Callable[[str], None],
        pool: ServerPool | None = None,
    ) -> None:  # fmt: skip
        self._machine = machine
        self._place = place
        self._timeout_s = timeout_s
        self._say = say
        self._pool, self._owns_pool = pool or ServerPool(), pool is None
        self._team = Team(place, self._pool, folder)
        self._mps: MpsServer | None = None
        self._sick = ""

    @property
    def sick(self) -> str:
        """Why nothing can be measured on the GPU any more; empty where it can."""
        return self._sick

    @property
    def running(self) -> bool:
        """Whether there are workers."""
        return self._team.running

    @property
    def servers_s(self) -> float:
        """Seconds that were spent so far until fork servers were ready, which is paid once and not per launch."""
        return self._pool.starting_s

    def start(self, algorithm: Algorithm, limit_s: float | None = None) -> None:
        """Start an algorithm's workers.

        Raises:
            GroupFailure: they did not start, or not within `limit_s`.
        """
        shared: Mapping[str, str] = {}
        if algorithm.device == "cuda" and self._machine.share_gpu:
            shared = self._start_mps().environment
        spec = {
            "algorithm": algorithm.name, "seed": time.time_ns() & 0xFFFFFFFF,
            "devices": devices(algorithm.device, self._place.local_ranks, self._machine),
            "deadline_s": 0.6 * self._timeout_s, "share_gpu": self._machine.share_gpu,
        }  # fmt: skip
        own = algorithm.environment(self._machine)
        try:
            self._team.start({
                "imports": list(algorithm.imports), "foreign": list(algorithm.foreign.modules),
                "variables": {name: own[name] for name in algorithm.foreign.variables if name in own},
                "preload": algorithm.preload, "environment": {**own, **shared}, "spec": spec, "limit_s": limit_s,
            })  # fmt: skip
        finally:
            self._pool.tell(self._say)

    def _start_mps(self) -> "MpsServer":
        if self._mps is None:
            from collbench.measure.shared_gpu import MpsServer

            self._mps = MpsServer().__enter__()
        return self._mps

    def run(self, command: dict[str, Any], deadline_s: float, opening_s: float) -> list[dict[str, Any]]:
        """Give all workers the command; see `Team.run`."""
        return self._team.run(command, deadline_s, opening_s)

    def end(self, *, kill: bool) -> None:
        """End the workers, if there are any."""
        if self._team.running or kill:
            with contextlib.suppress(GroupFailure):
                self._team.stop(kill=kill)

    def after_failure(self, algorithm: Algorithm) -> None:
        """End the workers. A fault under MPS takes all clients of that GPU: start it anew, and try `algorithm`."""
        self.end(kill=True)
        if self._mps is not None:
            self._sick = self._mps.restart_and_check(lambda: self._health(algorithm))

    def _health(self, algorithm: Algorithm) -> str:
        """Run an empty piece of work in a fresh group; gives what went wrong, or nothing."""
        try:
            self.start(algorithm)
            self._team.run({"op": "health"}, _HEALTH_DEADLINE_S)
            self._team.stop(kill=False)
        except GroupFailure as failure:
            self.end(kill=True)
            return f"the GPU does not answer since a cell failed: {failure}"
        return ""

    def close(self) -> None:
        """Leave no worker, no MPS daemon, and no fork server of its own."""
        with contextlib.suppress(Exception):  # the other hosts may be gone; torchrun ends them
            self._team.leave()
        if self._owns_pool:
            self._pool.close()
        with contextlib.suppress(Exception):
            self._team.obey({"do": "stop", "kill": True})
        if self._mps is not None:
            self._mps.__exit__(None, None, None)
