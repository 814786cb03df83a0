"""Writing so that a full disk, a kill or a second process costs nothing that was there before."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from collbench.errors import InvalidError, UsageError

__all__ = [
    "append_text",
    "append_whole",
    "is_special",
    "lock_folder",
    "readable_errors",
    "refuse_part_of_run",
    "refuse_special",
    "replace_whole",
]

_LOCK = "lock"
_RUN = "run.json"
_OF_A_RUN = frozenset({
    _RUN, "samples.jsonl", "samples.parquet", "evidence.jsonl", "probes.jsonl", "parameters.json", _LOCK,
})  # fmt: skip
"""What the folder of a run holds that nothing but another measurement gives back."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextlib.contextmanager
def readable_errors(
    path: Path, hint: str = "", *, option: str = "", resume: bool = False, place: str = ""
) -> Iterator[None]:
    """Turn an operating system's error about `path` into one line that says what to do; `hint` is put behind it.

    `option` is the one that names another place, `resume` says that the call can be gone on with, and `place` what to
    do about a place that cannot be written, where no other can be named.

    Raises:
        InvalidError: instead of the OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            then = ", then go on with --resume" if resume else ""
            advice = f"the disk is full, or the file is at its size limit: free some space{then}"
        elif error.errno in _FORBIDDEN:
            place = place or (f"choose another place with {option}" if option else "choose another place")
            advice = f"cannot be written ({os.strerror(error.errno or 0)}): {place}"
        else:
            advice = f"cannot be written: {error.strerror or error}"
        raise InvalidError(f"{path}: {advice}{hint}") from error


def lock_folder(folder: Path, place: str = "") -> int:
    """Lock the folder for writing; gives the descriptor that holds the lock until it is closed or the process ends.

    `place` as of `readable_errors`.

    Raises:
        InvalidError: another process holds it (named by pid), or the lock file cannot be written.
    """
    with readable_errors(folder, option="--out", resume=True, place=place):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(folder / _LOCK, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with readable_errors(folder, option="--out", resume=True, place=place):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        holder = text if text.isdigit() else "(unknown)"
        os.close(descriptor)
        raise InvalidError(f"{folder}: process {holder} writes to this run: wait for it, or stop it") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def append_whole(descriptor: int, line: bytes) -> None:
    """Append a line by one write; where it does not fit whole, nothing of it stays.

    Raises:
        OSError: it was not written.
    """
    before = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, line)
    except OSError:
        os.ftruncate(descriptor, before)
        raise
    if written < len(line):
        os.ftruncate(descriptor, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def append_text(path: Path, text: str) -> None:
    """Append to a file, whole or not at all; a pipe or a device is written to as it takes it.

    Raises:
        OSError: it was not appended.
    """
    with path.open("ab", buffering=0 if (regular := not is_special(path)) else -1) as file:
        if regular:
            append_whole(file.fileno(), text.encode())
        else:
            file.write(text.encode())


def is_special(path: Path) -> bool:
    """Whether something is there, behind symlinks, that is no regular file: it can be written to, not replaced.

    Raises:
        OSError: symlinks that lead in a circle, a folder on the way that may not be entered.
    """
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def refuse_special(path: Path) -> None:
    """Refuse what is there and is no regular file: reading a pipe waits for its writer, a device may never end.

    Raises:
        InvalidError: it is a folder, a pipe, a socket or a device.
        OSError: see `is_special`.
    """
    if is_special(path):
        raise InvalidError(f"{path}: is no regular file: not read")


def refuse_part_of_run(path: Path) -> None:
    """Refuse a place for a report or an export that is one of a run's own files, which it would replace.

    Raises:
        UsageError: it is.
    """
    real = Path(os.path.realpath(path))
    if real.name in _OF_A_RUN and (real.parent / _RUN).exists():
        raise UsageError(f"{path}: is a file of a run, which would be lost: choose another place")


def replace_whole(path: Path, write: Callable[[BinaryIO], object], *, private: bool = True) -> None:
    """Write a file anew so that either the old or the new content is there: temporary file, fsync, rename.

    A symlink stays one: its target is written. What is no regular file (a pipe, a device) is written to and never
    replaced; `write` gets an open file of it that may not seek. The mode is 0600; where it is not `private`, that of
    the file that was there, else what the umask leaves: other users' programs fetch what a CI job wrote.

    Raises:
        OSError: it was not replaced.
    """
    if is_special(path):
        with path.open("wb") as file:
            write(file)
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o600 if private else 0o666), "wb") as file:
            if not private and path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
