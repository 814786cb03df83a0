"""Reads a run folder's files and keeps what is of use, with a sentence for all that is not."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError
from collbench.results import lines
from collbench.results.columns import read_parquet
from collbench.results.hostile import tamed
from collbench.results.records import Run, Samples, Status
from collbench.results.schema import migrate_line, migrate_run, version_of

__all__ = [
    "EVIDENCE",
    "PARQUET",
    "RUN",
    "SAMPLES",
    "check",
    "evidence_of",
    "planned_rows",
    "read_evidence",
    "read_run",
    "read_samples",
]

RUN, SAMPLES, EVIDENCE, PARQUET = "run.json", "samples.jsonl", "evidence.jsonl", "samples.parquet"
"""Names of the files of a run folder."""

_MAX_RUN_BYTES = 64 << 20


def read_run(path: Path) -> tuple[Run, int]:
    """The run of a `run.json`, migrated, and the number of the schema in which it was written.

    Raises:
        InvalidError: missing, damaged, or of a newer schema.
    """
    try:
        if path.stat().st_size > _MAX_RUN_BYTES:
            raise InvalidError(f"{path}: larger than {_MAX_RUN_BYTES >> 20} MiB: not a run of collbench")
        text = path.read_bytes()
    except FileNotFoundError:
        raise InvalidError(f"{path.parent}: holds no {RUN}: not a run folder") from None
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        data = lines.parse_json(text)
    except InvalidError as error:
        raise InvalidError(
            f"{path}: {error}: damaged; the samples beside it are whole, but their plan is lost"
        ) from None
    version = version_of(data, str(path))
    try:
        return Run.from_dict(migrate_run(data, version)), version
    except InvalidError as error:
        raise InvalidError(f"{path}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidError(f"{path}: a field is of the wrong kind: {error}") from error


def planned_rows(run: Run) -> dict[str, tuple[int, ...]]:
    """How many rows a cell's samples may have, by cell_id: one per rank.

    A run with the setting `group_times` holds what another tool measured: there a single row may stand for the group.
    """
    alone = (1,) if run.settings.get("group_times") is True else ()
    return {cell.cell_id: (cell.call.world_size, *alone) for cell in run.cells}


def check(samples: Samples, rows: Mapping[str, tuple[int, ...]]) -> None:
    """Compare with the plan: `rows` is what `planned_rows` gives.

    Raises:
        InvalidError: a cell that is not planned, or samples of another number of ranks.
    """
    if samples.cell_id not in rows:
        raise InvalidError(f"cell {samples.cell_id[:120]!r} is not in the plan of {RUN}")
    if samples.latency_us and len(samples.latency_us) not in rows[samples.cell_id]:
        found, expected = len(samples.latency_us), rows[samples.cell_id][0]
        raise InvalidError(f"{samples.cell_id}: samples of {found} ranks, expected {expected}")


def read_samples(folder: Path, rows: Mapping[str, tuple[int, ...]], version: int) -> tuple[list[Samples], list[str]]:
    """Samples of use in the order of the file, and what was left out. Lines first, then columns for what is damaged.

    Raises:
        InvalidError: neither file is of use.
    """
    truth, columns = folder / SAMPLES, folder / PARQUET
    if not truth.exists():
        stored = read_parquet(columns) if columns.exists() else []
        return _keep(enumerate(stored, 1), f"{PARQUET} launch", rows)
    try:
        parsed = lines.read(truth, lambda data: lines.decode(migrate_line(data, version)))
    except InvalidError as error:
        if not columns.exists():
            raise
        parsed = lines.Parsed((), (str(error),), 0)
    found, odd = _keep(parsed.records, f"{SAMPLES} line", rows)
    if parsed.problems and columns.exists():
        found, more = _repair(found, columns, rows)
        odd += more
    return found, [*parsed.problems, *odd]


def _keep(
    numbered: Iterable[tuple[int, Samples]], where: str, rows: Mapping[str, tuple[int, ...]]
) -> tuple[list[Samples], list[str]]:
    kept: dict[tuple[str, int], Samples] = {}
    problems = []
    for number, samples in numbered:
        key = (samples.cell_id, samples.launch)
        try:
            check(samples, rows)
        except InvalidError as error:
            problems.append(f"{where} {number}: {error}; left out")
            continue
        if key in kept and kept[key].status is Status.NOT_RUN:
            del kept[key]  # a resumed run has come to it
        if key in kept:
            problems.append(f"{where} {number}: {key[0]} launch {key[1]} stands there twice; the first one counts")
        kept.setdefault(key, samples)
    return list(kept.values()), problems


def _repair(
    found: list[Samples], columns: Path, rows: Mapping[str, tuple[int, ...]]
) -> tuple[list[Samples], list[str]]:
    try:
        stored, problems = _keep(enumerate(read_parquet(columns), 1), f"{PARQUET} launch", rows)
    except InvalidError as error:
        return found, [str(error)]
    known = {(s.cell_id, s.launch) for s in found}
    added = [s for s in stored if (s.cell_id, s.launch) not in known]
    if added:
        problems.append(f"{PARQUET} had {len(added)} of the damaged lines")
    return found + added, problems


def read_evidence(path: Path) -> lines.Parsed[tuple[str, int, dict[str, str]]]:
    """Lines of `evidence.jsonl`, whose texts keep their line breaks: they are logs.

    Raises:
        InvalidError: the file cannot be read.
    """
    return lines.read(path, evidence_of, needed=False, tame=partial(tamed, breaks=True))


def evidence_of(data: Mapping[str, Any]) -> tuple[str, int, dict[str, str]]:
    """Cell, launch and texts of one line of `evidence.jsonl`.

    Raises:
        InvalidError: a key is missing or of the wrong kind.
    """
    cell_id, launch, evidence = (data.get(key) for key in ("cell_id", "launch", "evidence"))
    if not isinstance(cell_id, str) or not isinstance(launch, int) or not isinstance(evidence, dict):
        raise InvalidError("expected cell_id, launch and evidence")
    return tamed(cell_id), launch, {str(k): str(v) for k, v in evidence.items()}
