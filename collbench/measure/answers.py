"""What the ranks of a group answered for a cell, as one record."""

from typing import Any

from collbench.measure.group import GroupFailure
from collbench.results.records import Cell, Flag, Samples, Status

__all__ = ["combine", "evidence_of"]

_ORDER = (Status.OUT_OF_MEMORY, Status.CRASHED, Status.UNSUPPORTED, Status.HUNG)
"""Of the ranks' failures the one that says most comes first: others hang since one has gone."""


def combine(cell: Cell, launch: int, answers: list[dict[str, Any]]) -> Samples:
    """One status for all ranks: the failure that says most, else what they agreed on.

    Raises:
        GroupFailure: an answer lacks what belongs to it.
    """
    failed = [(rank, a) for rank, a in enumerate(answers) if a.get("failed") and a["failed"] != "peer"]
    for status in _ORDER:
        told = [(rank, a) for rank, a in failed if a["failed"] == status]
        if told:
            rank, answer = told[0]
            who = "" if status is Status.UNSUPPORTED else f"rank {rank}: "
            return Samples(cell.cell_id, launch, status, f"{who}{answer['reason']}", calls=cell.calls)
    try:
        return _agreed(cell, launch, answers)
    except (KeyError, TypeError, ValueError) as error:
        raise GroupFailure("crashed", f"the ranks' answers make no sense: {type(error).__name__}: {error}") from error


def _agreed(cell: Cell, launch: int, answers: list[dict[str, Any]]) -> Samples:
    first = answers[0]
    status = Status(first["status"])
    latency = tuple(tuple(float(us) for us in a["latency_us"]) for a in answers) if status is Status.OK else ()
    flags = tuple(Flag(f) for f in dict.fromkeys(f for a in answers for f in a.get("flags", ())))
    return Samples(cell.cell_id, launch, status, str(first["reason"]), flags, cell.calls, latency)


def evidence_of(answers: list[dict[str, Any]]) -> dict[str, str]:
    """Rank 0's evidence by name, and that of other ranks where it differs, as `name@rank`."""
    first = answers[0].get("evidence") or {}
    kept = dict(first)
    for rank, answer in enumerate(answers[1:], start=1):
        kept |= {f"{k}@{rank}": v for k, v in (answer.get("evidence") or {}).items() if first.get(k) != v}
    return kept
