"""A forked child with those methods of `subprocess.Popen` that we use: for work on what this process has imported."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

__all__ = ["Forked"]

_MOMENT_S = 0.005


class Forked:
    """A child that runs a function, and ends with what that returns as its exit code."""

    def __init__(self, work: Callable[[], int], *, log: int | None = None, start_new_session: bool = False) -> None:
        """Fork. The child prints to the descriptor `log`, and leads a session of its own if asked to."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()  # what stands in a buffer would be printed twice
        self.returncode: int | None = None
        """Exit code, negative for a signal; None while it runs."""
        self.pid = os.fork()
        if self.pid == 0:
            _become(work, log, start_new_session=start_new_session)

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; gives the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired("a forked child", timeout or 0.0)
            time.sleep(_MOMENT_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _become(work: Callable[[], int], log: int | None, *, start_new_session: bool) -> NoReturn:
    code = 1
    try:
        if start_new_session:
            os.setsid()
        if log is not None:
            os.dup2(log, 1)
            os.dup2(log, 2)
        code = work()
    except SystemExit as told:
        code = told.code if isinstance(told.code, int) else 1
    except BaseException:  # noqa: BLE001 - the child ends here whatever happens, with its traceback in its log
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)
