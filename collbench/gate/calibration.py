"""How noisy a machine is, learnt from unchanged runs: within a run, between occasions, and what that costs."""

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collbench.errors import InvalidError, UsageError
from collbench.gate import statistics
from collbench.gate.baseline import refuse_invalid
from collbench.gate.judge import LEAST_SESSIONS
from collbench.gate.sides import SessionSpread, Side
from collbench.results.records import SCHEMA, Status

__all__ = ["Calibration", "calibrate"]

Blocks = tuple[tuple[float, int | None, int | None], ...]

EFFECTS = (1.03, 1.05, 1.08)
"""Slow-downs for which the number of blocks is given."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What unchanged runs tell.

    `launch_sd` is the standard deviation of a block's log ratio, per cell, empty if no run has two launches; `spread`
    that between occasions, pooled over cells (of runs of one launch it contains the spread between launches, so it errs
    on the careful side). `blocks` holds, by slow-down, the blocks needed for the median and the noisiest cell (power
    90 %, one of all cells slowed, Holm's first step); None beyond 1,000.
    """

    cells: int
    launch_sd: tuple[float, ...]
    spread: SessionSpread
    blocks: Blocks

    def as_dict(self) -> dict[str, Any]:
        """The object of `--json`."""
        rows = [{"ratio": ratio, "blocks_median_cell": a, "blocks_worst_cell": b} for ratio, a, b in self.blocks]
        return {
            "schema": SCHEMA, "kind": "calibrate-gate", "cells": self.cells, "sessions": self.spread.sessions,
            "between_session_sd": self.spread.sd, "hours": self.spread.hours,
            "block_sd_median": float(np.median(self.launch_sd)) if self.launch_sd else None,
            "block_sd_worst": max(self.launch_sd, default=None), "rows": rows,
        }  # fmt: skip


def calibrate(sides: Sequence[Side]) -> Calibration:
    """Learn from unchanged runs that were made on different occasions.

    Raises:
        UsageError: fewer than five runs, or one of them twice.
        InvalidError: runs of different machines or cells, a cell that is not ok.
    """
    if len(sides) < LEAST_SESSIONS:
        raise UsageError(
            f"{len(sides)} runs: at least {LEAST_SESSIONS} unchanged ones of different occasions are needed"
        )
    ids = [side.origin.get("run_id") or side.name for side in sides]
    if len(set(ids)) < len(ids):
        raise UsageError("one run is named twice: each must be of another occasion")
    for side in sides:
        refuse_invalid(side)
        _refuse_other(sides[0], side)
    cells = [cell_id for cell_id, cell in sides[0].cells.items() if cell.status is Status.OK]
    logs = [[np.log(np.asarray(side.cells[cell_id].medians_us)) for side in sides] for cell_id in cells]
    between = np.array([np.var([one.mean() for one in per_cell], ddof=1) for per_cell in logs])
    several = all(one.size > 1 for per_cell in logs for one in per_cell)
    within = tuple(_launch_sd(per_cell) for per_cell in logs) if several else ()
    spread = SessionSpread(math.sqrt(float(between.mean())), len(sides), _hours(sides))
    return Calibration(len(cells), within, spread, blocks_of(within) if within else ())


def _hours(sides: Sequence[Side]) -> float | None:
    """Hours between the first and the last run; None where one does not say when it was made."""
    moments = []
    for side in sides:
        try:
            moment = dt.datetime.fromisoformat(str(side.origin.get("created", "")))
        except ValueError:
            return None
        moments.append(moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC))
    return (max(moments) - min(moments)).total_seconds() / 3600


def blocks_of(sds: Sequence[float]) -> Blocks:
    """For each of `EFFECTS` the blocks for the median and the noisiest cell; `sds` are those of block log ratios."""
    middle, worst = float(np.median(sds)), max(sds)
    return tuple(
        (ratio, statistics.blocks_needed(middle, ratio, len(sds)), statistics.blocks_needed(worst, ratio, len(sds)))
        for ratio in EFFECTS
    )


def _launch_sd(sessions: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> float:
    squares = [float(statistics.aa_noise(one[None, :])[0]) ** 2 for one in sessions]
    return math.sqrt(sum(squares) / len(squares))


def _refuse_other(first: Side, side: Side) -> None:
    if set(side.cells) != set(first.cells):
        raise InvalidError(f"{side.name}: has other cells than {first.name}: give runs of one plan")
    for key in sorted({*side.hard, *first.hard}):
        if side.hard.get(key, "") != first.hard.get(key, ""):
            raise InvalidError(f"{side.name}: {key} is not that of {first.name}: give unchanged runs of one machine")
