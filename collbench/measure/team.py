"""The worker groups of one algorithm on all hosts: ours, and through torchrun's store those of the other hosts."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from collbench.measure.environment import worker_environment
from collbench.measure.group import GroupFailure, WorkerGroup
from collbench.measure.server import FOREIGN_DEADLINE_S, START_DEADLINE_S, ForkServer, Unfit

__all__ = ["Place", "PreloadSet", "ServerPool", "Team", "follow"]

_ANSWER_SLACK_S = 10.0
_IDLE_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where this supervisor stands: host `node` of `nodes`, `local_ranks` of `ranks` workers; torchrun's store."""

    ranks: int
    local_ranks: int
    node: int = 0
    nodes: int = 1
    host: str = ""
    port: int = 0

    @classmethod
    def from_torchrun(cls, environment: Mapping[str, str]) -> "Place":
        """Read torchrun's variables."""
        number = {name: int(environment[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")}
        return cls(
            ranks=number["WORLD_SIZE"], local_ranks=number["LOCAL_WORLD_SIZE"],
            node=int(environment.get("GROUP_RANK", "0")), nodes=int(environment.get("GROUP_WORLD_SIZE", "1")),
            host=environment["MASTER_ADDR"], port=number["MASTER_PORT"],
        )  # fmt: skip

    def store(self) -> Any:  # noqa: ANN401 - torch may be absent
        """Torchrun's store, under a prefix of the supervisors'."""
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # exported without saying so

        tcp = TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)
        return PrefixStore("collbench/supervisors", tcp)


@dataclass(frozen=True, slots=True)
class PreloadSet:
    """What a fork server has before it forks: our imports, a library before any other, other people's modules.

    `variables` are those that such modules read at import.
    """

    imports: tuple[str, ...] = ()
    preload: str = ""
    foreign: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, order: Mapping[str, Any]) -> "PreloadSet":
        """That of an order to start workers. `COLLBENCH_PRELOAD=0` leaves other people's modules to the workers."""
        if os.environ.get("COLLBENCH_PRELOAD") == "0":
            return cls(tuple(order["imports"]), str(order["preload"]))
        variables = tuple(sorted(dict(order.get("variables", {})).items()))
        return cls(tuple(order["imports"]), str(order["preload"]), tuple(order.get("foreign", ())), variables)


class ServerPool:
    """Fork servers by preload set; started when first needed, all ended at once.

    A module that no worker may be forked with is remembered: it costs one start, however often its set is asked for.
    """

    def __init__(self) -> None:
        self._servers: dict[PreloadSet, ForkServer] = {}
        self._left_out: dict[PreloadSet, dict[str, str]] = {}
        self._news: list[str] = []
        self.starting_s = 0.0
        """Seconds that groups have waited so far for a server that was not ready."""

    def get(self, wanted: PreloadSet) -> ForkServer:
        """The server for this set, a fresh one if it has ended; without what turned out to be unfit."""
        if wanted in self._servers and not self._servers[wanted].alive:
            self.drop(wanted)
        if wanted not in self._servers:
            environment = {**worker_environment(preload=wanted.preload), **dict(wanted.variables)}
            left_out = self._left_out.get(wanted, {})
            foreign = [module for module in wanted.foreign if module not in left_out]
            self._servers[wanted] = ForkServer(wanted.imports, environment, foreign, left_out)
        return self._servers[wanted]

    def leave_out(self, wanted: PreloadSet, unfit: Unfit) -> None:
        """End the server of this set, and start it without that module and those behind it from now on."""
        self.drop(wanted)
        left_out = self._left_out.setdefault(wanted, {})
        behind = wanted.foreign[wanted.foreign.index(unfit.module) + 1 :]
        left_out |= {unfit.module: unfit.why} | {m: f"behind {unfit.module}" for m in behind if m not in left_out}
        self._news.append(f"{unfit.module} is imported by each worker by itself: {unfit.why}")

    def tell(self, say: Callable[[str], None]) -> None:
        """Say what was left out since this was asked last, a line each."""
        told, self._news = self._news, []
        for line in told:
            say(line)

    def drop(self, wanted: PreloadSet) -> None:
        """End one server, after it failed."""
        server = self._servers.pop(wanted, None)
        if server is not None:
            server.close()

    def close(self) -> None:
        """End all servers, and with them all workers."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()


class Team:
    """All ranks of one algorithm, on this host and the others. Host 0 leads; the others `follow`."""

    def __init__(self, place: Place, pool: ServerPool, folder: Path) -> None:
        self._place = place
        self._pool = pool
        self._folder = folder
        self._group: WorkerGroup | None = None
        self._turn = 0
        self._store = place.store() if place.nodes > 1 else None

    def start(self, order: Mapping[str, Any]) -> None:
        """Fork the groups. `order` has what `PreloadSet.of` reads, `environment`, `spec`, `limit_s` if time is short.

        Raises:
            GroupFailure: a group did not start.
        """
        self._everywhere({"do": "start", **order}, _IDLE_LIMIT_S)

    def run(self, command: Mapping[str, Any], deadline_s: float, opening_s: float = 0.0) -> list[dict[str, Any]]:
        """Give all workers the command; gives their answers in rank order.

        Raises:
            GroupFailure: a worker ended, or some did not answer within `deadline_s`, and `opening_s` more while a
                worker still opens its algorithm.
        """
        order = {"do": "run", "command": dict(command), "deadline_s": deadline_s, "opening_s": opening_s}
        return self._everywhere(order, deadline_s + opening_s)

    def stop(self, *, kill: bool) -> None:
        """End the groups."""
        self._everywhere({"do": "stop", "kill": kill}, _ANSWER_SLACK_S)

    def leave(self) -> None:
        """Tell the other hosts that the sweep is over."""
        if self._store is not None:
            self._turn += 1
            self._store.set(f"order/{self._turn}", json.dumps({"do": "leave"}))

    @property
    def running(self) -> bool:
        """Whether there is a group."""
        return self._group is not None

    def _everywhere(self, order: dict[str, Any], limit_s: float) -> list[dict[str, Any]]:
        self._turn += 1
        if self._store is not None:
            self._store.set(f"order/{self._turn}", json.dumps(order))
        parts = [self.obey(order)]
        parts += [self._collect(node, limit_s + _ANSWER_SLACK_S) for node in range(1, self._place.nodes)]
        for part in parts:
            if "failure" in part:
                raise GroupFailure(*part["failure"])
        return [answer for part in parts for answer in part["answers"]]

    def _collect(self, node: int, limit_s: float) -> dict[str, Any]:
        key = f"answer/{self._turn}/{node}"
        assert self._store is not None  # noqa: S101 - several hosts have a store
        try:
            self._store.wait([key], timedelta(seconds=limit_s))
        except Exception as error:  # noqa: BLE001 - torch's store errors differ between releases
            return {"failure": ["hung", f"host {node} does not answer: {str(error)[:200]}"]}
        part: dict[str, Any] = json.loads(self._store.get(key))
        return part

    def obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry an order out on this host; failures come back as data."""
        try:
            if order["do"] == "start":
                self._start_here(order)
            elif order["do"] == "run" and self._group is not None:
                limits = float(order["deadline_s"]), float(order.get("opening_s", 0.0))
                return {"answers": self._group.run(order["command"], *limits)}
            elif order["do"] == "stop":
                self._stop_here(kill=bool(order["kill"]))
        except GroupFailure as failure:
            return {"failure": [failure.kind, str(failure)]}
        return {"answers": []}

    def _start_here(self, order: Mapping[str, Any]) -> None:
        place, wanted = self._place, PreloadSet.of(order)
        spec = {
            **order["spec"], "rank_offset": place.node * place.local_ranks, "local_world_size": place.local_ranks,
            "world_size": place.ranks, "meeting": self._meeting(),
        }  # fmt: skip
        end = time.monotonic() + float(order.get("limit_s") or _longest_start(wanted))
        while self._group is None:
            server = self._pool.get(wanted)
            served_before, left_s = server.ready, max(0.1, end - time.monotonic())
            # a fork takes a moment: of a server that does not answer there must be time to take another
            left_s = left_s / 2 if served_before else left_s
            began = time.monotonic()
            try:
                self._group = WorkerGroup(server, place.local_ranks, spec, order["environment"], self._folder, left_s)
            except Unfit as unfit:
                self._pool.leave_out(wanted, unfit)
            except GroupFailure:
                self._pool.drop(wanted)
                # what another algorithm's workers did to the server is no fault of this one's
                if not served_before:
                    raise
            finally:
                self._pool.starting_s += 0.0 if served_before else time.monotonic() - began

    def _meeting(self) -> dict[str, Any] | None:
        if self._store is None:
            return None
        return {"host": self._place.host, "port": self._place.port, "prefix": f"collbench/group/{self._turn}"}

    def _stop_here(self, *, kill: bool) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.kill() if kill else group.close()

    def serve(self) -> None:
        """Carry out host 0's orders until it says that the sweep is over, or is silent for 15 minutes."""
        assert self._store is not None  # noqa: S101 - followers exist on several hosts only
        while True:
            self._turn += 1
            key = f"order/{self._turn}"
            self._store.wait([key], timedelta(seconds=_IDLE_LIMIT_S))
            order = json.loads(self._store.get(key))
            if order["do"] == "leave":
                return
            self._store.set(f"answer/{self._turn}/{self._place.node}", json.dumps(self.obey(order)))


def _longest_start(wanted: PreloadSet) -> float:
    """Seconds, where nothing else limits it: twice our imports and a group, and between them those that do not come."""
    return 2 * START_DEADLINE_S + 2 * FOREIGN_DEADLINE_S if wanted.foreign else START_DEADLINE_S


def follow(place: Place, folder: Path) -> None:
    """Be the supervisor of another host than the first, to the end of the sweep."""
    pool = ServerPool()
    team = Team(place, pool, folder)
    try:
        team.serve()
    finally:
        team.obey({"do": "stop", "kill": True})
        pool.close()
