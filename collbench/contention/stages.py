"""One counterfactual fluid run on rows of links: how long, what binds, and how sure that number is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from collbench.contention.fairshare import Floats, Fluid, Usage, run
from collbench.contention.losses import Row

__all__ = ["UNIT", "Stage", "stage", "usage_of"]

UNIT = 1e6
"""Bytes of the largest flow in a run."""

_EXACT_FLOWS, _MERGE = 512, 0.015  # above so many flows near ends share an event: within 0.5 % of exact


@dataclass(frozen=True, slots=True)
class Stage:
    """One counterfactual: `us` per byte of the largest flow, what binds its last flow, and how sure that number is.

    `basis` names what sets the rate of the link that binds: its class, and what it loses.
    """

    us: float = 0.0
    link: str = ""
    flows: int = 0
    gbps: float = 0.0
    sd: float = 0.0
    is_prior: bool = False
    basis: str = ""


def stage(rows: Sequence[Row], size: Floats, before: Stage = Stage()) -> Stage:
    """Makespan on these rows; never less than that of the stage before, whose links all count here too."""
    usage = usage_of(rows, size.size)
    fluid = run(usage, [row.gbps for row in rows], size, merge=_MERGE if size.size > _EXACT_FLOWS else 0.0)
    us = fluid.makespan_us / UNIT
    if us <= before.us or us == 0:
        return before
    return _named(rows, size, fluid, us)


def _named(rows: Sequence[Row], size: Floats, fluid: Fluid, us: float) -> Stage:
    row = rows[int(fluid.bottleneck[int(fluid.finish_us.argmax())])]
    data = [flow for flow, coefficient in row.load.items() if coefficient > 0.5]  # noqa: PLR2004 - a request costs less
    carried = float(size[data].sum()) / UNIT
    return Stage(us, row.name, len(data), carried / us / 1e3, row.sd, row.is_prior, row.basis)


def usage_of(rows: Sequence[Row], flows: int) -> Usage:
    """The matrix of a run, sorted by flow; rows stay in their order within a flow."""
    counts = [len(row.load) for row in rows]
    link = np.repeat(np.arange(len(rows)), counts)
    flow = np.fromiter(chain.from_iterable(row.load for row in rows), np.intp, link.size)
    cost = np.fromiter(chain.from_iterable(row.load.values() for row in rows), np.float64, link.size)
    order = np.argsort(flow, kind="stable")
    return Usage(len(rows), flows, link[order], flow[order], cost[order])
