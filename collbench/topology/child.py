"""Run a program that may hang in the driver, and never wait for it longer than said."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from collbench.topology.graph import TopologyError

__all__ = ["ENVIRONMENT", "output"]

ENVIRONMENT = (
    "PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "PYTHONPATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
"""Variables that such a program is given."""

_GRACE_S = 1.0


def output(command: Sequence[str], deadline_s: float, environ: Mapping[str, str] = os.environ, name: str = "") -> str:
    """What a program prints; `name` is what errors call it.

    Raises:
        TopologyError: it cannot be started, fails, or does not end in time. A program stuck in the kernel, which no
            signal ends, is left behind.
    """
    name = name or Path(command[0]).name
    environment = {key: environ[key] for key in ENVIRONMENT if key in environ}
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", env=environment, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise TopologyError(f"{name} cannot be started: {error}") from error
    try:
        out, err = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        _end(child)
        raise TopologyError(
            f"{name}: no answer within {deadline_s:g} s: look for messages of the driver with dmesg"
        ) from None
    except BaseException:
        _end(child)
        raise
    if child.returncode != 0:
        last = (err.strip() or out.strip()).splitlines()[-1:]
        raise TopologyError(f"{name}: {last[0][:300] if last else f'ended with {child.returncode}'}")
    return out


def _end(child: "subprocess.Popen[str]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)  # a session of its own, so its children go too
    except ProcessLookupError:
        return
    try:
        child.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
