"""Messages between the supervisor, fork servers and workers: one JSON object per frame over a socket pair."""

import ctypes
import json
import os
import signal
import socket
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Channel", "die_with_parent", "pair"]

_PR_SET_PDEATHSIG = 1


class Channel:
    """Sends and receives JSON objects; framing is `multiprocessing.connection`'s, pickling is never used."""

    def __init__(self, fd: int) -> None:
        self._connection = Connection(fd)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one object.

        Raises:
            OSError: the other end is gone.
        """
        self._connection.send_bytes(json.dumps(message).encode())

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for one object.

        Raises:
            TimeoutError: nothing came within `timeout_s`.
            EOFError: the other end is gone.
        """
        try:
            if timeout_s is not None and not self._connection.poll(timeout_s):
                raise TimeoutError(f"no message within {timeout_s:.1f} s")
            message: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except ConnectionError as error:
            raise EOFError(str(error)) from error
        return message

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close this end; harmless when closed already."""
        self._connection.close()


def pair() -> tuple[Channel, int]:
    """A channel and the raw file descriptor of its other end, for another process."""
    here, there = socket.socketpair()
    return Channel(here.detach()), there.detach()


def die_with_parent(parent_pid: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `signum` to this process when its parent ends (Linux `PR_SET_PDEATHSIG`).

    Raises:
        SystemExit: the parent was gone before the kernel had been asked.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent_pid:
        raise SystemExit(1)
