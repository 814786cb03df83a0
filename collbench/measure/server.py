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
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from collbench.measure.channel import Channel, pair

__all__ = [
    "FOREIGN_DEADLINE_S", "START_DEADLINE_S", "ForkServer", "GroupFailure", "Unfit", "how_it_ended", "last_line",
]  # fmt: skip

START_DEADLINE_S = 120.0
"""Longest start of a fork server: importing torch from a cold network disk takes most of a minute."""

FOREIGN_DEADLINE_S = 120.0
"""Longest import of a library in a fork server: 2 to 3 s were seen, and a cold network disk takes a minute."""

_FOREIGN_SHARE = 0.4
"""Part of a start's limit that those imports may take: what does not come must leave time to start without it."""

GROUP_DEADLINE_S = 30.0
"""Longest fork of a group; 0.2 s is usual."""

_LOG_TAIL = 2000
_MOMENT_S = 0.5


class GroupFailure(Exception):  # noqa: N818 - not an error of ours: a result that becomes a cell's status
    """A group that did not answer: `kind` is `hung` or `crashed`, the text names ranks and what they did."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Unfit(Exception):  # noqa: N818 - not an error of ours
    """A module that no worker may be forked with, and why: the server is of no use."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(f"{module}: {why}")
        self.module = module
        self.why = why


class ForkServer:
    """A running fork server for one preload set: modules that it has imported, and variables set before exec.

    `foreign` are other people's modules, which it imports behind `imports` unless they are unfit; `left_out` were, and
    why, for the evidence of its workers.
    """

    def __init__(
        self,
        imports: tuple[str, ...],
        environment: Mapping[str, str],
        foreign: Sequence[str] = (),
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        here, there = socket.socketpair()
        told = {"imports": imports, "foreign": list(foreign), "left_out": dict(left_out or {})}
        command = [sys.executable, "-m", "collbench.measure.forkserver", str(there.fileno()), json.dumps(told)]
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
        self._importing = ""

    @property
    def alive(self) -> bool:
        """Whether the process still runs, or is stopped."""
        return not self.death()

    def wait_ready(self, limit_s: float = START_DEADLINE_S, foreign_s: float = FOREIGN_DEADLINE_S) -> None:
        """Wait until the imports are done: `limit_s` for ours, `foreign_s` more for those of other people.

        Raises:
            GroupFailure: it died or did not come up within `limit_s`; the text ends with what it printed.
            Unfit: a module of other people did that, or no worker may be forked with it.
        """
        deadline = time.monotonic() + limit_s
        while not self.ready:
            try:
                message = self._next_message(deadline)
            except (OSError, EOFError, ValueError) as error:
                if self._importing:
                    failure = self._failure("importing it", error, foreign_s)
                    raise Unfit(self._importing, str(failure)) from error
                raise self._failure("workers cannot start", error, limit_s) from error
            if "importing" in message:
                deadline = deadline if self._importing else time.monotonic() + foreign_s
                self._importing = str(message["importing"])
            elif "unfit" in message:
                raise Unfit(str(message["unfit"]), str(message["why"]))
            self.ready = "ready" in message

    def fork(
        self, count: int, spec: Mapping[str, Any], environment: Mapping[str, str], limit_s: float = START_DEADLINE_S
    ) -> tuple[list[Channel], list[int]]:
        """Fork `count` workers; gives their channels and process ids in local rank order.

        Raises:
            GroupFailure: the server is gone or does not answer within `limit_s`.
            Unfit: see `wait_ready`.
        """
        begin = time.monotonic()
        self.wait_ready(min(START_DEADLINE_S, limit_s), min(FOREIGN_DEADLINE_S, _FOREIGN_SHARE * limit_s))
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
                if "exit" in answer:
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
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("a message of it that is none")  # noqa: TRY004 - what comes from outside has no type
        return message

    def death(self) -> str:
        """Say how the server ended; empty while it lives."""
        code = self._code()
        return "" if code is None else how_it_ended(code)

    def _code(self) -> int | None:
        """Its exit code, None while it runs. It is reaped in `close` alone: until then its number is nobody else's."""
        if self._process.returncode is not None:
            return self._process.returncode
        try:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody reaps all children of this process
            return self._process.poll()
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _failure(self, what: str, error: Exception, limit_s: float) -> GroupFailure:
        if isinstance(error, TimeoutError):
            return GroupFailure("hung", f"{what}: no answer within {limit_s:.0f} s")
        end = time.monotonic() + _MOMENT_S
        while self.alive and time.monotonic() < end:  # its end of the socket closes a moment before it ends
            time.sleep(0.01)
        told = f"it {self.death()}" if self.death() else str(error) or "its socket was closed"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LOG_TAIL))
        tail = last_line(self._log.read(_LOG_TAIL).decode(errors="replace"))
        return GroupFailure("crashed", "; ".join(part for part in (f"{what}: {told}", tail) if part))

    def close(self) -> None:
        """End the server; its workers die with it."""
        self._control.close()
        if self._process.returncode is None:  # its session is its own, with whatever a library started in it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
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
