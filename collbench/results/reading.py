"""Reads a run folder's files and keeps what is of use, with a sentence for all that is not."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError
from collbench.results import lines
from collbench.results.columns import read_parquet
from collbench.results.files import refuse_special
from collbench.results.hostile import tamed
from collbench.results.records import Run, Samples, Status
from collbench.results.schema import migrate_line, migrate_run, version_of

__all__ = [
    "EVIDENCE",
    "NOT_MEASURED",
    "PARQUET",
    "RUN",
    "SAMPLES",
    "check",
    "evidence_of",
    "lost_evidence",
    "missing_lines",
    "planned_rows",
    "read_evidence",
    "read_run",
    "read_samples",
]

RUN, SAMPLES, EVIDENCE, PARQUET = "run.json", "samples.jsonl", "evidence.jsonl", "samples.parquet"
"""Names of the files of a run folder."""

NOT_MEASURED = frozenset({Status.NOT_RUN, Status.UNSUPPORTED})
"""Statuses of which nothing is lost with the launch, where fewer are planned than were."""

_MAX_RUN_BYTES = 64 << 20


def read_run(path: Path) -> tuple[Run, int]:
    """The run of a `run.json`, migrated, and the number of the schema in which it was written.

    Raises:
        InvalidError: missing, damaged, or of a newer schema.
    """
    try:
        refuse_special(path)
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
        raise InvalidError(f"{path}: {error}: damaged, and without the plan in it no sample can be used") from None
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


def read_samples(
    folder: Path, rows: Mapping[str, tuple[int, ...]], launches: int, version: int
) -> tuple[list[Samples], list[str]]:
    """Samples of use in the order of the file, and what was left out.

    Lines first, then columns for what is damaged in them or is not among them. What was not measured of launches beyond
    the plan's, which was larger once, is passed over.

    Raises:
        InvalidError: neither file is of use.
    """
    truth, columns = folder / SAMPLES, folder / PARQUET
    if not truth.exists():
        stored = read_parquet(columns) if columns.exists() else []
        found, problems = _keep(enumerate(stored, 1), f"{PARQUET} entry", rows)
        return _of_plan(found, launches), problems
    try:
        found, problems, damaged = _read_lines(truth, rows, version)
    except InvalidError as error:
        if not columns.exists():
            raise
        found, problems, damaged = [], [str(error)], True
    complete = len([one for one in found if one.status is not Status.NOT_RUN]) >= len(rows) * launches
    if columns.exists() and (damaged or not complete):
        found, more = _repair(found, columns, rows, damaged=damaged)
        problems += more
    return _of_plan(found, launches), problems


def _of_plan(samples: Iterable[Samples], launches: int) -> list[Samples]:
    return [one for one in samples if one.launch < launches or one.status not in NOT_MEASURED]


def missing_lines(
    folder: Path, held: Iterable[Samples], rows: Mapping[str, tuple[int, ...]], version: int
) -> list[Samples]:
    """Those of the samples held, from both files, that `samples.jsonl` alone would not give."""
    try:
        alone = _read_lines(folder / SAMPLES, rows, version)[0] if (folder / SAMPLES).exists() else []
    except InvalidError:
        alone = []
    return _beyond(held, alone)


def _read_lines(path: Path, rows: Mapping[str, tuple[int, ...]], version: int) -> tuple[list[Samples], list[str], bool]:
    """Samples of the file of lines, what was left out, and whether that is because lines are damaged."""
    parsed = lines.read(path, lambda data: lines.decode(migrate_line(data, version)))
    found, odd = _keep(parsed.records, f"{SAMPLES} line", rows)
    return found, [*parsed.problems, *odd], bool(parsed.problems)


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
    found: list[Samples], columns: Path, rows: Mapping[str, tuple[int, ...]], *, damaged: bool
) -> tuple[list[Samples], list[str]]:
    try:
        stored, problems = _keep(enumerate(read_parquet(columns), 1), f"{PARQUET} entry", rows)
    except InvalidError as error:
        return found, [str(error)]
    added = _beyond(stored, found)
    if added and damaged:
        problems.append(f"{PARQUET} had {len(added)} of the damaged lines")
    elif added:
        problems.append(f"{PARQUET} had {len(added)} lines that {SAMPLES} lacks")
    better = {(one.cell_id, one.launch) for one in added}
    return [one for one in found if (one.cell_id, one.launch) not in better] + added, problems


def _beyond(samples: Iterable[Samples], known: Iterable[Samples]) -> list[Samples]:
    """Those that are not known, and those that ran and are known as not run."""
    held = {(one.cell_id, one.launch): one.status for one in known}

    def is_new(one: Samples) -> bool:
        status = held.get((one.cell_id, one.launch))
        return status is None or (status is Status.NOT_RUN and one.status is not Status.NOT_RUN)

    return [one for one in samples if is_new(one)]


def read_evidence(path: Path) -> lines.Parsed[tuple[str, int, dict[str, str]]]:
    """Lines of `evidence.jsonl`, whose texts keep their line breaks: they are logs.

    Raises:
        InvalidError: the file cannot be read.
    """
    return lines.read(path, evidence_of, needed=False, tame=partial(tamed, breaks=True))


def lost_evidence(path: Path, run: Run, samples: Iterable[Samples]) -> str:
    """What of `evidence.jsonl` is damaged or missing, in one sentence; empty where it has all that the run kept.

    A sweep keeps evidence of every ok cell; runs of older releases, and of other tools, of some cells or of none.
    """
    ok = {(one.cell_id, one.launch) for one in samples if one.status is Status.OK}
    if not path.exists():
        unknown = f"{EVIDENCE} is missing: what really ran is not known of {len(ok)} ok cells"
        return unknown if ok and run.command[:2] == ("collbench", "sweep") else ""
    try:
        parsed = read_evidence(path)
    except InvalidError as error:
        return str(error)
    every = any("judged" in evidence for _, (_, _, evidence) in parsed.records) or not parsed.records
    lost = ok - {(cell_id, launch) for _, (cell_id, launch, _) in parsed.records} if every else set()
    told = [*parsed.problems[:1], *([f"{len(parsed.problems) - 1} more like it"] if parsed.problems[1:] else [])]
    if lost:
        told.append(
            f"{'' if told else f'{EVIDENCE}: '}what really ran is not known of {len(lost)} of {len(ok)} ok cells"
        )
    return "; ".join(told)


def evidence_of(data: Mapping[str, Any]) -> tuple[str, int, dict[str, str]]:
    """Cell, launch and texts of one line of `evidence.jsonl`.

    Raises:
        InvalidError: a key is missing or of the wrong kind.
    """
    cell_id, launch, evidence = (data.get(key) for key in ("cell_id", "launch", "evidence"))
    if not isinstance(cell_id, str) or not isinstance(launch, int) or not isinstance(evidence, dict):
        raise InvalidError("expected cell_id, launch and evidence")
    return tamed(cell_id), launch, {str(k): str(v) for k, v in evidence.items()}
