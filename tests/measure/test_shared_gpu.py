"""The MPS daemon is started, restarted and always stopped again; blocks are counted before they can hang."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.errors import InvalidError
from collbench.measure.gpu_processes import query
from collbench.measure.shared_gpu import MpsServer, busy_gpus, co_resident


def pids(server: MpsServer) -> list[int]:
    return [int(word) for word in Path(server.environment["CUDA_MPS_PIPE_DIRECTORY"], "pid").read_text().split()]


def gone(processes: list[int], seconds: float = 10) -> bool:
    limit = time.monotonic() + seconds
    while any(alive(pid) for pid in processes):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_runs_in_private_folders_and_leaves_nothing(fake_mps: pytest.MonkeyPatch) -> None:
    """Daemon and server live inside the block only; the folders are ours alone and are removed."""
    with MpsServer() as server:
        first = pids(server)
        pipe = Path(server.environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert all(alive(pid) for pid in first)
        assert stat.S_IMODE(pipe.stat().st_mode) == 0o700
        assert stat.S_IMODE(pipe.parent.stat().st_mode) == 0o700
        assert len(str(pipe / "control_privileged")) < 100
    assert gone(first, 0)
    assert not pipe.parent.exists()


def test_restart_keeps_the_paths_and_changes_the_processes(fake_mps: pytest.MonkeyPatch) -> None:
    """After a fault of a client a new daemon stands where the old one was, and the health check's word is passed on."""
    with MpsServer() as server:
        first, environment = pids(server), server.environment
        assert server.restart_and_check(lambda: "sick") == "sick"
        second = pids(server)
        assert server.environment == environment
        assert gone(first, 0)
        assert set(second).isdisjoint(first)
        assert all(alive(pid) for pid in second)
    assert gone(second, 0)


def test_a_daemon_that_refuses_to_quit_is_ended(fake_mps: pytest.MonkeyPatch) -> None:
    """It gets its deadline, then signals, by the ids of our own descendants."""
    fake_mps.setenv("LANG", "refuses")
    with MpsServer(stop_s=0.2) as server:
        processes = pids(server)
    assert gone(processes, 0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("dies", "failed with exit code 1: no GPU found"),
        ("hangs", "did not end within 0.5 s"),
        ("mute", "does not answer within 0.5 s: Cannot find MPS control daemon"),
    ],
)
def test_a_daemon_that_does_not_start_is_one_line(fake_mps: pytest.MonkeyPatch, fault: str, words: str) -> None:
    """What it said stands in the error, and nothing of it is left."""
    fake_mps.setenv("LANG", fault)
    server = MpsServer(start_s=0.5, stop_s=0.2)
    with pytest.raises(InvalidError, match=words) as caught, server:
        pass
    assert "\n" not in str(caught.value)
    assert not Path(server.environment["CUDA_MPS_PIPE_DIRECTORY"]).parent.exists()


def test_no_program_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message says what is missing and where it comes from."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidError, match="not on PATH: it comes with the NVIDIA driver"), MpsServer():
        pass


def test_killing_the_sweep_stops_the_daemon(fake_mps: pytest.MonkeyPatch) -> None:
    """A SIGKILL to the process that holds the server ends daemon and server, and removes the folder."""
    code = textwrap.dedent("""
        import time
        from collbench.measure.shared_gpu import MpsServer
        with MpsServer() as server:
            print(server.environment["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        pipe = Path(sweep.stdout.readline().strip())
        processes = [int(word) for word in (pipe / "pid").read_text().split()]
        assert all(alive(pid) for pid in processes)
        sweep.send_signal(signal.SIGKILL)
        sweep.wait()
    assert gone(processes)
    limit = time.monotonic() + 5
    while pipe.parent.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert not pipe.parent.exists()


@pytest.mark.parametrize(
    ("blocks", "threads", "ranks", "per_sm", "fits"),
    [
        (24, 512, 8, 2, True),  # 192 of 264
        (36, 512, 8, 2, False),  # the hang that was seen: 288 blocks on 132 multiprocessors
        (16, 512, 8, 0, True),  # 128 of 132 when nothing is known of the kernel
        (24, 512, 8, 0, False),
        (500, 1024, 1, 1, True),  # a rank alone waits for no one on its own GPU
        (0, 0, 8, 0, True),
    ],
)
def test_blocks_are_counted(blocks: int, threads: int, ranks: int, per_sm: int, fits: bool) -> None:  # noqa: FBT001 - a table
    """On 132 multiprocessors (H200): all ranks' blocks must be resident together."""
    reason = co_resident(blocks, threads, ranks, 132, per_sm)
    assert (reason == "") is fits
    assert fits or f"{ranks} ranks x {blocks} blocks" in reason


class FakeNvml:
    """Two GPUs; the second cannot tell its processes."""

    class NVMLError(Exception):
        """NVML's error."""

    def __init__(self, processes: list[int], *, broken: bool = False) -> None:
        self.processes, self.broken = processes, broken

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if self.broken:
            raise self.NVMLError

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's name
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - NVML's name
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802 - NVML's name
        return f"GPU-{handle}{handle}"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802 - NVML's name
        if handle:
            raise self.NVMLError
        return [SimpleNamespace(pid=pid) for pid in self.processes]


def test_other_processes_make_a_gpu_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are named with GPU and program; our own, hidden GPUs and an NVML that cannot tell are not busy."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert busy_gpus(query(FakeNvml([1, os.getpid()]))).startswith("GPU 0 is in use by process 1 (")
    assert busy_gpus(query(FakeNvml([os.getpid()]))) == ""
    assert busy_gpus(query(FakeNvml([1], broken=True))) == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert busy_gpus(query(FakeNvml([1]))) == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")
    assert "GPU 0" in busy_gpus(query(FakeNvml([1])))


def test_a_grandchild_is_our_own_and_an_orphan_of_the_same_session_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions tell nothing in a container: there a server beside us shares ours."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with subprocess.Popen(["sh", "-c", "sleep 30 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        grandchild = int(shell.stdout.readline())
        try:
            assert busy_gpus(query(FakeNvml([shell.pid, grandchild]))) == ""
            shell.kill()
            shell.wait()
            _until_orphaned(grandchild, shell.pid)
            assert os.getsid(grandchild) == os.getsid(0)
            assert f"process {grandchild} (sleep)" in busy_gpus(query(FakeNvml([grandchild])))
        finally:
            shell.kill()
            os.kill(grandchild, signal.SIGKILL)


def _until_orphaned(pid: int, parent: int) -> None:
    deadline = time.monotonic() + 5
    while int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":  # the shell's child has its name until it has started
        assert time.monotonic() < deadline
        time.sleep(0.01)
