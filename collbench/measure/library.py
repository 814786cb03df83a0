"""libnccl given by path: which version it is, its hash for the run's record, and algorithms that use it."""

import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from collbench.algorithms.base import Algorithm
from collbench.errors import UsageError
from collbench.results.records import Call, Support
from collbench.topology.machine import Machine

__all__ = ["nccl_facts", "of_libraries", "with_library"]

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


def with_library(algorithm: Algorithm, path: str, facts: Mapping[str, str], variant: str = "") -> Algorithm:
    """The same algorithm in workers that preload this library, judged by the library's version."""

    def there(machine: Machine) -> Machine:
        return replace(machine, software={**machine.software, **facts})

    def support(machine: Machine, call: Call) -> Support:
        return algorithm.support(there(machine), call)

    def environment(machine: Machine) -> Mapping[str, str]:
        return algorithm.environment(there(machine))

    return replace(algorithm, support=support, environment=environment, preload=path, variant=variant)


def of_libraries(
    paths: Sequence[str], machine: Machine, chosen: Sequence[Algorithm]
) -> tuple[Machine, list[Algorithm]]:
    """The machine with these libraries, and for each of them the algorithms that run on NCCL (`nccl_...`).

    The first is the machine's NCCL. Several are told apart by `variant`, their version (and the hash's start where two
    have the same), and the machine's record holds all versions and hashes.

    Raises:
        UsageError: see `nccl_facts`.
    """
    facts = [nccl_facts(path) for path in paths]
    versions = [told["nccl"] for told in facts]
    names = [
        version if versions.count(version) == 1 else f"{version}-{told['nccl_sha256'][:6]}"
        for version, told in zip(versions, facts, strict=True)
    ]
    if len(paths) == 1:
        names = [""]
    joined = {"nccl_sha256": ", ".join(told["nccl_sha256"] for told in facts), "nccl": versions[0]}
    if len(paths) > 1:
        joined["nccl_libraries"] = ", ".join(versions)
    algorithms: list[Algorithm] = []
    for one in chosen:
        if one.name.startswith("nccl_"):
            algorithms += [with_library(one, *item) for item in zip(paths, facts, names, strict=True)]
        else:
            algorithms.append(one)
    return replace(machine, software={**machine.software, **joined}), algorithms
