"""Puts launches of nccl-tests into a run folder, each when it has ended; a size without a row has a status."""

import datetime as dt
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from collbench import __version__
from collbench.interop.nccl_tests.cells import ALGORITHM, Measured, by_iterations, evidence_of, samples_of
from collbench.interop.nccl_tests.place import with_versions
from collbench.interop.nccl_tests.planning import planned
from collbench.interop.nccl_tests.running import Launch, Request
from collbench.interop.nccl_tests.table import Invocation
from collbench.results.records import Cell, Collective, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.topology.machine import Machine
from collbench.units import format_us

__all__ = ["Recorder", "record"]

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
    """A context manager: `add` each launch. The folder is made with the first one that has rows, or at the end."""

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
            self._create(launch)
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

    def _create(self, launch: Launch | None) -> None:
        one = launch.invocation if launch is not None else None
        found = list(samples_of(one, 0)[0].values()) if one is not None else []
        machine = with_versions(self.machine, one) if one is not None else self.machine
        ranks = one.world_size if one is not None else machine.ranks
        self.machine = Machine(
            machine.topology, machine.fabric, ranks, machine.hosts, machine.share_gpu, machine.software, machine.facts
        )
        whole = launch is not None and launch.status is Status.NOT_RUN
        iterations = launch is not None and launch.iterations and self.launches > 1
        self._cells = planned(
            self.request, self.collective, ranks, one, found, whole=whole, iterations=iterations
        )  # fmt: skip
        run = new_run(self.machine, self._cells, self.launches, self.command, self.environment)
        self.folder = RunFolder.create(self.path, run)

    def _write(self, number: int, launch: Launch) -> None:
        assert self.folder is not None  # noqa: S101 - add() has made it
        written = self._append_rows(number, launch.invocation) if launch.invocation is not None else set()
        missing = [cell for cell in self._cells if cell.cell_id not in written]
        ran = {(cell.call, cell.place) for cell in self._cells if cell.cell_id in written}
        last = max((at for at, cell in enumerate(self._cells) if cell.cell_id in written), default=-1)
        behind = [cell.call.bytes for cell in self._cells[last + 1 :] if (cell.call, cell.place) not in ran]
        if not behind and launch.status is not Status.NOT_RUN:
            self.notes.append(f"launch {number}: {launch.status} behind its last row: {launch.reason}")
        for cell in missing:
            if (cell.call, cell.place) in ran:
                status, reason = Status.NOT_RUN, "its times per iteration are there, as another cell"
            elif launch.status is Status.NOT_RUN or cell.call.bytes in behind[:1]:
                status, reason = launch.status, launch.reason
            elif cell.call.bytes in behind:
                status, reason = Status.NOT_RUN, f"the launch had ended: {launch.reason}"
            else:
                status, reason = Status.NOT_RUN, "no row of it that can be read"
            self.folder.append(Samples(cell.cell_id, number, status, reason, calls=cell.calls))

    def _append_rows(self, number: int, one: Invocation) -> set[str]:
        """Write what the rows give; gives the cells that have their line."""
        assert self.folder is not None  # noqa: S101 - add() has made it
        cells, samples, left_out = samples_of(one, number)
        plan = {cell.cell_id: cell for cell in self._cells}
        self.notes += [f"launch {number}: {text}" for text in (*one.problems, *left_out)]
        written: set[str] = set()
        for each in samples:
            twins = [] if by_iterations(cells[each.cell_id]) else self._twins(cells[each.cell_id])
            if each.cell_id in plan:
                self.folder.append(each)
                self.folder.append_evidence(each.cell_id, number, evidence_of(one, cells[each.cell_id]))
            elif not twins:
                self.notes.append(f"launch {number}: {each.cell_id}: not in the first launch; left out")
            for twin in twins:
                self.folder.append(_lost(each, twin))
            written |= {each.cell_id, *(twin.cell_id for twin in twins)}
        return written & plan.keys()

    def _twins(self, mean: Cell) -> list[Cell]:
        """The cell of the same call's iterations, which were lost where there is only a mean."""
        same = (cell for cell in self._cells if (cell.call, cell.place) == (mean.call, mean.place))
        return [cell for cell in same if by_iterations(cell)]


def _lost(mean: Samples, cell: Cell) -> Samples:
    """A size that ran, of which the program's end took the times per iteration along."""
    if mean.status is not Status.OK:
        return Samples(cell.cell_id, mean.launch, mean.status, mean.reason, calls=cell.calls)
    us = sum(mean.latency_us[0]) / len(mean.latency_us[0])
    reason = f"it ran, {format_us(us)} us on average, but its times per iteration were not written yet"
    return Samples(cell.cell_id, mean.launch, Status.NOT_RUN, reason, calls=cell.calls)
