"""Shared memory that a group's libraries left behind: found by comparing /dev/shm before and behind the group.

Only files are removed that appeared meanwhile, belong to this user, are named as libraries name theirs, and that no
process has mapped or open. Others keep files of their own in /dev/shm; those are never touched.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["remove", "snapshot"]

_SHM = Path("/dev/shm")  # noqa: S108 - it is what is looked after
_MADE = ("psm_", "nccl-", "torch_", "sem.mp-")
"""How names begin: Python's shared memory (vLLM, SGLang), NCCL's, torch's, Python's semaphores."""


def snapshot(folder: Path = _SHM) -> frozenset[tuple[str, int]]:
    """Names and inodes of what is there now."""
    return frozenset(_entries(folder))


def remove(before: frozenset[tuple[str, int]], folder: Path = _SHM) -> list[str]:
    """Remove what was left since; gives the names."""
    left = {entry for entry in _entries(folder) if entry not in before and entry[0].startswith(_MADE)}
    left = {entry for entry in left if _is_ours(folder / entry[0])}
    if not left:
        return []
    held = set(_held(folder))
    removed = sorted(name for name, _ in left if name not in held)
    for name in removed:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    return removed


def _entries(folder: Path) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            with contextlib.suppress(OSError):
                yield entry.name, entry.inode()


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        state = path.lstat()
        return state.st_uid == os.getuid() and path.is_file() and not path.is_symlink()
    return False


def _held(folder: Path) -> Iterator[str]:
    """Names below the folder that some process has mapped or open, as far as this user may see."""
    start = f"{folder}/"
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                place = line.find(start)
                if place >= 0:
                    yield line[place + len(start) :]
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(descriptor.readlink())
                    if target.startswith(start):
                        yield target[len(start) :]
