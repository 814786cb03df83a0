"""What a call of `collbench nccl-tests` asks for, from its options and from what started it."""

import argparse
import os
import re
import shlex

from collbench.errors import UsageError
from collbench.interop.nccl_tests.binary import Binary
from collbench.interop.nccl_tests.running import Request
from collbench.interop.nccl_tests.table import PROGRAMS
from collbench.interop.nccl_tests.words import given
from collbench.measure.placement import gpu_count
from collbench.results.records import Collective
from collbench.units import parse_bytes

__all__ = ["check_mpi", "program_named", "request_of"]

_DTYPES = {"float32": "float", "float16": "half", "bf16": "bfloat16"}
"""Our names of dtypes, and short ones, for those of nccl-tests; others are passed on as they are."""

_MOST = 1_000_000


def program_named(name: str) -> tuple[str, Collective]:
    """The program for a collective, by our name or nccl-tests'; and our name.

    Raises:
        UsageError: there is none of that name.
    """
    for program, collective in PROGRAMS.items():
        if collective is not None and name in {str(collective), program}:
            return program, collective
    names = ", ".join(str(collective) for collective in PROGRAMS.values() if collective)
    raise UsageError(f"--collective {name}: expected one of {names}")


def request_of(args: argparse.Namespace, program: str, rank: int | None) -> Request:
    """What is to be measured; `rank` is this process's among those that mpirun started.

    Raises:
        UsageError: an option's value is off.
    """
    first, last, factor = _sizes(args)
    counts = {"-n": args.iterations, "-w": args.warmup, "--launches": args.launches, "--nproc": args.nproc}
    for name, value in counts.items():
        if value is not None and not 1 <= value <= _MOST:
            raise UsageError(f"{name} {value}: expected a whole number from 1 to {_MOST:,}")
    if args.extra and not args.extra[0].startswith("-"):
        raise UsageError(f"{args.extra[0]!r}: options of nccl-tests follow behind --")
    if args.topology:
        raise UsageError("--topology belongs to --parse: this machine is looked at")
    try:
        launcher = tuple(shlex.split(args.launcher))
    except ValueError as error:
        raise UsageError(f"--launcher {args.launcher}: {error}") from None
    return Request(
        program, first, last, factor, _ranks(args, launcher, rank), args.iterations or 0, args.warmup or 0,
        _DTYPES.get(args.dtype, args.dtype), args.op, launcher, tuple(args.extra), rank is not None,
    )  # fmt: skip


def _sizes(args: argparse.Namespace) -> tuple[int, int, int]:
    """First and last size and the factor; behind -- they count too, as the program reads its last word.

    From 0 bytes nccl-tests never comes to its first row: it doubles the smallest size until it is the largest.

    Raises:
        UsageError: one of them is off.
    """
    said = given(args.extra)
    least, most = said.get("b") or args.first, said.get("e") or args.last
    first = parse_bytes(least) if least else 1024
    last = parse_bytes(most) if most else (first if least else 4 << 20)
    factor = int(said["f"]) if re.fullmatch(r"[1-9]\d{0,8}", said.get("f", ""), re.ASCII) else args.factor
    if last < first or args.factor < 2:  # noqa: PLR2004 - a factor of one never ends
        raise UsageError(f"-b {first} -e {last} -f {args.factor}: expected -e not below -b, and a factor of 2 or more")
    return first, last, factor


def _ranks(args: argparse.Namespace, launcher: tuple[str, ...], rank: int | None) -> int:
    local, world = os.environ.get("LOCAL_WORLD_SIZE", ""), os.environ.get("WORLD_SIZE", "")
    if "TORCHELASTIC_RUN_ID" in os.environ and local.isdigit():
        if local != world:
            raise UsageError("torchrun over several hosts: nccl-tests meets through MPI there: give --launcher mpirun")
        return args.nproc or int(local)
    if args.nproc is not None:
        return int(args.nproc)
    if rank is not None:
        size = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("PMI_SIZE") or "1"
        return int(size) if size.isdigit() else 1
    found = gpu_count()
    if not found and not launcher:
        raise UsageError("no NVIDIA GPU is seen here: say with --nproc how many the program shall use")
    return max(1, found)


def check_mpi(binary: Binary, request: Request, *, several: bool) -> None:
    """Several processes make one group only through MPI.

    Raises:
        UsageError: the program was built without it.
    """
    if several and not binary.abilities.mpi:
        how = "--launcher" if request.launcher else "mpirun"
        raise UsageError(
            f"{binary.path.name} names no MPI: under {how} every process would measure alone; build it with MPI=1"
        )
