"""Run another tool's program under a deadline; whatever it does, all that it started is gone afterwards."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["MOST_BYTES", "Ended", "run_program"]

MOST_BYTES = 32 << 20
"""Of each output that are kept; a program that prints more is read on and its text dropped."""

_GRACE_S = 4.0  # mpirun gives its ranks a second of their own
_ROUNDS, _PAUSE_S = 20, 0.02
_AFTER_EXIT_S = 1.0
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. `code` is as a shell counts it (128 + signal); None where it could not be started.

    `late` says that the deadline came first; `cut` that it printed more than is kept.
    """

    out: str
    err: str
    code: int | None
    seconds: float
    late: bool = False
    cut: bool = False


def run_program(command: Sequence[str], environment: Mapping[str, str], deadline_s: float) -> Ended:
    """Run it to its end or the deadline; it ends with this process too. What it printed before is always kept.

    A process that is stuck in the kernel, which no signal ends, is left behind.
    """
    begin = time.monotonic()
    tether = (sys.executable, "-P", "-m", "collbench.measure.tether", str(os.getpid()))
    try:
        child = subprocess.Popen(
            (*tether, "env", "-i", *(f"{k}={v}" for k, v in environment.items()), *command),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Ended("", f"{command[0]}: {error.strerror}", None, 0.0)
    try:
        texts, late, cut = _collect(child, begin + deadline_s)
    finally:
        _end(child)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    code = child.returncode
    shell = None if code is None else 128 - code if code < 0 else code
    out, err = (bytes(text).decode("utf-8", "replace") for text in texts)
    return Ended(out, err, shell, time.monotonic() - begin, late, cut)


def _collect(child: "subprocess.Popen[bytes]", deadline: float) -> tuple[tuple[bytearray, bytearray], bool, bool]:
    """Read both pipes until they close, the deadline, or a moment after the end: a grandchild may hold them open."""
    texts, cut = (bytearray(), bytearray()), False
    with selectors.DefaultSelector() as selector:
        for pipe, text in zip((child.stdout, child.stderr), texts, strict=True):
            assert pipe is not None  # noqa: S101 - both were asked for
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, text)
        ended = None
        while selector.get_map():
            now = time.monotonic()
            if ended is None and child.poll() is not None:
                ended = now
            limit = deadline if ended is None else min(deadline, ended + _AFTER_EXIT_S)
            if now >= limit:
                return texts, ended is None, cut
            for key, _ in selector.select(min(limit - now, 0.1)):
                cut |= _piece(selector, key.fileobj, key.data)  # type: ignore[arg-type]  # the pipes of above
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return texts, True, cut
    return texts, False, cut


def _piece(selector: selectors.BaseSelector, pipe: IO[bytes], text: bytearray) -> bool:
    """Take what is there; gives whether something was dropped."""
    piece = os.read(pipe.fileno(), _PIECE)
    if not piece:
        selector.unregister(pipe)
    room = MOST_BYTES - len(text)
    text += piece[:room]
    return len(piece) > room


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Everything of its session: in order first, so that a launcher ends its ranks; then by force.

    Launchers put their ranks into process groups of their own, but not into another session.
    """
    if child.poll() is None:
        _signal(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
    _signal(child.pid, signal.SIGKILL)
    for _ in range(_ROUNDS):
        members = [pid for pid in _session(child.pid) if pid != child.pid]
        if not members:
            break
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_S)


def _session(leader: int) -> list[int]:
    """Living processes of a session, by /proc; a number cannot be another session's while one of them is there."""
    found = []
    for entry in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            state, _, _, session = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if session == str(leader) and state not in {"Z", "X"}:
            found.append(int(entry.name))
    return found


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
