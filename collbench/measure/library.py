"""A libnccl given by path: which version it is, and its hash for the run's record."""

import hashlib
import subprocess
import sys
from pathlib import Path

from collbench.errors import UsageError

__all__ = ["nccl_facts"]

_DEADLINE_S = 30.0
_ASK = """
import ctypes, sys
code = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(code))
print(code.value)
"""


def nccl_facts(path: str) -> dict[str, str]:
    """Version and SHA-256 of a library, as `nccl` and `nccl_sha256`; asked in a process of its own.

    Raises:
        UsageError: it cannot be loaded, or does not answer within 30 s.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK, path], capture_output=True, text=True, timeout=_DEADLINE_S, check=True
        )
        code = int(done.stdout)
    except (subprocess.SubprocessError, ValueError, OSError) as error:
        printed = getattr(error, "stderr", None) or str(error)
        told = printed.strip().splitlines()[-1][:200] if printed.strip() else type(error).__name__
        raise UsageError(f"--nccl {Path(path).name}: not a library of NCCL that loads here: {told}") from error
    version = f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return {"nccl": version, "nccl_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}
