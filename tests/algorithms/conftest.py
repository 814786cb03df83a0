"""Ranks for tests: forked processes that meet through pipes."""

import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

TIMEOUT_S = 60.0


@dataclass
class PipeRanks:
    """`algorithms.base.Ranks` over a pipe to the parent, which relays."""

    rank: int
    world_size: int
    pipe: "Connection[Any, Any]"
    deadline_s: float
    device: str = "cpu"
    store: str = ""

    @property
    def local_rank(self) -> int:
        return self.rank

    @property
    def local_world_size(self) -> int:
        return self.world_size

    def exchange(self, value: Any) -> list[Any]:
        self.pipe.send(("exchange", value))
        if not self.pipe.poll(self.deadline_s):
            raise TimeoutError("a rank did not come")
        values: list[Any] = self.pipe.recv()
        return values

    def barrier(self) -> None:
        self.exchange(None)

    def process_group(self, backend: str) -> Any:
        import torch.distributed as dist

        store = dist.FileStore(self.store, self.world_size)  # type: ignore[attr-defined]  # torch exports it
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size)
        return dist.group.WORLD


@dataclass(frozen=True)
class Outcome:
    """What a rank ended with: its value, or its error as text; neither if it died."""

    value: Any = None
    error: str = ""


class Forked:
    """Runs `body(ranks)` in `world` forked processes and gives their outcomes in rank order."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def __call__(
        self, world: int, body: Callable[[PipeRanks], Any], *, deadline_s: float = 20.0, store: str = ""
    ) -> list[Outcome]:
        pipes = []
        for rank in range(world):
            ours, theirs = Pipe()
            pid = _fork()
            if pid == 0:
                _child(PipeRanks(rank, world, theirs, deadline_s, store=store), body)
            theirs.close()
            self.pids.append(pid)
            pipes.append(ours)
        outcomes = _relay(pipes)
        self.reap()
        return outcomes

    def reap(self) -> None:
        """End and collect the processes that are left; they are this fixture's own."""
        for pid in self.pids:
            ended, _ = os.waitpid(pid, os.WNOHANG)
            if ended == 0:
                time.sleep(0.05)
                ended, _ = os.waitpid(pid, os.WNOHANG)
            if ended == 0:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
        self.pids.clear()


def _fork() -> int:
    with warnings.catch_warnings():
        # numpy's BLAS has threads; the children use none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _child(ranks: PipeRanks, body: Callable[[PipeRanks], Any]) -> None:
    try:
        ranks.pipe.send(("value", body(ranks)))
    except BaseException as error:  # noqa: BLE001 - the parent judges it
        traceback.clear_frames(error.__traceback__)
        ranks.pipe.send(("error", f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)


def _relay(pipes: "list[Connection[Any, Any]]") -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    offers: dict[int, Any] = {}
    until = time.monotonic() + TIMEOUT_S
    while len(outcomes) < len(pipes):
        left = until - time.monotonic()
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in outcomes], max(left, 0))
        assert ready, f"ranks {sorted(set(range(len(pipes))) - set(outcomes))} never ended"
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                kind, value = pipes[rank].recv()
            except EOFError:
                kind, value = "died", None
            if kind == "exchange":
                offers[rank] = value
            else:
                outcomes[rank] = Outcome(value) if kind == "value" else Outcome(error=value or "died")
        if len(offers) == len(pipes):
            values = [offers[rank] for rank in range(len(pipes))]
            offers.clear()
            for each in pipes:
                each.send(values)
    return [outcomes[rank] for rank in range(len(pipes))]


@pytest.fixture
def forked() -> Iterator[Forked]:
    """`forked(8, body)`: eight ranks."""
    runner = Forked()
    yield runner
    runner.reap()
