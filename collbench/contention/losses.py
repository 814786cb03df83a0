"""What links lose beside sharing, and what is shared beside links: each a row of a fluid run."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from collbench.contention.parameters import Parameter, Parameters
from collbench.contention.traffic import Flow, Move
from collbench.topology.graph import Link, LinkKind

__all__ = ["Pair", "Routes", "Row", "dense", "half_duplex", "lossy", "windows"]

Pair = tuple[int, int, Move]
Routes = Mapping[Pair, tuple[Link, ...]]

_DENSE = 3  # peers from which a port counts as dense: what was measured


@dataclass(slots=True)
class Row:
    """One link of a run, real or virtual: what it can carry, and who loads it (flow -> coefficient).

    `basis` names what sets its rate: a class of links, and what they lose.
    """

    name: str
    gbps: float
    sd: float
    is_prior: bool
    load: dict[int, float] = field(default_factory=dict)
    link: Link | None = None
    basis: str = ""


_Factor = tuple[str, Parameter]


def _scaled(row: Row, name: str, factors: Sequence[_Factor], load: dict[int, float]) -> Row:
    """A row whose capacity is multiplied by factors."""
    gbps = row.gbps * math.prod(f.value for _, f in factors)
    sd = math.hypot(row.sd, *(f.sd for _, f in factors))
    basis = " ".join((row.basis, *(word for word, _ in factors)))
    return Row(name, gbps, sd, any(f.is_prior for _, f in factors), load, row.link, basis)


def _efficiency(known: Parameters, name: str, link: Link) -> _Factor:
    """The factor of that name, of the link's class where there is one."""
    return name, known.get(f"efficiency.{name}.{link.link_class}") or known[f"efficiency.{name}"]


def lossy(real: Sequence[Row], known: Parameters, gpus: Sequence[str], flows: Sequence[Flow]) -> list[Row]:
    """Real links with what stores, loads and opposite writes cost on PCIe."""
    ranks = {gpu: rank for rank, gpu in enumerate(gpus)}
    pulls = [flow.move is Move.PULL for flow in flows]
    writes = {(r.link.src, r.link.dst) for r in real if r.link and not all(pulls[f] for f in r.load)}
    found = []
    for row in real:
        link, factors = row.link, list[_Factor]()
        assert link is not None  # noqa: S101 - real rows have one
        if link.kind is LinkKind.PCIE:
            sender, reader = ranks.get(link.src), ranks.get(link.dst)
            if (link.src, link.dst) in writes and (link.dst, link.src) in writes:
                factors.append(_efficiency(known, "duplex", link))
            if sender is not None and any(flows[f].src == sender and not pulls[f] for f in row.load):
                factors.append(_efficiency(known, "store", link))
            if reader is not None and any(flows[f].dst == reader and pulls[f] for f in row.load):
                factors.append(_efficiency(known, "load", link))
        least = min(factors, key=lambda factor: factor[1].value, default=None)
        found.append(_scaled(row, row.name, [least], row.load) if least else row)
    return found


def dense(
    real: Sequence[Row],
    known: Parameters,
    gpus: Sequence[str],
    flows: Sequence[Flow],
    routes: Routes,
    *,
    anywhere: bool = False,
) -> list[Row]:
    """Virtual links for ports whose GPUs exchange data with at least three peers below the same switch at once.

    `anywhere`: behind other switches too. Published copies lose as much there; published loads do not (one machine).
    """
    local = [i for i, f in enumerate(flows) if anywhere or len(routes[f.src, f.dst, f.move]) == 2]  # noqa: PLR2004 - in and out
    out, into = Counter(flows[i].src for i in local), Counter(flows[i].dst for i in local)
    near = {i for i in local if out[flows[i].src] >= _DENSE and into[flows[i].dst] >= _DENSE}
    found, members = list[Row](), frozenset(gpus)
    for row in real if near else ():
        if row.link is None or not members & {row.link.src, row.link.dst}:
            continue
        mine = {f: c for f, c in row.load.items() if c > 0.5 and f in near}  # noqa: PLR2004 - a request costs less
        if not mine:
            continue
        pulls = flows[next(iter(mine))].move is Move.PULL
        if (row.link.dst if pulls else row.link.src) not in members:
            continue
        word = "load" if pulls else "store"
        names = [word, f"dense_{word}"] if row.link.kind is LinkKind.PCIE else ["dense_nvlink"]
        factors = [_efficiency(known, name, row.link) for name in names]
        found.append(_scaled(row, f"{row.name} (dense)", factors, mine))
    return found


def half_duplex(real: Sequence[Row], known: Parameters) -> list[Row]:
    """Virtual links for both directions of a link between processors together."""
    factor = ("socket_duplex", known["efficiency.socket_duplex"])
    sockets = {(r.link.src, r.link.dst): r for r in real if r.link and r.link.kind is LinkKind.SOCKET}
    found = []
    for (src, dst), row in sockets.items():
        back = sockets.get((dst, src))
        if back is not None and src < dst:
            both = replace(row, gbps=row.gbps + back.gbps)
            found.append(_scaled(both, f"{src} <-> {dst}", [factor], {**row.load, **back.load}))
    return found


def windows(
    known: Parameters, gpus: Sequence[str], flows: Sequence[Flow], routes: Routes, trips_us: Mapping[Pair, float]
) -> list[Row]:
    """Virtual links for the bytes that each reader has in flight over PCIe: rate x round trip, summed."""
    window = known["window.bytes"]
    readers = defaultdict[int, dict[int, float]](dict)
    pulls = [pair for pair in routes if pair[2] is Move.PULL]
    slow = {pair for pair in pulls if any(link.kind is LinkKind.PCIE for link in routes[pair])}
    for number, flow in enumerate(flows if slow else ()):
        pair = (flow.src, flow.dst, flow.move)
        if pair in slow:
            readers[flow.dst][number] = trips_us[pair]
    return [
        Row(f"reads of {gpus[rank]}", window.value / 1e3, window.sd, window.is_prior, load, basis="window")
        for rank, load in readers.items()
    ]
