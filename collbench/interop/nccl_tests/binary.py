"""Where the programs of nccl-tests are on this machine, and what the build at hand can do."""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from collbench.errors import InvalidError, UsageError
from collbench.interop.nccl_tests.builder import FAILURE
from collbench.interop.nccl_tests.words import Abilities, abilities_of
from collbench.interop.process import run_program

__all__ = ["FOLDERS", "VARIABLE", "Binary", "ask", "find"]

VARIABLE = "COLLBENCH_NCCL_TESTS"
"""Names the program, or a folder with the programs."""

FOLDERS = (
    "build", "nccl-tests/build", "~/nccl-tests/build", "/opt/nccl-tests/build", "/opt/nccl_tests/build",
    "/usr/local/nccl-tests/build", "/nccl-tests/build", "/workspace/nccl-tests/build", "/opt/nccl-tests",
    "/usr/lib/nccl-tests", "/opt/hpcx/nccl-tests/build",
)  # fmt: skip
"""Where builds usually stand; looked at after the variable and PATH."""

_USAGE_S = 20.0
_MPI_MARKS = (b"libmpi", b"MPI_Init", b"PMPI_")
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Binary:
    """A program, where it came from (`--binary`, the variable, PATH, a folder), and what it can do."""

    path: Path
    origin: str
    abilities: Abilities


def find(program: str, where: str = "", environ: Mapping[str, str] = os.environ, *, mpi: bool = False) -> Path:
    """Path of `program` (`all_reduce`, ...): by `where` (a file or a folder), the variable, PATH, usual folders.

    With `mpi` a build whose name ends in `_mpi` comes first.

    Raises:
        UsageError: it is not there; the message says where was looked.
    """
    return _found(program, where, environ, mpi=mpi)[0]


def _found(program: str, where: str, environ: Mapping[str, str], *, mpi: bool) -> tuple[Path, str]:
    plain, linked = f"{program}_perf", f"{program}_perf_mpi"
    names = (linked, plain) if mpi else (plain, linked)
    for text, origin in ((where, "--binary"), (environ.get(VARIABLE, ""), VARIABLE)):
        if text:
            return _given(Path(text).expanduser(), names, origin), origin
    for name in names:
        if found := shutil.which(name, path=environ.get("PATH")):
            return Path(found).resolve(), "PATH"
    for folder, name in ((Path(folder).expanduser(), name) for folder in FOLDERS for name in names):
        if os.access(folder / name, os.X_OK) and (folder / name).is_file():
            return (folder / name).resolve(), str(folder)
    raise UsageError(
        f"{plain} was not found on PATH, nor in {', '.join(FOLDERS[:3])} or other usual folders: build nccl-tests, or "
        f"give its folder with --binary or {VARIABLE}"
    )


def _given(path: Path, names: tuple[str, ...], origin: str) -> Path:
    if path.is_dir():
        inside = [*_inside(path, names), *_inside(path / "build", names)]
        if not inside:
            raise UsageError(f"{origin} {path}: no {names[0]} in this folder, nor in its build folder")
        return inside[0].resolve()
    if not path.is_file():
        raise UsageError(f"{origin} {path}: no such file or folder")
    if not os.access(path, os.X_OK):
        raise UsageError(f"{origin} {path}: not a program that may be started")
    if not path.name.startswith(names[0].removesuffix("_mpi")):
        raise UsageError(f"{origin} {path}: expected {names[0]}, or the folder that holds it")
    return path.resolve()


def _inside(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    return (folder / name for name in names if (folder / name).is_file() and os.access(folder / name, os.X_OK))


def ask(
    program: str, where: str, environment: Mapping[str, str], environ: Mapping[str, str] = os.environ, *,
    mpi: bool = False,
) -> Binary:  # fmt: skip
    """Find the program and let it tell its options (`--help`), with a deadline.

    Raises:
        UsageError: it is not there.
        InvalidError: it cannot be started, or does not answer.
    """
    path, origin = _found(program, where, environ, mpi=mpi)
    ended = run_program((str(path), "--help"), environment, _USAGE_S)
    text = ended.out + "\n" + ended.err
    if ended.late:
        raise InvalidError(f"{path} --help: no answer within {_USAGE_S:g} s: see the driver's messages with dmesg")
    if "--minbytes" not in text:
        lines = [line for line in text.splitlines() if line.strip()]
        why = next((line for line in lines if FAILURE.search(line)), lines[-1] if lines else f"code {ended.code}")
        raise InvalidError(f"{path} --help: {why.strip()[:200]}: not a program of nccl-tests, or one that cannot start")
    return Binary(path, origin, abilities_of(text, mpi=_has_mpi(path)))


def _has_mpi(path: Path) -> bool:
    """Whether the file names MPI's library or functions. A script that starts the program names none."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return False
        data = path.read_bytes()
    except OSError:
        return False
    return any(mark in data for mark in _MPI_MARKS)
