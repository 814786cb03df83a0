"""From device source and options to a cubin: NVRTC through cuda-core, no GPU needed, kept per process and on disk."""

import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from collbench.algorithms.cuda.designs import kind_of
from collbench.errors import CollbenchError, UsageError

__all__ = [
    "ARCHS",
    "DTYPES",
    "ENTRY",
    "KERNELS",
    "PROBE",
    "SPEEDUPS",
    "CompileError",
    "Compiled",
    "Variant",
    "compile_kernel",
    "left_out",
    "source",
]

KERNELS = (
    "one_stage_pull", "one_stage_pull_data", "one_stage_pull_kept", "one_stage_pull_flag", "two_stage_pull_data",
    "two_stage_pull_flag", "push", "push_flags", "two_stage_push", "islands", "staged_ring", "push_fused",
    "islands_fused", "push_all_gather", "push_reduce_scatter", "push_all_to_all", "push_barrier",
)  # fmt: skip
"""Device functions that the entry kernel can run."""

ARCHS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
"""What the tests compile for."""

ENTRY = "collective"
"""Name of the kernel in a cubin; `virtual_ranks` in one of virtual ranks, `probe` in that of microbenchmarks."""

PROBE = "probe"
"""`Variant.kernel` of the microbenchmarks (probes.cuh), which depend neither on a world size nor on a type."""

DTYPES: Mapping[str, int] = {"bfloat16": 0, "float16": 1, "float32": 2, "int32": 3}
"""Numbers of the element types in common.cuh."""

SPEEDUPS: Mapping[str, int] = {
    "relaxed_polls": 1, "loads_together": 2, "early_load": 3, "own_in_register": 4, "late_rearm": 5,
}  # fmt: skip
"""What makes the one-stage kernels fast, by the numbers of WITHOUT in common.cuh."""

_FILES = (
    "primitives.cuh", "common.cuh", "one_stage.cuh", "push_flags.cuh", "two_stage.cuh", "fused.cuh", "islands.cuh",
    "staged_ring.cuh", "exchange.cuh", "exchange_uneven.cuh", "kernels.cuh",
)  # fmt: skip
_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")
_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")


class CompileError(CollbenchError):
    """NVRTC is missing or has refused the source: names the kernel and the first line of the compiler's words."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel to compile: `kernel` of `KERNELS`, for a world size, an element type and an arch (`sm_90`).

    `pdl` compiles programmatic dependent launch in (sm_90 and later); `virtual` builds the kernel of virtual ranks;
    `broken` leaves one rule of safety out (a number of common.cuh), for negative controls; `without` one thing that
    makes it fast (a number of `SPEEDUPS`), to measure what that is worth.
    """

    kernel: str
    world_size: int
    dtype: str
    arch: str
    pdl: bool = False
    virtual: bool = False
    broken: int = 0
    without: int = 0

    @property
    def entry(self) -> str:
        """Name of the kernel in the cubin."""
        return "virtual_ranks" if self.virtual else PROBE if self.kernel == PROBE else ENTRY

    @property
    def source(self) -> str:
        """What is compiled."""
        return source(self.virtual, probes=self.kernel == PROBE)

    @property
    def macros(self) -> dict[str, str]:
        """Macro definitions that select it."""
        flags = {"PDL": int(self.pdl), "BREAK": self.broken, "WITHOUT": self.without}
        numbers = {"W": self.world_size, "DTYPE": DTYPES[self.dtype], **flags}
        if self.virtual:
            numbers["KIND"] = kind_of(self.kernel)
        return {"KERNEL": self.kernel, **{name: str(value) for name, value in numbers.items()}}


def left_out(notes: dict[str, str]) -> int:
    """What COLLBENCH_OWN_WITHOUT leaves out, noted; 0 if nothing.

    Raises:
        UsageError: it is none of `SPEEDUPS`.
    """
    name = os.environ.get("COLLBENCH_OWN_WITHOUT", "")
    if not name:
        return 0
    if name not in SPEEDUPS:
        raise UsageError(f"COLLBENCH_OWN_WITHOUT={name!r}: expected one of {', '.join(SPEEDUPS)}")
    notes["without"] = name
    return SPEEDUPS[name]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin with what ptxas says of its entry kernel: registers per thread, bytes spilled, static shared memory."""

    variant: Variant
    cubin: bytes
    registers: int
    spills: int
    stack: int
    shared: int


@cache
def source(virtual: bool = False, *, probes: bool = False) -> str:  # noqa: FBT001, FBT002 - names the kernel added
    """The device source as one text, with `#line` marks so that errors name our files."""
    folder = resources.files(__package__)
    names = ("primitives.cuh", "probes.cuh") if probes else (*_FILES, "virtual.cuh") if virtual else _FILES
    return "\n".join(f'#line 1 "{name}"\n{folder.joinpath(name).read_text()}' for name in names)


@cache
def compile_kernel(variant: Variant, cache_folder: Path | None = None) -> Compiled:
    """Compile a kernel, or take it from this process or from `cache_folder` (None: the user's cache, mode 0700).

    Takes about 0.2 s once. `COLLBENCH_CACHE` moves the user's cache; a folder that others can write is not used.

    Raises:
        CompileError: NVRTC is not installed, or it refuses the source.
    """
    name = hashlib.sha256(repr((variant.source, variant, _compiler())).encode()).hexdigest()[:32]
    folder = _private(cache_folder or _user_cache())
    kept = _read(folder, name, variant) if folder else None
    if kept is not None:
        return kept
    made = _compile(variant)
    if folder:
        _write(folder, name, made)
    return made


def _compile(variant: Variant) -> Compiled:
    program, options = _toolkit()
    log = io.StringIO()
    try:
        made = program(
            variant.source, "c++",
            options(
                arch=variant.arch, std="c++17", define_macro=list(variant.macros.items()), ptxas_options=["-v"],
                **_uncached(options),
            ),
        ).compile("cubin", logs=log)  # fmt: skip
    except Exception as error:
        lines = [line for line in f"{log.getvalue()}\n{error}".splitlines() if "error:" in line]
        raise CompileError(
            f"kernel {variant.kernel} for {variant.arch}: {(lines or [str(error)])[0].strip()}"
        ) from error
    return _measured(variant, bytes(made.code), log.getvalue())


def _uncached(options: Any) -> dict[str, bool]:  # noqa: ANN401 - cuda-core's class of options
    """NVRTC 13 keeps a cache of its own, and what comes from there has no log of ptxas: eight ranks met it at once."""
    return {"no_cache": True} if "no_cache" in {field.name for field in fields(options)} else {}


def _measured(variant: Variant, cubin: bytes, log: str) -> Compiled:
    parts = _FUNCTION.split(log)
    text = next((body for name, body in zip(parts[1::2], parts[2::2], strict=True) if name == variant.entry), log)
    used, spilled, shared = _USED.search(text), _SPILLS.search(text), _SHARED.search(text)
    if used is None or spilled is None:
        raise CompileError(f"kernel {variant.kernel} for {variant.arch}: ptxas -v gave no registers: {log[:200]!r}")
    stack, stores, loads = map(int, spilled.groups())
    return Compiled(variant, cubin, int(used[1]), stores + loads, stack, int(shared[1]) if shared else 0)


@cache
def _toolkit() -> tuple[Any, Any]:
    try:
        from cuda import core
    except ImportError as error:
        raise CompileError("cuda-core is not installed: pip install 'collbench[cuda]'") from error
    if not hasattr(core, "Program"):
        from cuda.core import experimental as core  # cuda-core before 0.5
    return core.Program, core.ProgramOptions


@cache
def _compiler() -> str:
    _toolkit()
    from cuda.bindings import nvrtc

    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:
        raise CompileError(f"NVRTC cannot be loaded ({error}): pip install 'collbench[cuda]'") from error
    return f"{major}.{minor}"


def _user_cache() -> Path:
    given = os.environ.get("COLLBENCH_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - Path.home() may raise
    return Path(base) / "collbench" / "kernels"


def _private(folder: Path) -> Path | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError:
        return None
    return folder if state.st_uid == os.getuid() and not state.st_mode & 0o022 else None


def _read(folder: Path, name: str, variant: Variant) -> Compiled | None:
    try:
        facts = json.loads((folder / f"{name}.json").read_text())
        cubin = (folder / f"{name}.cubin").read_bytes()
        if facts["sha256"] != hashlib.sha256(cubin).hexdigest():
            return None
        return Compiled(variant, cubin, *(int(facts[key]) for key in ("registers", "spills", "stack", "shared")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, name: str, made: Compiled) -> None:
    facts = {key: value for key, value in asdict(made).items() if key not in {"variant", "cubin"}}
    facts |= {"sha256": hashlib.sha256(made.cubin).hexdigest(), "variant": asdict(made.variant)}
    try:
        _replace(folder / f"{name}.cubin", made.cubin)
        _replace(folder / f"{name}.json", json.dumps(facts).encode())
    except OSError:
        return  # a full or read-only disk costs the next process 0.2 s


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
