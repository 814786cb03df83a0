"""The libnccl that this process has loaded, called directly, and the log that it writes.

`ncclAllReduce` is called through ctypes on the communicator of torch.distributed. The functions used have had the same
signature since NCCL 2.0 (nccl.h).
"""

import atexit
import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["DATA_TYPES", "DebugLog", "NcclLibrary", "find_library"]

DATA_TYPES = {"int32": 2, "float16": 6, "float32": 7, "bfloat16": 9}
"""ncclDataType_t of each dtype (nccl.h)."""

_SUM = 0
_SUCCESS, _IN_PROGRESS = 0, 7
_RESET_SAFE_SINCE = (2, 26)
"""From here on ncclResetDebugInit takes the log's mutex, so that it may be called while NCCL's threads live."""

_MINOR_MAJOR = 10_000  # NCCL_VERSION_CODE from 2.9 on: major * 10000 + minor * 100 + patch


def find_library(maps: str, preload: str = "") -> str:
    """Path of the one libnccl among the mapped files of /proc/PID/maps; of several, the one in LD_PRELOAD.

    Raises:
        RuntimeError: none is mapped, or several and none of them is preloaded.
    """
    lines = (line.split(None, 5) for line in maps.splitlines())
    paths = dict.fromkeys(f[5].strip() for f in lines if len(f) == 6 and Path(f[5]).name.startswith("libnccl.so"))  # noqa: PLR2004 - columns of maps(5)
    wanted = [path for path in paths if path in {os.path.realpath(p) for p in preload.replace(":", " ").split()}]
    if len(paths) == 1 or wanted:
        return (wanted or list(paths))[0]
    raise RuntimeError(f"{len(paths)} libraries named libnccl are loaded, expected one: {', '.join(paths) or 'none'}")


class NcclLibrary:
    """The loaded library. `path` says which file it is, `version` what it says of itself."""

    def __init__(self, path: str, library: Any = None) -> None:  # noqa: ANN401 - ctypes.CDLL, or a test's
        self.path = path
        self._library = library or ctypes.CDLL(path)
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        self._library.ncclGetLastError.restype = ctypes.c_char_p
        self._all_reduce = self._library.ncclAllReduce
        code = ctypes.c_int()
        self._library.ncclGetVersion(ctypes.byref(code))
        self.version = _version(code.value)

    @property
    def handle(self) -> Any:  # noqa: ANN401 - ctypes.CDLL, or a test's
        """The library itself, for entry points that not every release has."""
        return self._library

    @classmethod
    def loaded(cls) -> "NcclLibrary":
        """The library in this process.

        Raises:
            RuntimeError: see `find_library`.
        """
        return cls(find_library(Path("/proc/self/maps").read_text(), os.environ.get("LD_PRELOAD", "")))

    def all_reduce(self, arguments: tuple[Any, ...], stream: int) -> None:
        """Enqueue an all-reduce; `arguments` are those of `bind`.

        Raises:
            RuntimeError: NCCL refused, in NCCL's words.
        """
        code = self._all_reduce(*arguments, ctypes.c_void_p(stream))
        if code not in {_SUCCESS, _IN_PROGRESS}:
            raise RuntimeError(f"ncclAllReduce: {self.error_text(code, arguments[-1])}")

    @staticmethod
    def bind(source: int, target: int, count: int, dtype: str, communicator: int) -> tuple[Any, ...]:
        """Arguments of one all-reduce (sum), converted once: addresses, elements, dtype, operation, communicator."""
        return (
            ctypes.c_void_p(source), ctypes.c_void_p(target), ctypes.c_size_t(count),
            ctypes.c_int(DATA_TYPES[dtype]), ctypes.c_int(_SUM), ctypes.c_void_p(communicator),
        )  # fmt: skip

    def error_text(self, code: int, communicator: Any) -> str:  # noqa: ANN401 - a ctypes pointer
        """NCCL's words for a result code, and its last error."""
        words = (self._library.ncclGetErrorString(ctypes.c_int(code)), self._library.ncclGetLastError(communicator))
        return "; ".join(word.decode("utf-8", "replace").strip() for word in words if word)

    def reread_debug(self) -> bool:
        """Have NCCL read NCCL_DEBUG again; False where this release cannot do so safely."""
        if self.version < _RESET_SAFE_SINCE:
            return False
        for name in ("ncclResetDebugInitInternal", "ncclResetDebugInit"):
            reset = getattr(self._library, name, None)
            if reset is not None:
                reset.restype = None
                reset()
                return True
        return False


class DebugLog:
    """What NCCL logs in this process, in an anonymous file that no crash leaves behind.

    It must be made before NCCL logs its first line: NCCL opens NCCL_DEBUG_FILE once per process.
    """

    def __init__(self) -> None:
        self._before = ""
        self._file, path = _open_log()
        self._anonymous = path.startswith("/proc/")
        os.environ["NCCL_DEBUG_FILE"] = path
        self._level = os.environ.setdefault("NCCL_DEBUG", "INFO")

    def text(self) -> str:
        """Everything logged so far."""
        size = os.fstat(self._file).st_size
        # NCCL's old offset leaves zeros where the file was cut behind its back
        return self._before + os.pread(self._file, size, 0).replace(b"\0", b"").decode("utf-8", "replace")

    def quiet(self, library: NcclLibrary) -> bool:
        """Stop logging, so that a line per call is not in a timed run; False where NCCL cannot do so."""
        return self._switch(library, "WARN")

    def resume(self, library: NcclLibrary) -> bool:
        """Log again at the level at which it was made."""
        return self._switch(library, self._level)

    def _switch(self, library: NcclLibrary, level: str) -> bool:
        kept, before = self.text(), os.environ.get("NCCL_DEBUG", "")
        if before == level:
            return True
        if not self._anonymous:
            return False
        os.environ["NCCL_DEBUG"] = level
        if not library.reread_debug():
            os.environ["NCCL_DEBUG"] = before
            return False
        # NCCL truncates the file when it opens it again
        os.ftruncate(self._file, 0)
        self._before = kept
        return True


def _open_log() -> tuple[int, str]:
    file = os.memfd_create("collbench-nccl-log")
    path = f"/proc/self/fd/{file}"
    try:
        with Path(path).open("wb"):
            return file, path
    except OSError:  # a sandbox that does not let files be opened anew through /proc
        os.close(file)
    file, path = tempfile.mkstemp(prefix="collbench-nccl-")
    atexit.register(Path(path).unlink, missing_ok=True)
    return file, path


def _version(code: int) -> tuple[int, ...]:
    if code < _MINOR_MAJOR:  # before 2.9: major * 1000 + minor * 100 + patch
        return code // 1000, code // 100 % 10, code % 100
    return code // _MINOR_MAJOR, code // 100 % 100, code % 100
