"""Messages between the supervisor, fork servers and workers: one JSON object per frame over a socket pair.

A frame is its length in four bytes, most significant first, and the JSON text. Whoever writes to the other end may be
broken: no wait for a frame, or for the rest of one, is without a deadline where one is given.
"""

import ctypes
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["BadMessage", "Channel", "die_with_parent", "pair"]

_PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct("!I")
_LARGEST = 1 << 26
"""Bytes of the longest frame that is believed; the samples of a cell are some 40,000."""

_PORTION = 1 << 18


class BadMessage(ValueError):  # noqa: N818 - says what came
    """What came is no frame of ours; nothing behind it can be understood."""


class Channel:
    """Sends and receives JSON objects; nothing is pickled."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._buffer = bytearray()

    def send(self, message: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Send one object.

        Raises:
            OSError: the other end is gone, or took too little of it within `timeout_s`.
        """
        text = json.dumps(message).encode()
        self._socket.settimeout(timeout_s)
        self._socket.sendall(_LENGTH.pack(len(text)) + text)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for one object. What came of it before a timeout is kept for the next call.

        Raises:
            TimeoutError: no whole message came within `timeout_s`.
            EOFError: the other end is gone.
            BadMessage: what came is no message.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (message := self._next()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"no message within {timeout_s:.1f} s")
            self._fill(left)
        return message

    def arrived(self) -> list[dict[str, Any]]:
        """Whole messages among what has come; waits for nothing, so that half a message holds nobody up.

        Raises:
            EOFError: the other end is gone.
            BadMessage: what came is no message.
        """
        self._fill(0.0)
        found = []
        while (message := self._next()) is not None:
            found.append(message)
        return found

    def _fill(self, timeout_s: float | None) -> None:
        self._socket.settimeout(timeout_s)
        try:
            portion = self._socket.recv(_PORTION)
        except (TimeoutError, BlockingIOError):
            return
        except ConnectionError as error:
            raise EOFError(str(error)) from error
        if not portion:
            raise EOFError
        self._buffer += portion

    def _next(self) -> dict[str, Any] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > _LARGEST:
            raise BadMessage(f"a frame of {length} bytes")
        if len(self._buffer) < _LENGTH.size + length:
            return None
        text = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
        del self._buffer[: _LENGTH.size + length]
        return _parsed(text)

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end; harmless when closed already."""
        self._socket.close()


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"{len(text)} bytes that are no JSON") from error
    if not isinstance(message, dict):
        raise BadMessage(f"{type(message).__name__} in place of an object")
    return message


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
