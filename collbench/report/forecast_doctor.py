"""The doctor's verdicts on a forecast's machine, as a table of the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from collbench.report.canvas import Table
from collbench.results.private import public

__all__ = ["verdict_table"]

_WORDS = {"runs": "runs", "does_not_run": "does not run", "unknown": "unknown"}


def verdict_table(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """What does not run first; algorithms of which the same is said share a line. None without rows."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for word in ("does_not_run", "unknown", "runs"):
        for row in rows:
            if row["verdict"] == word:
                said = (_WORDS[word], *(public(str(row[name])) for name in ("reason", "remedy", "source")))
                groups.setdefault(said, []).append(row["algorithm"])
    lines = [[", ".join(names), *said] for said, names in groups.items()]
    columns = ["algorithm", "verdict", "reason", "what would change it", "source"]
    return Table("The doctor's verdicts", [(name, False) for name in columns], lines) if lines else None
