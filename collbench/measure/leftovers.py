"""Shared memory that a group's libraries left behind in /dev/shm.

Only files are removed that a worker of the group was seen to hold, that appeared since the group began, belong to this
user, and that no process has mapped or open any more. Others keep files of their own there, also from containers whose
processes nobody sees; those are never touched.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

__all__ = ["held_by", "remove", "snapshot"]

_SHM = Path("/dev/shm")  # noqa: S108 - it is what is looked after


def snapshot(folder: Path = _SHM) -> frozenset[tuple[str, int]]:
    """Names and inodes of what is there now."""
    return frozenset(_entries(folder))


def held_by(pids: Iterable[int], folder: Path = _SHM) -> set[str]:
    """Names below the folder that these processes have mapped or open; processes that are gone hold nothing."""
    return {name for pid in pids for name in _held(Path(f"/proc/{pid}"), folder)}


def remove(before: frozenset[tuple[str, int]], names: Collection[str], folder: Path = _SHM) -> list[str]:
    """Remove those of `names` that were left since; gives what was removed."""
    new = {name for name, inode in _entries(folder) if name in names and (name, inode) not in before}
    left = {name for name in new if _is_ours(folder / name)}
    if not left:
        return []
    held = {name for process in Path("/proc").glob("[0-9]*") for name in _held(process, folder)}
    removed = sorted(left - held)
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


def _held(process: Path, folder: Path) -> Iterator[str]:
    """Names that one process has mapped or open, as far as this user may see."""
    start = f"{folder}/"
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
