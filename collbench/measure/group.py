"""The supervisor's side of fork servers and worker groups."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from collbench.measure import leftovers
from collbench.measure.channel import Channel, pair

__all__ = ["ForkServer", "GroupFailure", "WorkerGroup"]

START_DEADLINE_S = 120.0
"""Longest start of a fork server: importing torch from a cold network disk takes most of a minute."""

GROUP_DEADLINE_S = 30.0
"""Longest fork of a group; 0.2 s is usual."""

GRACE_S = 2.0
"""After one rank has failed, the others get this long to report on their own before the group is ended."""

_MOMENT_S = 0.02

_LOG_TAIL = 2000

_OPENING = frozenset({"start", "opening"})
"""Phases of a worker whose algorithm is not open yet."""


class GroupFailure(Exception):  # noqa: N818 - not an error of ours: a result that becomes a cell's status
    """A group that did not answer: `kind` is `hung` or `crashed`, the text names ranks and what they did."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class ForkServer:
    """A running fork server for one preload set: modules that it has imported, and variables set before exec."""

    def __init__(self, imports: tuple[str, ...], environment: Mapping[str, str]) -> None:
        here, there = socket.socketpair()
        command = [sys.executable, "-m", "collbench.measure.forkserver", str(there.fileno()), *imports]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._process = subprocess.Popen(
            command, pass_fds=[there.fileno()], env=dict(environment), stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        there.close()
        self._control = here
        self._buffer = b""
        self._exits: dict[int, int] = {}
        self._ready = False

    def wait_ready(self) -> None:
        """Wait until the imports are done.

        Raises:
            GroupFailure: it died or did not come up within `START_DEADLINE_S`; the text ends with what it printed.
        """
        if not self._ready:
            try:
                self._ready = "ready" in self._next_message(time.monotonic() + START_DEADLINE_S)
            except (TimeoutError, EOFError) as error:
                raise GroupFailure(
                    "crashed", f"workers cannot start: {str(error) or 'fork server ended'}; {self._tail()}"
                ) from error

    def fork(
        self, count: int, spec: Mapping[str, Any], environment: Mapping[str, str]
    ) -> tuple[list[Channel], list[int]]:
        """Fork `count` workers; gives their channels and process ids in local rank order.

        Raises:
            GroupFailure: the server is gone or does not answer.
        """
        self.wait_ready()
        ends = [pair() for _ in range(count)]
        request = {"spec": dict(spec), "environment": dict(environment), "server_pid": self._process.pid}
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], [fd for _, fd in ends])
            deadline = time.monotonic() + GROUP_DEADLINE_S
            while True:
                answer = self._next_message(deadline)
                if "pids" in answer:
                    return [channel for channel, _ in ends], [int(pid) for pid in answer["pids"]]
                self._exits[answer["exit"]] = answer["code"]
        except (OSError, TimeoutError, EOFError) as error:
            raise GroupFailure("crashed", f"fork server gave no workers: {error}; {self._tail()}") from error
        finally:
            for _, fd in ends:
                os.close(fd)

    def exit_code(self, pid: int, wait_s: float = 1.0) -> int | None:
        """Exit code of a worker (negative: signal), None while it runs or if the server is gone."""
        deadline = time.monotonic() + wait_s
        while pid not in self._exits:
            try:
                answer = self._next_message(deadline)
            except (TimeoutError, EOFError, OSError):
                return None
            if "exit" in answer:
                self._exits[answer["exit"]] = answer["code"]
        return self._exits[pid]

    def _next_message(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            self._control.settimeout(max(0.001, deadline - time.monotonic()))
            received = self._control.recv(1 << 16)
            if not received:
                raise EOFError
            self._buffer += received
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _tail(self) -> str:
        self._log.seek(0)
        return _last_line(self._log.read()[-_LOG_TAIL:].decode(errors="replace"))

    def close(self) -> None:
        """End the server; its workers die with it."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WorkerGroup:
    """The local workers of one algorithm: fresh processes that answer commands together, under a deadline."""

    def __init__(
        self, server: ForkServer, count: int, spec: Mapping[str, Any], environment: Mapping[str, str], folder: Path
    ) -> None:
        # below the run's folder: a sweep that is killed leaves nothing elsewhere, and its resumption clears this away
        self.folder = Path(tempfile.mkdtemp(prefix="group-", dir=folder))
        self._server = server
        self._count = count
        self._shared_before = leftovers.snapshot()
        self._shared: set[str] = set()
        self._channels: list[Channel] = []
        self._pids: list[int] = []
        full = {**spec, "folder": str(self.folder)}
        try:
            self._channels, self._pids = server.fork(count, full, environment)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers in local rank order."""
        return tuple(self._pids)

    def run(self, command: Mapping[str, Any], deadline_s: float, opening_s: float = 0.0) -> list[dict[str, Any]]:
        """Give every worker the command; gives their answers in local rank order. Serves their exchanges meanwhile.

        Raises:
            GroupFailure: a worker ended, or some did not answer within `deadline_s`, and `opening_s` more while a
                worker still opens its algorithm. The group is of no further use.
        """
        self._broadcast(command)
        return _Conversation(self, deadline_s, opening_s).finish()

    def _broadcast(self, message: Mapping[str, Any]) -> None:
        for channel in self._channels:
            # a worker that is gone shows up as end of file in the conversation, with its exit code
            with contextlib.suppress(OSError):
                channel.send(message)

    def death(self, local_rank: int) -> str:
        """Say how a worker ended, with the last line of its log."""
        code = self._server.exit_code(self._pids[local_rank])
        how = "ended" if code is None else f"ended with exit code {code}" if code >= 0 else _signal_name(-code)
        tail = _last_line(self.log(local_rank))
        return f"rank {local_rank} {how}" + (f": {tail}" if tail else "")

    def log(self, local_rank: int) -> str:
        """End of what a worker printed."""
        path = self.folder / f"worker-{local_rank}.log"
        with contextlib.suppress(OSError):
            return path.read_bytes()[-_LOG_TAIL:].decode(errors="replace")
        return ""

    def close(self, timeout_s: float = GRACE_S) -> None:
        """Ask the workers to leave, end those that do not within `timeout_s`, remove the group's folder.

        Their exchanges are served meanwhile: ranks that share memory of a GPU meet before they free it.
        """
        self.look()
        self._broadcast({"op": "close"})
        _Conversation(self, timeout_s).see_off()
        self.kill()

    def look(self) -> None:
        """Note what shared memory the workers hold now: of one that dies by itself the last look counts."""
        self._shared |= leftovers.held_by(pid for pid in self._pids if self._server.exit_code(pid, 0.0) is None)

    def running(self) -> bool:
        """Whether a worker has not ended yet."""
        return any(self._server.exit_code(pid, 0.0) is None for pid in self._pids)

    def kill(self) -> None:
        """End the workers at once, remove the group's folder and the shared memory that they left."""
        self.look()
        for pid in self._pids:
            # reaped pids may belong to others by now
            if self._server.exit_code(pid, 0.0) is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            self._server.exit_code(pid)
        for channel in self._channels:
            channel.close()
        leftovers.remove(self._shared_before, self._shared)
        self._channels, self._pids = [], []
        shutil.rmtree(self.folder, ignore_errors=True)


class _Conversation:
    """One command in flight: collects answers and exchanges of all workers until all have answered."""

    def __init__(self, group: WorkerGroup, deadline_s: float, opening_s: float = 0.0) -> None:
        self._group = group
        self._channels = group._channels  # noqa: SLF001 - two classes of one file
        self._deadline = time.monotonic() + deadline_s + opening_s
        self._limit_s = deadline_s
        self._opening = opening_s > 0
        self._failed = False
        self._answers: dict[int, dict[str, Any]] = {}
        self._values: dict[int, Any] = {}
        self._phase = ["start"] * len(self._channels)

    def finish(self) -> list[dict[str, Any]]:
        with selectors.DefaultSelector() as selector:
            for rank, channel in enumerate(self._channels):
                selector.register(channel.fileno(), selectors.EVENT_READ, rank)
            while len(self._answers) < len(self._channels):
                self._wait(selector)
        return [self._answers[rank] for rank in range(len(self._channels))]

    def see_off(self) -> None:
        """Serve exchanges until all workers have ended or the deadline has passed."""
        with selectors.DefaultSelector() as selector:
            for rank, channel in enumerate(self._channels):
                selector.register(channel.fileno(), selectors.EVENT_READ, rank)
            while self._group.running() and time.monotonic() < self._deadline:
                for key, _ in selector.select(_MOMENT_S) if selector.get_map() else ():
                    try:
                        self._heed(int(key.data), self._channels[int(key.data)].receive())
                    except (EOFError, OSError, ValueError):  # it has left, or was ended within a word
                        selector.unregister(key.fileobj)

    def _wait(self, selector: selectors.BaseSelector) -> None:
        events = selector.select(max(0.0, self._deadline - time.monotonic()))
        if not events:
            self._give_up()
        for key, _ in events:
            self._take(int(key.data))

    def _take(self, rank: int) -> None:
        try:
            message = self._channels[rank].receive()
        except EOFError:
            raise GroupFailure("crashed", self._group.death(rank)) from None
        self._heed(rank, message)

    def _heed(self, rank: int, message: dict[str, Any]) -> None:
        if "phase" in message:
            opened = self._phase[rank] in _OPENING
            self._phase[rank] = str(message["phase"])
            if opened and not _OPENING & set(self._phase):
                self._group.look()
            if self._opening and not _OPENING & set(self._phase):
                self._opening = False
                self._deadline = min(self._deadline, time.monotonic() + self._limit_s)
        elif "exchange" in message:
            self._values[rank] = message["exchange"]
            if len(self._values) == len(self._channels):
                values = [self._values[r] for r in range(len(self._channels))]
                self._values = {}
                self._group._broadcast({"exchange": values})  # noqa: SLF001 - two classes of one file
        else:
            self._answers[rank] = message
            if message.get("failed") and not self._failed:
                self._failed = True
                self._deadline = min(self._deadline, time.monotonic() + GRACE_S)

    def _give_up(self) -> None:
        told = {a["failed"]: f"rank {r}: {a['reason']}" for r, a in self._answers.items() if a.get("failed")}
        if set(told) - {"hung"}:
            # a rank failed and said why: the ranks that wait for it are not the story
            for rank in range(len(self._channels)):
                self._answers.setdefault(rank, {"failed": "peer", "reason": ""})
            return
        missing = [r for r in range(len(self._channels)) if r not in self._answers]
        where = ", ".join(f"rank {r} in {self._phase[r]}" for r in missing[:4])
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""  # noqa: PLR2004 - a short line
        waited = f" ({told['hung']})" if told else f" within {self._limit_s:.0f} s"
        raise GroupFailure("hung", f"no answer from {where}{more}{waited}")


def _signal_name(number: int) -> str:
    try:
        return f"was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"was ended by signal {number}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
