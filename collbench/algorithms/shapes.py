"""Input and output arrays of a call: names and elements."""

from collections.abc import Mapping
from dataclasses import dataclass

from collbench.algorithms.epilogues import RESIDUAL_RMSNORM, hidden_size
from collbench.results.records import Call, Collective

__all__ = ["IN_PARTS", "Arrays", "arrays_of", "part_of"]

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


def arrays_of(call: Call) -> Arrays:
    """`x` -> `y`; with `residual_rmsnorm` also `residual`, `weight` -> `residual_out`."""
    gathers = call.collective in {Collective.ALL_GATHER, Collective.BARRIER}
    scatters = call.collective is Collective.REDUCE_SCATTER
    inputs = {"x": part_of(call) if gathers else call.count}
    outputs = {"y": part_of(call) if scatters else call.count}
    if call.epilogue == RESIDUAL_RMSNORM:
        inputs |= {"residual": call.count, "weight": hidden_size(call)}
        outputs["residual_out"] = call.count
    return Arrays(inputs, outputs)
