"""What one run of a program of nccl-tests said, as records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collbench.errors import InvalidError
from collbench.results.records import Collective

__all__ = ["DTYPES", "PROGRAMS", "Device", "Figures", "Invocation", "OutputError", "Row", "Settings", "nccl_version"]

PROGRAMS: Mapping[str, Collective | None] = {
    "all_reduce": Collective.ALL_REDUCE, "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER, "alltoall": Collective.ALL_TO_ALL, "sendrecv": Collective.P2P,
    "alltoallv": None, "broadcast": None, "reduce": None, "gather": None, "scatter": None, "hypercube": None,
}  # fmt: skip
"""Programs by name without `_perf`, with the collective that a run folder calls it; None where it has no word."""

DTYPES: Mapping[str, tuple[str, int]] = {
    "float": ("float32", 4), "half": ("float16", 2), "bfloat16": ("bfloat16", 2), "int32": ("int32", 4),
    "int": ("int32", 4), "double": ("float64", 8), "int8": ("int8", 1), "char": ("int8", 1), "uint8": ("uint8", 1),
    "uint32": ("uint32", 4), "int64": ("int64", 8), "uint64": ("uint64", 8), "fp8_e4m3": ("float8_e4m3", 1),
    "fp8_e5m2": ("float8_e5m2", 1), "f8e4m3": ("float8_e4m3", 1), "f8e5m2": ("float8_e5m2", 1),
}  # fmt: skip
"""Names of nccl-tests for element types: ours, and bytes of one element."""


class OutputError(InvalidError):
    """Output of nccl-tests that cannot be read: names the place, quotes it, says what was expected."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One place (out-of-place or in-place) of one row.

    `time_us` is the mean per call, bandwidths are GB/s (1e9 bytes). `wrong` counts wrong elements; None: nobody
    checked. `process_us[process][iteration]` are times per iteration in us, where the program gave them; a single row
    is the largest over the processes.
    """

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int | None = None
    process_us: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One size: `bytes` as printed (the larger buffer of a rank), `places` by `out` and `in`.

    `root` is -1 without one. `proof` says what ran (`algo`, `proto`, ...), where the program knows.
    """

    bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    places: Mapping[str, Figures]
    proof: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Device:
    """One rank's GPU. The host's name is here to count hosts; it is never stored."""

    rank: int
    group: int
    pid: int
    host: str
    bus: str
    model: str


@dataclass(frozen=True, slots=True)
class Settings:
    """How it measured: -t, -g, -n, -m, -w, -c, -G, -z, -a, -I, -C, and options that change what is measured.

    `average` is rank0, avg, min or max (-a). `others` are short words such as `R2` or `m4` for the cell's variant.
    """

    threads: int = 1
    gpus: int = 1
    iterations: int = 20
    aggregated: int = 1
    warmup: int | None = None
    validation: int | None = None
    graph: int = 0
    blocking: int = 0
    average: str = "avg"
    per_iteration: bool = False
    cputime: bool = False
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Invocation:
    """One start of a program, as far as its output tells.

    `program` is a key of `PROGRAMS`, empty where nothing names it. `world_size` is 0 where it cannot be known;
    `inferred` says what of the two was worked out from the numbers. `failures` are lines in which the program says that
    it failed, `problems` quote what could not be read. `wrong` is the total that the program prints, None without it.
    """

    program: str
    world_size: int
    settings: Settings
    rows: Sequence[Row]
    devices: Sequence[Device] = ()
    version: str = ""
    nccl: str = ""
    wrong: int | None = None
    finished: bool = False
    inferred: str = ""
    failures: Sequence[str] = ()
    problems: Sequence[str] = ()

    @property
    def hosts(self) -> int:
        """Number of hosts, at least 1."""
        return max(1, len({device.host for device in self.devices}))

    @property
    def collective(self) -> Collective | None:
        """As a run folder names it."""
        return PROGRAMS.get(self.program)


def nccl_version(code: int) -> str:
    """`2.30.7` for 23007; below 2.9 a minor version had one digit less (2804). Empty for what is no version."""
    if 2000 <= code < 10_000:  # noqa: PLR2004 - NCCL_VERSION_CODE of nccl.h
        return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    if 20_000 <= code < 1_000_000:  # noqa: PLR2004 - same
        return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return ""
