"""Puts launches of nccl-tests into a run folder, each when it has ended; a size without a row has a status."""

import datetime as dt
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from collbench import __version__
from collbench.interop.nccl_tests.cells import ALGORITHM, BUFFERS, Measured, evidence_of, samples_of, variant
from collbench.interop.nccl_tests.place import with_versions
from collbench.interop.nccl_tests.running import Launch, Request, sizes_of
from collbench.interop.nccl_tests.table import DTYPES, Invocation
from collbench.interop.nccl_tests.words import given, settings_from
from collbench.results.records import Call, Cell, Collective, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.topology.machine import Machine

__all__ = ["Recorder", "record"]

_PLACES = ("out", "in")
_PRIVATE = frozenset({"NCCL_HOSTID", "NCCL_COMM_ID", "NCCL_DEBUG_FILE"})
"""Variables that name a host."""


def new_run(
    machine: Machine, cells: Iterable[Cell], launches: int, command: Iterable[str], environment: Mapping[str, str]
) -> Run:
    """The record of a run that nccl-tests measured."""
    now = dt.datetime.now(dt.UTC)
    words = tuple(Path(word).name if word.startswith("/") else word for word in command)
    kept = {k: v for k, v in environment.items() if k.startswith("NCCL_") and "/" not in v and k not in _PRIVATE}
    return Run(
        run_id=f"{now:%Y%m%dT%H%M%S}-{os.urandom(4).hex()}", created=now.isoformat(timespec="seconds"), command=words,
        version=__version__, fabric=machine.fabric, world_size=machine.ranks, launches=launches, cells=tuple(cells),
        machine=machine.as_dict(), settings={"tool": "nccl-tests", "group_times": True},
        environment={ALGORITHM: kept} if kept else {},
    )  # fmt: skip


def record(path: Path, found: Measured, machine: Machine, command: Iterable[str]) -> RunFolder:
    """Write what was read from a file as a finished run.

    Raises:
        UsageError, InvalidError: as `RunFolder.create`.
    """
    with RunFolder.create(path, new_run(machine, found.cells, found.launches, command, {})) as folder:
        for samples in found.samples:
            folder.append(samples)
        for (cell_id, launch), evidence in found.evidence.items():
            folder.append_evidence(cell_id, launch, evidence)
        folder.finish()
    return folder


class Recorder:
    """A context manager: `add` each launch. The folder is made with the first one that has rows, or at the end.

    Only a row says how a size is rounded, which NCCL it is and which times there are, so the plan is the first launch's
    rows and, behind them, the sizes that it did not reach.
    """

    def __init__(
        self, path: Path, request: Request, collective: Collective, machine: Machine, launches: int,
        command: Iterable[str], environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.path, self.request, self.collective, self.machine = path, request, collective, machine
        self.launches, self.command, self.environment = launches, tuple(command), environment
        self.notes: list[str] = []
        self.folder: RunFolder | None = None
        self._cells: list[Cell] = []
        self._waiting: list[tuple[int, Launch]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.folder is not None:
            self.folder.close()

    def add(self, number: int, launch: Launch) -> None:
        """Keep one launch; when this returns it is written, if it had rows.

        Raises:
            InvalidError: a folder that cannot be written, rows that no cell can be made of.
        """
        self.notes += [f"launch {number}: {note}" for note in launch.notes]
        if launch.invocation is None and self.folder is None:
            self._waiting.append((number, launch))
            return
        if self.folder is None:
            self._create(launch.invocation)
            for earlier in self._waiting:
                self._write(*earlier)
            self._waiting = []
        self._write(number, launch)

    def finish(self) -> RunFolder:
        """Note the end; gives the folder, open for reading what it holds."""
        if self.folder is None:
            self._create(None)
            for earlier in self._waiting:
                self._write(*earlier)
        assert self.folder is not None  # noqa: S101 - made just now
        self.folder.finish()
        return self.folder

    def _create(self, one: Invocation | None) -> None:
        found = list(samples_of(one, 0)[0].values()) if one is not None else []
        reached = len({cell.call.bytes for cell in found})
        machine = with_versions(self.machine, one) if one is not None else self.machine
        ranks = one.world_size if one is not None else machine.ranks
        self.machine = Machine(
            machine.topology, machine.fabric, ranks, machine.hosts, machine.share_gpu, machine.software, machine.facts
        )
        places = [p for p in _PLACES if p in {cell.place for cell in found}] or list(_PLACES)
        missing = [
            self._planned(size, place, one, found) for size in sizes_of(self.request)[reached:] for place in places
        ]
        self._cells = [*found, *missing]
        run = new_run(self.machine, self._cells, self.launches, self.command, self.environment)
        self.folder = RunFolder.create(self.path, run)

    def _planned(self, size: int, place: str, one: Invocation | None, found: list[Cell]) -> Cell:
        """A size that was not reached: as the row before it, or as the options say."""
        like = next((cell for cell in reversed(found) if cell.place == place), None)
        if like is not None:
            call = Call(size, like.call.world_size, like.call.collective, like.call.op, like.call.dtype)
            return Cell(ALGORITHM, call, like.mode, like.calls, like.variant, place, BUFFERS)
        settings = one.settings if one is not None else settings_from(given(self.request.extra))
        dtype = DTYPES.get(self.request.dtype or "float", (self.request.dtype, 0))[0]
        summing = self.collective in {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER}
        call = Call(size, self.machine.ranks, self.collective, self.request.op or "sum" if summing else "", dtype)
        words = variant(settings, nccl="", root=-1, iterations=False, checked=True)
        calls = max(1, (self.request.iterations or settings.iterations) * settings.aggregated * max(1, settings.graph))
        return Cell(ALGORITHM, call, Mode.GRAPH if settings.graph else Mode.EAGER, calls, words, place, BUFFERS)

    def _write(self, number: int, launch: Launch) -> None:
        assert self.folder is not None  # noqa: S101 - add() has made it
        written = self._append_rows(number, launch.invocation) if launch.invocation is not None else set()
        missing = [cell for cell in self._cells if cell.cell_id not in written]
        if not missing:
            if launch.status is not Status.NOT_RUN:
                self.notes.append(f"launch {number}: {launch.status} behind its last row: {launch.reason}")
            return
        first = missing[0].call.bytes
        for cell in missing:
            if cell.call.bytes == first or launch.status is Status.NOT_RUN:
                status, reason = launch.status, launch.reason
            else:
                status, reason = Status.NOT_RUN, f"the launch had ended: {launch.reason}"
            self.folder.append(Samples(cell.cell_id, number, status, reason, calls=cell.calls))

    def _append_rows(self, number: int, one: Invocation) -> set[str]:
        assert self.folder is not None  # noqa: S101 - add() has made it
        cells, samples, left_out = samples_of(one, number)
        planned = {cell.cell_id for cell in self._cells}
        self.notes += [f"launch {number}: {text}" for text in (*one.problems, *left_out)]
        for each in samples:
            if each.cell_id in planned:
                self.folder.append(each)
                self.folder.append_evidence(each.cell_id, number, evidence_of(one, cells[each.cell_id]))
            else:
                self.notes.append(f"launch {number}: {each.cell_id}: not in the first launch; left out")
        return {each.cell_id for each in samples} & planned
