"""Several ranks on one GPU: the MPS daemon that lets their kernels run together, and whether those kernels fit."""

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from collbench.algorithms.base import Runner
from collbench.errors import InvalidError
from collbench.measure import gpu_processes, mps_guardian
from collbench.measure.gpu_processes import GpuProcesses

__all__ = ["MpsServer", "busy_gpus", "co_resident", "not_resident"]

_BINARY = "nvidia-cuda-mps-control"
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LD_LIBRARY_PATH")
"""Variables that the daemon gets. Not CUDA_VISIBLE_DEVICES: the daemon would number the GPUs anew for its clients."""

_CAREFUL_THREADS = 512
"""Threads that surely fit on a multiprocessor at 128 registers each (65,536 registers since sm_50)."""


class MpsServer:
    """A context manager around an MPS control daemon of our own, with its own pipe and log directories (0700).

    Clients that get `environment` run together on a GPU. The daemon changes no setting of the card. A guardian process
    stops it when this object is closed and when the sweep dies, however it dies.
    """

    def __init__(self, start_s: float = 20.0, stop_s: float = 10.0) -> None:
        self._start_s = start_s
        self._stop_s = stop_s
        self._guardian: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables by which CUDA processes find this daemon."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }

    def __enter__(self) -> Self:
        binary = shutil.which(_BINARY)
        if binary is None:
            raise InvalidError(
                f"--share-gpu needs {_BINARY}, which is not on PATH: it comes with the NVIDIA driver's programs"
            )
        # /tmp and not TMPDIR: socket paths may have 107 bytes only
        self._folder = Path(tempfile.mkdtemp(prefix="cb-mps-", dir="/tmp"))
        try:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", mps_guardian.__file__, binary, str(self._folder), *self._limits],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                env={name: os.environ[name] for name in _PASSED if name in os.environ},
            )  # fmt: skip
            self._expect_ok("start")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @property
    def _limits(self) -> tuple[str, str]:
        return str(self._start_s), str(self._stop_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        guardian, self._guardian = self._guardian, None
        if guardian is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        assert guardian.stdin is not None  # noqa: S101 - it was opened with a pipe
        assert guardian.stdout is not None  # noqa: S101 - likewise
        guardian.stdin.close()
        try:
            guardian.wait(self._start_s + 2 * self._stop_s + 10)
        except subprocess.TimeoutExpired:
            guardian.kill()
            guardian.wait()
        guardian.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def restart(self) -> None:
        """Stop the daemon and start it anew, under the same paths: a fault of one client takes all clients of a GPU.

        Raises:
            InvalidError: it does not start.
        """
        guardian = self._guardian
        if guardian is None or guardian.stdin is None:
            raise InvalidError("the MPS daemon is not running: it cannot be restarted")
        try:
            guardian.stdin.write(b"restart\n")
            guardian.stdin.flush()
        except OSError as error:
            raise InvalidError(f"the guardian of the MPS daemon is gone: {error}") from error
        self._expect_ok("restart")

    def restart_and_check(self, health: Callable[[], str]) -> str:
        """Restart, then run the check `health`; gives what went wrong, or nothing."""
        try:
            self.restart()
        except InvalidError as error:
            return str(error)
        return health()

    def _expect_ok(self, doing: str) -> None:
        answer = self._read_line(self._start_s + 2 * self._stop_s + 10)
        if answer != "ok":
            why = answer.removeprefix("failed: ") or "its guardian gave no answer"
            raise InvalidError(f"MPS did not {doing}: {why}")

    def _read_line(self, seconds: float) -> str:
        assert self._guardian is not None  # noqa: S101 - called between enter and exit only
        assert self._guardian.stdout is not None  # noqa: S101 - it was opened with a pipe
        stream, text, limit = self._guardian.stdout.fileno(), b"", time.monotonic() + seconds
        while not text.endswith(b"\n") and select.select([stream], [], [], max(0.0, limit - time.monotonic()))[0]:
            more = os.read(stream, 4096)
            if not more:
                break
            text += more
        return text.decode("utf-8", "replace").strip()


def co_resident(blocks_per_rank: int, threads: int, ranks_on_gpu: int, sm_count: int, blocks_per_sm: int = 0) -> str:
    """Whether all ranks' blocks fit on one GPU at once; gives the reason if not, else nothing.

    Blocks that wait for blocks that are not resident wait for ever. `blocks_per_sm` is the driver's occupancy of the
    kernel; where it is 0, unknown, 128 registers per thread are assumed.
    """
    if ranks_on_gpu <= 1 or blocks_per_rank <= 0:
        return ""
    fit = blocks_per_sm or max(1, _CAREFUL_THREADS // max(1, threads))
    wanted, room = blocks_per_rank * ranks_on_gpu, fit * sm_count
    if wanted <= room:
        return ""
    guess = "" if blocks_per_sm else ", counted carefully, since the occupancy is not known"
    return (
        f"{ranks_on_gpu} ranks x {blocks_per_rank} blocks of {threads} threads wait for each other, and the GPU holds "
        f"{room} at once ({sm_count} multiprocessors x {fit}{guess}): they would hang"
    )


def not_resident(runner: Runner, ranks_on_gpu: int) -> str:
    """`co_resident` for an opened runner on its own device; asked before it launches for the first time."""
    if ranks_on_gpu <= 1 or not runner.blocks:
        return ""
    import torch

    count = int(torch.cuda.get_device_properties(runner.ranks.device).multi_processor_count)
    return co_resident(runner.blocks, runner.threads, ranks_on_gpu, count, int(getattr(runner, "blocks_per_sm", 0)))


def busy_gpus(gpus: Iterable[GpuProcesses] | None = None) -> str:
    """Which visible GPUs have compute processes of others on them; empty if none, or if NVML cannot tell.

    This process, its callers and what it started are our own. `gpus` replaces the question to NVML.

    Raises:
        InvalidError: the driver hangs or gives no answer that can be.
    """
    found = (_users_of(gpu) for gpu in (gpu_processes.ask() if gpus is None else gpus))
    return "; ".join(text for text in found if text)


def _users_of(gpu: GpuProcesses) -> str:
    others = [pid for pid in gpu.pids if not _ours(pid)] if _visible(gpu.index, gpu.uuid) else []
    if not others:
        return ""
    named = ", ".join(f"{pid}{_name(pid)}" for pid in others[:4])
    more = f" and {len(others) - 4} more" if others[4:] else ""
    return f"GPU {gpu.index} is in use by process {named}{more}"


def _visible(index: int, uuid: str) -> bool:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return True
    words = [word.strip() for word in given.split(",") if word.strip()]
    return any(word == str(index) or uuid.startswith(word) for word in words)


def _ours(pid: int) -> bool:
    """Whether a process is this one, a caller of it, or one that it or its own parent (torchrun) started.

    Not the session: in a container all processes, those of a server too, often share the session of process 1.
    """
    callers = _ancestors(os.getpid())
    near = {os.getpid(), *callers[:1]} - {1}
    return pid in near or (pid in callers and pid != 1) or bool(near & set(_ancestors(pid)))


def _ancestors(pid: int) -> list[int]:
    """Parent, its parent and so on up to process 1; empty where /proc does not tell, as for another container."""
    found: list[int] = []
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        # the name in brackets may hold spaces and brackets itself
        pid = int(stat.rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def _name(pid: int) -> str:
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return ""
