"""What the numbers of a run do not say: on which fabric, from how many launches, and what was not run."""

from collections.abc import Mapping, Sequence
from typing import Any

from collbench.report.series import LEAST_LAUNCHES, is_drawn
from collbench.results.records import Fabric, Status
from collbench.results.summary import clean
from collbench.wording import first_few

__all__ = ["cautions", "not_run", "undrawn"]

_MOST_NAMES = 3
_SHARED = {
    Fabric.HOST: "CPU ranks share the memory of the host",
    Fabric.SHARED_GPU: "several ranks share one GPU",
}
_CROWDED = (
    "two launches of one algorithm can differ ten-fold. Which one is fastest here says nothing of a machine with a "
    "thread or a GPU for each rank; fewer ranks (--nproc) and more launches (--launches 5) say more."
)


def cautions(
    fabric: Fabric, launches: int, noisy: int, ok: int, *, finished: bool, crowding: str = "", short: int = 0
) -> list[str]:
    """What the numbers do not say; `launches` is the least that any `ok` cell has, 0 where none is ok.

    `short` of the `ok` cells have too few launches for an interval, where others have enough.
    `crowding` says that ranks took turns on too few hardware threads.
    """
    found = [f"{crowding}, so times are mostly waiting: {_CROWDED}"] if crowding else []
    if fabric in _SHARED:
        found.append(
            f"Fabric {fabric}: {_SHARED[fabric]}. It shows launch, synchronisation and protocol cost, "
            "says nothing about PCIe links."
        )
    if 0 < short < ok:
        found.append(
            f"No interval of {short} of {ok} measured cells: fewer than {LEAST_LAUNCHES} launches. Of the others: "
            "95 %, from the medians of their launches. Bands show the spread of iterations."
        )
    elif 0 < launches < LEAST_LAUNCHES:
        why = "one launch" if launches == 1 else f"{launches} launches, at least {LEAST_LAUNCHES} are needed"
        found.append(f"No interval: {why}. Bands show the spread within the launch{'es' if launches > 1 else ''}.")
    elif launches:
        found.append(f"Intervals: 95 %, from the medians of {launches} launches. Bands show the spread of iterations.")
    if noisy:
        found.append(
            f"{noisy} of {ok} measured cells are noisy: p99 above 3 x p50, launches over 10 % apart, or fewer than "
            "5 iterations."
        )
    if not finished:
        found.append("The sweep was stopped before its end: what is missing stands below as not_run.")
    return found


def not_run(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many of the planned cells were not run, and whose; empty where all were."""
    counts: dict[str, int] = {}
    for row in rows:
        if row["status"] == Status.NOT_RUN:
            name = " ".join(filter(None, (clean(row["algorithm"]), clean(row["variant"]))))
            counts[name] = counts.get(name, 0) + 1
    if not counts:
        return []
    total = sum(counts.values())
    names = [f"{name} ({count})" for name, count in sorted(counts.items(), key=lambda item: -item[1])]
    many = f"{total} of {len(rows)} planned cells {'was' if total == 1 else 'were'} not run"
    text = f"{many}: {first_few(names, _MOST_NAMES)}. Whoever is called the fastest is so of what ran;"
    return [f"{text} sweep --resume RUN, with a longer --budget where there was one, measures the rest."]


def undrawn(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many `ok` cells no figure and no ranking has; empty where all are drawn."""
    ok = [row for row in rows if row["status"] == Status.OK]
    count = sum(not is_drawn(row) for row in ok)
    if not count:
        return []
    many = f"{count} of {len(ok)} measured cells {'stands' if count == 1 else 'stand'} in the table of every cell alone"
    return [f"{many}: zero bytes or a time of zero has no place on a logarithmic axis."]
