"""What a container or the kernel takes away: shared memory, file descriptors of peers, processors, MPS."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["host_state", "pidfd_state"]

_PIDFD_GETFD = 438  # the same number on x86-64 and aarch64
_MOST_CPUS = 4096  # of one range in a list: a file that says more is not a list of processors
_MOST_OPTIONS = 200
_MPS = "nvidia-cuda-mps-control"
_MPS_PIPE = "tmp/nvidia-mps"


def host_state(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Facts by name; what cannot be read is absent.

    `shm_mib` (size of /dev/shm), `pidfd` (`ok`, or why a peer's descriptor cannot be had), `ptrace_scope`, `seccomp`,
    `cpus` (those that this process may use of those that there are), `numa_allowed` (the NUMA nodes that these are of),
    `numa_balancing`, `mps`, `container`, and `driver_options` (registry keys that NVIDIA's kernel module was given).
    """
    facts = {
        "shm_mib": _shm_mib(root), "pidfd": pidfd_state(),
        "numa_balancing": _read(root / "proc/sys/kernel/numa_balancing"),
        "ptrace_scope": _read(root / "proc/sys/kernel/yama/ptrace_scope"), "seccomp": _seccomp(root), "cpus": _cpus(),
        "driver_options": _driver_options(root), "numa_allowed": _numa_allowed(root), "mps": _mps(root, environ),
        "container": _container(root),
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value}


def pidfd_state() -> str:
    """Whether one process may take a file descriptor of its neighbour, as symmetric memory does: `ok`, or the error."""
    program = shutil.which("cat")
    if program is None or not hasattr(os, "pidfd_open"):
        return ""
    child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        return _take_descriptor(child.pid)
    finally:
        assert child.stdin is not None  # noqa: S101 - it was opened with a pipe
        child.stdin.close()
        child.wait(5)


def _take_descriptor(pid: int) -> str:
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        return f"pidfd_open: {error.strerror}"
    try:
        library = ctypes.CDLL(None, use_errno=True)
        taken = int(library.syscall(_PIDFD_GETFD, process, 0, 0))
        if taken < 0:
            return f"pidfd_getfd: {os.strerror(ctypes.get_errno())}"
        os.close(taken)
    finally:
        os.close(process)
    return "ok"


def _shm_mib(root: Path) -> str:
    try:
        stat = os.statvfs(root / "dev/shm")
    except OSError:
        return ""
    return str(stat.f_frsize * stat.f_blocks >> 20)


def _seccomp(root: Path) -> str:
    lines = _read(root / "proc/self/status").splitlines()
    value = next((line.split()[1] for line in lines if line.startswith("Seccomp:")), "")
    return {"0": "off", "1": "strict", "2": "filter"}.get(value, "")


def _cpus() -> str:
    try:
        return f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
    except (AttributeError, OSError):
        return ""


def _driver_options(root: Path) -> str:
    """`ForceP2P=0x11;...` as the module was given them; empty where there is no module or it has none."""
    lines = _read(root / "proc/driver/nvidia/params").splitlines()
    value = next((line.partition(":")[2] for line in lines if line.startswith("RegistryDwords:")), "")
    return "".join(c for c in value.strip().strip('"') if c.isprintable())[:_MOST_OPTIONS]


def _numa_allowed(root: Path) -> str:
    """Numbers of the NUMA nodes of which this process may use a processor: `0,1`."""
    try:
        ours = os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return ""
    nodes = (root / "sys/devices/system/node").glob("node[0-9]*")
    found = [int(node.name[4:]) for node in nodes if ours & set(_numbers(_read(node / "cpulist")))]
    return ",".join(map(str, sorted(found)))


def _numbers(text: str) -> Iterable[int]:
    """`0-3,8` as numbers; what cannot be is left out."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            yield from range(int(first), min(int(last or first), int(first) + _MOST_CPUS) + 1)


def _mps(root: Path, environ: Mapping[str, str]) -> str:
    pipe = Path(environ.get("CUDA_MPS_PIPE_DIRECTORY", str(root / _MPS_PIPE)))
    if (pipe / "control").exists():
        return "a daemon is running"
    return "off" if shutil.which(_MPS, path=environ.get("PATH")) else f"off, and {_MPS} is not on PATH"


def _container(root: Path) -> str:
    marks = {"docker": root / ".dockerenv", "podman": root / "run/.containerenv"}
    return next((name for name, mark in marks.items() if mark.exists()), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
