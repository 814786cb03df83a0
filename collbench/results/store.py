"""A run folder: what a run is and every sample of it, kept so that no interruption loses what was written.

    run.json         the `Run` record; replaced whole (temporary file, fsync, rename)
    samples.jsonl    one line per cell and launch, appended by one write each; it stays after the run: it is the truth
    evidence.jsonl   what really ran (logs, kernel names), one line per cell and launch
    samples.parquet  the same samples by column, written when the run is finished (results/columns.py)
    lock             held with flock by the process that writes

Samples are read from `samples.jsonl` where it is there, and what is damaged in it, or gone from it,
from the parquet file. Who goes on with a run goes on from both.
"""

import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from collbench.errors import InvalidError, UsageError
from collbench.results import lines
from collbench.results.columns import write_parquet
from collbench.results.files import append_whole, lock_folder, readable_errors, refuse_special, replace_whole
from collbench.results.reading import (
    EVIDENCE,
    NOT_MEASURED,
    PARQUET,
    RUN,
    SAMPLES,
    check,
    lost_evidence,
    missing_lines,
    planned_rows,
    read_evidence,
    read_run,
    read_samples,
)
from collbench.results.records import Resumed, Run, Samples
from collbench.results.schema import CURRENT

__all__ = ["RunFolder"]

_writing = functools.partial(readable_errors, option="--out", resume=True)
_READ_ONLY = "to go on with the run, make it writable, or give --resume a copy that is"


class RunFolder:
    """A run on disk: make one with `create` or `open`. A context manager, which closes it and lets go of the lock.

    One process writes at a time. The lock belongs to the open file: it goes with the process, however that ends, unless
    a child that was forked without exec outlives it.
    """

    def __init__(self, path: Path, run: Run, version: int, lock: int | None) -> None:
        self.path = path
        self._run = run
        self._version = version
        self._lock = lock
        self._rows = planned_rows(run)
        self._files: dict[str, int] = {}
        self._notes: list[str] = []
        self._place = ""
        self._cache: tuple[object, list[Samples], list[str]] | None = None

    @classmethod
    def create(cls, path: str | Path, run: Run) -> "RunFolder":
        """Make the folder (mode 0700) and its `run.json`, locked for writing.

        Raises:
            UsageError: the path holds a run, other files, or is no folder.
            InvalidError: another process writes there, no permission, a full disk.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file: give a new folder with --out")
        with _writing(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls._locked(path, lambda lock: cls._create(path, run, lock))

    @classmethod
    def _create(cls, path: Path, run: Run, lock: int) -> "RunFolder":
        there = {entry.name for entry in path.iterdir()} - {"lock"}
        if there & {RUN, SAMPLES, PARQUET}:
            raise UsageError(f"{path} holds a run: give --resume {path} to go on with it, or another --out")
        if there:
            raise UsageError(f"{path} holds other files: give a new folder with --out")
        folder = cls(path, run, CURRENT, lock)
        with _writing(path):
            path.chmod(0o700)
        folder._write_run()
        return folder

    @classmethod
    def open(cls, path: str | Path, *, write: bool = False) -> "RunFolder":
        """Open a run to read it; with `write` to go on with it: it is locked, and a last line that was cut is cut off.

        Raises:
            UsageError: there is no such folder.
            InvalidError: not a run, a damaged `run.json`, a newer schema; for writing also an older schema, another
                process that writes, no permission.
        """
        path = Path(path)
        if not path.is_dir():
            raise UsageError(f"{path}: no such run folder")
        if not write:
            return cls(path, *read_run(path / RUN), None)
        read_run(path / RUN)
        return cls._locked(path, lambda lock: cls._resumed(path, lock), _READ_ONLY)

    @classmethod
    def _resumed(cls, path: Path, lock: int) -> "RunFolder":
        folder = cls(path, *read_run(path / RUN), lock)
        folder._place = _READ_ONLY
        folder._prepare_to_append()
        return folder

    @classmethod
    def _locked(cls, path: Path, make: "Callable[[int], RunFolder]", place: str = "") -> "RunFolder":
        lock = lock_folder(path, place)
        try:
            return make(lock)
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Close the files and let go of the lock."""
        for descriptor in (*self._files.values(), *([] if self._lock is None else [self._lock])):
            os.close(descriptor)
        self._files, self._lock = {}, None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def run(self) -> Run:
        """The run's record."""
        return self._run

    @property
    def measured_launches(self) -> int:
        """Launches up to the last one of which a cell was measured, whatever came of it; at least one."""
        return 1 + max((one.launch for one in self.samples() if one.status not in NOT_MEASURED), default=0)

    def go_on(self, by: Resumed, launches: int, known: int | None = None) -> None:
        """Note in `run.json` that another call goes on with the run, and that so many launches are planned from now on.

        The file is replaced whole. Samples stay; a run with launches to come is not finished. `known` are the launches
        that the run had when the call was checked: it may give fewer, down to those that were measured.

        Raises:
            InvalidError: the run plans more launches by now, more were measured, a full disk, or it was opened for
                reading.
        """
        self._need_lock()
        run = self._run
        if launches < run.launches:
            if run.launches > (known or launches):
                told = f"another call raised its launches to {run.launches} meanwhile"
                raise InvalidError(f"{self.path}: {told}: call again")
            if launches < (measured := self.measured_launches):
                raise InvalidError(f"{self.path}: {measured} launches were measured by now: call again")
        again = run.resumed[-1:] and run.resumed[-1].command == by.command
        settings = {**run.settings, "launches": launches} if "launches" in run.settings else run.settings
        self._run = replace(
            run, launches=launches, settings=settings, finished=run.finished if launches == run.launches else "",
            resumed=(*(run.resumed[:-1] if again else run.resumed), by),
        )  # fmt: skip
        self._cache = None
        self._write_run()

    def append(self, samples: Samples) -> None:
        """Add what one launch measured of one cell; when this returns it is written, and outlives the process.

        Raises:
            InvalidError: latencies that are no times, a cell or a number of ranks that is not the plan's, a full disk;
                then nothing of it is written.
        """
        line = lines.encode(samples)
        check(lines.decode(json.loads(line)), self._rows)
        self._append(SAMPLES, line)

    def append_evidence(self, cell_id: str, launch: int, evidence: Mapping[str, str]) -> None:
        """Add what really ran for one cell and launch, as text by name.

        Raises:
            InvalidError: a full disk, or the folder was not opened for writing.
        """
        record = {"cell_id": cell_id, "launch": launch, "evidence": {k: str(v) for k, v in evidence.items()}}
        self._append(EVIDENCE, json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def finish(self) -> None:
        """Write the parquet file, then note the end in `run.json`.

        Without memory or room for the parquet file the run ends all the same: `problems()` says so.

        Raises:
            InvalidError: a full disk, so that the end cannot be noted; samples.jsonl holds everything nevertheless.
        """
        self._need_lock()
        with _writing(self.path, f"; {SAMPLES} holds all samples", place=self._place):
            if SAMPLES in self._files:
                os.fsync(self._files[SAMPLES])
            self._compact()
        self._run = replace(self._run, finished=datetime.now(UTC).isoformat(timespec="seconds"))
        self._write_run()

    def _compact(self) -> None:
        try:
            replace_whole(self.path / PARQUET, lambda file: write_parquet(file, self.samples()))
        except (MemoryError, ImportError, OSError) as error:
            # pyarrow's own errors about memory are MemoryErrors; ImportError: its library did not fit into memory
            reason = f"{type(error).__name__}: {str(error).strip() or 'no memory'}"
            self._notes.append(f"{PARQUET} was not written ({reason}); {SAMPLES} holds all samples")

    def samples(self) -> list[Samples]:
        """All usable samples in the order in which they were written; what was left out stands in `problems()`.

        Raises:
            InvalidError: neither file of samples is of use.
        """
        return self._read()[0]

    def problems(self) -> list[str]:
        """What is damaged, doubled or not planned in the samples: one sentence each, with file and line."""
        return [*self._notes, *self._read()[1]]

    def evidence(self) -> dict[tuple[str, int], dict[str, str]]:
        """What really ran, by cell and launch; damaged lines are left out.

        Raises:
            InvalidError: the file is of no use.
        """
        path = self.path / EVIDENCE
        found = read_evidence(path).records if path.exists() else ()
        return {(cell_id, launch): evidence for _, (cell_id, launch, evidence) in found}

    def lost_evidence(self) -> str:
        """What of `evidence.jsonl` is damaged or missing, in one sentence; empty where nothing is."""
        try:
            return lost_evidence(self.path / EVIDENCE, self._run, self.samples())
        except InvalidError as error:  # of the samples
            return str(error)

    def _read(self) -> tuple[list[Samples], list[str]]:
        stamp = tuple(_stamp(self.path / name) for name in (SAMPLES, PARQUET))
        if self._cache is None or self._cache[0] != stamp:
            self._cache = (stamp, *read_samples(self.path, self._rows, self._run.launches, self._version))
        return list(self._cache[1]), list(self._cache[2])

    def _prepare_to_append(self) -> None:
        if self._version != CURRENT:
            raise InvalidError(f"{self.path}: an older release wrote it: it can be read, not resumed; start a new run")
        for name in (SAMPLES, EVIDENCE, PARQUET):
            refuse_special(self.path / name)
        held = self.samples()  # of both files
        lost = self.lost_evidence() if (self.path / EVIDENCE).exists() else ""
        self._notes += [lost] if lost else []
        for name in (SAMPLES, EVIDENCE):
            with _writing(self.path / name, place=self._place):
                self._cut_tail(name)
        self._restore(held)

    def _restore(self, held: list[Samples]) -> None:
        """Write again what only the parquet file has: the end of the run replaces that file."""
        if not (self.path / PARQUET).exists():
            return
        missing = missing_lines(self.path, held, self._rows, self._version)
        for samples in missing:
            self._append(SAMPLES, lines.encode(samples))
        if missing:
            self._notes.append(
                f"{PARQUET} had {len(missing)} lines that {SAMPLES} lacked: they were written there again"
            )

    def _cut_tail(self, name: str) -> None:
        path = self.path / name
        if not path.exists():
            return
        if name == EVIDENCE:
            parsed: lines.Parsed[Any] = read_evidence(path)
        else:
            parsed = lines.read(path, lines.decode, needed=False)
        if parsed.whole_bytes < path.stat().st_size:
            os.truncate(path, parsed.whole_bytes)
            self._notes += parsed.problems[-1:] if name != EVIDENCE else ()
        elif parsed.newline:
            self._append(name, b"\n")

    def _append(self, name: str, line: bytes) -> None:
        self._need_lock()
        with _writing(self.path / name, place=self._place):
            if name not in self._files:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._files[name] = os.open(self.path / name, flags, 0o600)
            append_whole(self._files[name], line)

    def _write_run(self) -> None:
        text = json.dumps(self._run.as_dict(), indent=1, allow_nan=False).encode() + b"\n"
        with _writing(self.path / RUN, place=self._place):
            replace_whole(self.path / RUN, lambda file: file.write(text))

    def _need_lock(self) -> None:
        if self._lock is None:
            raise InvalidError(f"{self.path}: the run was opened for reading, not for writing")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns
