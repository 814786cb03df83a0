"""Starting a program of nccl-tests: the command line, one launch, and what became of each size that was asked for.

`-J` opens a new file only (it would add a number to the name of one that exists) and takes the format from the ending,
so it gets a name in a folder of its own, which is deleted: the file holds the environment of rank 0.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collbench.errors import UsageError
from collbench.interop.nccl_tests.binary import Binary
from collbench.interop.nccl_tests.builder import FAILURE, completed
from collbench.interop.nccl_tests.joining import joined
from collbench.interop.nccl_tests.reading import parse
from collbench.interop.nccl_tests.table import Invocation, OutputError
from collbench.interop.nccl_tests.words import given, settings_from
from collbench.interop.process import Ended, run_program
from collbench.measure.environment import worker_environment
from collbench.results.records import Status
from collbench.results.summary import clean

__all__ = ["Launch", "Request", "command_of", "environment_of", "launch", "mpi_rank", "sizes_of"]

_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "UCX_", "I_MPI_", "MPI_", "MPIR_", "HYDRA_", "SLURM_", "FI_")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_OURS = {"J": "the file is ours", "g": "--nproc says how many GPUs", "t": "--nproc says how many GPUs"}
_CYCLES = 5
"""Repetitions of the whole sweep where only means are printed: fewer values than five are called noisy."""

_MOST_SIZES = 4096
_CAUSE = re.compile(rf"(?:{FAILURE.pattern}|NCCL WARN).*")


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be measured; `program` is a key of `PROGRAMS`.

    `launcher` are the words before the program (`mpirun -np 8`), one process per GPU then; `ranks` is the number of
    GPUs of one process otherwise. `extra` are the user's own options of nccl-tests. `single_gpu`: mpirun started us.
    """

    program: str
    first_bytes: int
    last_bytes: int
    factor: int = 2
    ranks: int = 1
    iterations: int = 0
    warmup: int = 0
    dtype: str = ""
    op: str = ""
    launcher: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    single_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """What one launch gave: its rows, and with which status and reason the sizes without a row ended.

    `iterations`: it was asked for times per iteration and had a file for them, also where rows of it were lost.
    """

    invocation: Invocation | None
    status: Status
    reason: str
    seconds: float
    notes: tuple[str, ...] = ()
    iterations: bool = False


def mpi_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Rank of this process among those that mpirun or srun started; None outside of them.

    A shell inside a Slurm allocation has SLURM_PROCID too: it counts only for steps of several tasks.
    """
    for name in _RANKS:
        text = environ.get(name, "")
        if text.isascii() and text.isdigit():
            if name == "SLURM_PROCID" and environ.get("SLURM_STEP_NUM_TASKS", "1") == "1":
                continue
            return int(text)
    return None


def environment_of(environ: Mapping[str, str] = os.environ, *, launcher: bool = False) -> dict[str, str]:
    """What the program gets: the workers' allow-list, and with a launcher what MPI itself is told by variables."""
    kept = worker_environment(environ)
    return kept | {k: v for k, v in environ.items() if launcher and k.startswith(_LAUNCHERS)}


def command_of(binary: Binary, request: Request, json_path: str) -> list[str]:
    """The command line; our choices give way to the user's own options.

    Raises:
        UsageError: an option that only collbench may set.
    """
    asked = given(request.extra)
    for name, why in _OURS.items():
        if name in asked:
            raise UsageError(f"-{name} behind --: {why}")
    able = binary.abilities
    words = [*request.launcher, str(binary.path), "-b", str(request.first_bytes), "-e", str(request.last_bytes)]
    words += ["-f", str(request.factor)] if request.last_bytes > request.first_bytes else []
    words += ["-g", "1" if request.launcher or request.single_gpu else str(request.ranks)]
    for name, value in (("-n", request.iterations), ("-w", request.warmup), ("-d", request.dtype), ("-o", request.op)):
        words += [name, str(value)] if value else []
    words += ["-J", json_path] if able.json else []
    if able.per_iteration and able.json and not {"I", "G", "m", "C"} & set(asked):
        words += ["-I", "1"] + (["-z", "3"] if able.aligned and "z" not in asked else [])
    elif able.cycles and not {"N", "I"} & set(asked):
        words += ["-N", str(_CYCLES)]
    return [*words, *request.extra]


def sizes_of(request: Request) -> list[int]:
    """Sizes that were asked for; the program may round them down."""
    found: list[int] = []
    size = request.first_bytes
    while size <= request.last_bytes and len(found) < _MOST_SIZES:
        found.append(size)
        size *= max(2, request.factor)
    return found


def launch(binary: Binary, request: Request, environment: Mapping[str, str], deadline_s: float) -> Launch:
    """Start it once and read what it gave: the file of `-J`, and what it printed."""
    with tempfile.TemporaryDirectory(prefix="collbench-nccl-tests-") as folder:
        path = Path(folder) / "result.json"
        words = command_of(binary, request, str(path))
        ended = run_program(words, environment, deadline_s)
        opened = path.exists()
        file, wrong_file = _read(_text_of(path))
    printed, wrong_text = _read(ended.out)
    if file is None and printed is None:
        printed, _ = _read(ended.err + "\n" + ended.out)
    invocation = joined(file, printed)
    options = given(words[len(request.launcher) :])  # mpirun has a -n too
    known = settings_from(options, invocation.settings if invocation else None)
    if invocation is not None:
        # the table alone tells neither -a nor -R, and older ones not even the program
        invocation = completed(replace(invocation, settings=known, program=invocation.program or request.program))
    status, reason = _outcome(binary, ended, invocation, deadline_s)
    notes = ["it printed more than is read"] if ended.cut else []
    if status is Status.NOT_RUN:  # elsewhere the reason is the program's own last words, and rows are not missed
        notes += filter(None, (wrong_text or wrong_file,))
    iterations = opened and known.per_iteration and known.aggregated == 1
    said = () if invocation else tuple(notes[:1])
    return Launch(invocation, status, reason, ended.seconds, said, iterations)


def _read(text: str) -> tuple[Invocation | None, str]:
    """The run with rows that is in the text, or why there is none."""
    try:
        return (_best(parse(text)) if text.strip() else None), ""
    except OutputError as error:
        return None, str(error)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _best(found: Iterable[Invocation]) -> Invocation | None:
    """The one with rows: in front of it may stand what another rank printed before it failed."""
    return max((one for one in found if one.rows), key=lambda one: len(one.rows), default=None)


def _outcome(binary: Binary, ended: Ended, invocation: Invocation | None, deadline_s: float) -> tuple[Status, str]:
    """Status and reason of what has no row."""
    name = binary.path.name
    if ended.late:
        return Status.HUNG, f"{name} did not end within {deadline_s:g} s"
    why = _why(ended)
    if ended.code == 0 and (invocation is None or not invocation.failures):
        return Status.NOT_RUN, f"{name} ended without a row for it"
    if "out of memory" in why.lower():
        return Status.OUT_OF_MEMORY, why
    return Status.CRASHED, why or f"{name} ended with {_code(ended.code)}"


def _why(ended: Ended) -> str:
    lines: Sequence[str] = [*ended.out.splitlines(), *ended.err.splitlines()]
    found = (_CAUSE.search(line[:2000]) for line in lines)
    # the first line names the cause, those behind it where it went through; hosts are left out
    said = next((match[0] for match in found if match), "")
    return clean(re.sub(r" on node \S+", "", said))[:200]


def _code(code: int | None) -> str:
    if code is None:
        return "no code: it could not be started"
    return f"signal {code - 128}" if code > 128 else f"code {code}"  # noqa: PLR2004 - as a shell counts
