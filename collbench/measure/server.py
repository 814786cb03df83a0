"""The supervisor's side of fork servers: starting one, asking it for workers, noticing that it is gone."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from collbench.measure.channel import Channel, pair

__all__ = ["ForkServer", "GroupFailure", "how_it_ended", "last_line"]

START_DEADLINE_S = 120.0
"""Longest start of a fork server: importing torch from a cold network disk takes most of a minute."""

GROUP_DEADLINE_S = 30.0
"""Longest fork of a group; 0.2 s is usual."""

_LOG_TAIL = 2000


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
        self.ready = False
        """Whether its imports are done."""

    @property
    def alive(self) -> bool:
        """Whether the process still runs, or is stopped."""
        return self._process.poll() is None

    def wait_ready(self, limit_s: float = START_DEADLINE_S) -> None:
        """Wait until the imports are done.

        Raises:
            GroupFailure: it died or did not come up within `limit_s`; the text ends with what it printed.
        """
        if not self.ready:
            try:
                self.ready = "ready" in self._next_message(time.monotonic() + limit_s)
            except (OSError, EOFError, ValueError) as error:
                raise self._failure("workers cannot start", error, limit_s) from error

    def fork(
        self, count: int, spec: Mapping[str, Any], environment: Mapping[str, str], limit_s: float = START_DEADLINE_S
    ) -> tuple[list[Channel], list[int]]:
        """Fork `count` workers; gives their channels and process ids in local rank order.

        Raises:
            GroupFailure: the server is gone or does not answer within `limit_s`.
        """
        begin = time.monotonic()
        self.wait_ready(min(START_DEADLINE_S, limit_s))
        limit_s = min(GROUP_DEADLINE_S, max(0.0, begin + limit_s - time.monotonic()))
        ends = [pair() for _ in range(count)]
        request = {"spec": dict(spec), "environment": dict(environment), "server_pid": self._process.pid}
        try:
            deadline = time.monotonic() + limit_s
            self._control.settimeout(max(0.001, limit_s))
            socket.send_fds(self._control, [json.dumps(request).encode()], [fd for _, fd in ends])
            while True:
                answer = self._next_message(deadline)
                if "pids" in answer:
                    return [channel for channel, _ in ends], [int(pid) for pid in answer["pids"]]
                self._exits[answer["exit"]] = answer["code"]
        except (OSError, EOFError, ValueError) as error:
            for channel, _ in ends:
                channel.close()
            raise self._failure("fork server gave no workers", error, limit_s) from error
        finally:
            for _, fd in ends:
                os.close(fd)

    def exit_code(self, pid: int, wait_s: float = 1.0) -> int | None:
        """Exit code of a worker (negative: signal), None while it runs or if the server is gone."""
        deadline = time.monotonic() + wait_s
        while pid not in self._exits:
            try:
                answer = self._next_message(deadline)
            except (EOFError, OSError, ValueError):
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

    def death(self) -> str:
        """Say how the server ended; empty while it lives."""
        code = self._process.poll()
        return "" if code is None else how_it_ended(code)

    def _failure(self, what: str, error: Exception, limit_s: float) -> GroupFailure:
        if isinstance(error, TimeoutError):
            return GroupFailure("hung", f"{what}: no answer within {limit_s:.0f} s")
        with contextlib.suppress(subprocess.TimeoutExpired):  # its end of the socket closes a moment before it ends
            self._process.wait(0.5)
        told = f"it {self.death()}" if self.death() else str(error) or "its socket was closed"
        self._log.seek(0)
        tail = last_line(self._log.read()[-_LOG_TAIL:].decode(errors="replace"))
        return GroupFailure("crashed", "; ".join(part for part in (f"{what}: {told}", tail) if part))

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


def how_it_ended(code: int) -> str:
    """What an exit code says (negative: signal)."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def last_line(text: str) -> str:
    """The last line with something in it, at most 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
