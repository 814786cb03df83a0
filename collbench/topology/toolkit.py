"""What is there to compile other people's kernels with: the CUDA compiler, and the header files that packages ship."""

import importlib.metadata
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from collbench.topology.sysfs_cpu import read_text

__all__ = ["HEADERS_VARIABLE", "find_header", "find_nvcc", "nvcc_version", "versions"]

HEADERS_VARIABLE = "COLLBENCH_FLASHINFER_INCLUDE"
"""Names the folder that holds `flashinfer/comm/*.cuh`, or these files themselves, instead of the installed package."""

_PACKAGE = "flashinfer-python"
_INSIDE = Path("flashinfer/comm")
_PROBE = "vllm_custom_all_reduce.cuh"
_TOOLKIT = Path("/usr/local/cuda")
_RUNTIME = re.compile(r"^#define CUDART_VERSION\s+(\d+)", re.MULTILINE)


def versions(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Entries of `Machine.software`: `nvcc`, and `flashinfer-headers` where headers are given by the variable."""
    found = {}
    compiler = find_nvcc(environ)
    if compiler is not None:
        found["nvcc"] = nvcc_version(compiler)
    if environ.get(HEADERS_VARIABLE) and find_header(_PROBE, environ) is not None:
        found["flashinfer-headers"] = "given"
    return found


def find_nvcc(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The compiler below CUDA_HOME or CUDA_PATH, on PATH, or below /usr/local/cuda."""
    homes = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    places = [home / "bin/nvcc" for home in homes]
    on_path = shutil.which("nvcc", path=environ.get("PATH", ""))
    places += [Path(on_path)] if on_path else []
    places.append(_TOOLKIT / "bin/nvcc")
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def nvcc_version(compiler: Path) -> str:
    """Version as its toolkit's files tell, `13.0.88`; `unknown` where they do not. Starts no program."""
    for home in (compiler.parent.parent, compiler.resolve().parent.parent, _TOOLKIT):
        version = _version_of(home)
        if version:
            return version
    return "unknown"


def _version_of(home: Path) -> str:
    """The compiler's own version, or the runtime's that stands beside it: `#define CUDART_VERSION 13000` is 13.0."""
    try:
        told = json.loads((home / "version.json").read_text(encoding="utf-8"))
        return str(told["cuda_nvcc"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        match = _RUNTIME.search(read_text(home / "include/cuda_runtime_api.h"))
        return f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else ""


def find_header(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """A header file of FlashInfer's, `comm` folder: where the variable points, else in the installed package."""
    given = environ.get(HEADERS_VARIABLE)
    if given:
        places = [Path(given) / _INSIDE / name, Path(given) / name]
        return next((place.resolve() for place in places if place.is_file()), None)
    try:
        place = Path(str(importlib.metadata.distribution(_PACKAGE).locate_file(f"flashinfer/data/include/{_INSIDE}")))
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return None
    header = place / name
    return header.resolve() if header.is_file() else None
