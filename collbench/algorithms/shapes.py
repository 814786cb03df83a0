"""Input and output arrays of a call: names and elements."""

from collections.abc import Mapping
from dataclasses import dataclass

from collbench.algorithms.epilogues import RESIDUAL_RMSNORM, hidden_size
from collbench.results.records import Call, Collective

__all__ = ["IN_PARTS", "Arrays", "arrays_of", "part_of", "rows_of", "splits_problem"]

IN_PARTS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL, Collective.BARRIER)
"""Collectives whose larger buffer holds one equal part per rank; a barrier's part is one element, which proves it."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """Elements of every array by name."""

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def part_of(call: Call) -> int:
    """Elements of one rank's part."""
    return call.count // call.world_size


def rows_of(call: Call) -> tuple[tuple[int, ...], ...]:
    """Elements that each rank (row) sends to each rank (column) in an all-to-all: its splits, or equal parts."""
    n = call.world_size
    if not call.splits:
        return ((part_of(call),) * n,) * n
    return tuple(tuple(call.splits[rank * n : rank * n + n]) for rank in range(n))


def splits_problem(call: Call) -> str:
    """Why the splits of a call cannot be carried out; empty if they can, or if there are none."""
    n = call.world_size
    if not call.splits:
        return ""
    if call.collective is not Collective.ALL_TO_ALL:
        return f"{call.collective} knows no splits"
    if len(call.splits) != n * n or min(call.splits) < 0:
        return f"{len(call.splits)} splits for {n} ranks: expected {n * n} numbers of elements, none negative"
    return ""


def arrays_of(call: Call, rank: int = 0) -> Arrays:
    """`x` -> `y`; with `residual_rmsnorm` also `residual`, `weight` -> `residual_out`.

    With splits they hold what this rank sends and gets, which may be nothing.
    """
    if call.splits:
        rows = rows_of(call)
        return Arrays({"x": sum(rows[rank])}, {"y": sum(row[rank] for row in rows)})
    gathers = call.collective in {Collective.ALL_GATHER, Collective.BARRIER}
    scatters = call.collective is Collective.REDUCE_SCATTER
    inputs = {"x": part_of(call) if gathers else call.count}
    outputs = {"y": part_of(call) if scatters else call.count}
    if call.epilogue == RESIDUAL_RMSNORM:
        inputs |= {"residual": call.count, "weight": hidden_size(call)}
        outputs["residual_out"] = call.count
    return Arrays(inputs, outputs)
