"""Whether this process may fork children that use CUDA: no driver is up, and no thread would be lost."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from collbench.algorithms.forked import Forked

__all__ = ["cuda_touched", "strays", "threads", "why_not"]

_DRIVER = "libcuda.so"

_SAFE = frozenset({"jemalloc_bg_thd"})
"""Threads that a fork may lose: jemalloc's handlers of fork() stop it and set it up anew (its background_thread.c)."""

_ANSWER_S = 5.0
_MOMENT_S = 0.02


def why_not(known: Collection[int] = (), *, settle_s: float = 0.0) -> str:
    """Why no child may be forked that uses CUDA; empty where one may. Threads beyond the known ones have `settle_s`."""
    touched = cuda_touched()
    left = "" if touched else strays({os.getpid(), *known}, settle_s=settle_s)
    if touched or left:
        return touched or f"it leaves threads running, which a fork would lose: {left}"
    return "torch refuses CUDA in forked processes" if _refused_in_children() else ""


def cuda_touched() -> str:
    """What says that CUDA was initialised in this process; empty if nothing does. Initialises nothing itself.

    torch is asked where it was imported. The driver is asked where it is mapped, whoever mapped
    it: before `cuInit` all of its functions answer CUDA_ERROR_NOT_INITIALIZED (CUDA driver API, initialisation).
    Open devices say nothing: NVML of driver 580 keeps `/dev/nvidia-uvm` open too (seen on an H200).
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "it initialised CUDA through torch"
    return "it initialised the CUDA driver" if _driver_answers() else ""


def _refused_in_children() -> bool:
    """Whether torch, asked in a child, takes it for one that must not use CUDA. Only where no threads are lost."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    asked = getattr(cuda, "_is_in_bad_fork", None)  # torch asks itself by this name before it starts CUDA
    if asked is None:
        return False
    child = Forked(lambda: int(bool(asked())))
    try:
        return child.wait(_ANSWER_S) != 0
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return True


def _driver_answers() -> bool:
    """Whether the driver library is mapped and counts devices."""
    if not _is_mapped(_DRIVER):
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int(0)))) == 0
    except (OSError, AttributeError):
        return False  # a file of that name that is no driver


def _is_mapped(part: str) -> bool:
    try:
        return part in Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return False


def threads() -> frozenset[int]:
    """Ids of the threads of this process."""
    return frozenset(int(entry) for entry in _listed("/proc/self/task"))


def strays(known: Collection[int], *, settle_s: float = 0.0) -> str:
    """Names of threads beyond the known ones that still run after `settle_s`, joined by commas; empty for none."""
    end = time.monotonic() + settle_s
    while (left := _unsafe(threads() - set(known))) and time.monotonic() < end:
        time.sleep(_MOMENT_S)
    return ", ".join(sorted(left))


def _unsafe(found: Collection[int]) -> list[str]:
    return [name for name in map(_name, found) if name and name not in _SAFE]


def _name(thread: int) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip() or str(thread)
    except OSError:
        return ""  # it has ended meanwhile


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return []
