"""What links lose beside sharing, and what is shared beside links: each a row of a fluid run."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collbench.contention.parameters import Parameter, Parameters
from collbench.contention.traffic import Flow, Move
from collbench.topology.graph import Link, LinkKind

__all__ = ["Pair", "Routes", "Row", "dense", "half_duplex", "lossy", "windows"]

Pair = tuple[int, int, Move]
Routes = Mapping[Pair, tuple[Link, ...]]

_DENSE = 3  # peers from which a port counts as dense: what was measured


@dataclass(slots=True)
class Row:
    """One link of a run, real or virtual: what it can carry, and who loads it (flow -> coefficient)."""

    name: str
    gbps: float
    sd: float
    is_prior: bool
    load: dict[int, float] = field(default_factory=dict)
    link: Link | None = None


def _scaled(row: Row, name: str, factors: Sequence[Parameter], load: dict[int, float]) -> Row:
    """A row whose capacity is multiplied by factors."""
    gbps = row.gbps * float(np.prod([f.value for f in factors]))
    sd = float(np.hypot.reduce([row.sd, *(f.sd for f in factors)]))
    return Row(name, gbps, sd, any(f.is_prior for f in factors), load, row.link)


def _efficiency(known: Parameters, name: str, link: Link) -> Parameter:
    """The factor of that name, of the link's class where there is one."""
    return known.get(f"efficiency.{name}.{link.link_class}") or known[f"efficiency.{name}"]


def lossy(real: Sequence[Row], known: Parameters, gpus: Sequence[str], flows: Sequence[Flow]) -> list[Row]:
    """Real links with what stores, loads and opposite writes cost on PCIe."""
    writes = {(r.link.src, r.link.dst) for r in real if r.link and any(flows[f].move is not Move.PULL for f in r.load)}
    found = []
    for row in real:
        link, factors = row.link, list[Parameter]()
        assert link is not None  # noqa: S101 - real rows have one
        if link.kind is LinkKind.PCIE:
            moves = {(flows[f].move, gpus[flows[f].src] == link.src, gpus[flows[f].dst] == link.dst) for f in row.load}
            if {(link.src, link.dst), (link.dst, link.src)} <= writes:
                factors.append(_efficiency(known, "duplex", link))
            if any(move is not Move.PULL and sends for move, sends, _ in moves):
                factors.append(_efficiency(known, "store", link))
            if any(move is Move.PULL and reads for move, _, reads in moves):
                factors.append(_efficiency(known, "load", link))
        least = min(factors, key=lambda factor: factor.value, default=None)
        found.append(_scaled(row, row.name, [least], row.load) if least else row)
    return found


def dense(
    real: Sequence[Row], known: Parameters, gpus: Sequence[str], flows: Sequence[Flow], routes: Routes
) -> list[Row]:
    """Virtual links for ports whose GPUs exchange data with at least three peers below the same switch at once."""
    local = [i for i, f in enumerate(flows) if len(routes[f.src, f.dst, f.move]) == 2]  # noqa: PLR2004 - in and out
    out, into = Counter(flows[i].src for i in local), Counter(flows[i].dst for i in local)
    near = {i for i in local if out[flows[i].src] >= _DENSE and into[flows[i].dst] >= _DENSE}
    found = list[Row]()
    for row in real if near else ():
        mine = {f: c for f, c in row.load.items() if f in near and c > 0.5}  # noqa: PLR2004 - a request costs less
        if not mine or row.link is None:
            continue
        pulls = flows[next(iter(mine))].move is Move.PULL
        if (row.link.dst if pulls else row.link.src) not in gpus:
            continue
        word = "load" if pulls else "store"
        names = [word, f"dense_{word}"] if row.link.kind is LinkKind.PCIE else ["dense_nvlink"]
        factors = [_efficiency(known, name, row.link) for name in names]
        found.append(_scaled(row, f"{row.name} (dense)", factors, mine))
    return found


def half_duplex(real: Sequence[Row], known: Parameters) -> list[Row]:
    """Virtual links for both directions of a link between processors together."""
    factor = known["efficiency.socket_duplex"]
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
    for number, flow in enumerate(flows):
        if flow.move is Move.PULL and any(link.kind is LinkKind.PCIE for link in routes[flow.src, flow.dst, flow.move]):
            readers[flow.dst][number] = trips_us[flow.src, flow.dst, flow.move]
    return [
        Row(f"reads of {gpus[rank]}", window.value / 1e3, window.sd, window.is_prior, load)
        for rank, load in readers.items()
    ]
