"""Which versions of our files can be read: older ones are migrated step by step, newer ones refused by name."""

import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from collbench.errors import InvalidError
from collbench.results.records import SCHEMA

__all__ = ["CURRENT", "MIGRATIONS", "Migration", "migrate_line", "migrate_run", "version_of"]

_NAME = re.compile(r"collbench/(\d{1,6})")
CURRENT = int(SCHEMA.rpartition("/")[2])
"""Number of the schema that this release writes."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step to the next version: of `run.json`, and of one line of `samples.jsonl`, as plain dicts."""

    run: Callable[[dict[str, Any]], dict[str, Any]]
    line: Callable[[dict[str, Any]], dict[str, Any]]


MIGRATIONS: MutableMapping[int, Migration] = {}
"""Step from version N to N + 1 by N. Empty: `collbench/1` is the first; keys that it does not know are ignored."""


def version_of(data: Mapping[str, Any], where: str) -> int:
    """Number of the schema that `data` names.

    Raises:
        InvalidError: no schema of collbench's, a newer one, or an older one without a way here.
    """
    name = data.get("schema")
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise InvalidError(f"{where}: schema is {str(name)[:40]!r}, expected {SCHEMA}: not a file of collbench")
    version = int(match[1])
    if version > CURRENT:
        raise InvalidError(f"{where}: schema {name} is newer than {SCHEMA}, which this release reads: update collbench")
    missing = [step for step in range(version, CURRENT) if step not in MIGRATIONS]
    if missing:
        raise InvalidError(f"{where}: schema {name} is too old for this release, which reads {SCHEMA}: measure again")
    return version


def migrate_run(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Bring the content of a `run.json` of that version to the current schema."""
    for step in range(version, CURRENT):
        data = MIGRATIONS[step].run(data)
    return data | {"schema": SCHEMA}


def migrate_line(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Bring one line of a `samples.jsonl` of that version to the current schema."""
    for step in range(version, CURRENT):
        data = MIGRATIONS[step].line(data)
    return data
