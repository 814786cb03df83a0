"""Owns an MPS control daemon, so that no crash of the sweep leaves it behind: a program, of the standard library only.

Started by `MpsServer` in a session of its own. It starts the daemon, says `ok` or `failed: why` on standard output,
and then reads commands from standard input: `restart` is answered in the same way; the end of the input, which comes
too when the sweep is killed, stops the daemon and removes its folder. As a child subreaper it is the parent of the
daemon and of the MPS servers once they are in the background, so that it knows which processes are its own.

Usage: mps_guardian.py BINARY FOLDER START_SECONDS STOP_SECONDS
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER in linux/prctl.h
_POLL_S = 0.02
_ASK_S = 0.1
_TERM_S = 2.0
_TAIL = 300


class Guardian:
    """One daemon in one folder, with `pipe/` and `log/` as its directories."""

    def __init__(self, binary: str, folder: Path, start_s: float, stop_s: float) -> None:
        self._binary = binary
        self._folder = folder
        self._start_s = start_s
        self._stop_s = stop_s
        self._environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }

    def start(self) -> str:
        """Start the daemon and wait until it answers; gives what went wrong, or nothing."""
        for name in ("pipe", "log"):
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)
        limit = time.monotonic() + self._start_s
        code, told = self._run(["-d"], "", self._start_s)
        if code != 0:
            return f"{Path(self._binary).name} -d {_ended(code, self._start_s)}: {told or self._last_log()}"
        while True:
            code, told = self._run([], "get_server_list\n", max(0.1, limit - time.monotonic()))
            if code == 0:
                return ""
            if time.monotonic() > limit:
                return f"the MPS daemon does not answer within {self._start_s:g} s: {told or self._last_log()}"
            time.sleep(_ASK_S)

    def stop(self) -> None:
        """Ask the daemon to quit; what is left of it at the deadline is ended by its process id."""
        if descendants(os.getpid()):
            self._run([], "quit\n", self._stop_s)
        for number, wait_s in ((0, self._stop_s), (signal.SIGTERM, _TERM_S), (signal.SIGKILL, _TERM_S)):
            limit = time.monotonic() + wait_s
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while descendants(os.getpid()):
                if time.monotonic() > limit:
                    break
                time.sleep(_POLL_S)

    def restart(self) -> str:
        """Stop, and start in emptied directories."""
        self.stop()
        shutil.rmtree(self._folder / "pipe", ignore_errors=True)
        return self.start()

    def _run(self, arguments: list[str], text: str, seconds: float) -> tuple[int | None, str]:
        """Run the control program; its exit code (None at the deadline) and the end of what it said."""
        # a file and no pipe: the daemon keeps what it inherited open, and a pipe would never end
        said = self._folder / "said"
        with said.open("wb") as output:
            try:
                process = subprocess.Popen(
                    [self._binary, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=self._environment,
                )
            except OSError as error:
                return 127, str(error)
            code: int | None
            try:
                process.communicate(text.encode(), timeout=seconds)
                code = process.returncode
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = None
        told = " ".join(said.read_text(errors="replace").split())[-_TAIL:]
        return code, told

    def _last_log(self) -> str:
        with contextlib.suppress(OSError):
            return " ".join((self._folder / "log" / "control.log").read_text(errors="replace").split())[-_TAIL:]
        return "it said nothing"


def descendants(root: int) -> list[int]:
    """Process ids below `root` that are alive, in no particular order; ended children are reaped on the way."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _ended(code: int | None, seconds: float) -> str:
    return f"did not end within {seconds:g} s" if code is None else f"failed with exit code {code}"


def main(arguments: list[str]) -> None:
    """Serve until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when its input does, after cleaning up, and not before
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    binary, folder, start_s, stop_s = arguments
    guardian = Guardian(binary, Path(folder), float(start_s), float(stop_s))
    try:
        _answer(guardian.start())
        for line in sys.stdin:
            _answer(guardian.restart() if line.strip() == "restart" else f"unknown command {line.strip()!r}")
    finally:
        guardian.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _answer(problem: str) -> None:
    with contextlib.suppress(OSError):  # the sweep is gone: the end of the input follows
        sys.stdout.write(f"failed: {problem}\n" if problem else "ok\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
