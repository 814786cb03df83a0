"""Other people's kernels as a library: a wrapper of ours compiled with nvcc against their installed header."""

import ctypes
import fcntl
import hashlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from collbench.topology.toolkit import HEADERS_VARIABLE, find_header, find_nvcc, nvcc_version

__all__ = ["DTYPES", "MAX_RANKS", "Built", "Setup", "Wrapper", "build", "load"]

DTYPES = {"bfloat16": 0, "float16": 1, "float32": 2}
"""Numbers of the element types in peer.h."""

MAX_RANKS = 8

_NVCC_S = 300.0
_POLL_S = 0.05
_PASSED = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
"""Variables that the compiler gets."""


class Setup(ctypes.Structure):
    """`Setup` of peer.h: everything that is the same for all calls of a runner."""

    _fields_ = (
        ("slab", ctypes.c_uint64 * MAX_RANKS), ("table", ctypes.c_uint64), ("input", ctypes.c_uint64),
        ("output", ctypes.c_uint64), ("stride", ctypes.c_uint64), ("count", ctypes.c_int64), ("rank", ctypes.c_int32),
        ("kernel", ctypes.c_int32), ("blocks", ctypes.c_int32), ("threads", ctypes.c_int32),
        ("max_blocks", ctypes.c_int32), ("spare", ctypes.c_int32),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wrapper:
    """One wrapper to compile: a `.cu` file beside this module, the header it includes, and what selects its code."""

    source: str
    header: str
    world_size: int
    dtype: str
    arch: str


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled wrapper; `seconds` is what nvcc took, 0 where it was taken from the cache."""

    library: Path
    seconds: float
    nvcc: str
    header_sha256: str


def load(built: Built) -> Any:  # noqa: ANN401 - ctypes.CDLL has no types
    """Open the library and declare its functions.

    Raises:
        RuntimeError: it was made for another layout of `Setup`.
        OSError: it cannot be opened.
    """
    library = ctypes.CDLL(str(built.library))
    library.peer_setup_bytes.restype = ctypes.c_size_t
    library.peer_workspace_bytes.restype = ctypes.c_int64
    library.peer_workspace_bytes.argtypes = (ctypes.c_int64, ctypes.c_int)
    library.peer_table_bytes.restype = ctypes.c_int64
    library.peer_error.restype = ctypes.c_char_p
    library.peer_launch.argtypes = (ctypes.POINTER(Setup), ctypes.c_int64, ctypes.c_void_p)
    if library.peer_setup_bytes() != ctypes.sizeof(Setup):
        raise RuntimeError(f"{built.library.name}: Setup has {library.peer_setup_bytes()} bytes there")
    return library


def build(wrapper: Wrapper, cache_folder: Path | None = None, deadline_s: float = _NVCC_S) -> Built:
    """Compile a wrapper, or take it from the cache (None: the user's, mode 0700), which ranks fill one after the other.

    Takes about 3 s with CUDA 13.0 for one world size and element type.

    Raises:
        NotImplementedError: no compiler, no header, or the compiler refuses; the text is one line with what to do.
        TimeoutError: the compiler, or the rank that compiles, did not end within the deadline.
    """
    compiler, header = find_nvcc(), find_header(wrapper.header)
    if compiler is None:
        raise NotImplementedError("nvcc was not found: install the CUDA toolkit, or set CUDA_HOME")
    if header is None:
        raise NotImplementedError(
            f"{wrapper.header} was not found: pip install flashinfer-python, or set {HEADERS_VARIABLE}"
        )
    folder = resources.files(__package__)
    texts = [folder.joinpath(name).read_bytes() for name in (wrapper.source, "peer.h")] + [header.read_bytes()]
    version = nvcc_version(compiler)
    key = hashlib.sha256(repr((wrapper, version, str(compiler), *texts)).encode()).hexdigest()[:32]
    cache = _private(cache_folder or _user_cache())
    library, begin, seconds = cache / f"peer-{key}.so", time.monotonic(), 0.0
    with _locked(cache / f"peer-{key}.lock", deadline_s):
        if not library.is_file():
            _compile(compiler, wrapper, header, library, deadline_s)
            seconds = time.monotonic() - begin
    return Built(library, seconds, version, hashlib.sha256(texts[-1]).hexdigest())


def _compile(compiler: Path, wrapper: Wrapper, header: Path, library: Path, deadline_s: float) -> None:
    number = wrapper.arch.removeprefix("sm_")
    with (
        resources.as_file(resources.files(__package__).joinpath(wrapper.source)) as source,
        resources.as_file(resources.files(__package__).joinpath("peer.h")) as ours,
        tempfile.TemporaryDirectory(dir=library.parent) as folder,
    ):
        made = Path(folder) / library.name
        _run([
            str(compiler), "-std=c++17", "-O3", "-w", "-shared", "-Xcompiler", "-fPIC",
            "-gencode", f"arch=compute_{number},code=sm_{number}",
            f"-DW={wrapper.world_size}", f"-DDTYPE={DTYPES[wrapper.dtype]}",
            "-I", str(header.parent), "-I", str(ours.parent), "-o", str(made), str(source),
        ], wrapper, deadline_s)  # fmt: skip
        made.chmod(0o700)
        made.replace(library)


def _run(command: list[str], wrapper: Wrapper, deadline_s: float) -> None:
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        told, _ = child.communicate(timeout=deadline_s)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # a session of its own: its compilers go too
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"nvcc did not compile {wrapper.header} within {deadline_s:g} s") from error
        raise
    if child.returncode:
        lines = [line.strip() for line in told.splitlines() if "error" in line] or told.splitlines()[-1:] or [""]
        raise NotImplementedError(f"nvcc refused {wrapper.header} for {wrapper.arch}: {lines[0][:300]}")


@contextmanager
def _locked(path: Path, deadline_s: float) -> Iterator[None]:
    """Hold a lock among the processes of this user; it is released when the holder dies, however it dies."""
    limit = time.monotonic() + deadline_s
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise TimeoutError(f"another rank compiles for more than {deadline_s:g} s") from None
                time.sleep(_POLL_S)
        yield


def _user_cache() -> Path:
    given = os.environ.get("COLLBENCH_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "collbench" / "kernels"


def _private(folder: Path) -> Path:
    """The folder, made if need be; code that others could have put there is not loaded."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError as error:
        raise NotImplementedError(f"no folder for compiled kernels ({error}): set COLLBENCH_CACHE") from error
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise NotImplementedError("others can write the folder of compiled kernels: set COLLBENCH_CACHE to another")
    return folder
