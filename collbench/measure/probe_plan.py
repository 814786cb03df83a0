"""Which microbenchmarks to run on a topology, in order, each with what every rank has to know of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from collbench.contention.regimes import COLLAPSE_ROOTS, root_of
from collbench.results.probes import SEVERAL
from collbench.topology.graph import Topology, TopologyError

__all__ = ["Task", "pair_class", "plan_probes"]

FAN_PEERS = (2, 3, 4, 7)
"""Numbers of peers in fans."""

_COLLAPSE_SOURCES = (2, 4)
_SHORT, _ROOTS = ("both_ways", "all_to_all_4", "all_to_all"), ("_below_one_root", "_below_two_roots")
"""Loaded patterns of the short plan, and the ends of those that write collapse shows in."""

_Flows = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One microbenchmark: data flow along `flows`.

    `kind` is `launch`, `barrier`, `barrier_fence`, `launch_eager`, `launch_alone`, `launch_meet`, `launch_early`,
    `flag`, `read_chain`, `bandwidth`, `litmus_message` or `litmus_torn`; `mechanism` of a bandwidth is `load`, `store`
    or `copy`. A barrier without flows is of all ranks.
    """

    kind: str
    flows: _Flows = ()
    mechanism: str = ""
    pattern: str = ""
    unit: str = "us"

    @property
    def name(self) -> str:
        """Name of the record."""
        return f"{self.kind}.{self.mechanism}" if self.mechanism else self.kind

    @property
    def ends(self) -> tuple[int, int]:
        """Source and destination, `SEVERAL` where there is more than one."""
        ends = [{flow[i] for flow in self.flows} for i in (0, 1)]
        src, dst = (found.pop() if len(found) == 1 else SEVERAL for found in ends)
        return src, dst

    @property
    def members(self) -> set[int]:
        """Ranks that take part."""
        return {rank for flow in self.flows for rank in flow}

    def as_dict(self) -> dict[str, Any]:
        """What the workers are told."""
        return {"kind": self.kind, "flows": [list(f) for f in self.flows], "mechanism": self.mechanism}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Task":
        """Inverse of `as_dict`."""
        return cls(str(data["kind"]), tuple((int(a), int(b)) for a, b in data["flows"]), str(data["mechanism"]))


def plan_probes(
    ranks: int, topology: Topology, device: str, *, litmus: bool = False, short: bool = False
) -> list[Task]:
    """Tasks in the order in which they run: cheap and basic ones first.

    `device` is `cuda` or `cpu`. With `litmus` only the tests of memory ordering, over every ordered pair of ranks. With
    `short` one pair of each class instead of every pair, and of the loaded patterns those that degraded states and
    shares of links show in: what a sweep runs beside its cells.
    """
    pairs = list(permutations(range(ranks), 2))
    if litmus:
        kinds = ("litmus_message", "litmus_torn")
        return [Task(kind, (pair,), pattern="pair", unit="violations") for kind in kinds for pair in pairs]
    some = list(_representatives(pairs, topology)) if short and device == "cuda" else pairs
    gpu = ("launch", "barrier", "barrier_fence", "launch_eager", "launch_alone", "launch_meet", "launch_early")
    tasks = [Task(kind) for kind in (gpu if device == "cuda" else ("barrier",))]
    tasks += _smaller_barriers(ranks, topology)
    tasks += [Task("flag", ((a, b),), pattern="pair") for a, b in some if a < b]
    if device == "cuda":
        tasks += [Task("read_chain", (pair,), pattern="pair") for pair in some]
    mechanisms = ("load", "store", "copy") if device == "cuda" else ("load", "store")
    loaded = [one for one in _loaded(ranks, topology) if not short or one[0] in _SHORT or one[0].endswith(_ROOTS)]
    for mechanism in mechanisms if ranks > 1 else ():
        solo = _solo_pairs(ranks, topology, mechanism, short=short)
        tasks += [_bandwidth(mechanism, "solo", (pair,)) for pair in solo]
        tasks += [_bandwidth(mechanism, pattern, flows) for pattern, flows in loaded]
    return tasks


def _smaller_barriers(ranks: int, topology: Topology) -> list[Task]:
    """Of two ranks of each class and of four: what a flag costs per peer shows against that of all."""
    pairs = [(a, b) for a, b in permutations(range(ranks), 2) if a < b]
    groups = [*_representatives(pairs, topology), *([tuple(range(4))] if ranks > 4 else [])]  # noqa: PLR2004 - half of 8
    kept = [group for group in groups if len(group) < ranks]
    return [Task("barrier", tuple(permutations(group, 2)), pattern=f"of_{len(group)}") for group in kept]


def _bandwidth(mechanism: str, pattern: str, flows: _Flows) -> Task:
    return Task("bandwidth", flows, mechanism, pattern, "GB/s")


def _solo_pairs(ranks: int, topology: Topology, mechanism: str, *, short: bool) -> list[tuple[int, int]]:
    """Every pair by copy engine, which tells links; one pair of each class by multiprocessors.

    In short, copies go around a ring besides: each rank's link is used in both directions.
    """
    pairs = list(permutations(range(ranks), 2))
    some = list(_representatives(pairs, topology))
    if mechanism != "copy":
        return some
    return list(dict.fromkeys([*some, *((a, (a + 1) % ranks) for a in range(ranks))])) if short else pairs


def _representatives(pairs: list[tuple[int, int]], topology: Topology) -> Iterator[tuple[int, int]]:
    seen: set[str] = set()
    for pair in pairs:
        word = pair_class(topology, *pair)
        if word not in seen:
            seen.add(word)
            yield pair


def pair_class(topology: Topology, a: int, b: int) -> str:
    """What lies between two ranks, as text: pairs of one class should measure alike. Empty where nobody knows."""
    gpus = topology.gpus
    if max(a, b) >= len(gpus):
        return ""
    try:
        links = topology.route(gpus[a], gpus[b])
    except TopologyError:
        return "no route"
    kinds = [str(topology.node(link.dst).kind) for link in links[:-1]]
    return "-".join([*kinds, *sorted({link.link_class for link in links})])


def _loaded(ranks: int, topology: Topology) -> Iterator[tuple[str, _Flows]]:
    """Patterns in which several flows run together."""
    pairs = list(permutations(range(ranks), 2))
    for a, b in _representatives([pair for pair in pairs if pair[0] < pair[1]], topology):
        yield "both_ways", ((a, b), (b, a))
    far = sorted(range(1, ranks), key=lambda peer: (-pair_class(topology, 0, peer).count("-"), peer))
    for count in (c for c in FAN_PEERS if c < ranks):
        yield f"one_to_{count}", tuple((0, peer) for peer in far[:count])
        yield f"{count}_to_one", tuple((peer, 0) for peer in far[:count])
    if ranks > 2:  # noqa: PLR2004 - with two ranks it is both_ways
        yield "shift_1", tuple((rank, (rank + 1) % ranks) for rank in range(ranks))
    four = _four_below_one_switch(ranks, topology)
    if four and len(four) < ranks:
        yield "all_to_all_4", tuple(permutations(four, 2))
    yield "all_to_all", tuple(pairs)
    yield from _collapse(ranks, topology)


def _four_below_one_switch(ranks: int, topology: Topology) -> tuple[int, ...]:
    where = {gpu: rank for rank, gpu in enumerate(topology.gpus) if rank < ranks}
    groups = [tuple(where[gpu] for gpu in group if gpu in where) for group in topology.groups]
    return next((group[:4] for group in groups if len(group) >= 4), ())  # noqa: PLR2004 - a dense group


def _collapse(ranks: int, topology: Topology) -> Iterator[tuple[str, _Flows]]:
    """Sources below one root port that write below one other root port, and below two."""
    roots: dict[str, list[int]] = {}
    for rank in range(ranks):
        roots.setdefault(root_of(topology, rank), []).append(rank)
    below = [members for root, members in roots.items() if root]
    if len(below) < COLLAPSE_ROOTS:
        return
    home, *away = sorted(below, key=len, reverse=True)
    for count in (c for c in _COLLAPSE_SOURCES if c <= len(home) and c <= 2 * min(map(len, away[:2]))):
        one = [away[0][i % len(away[0])] for i in range(count)]
        two = [away[i % 2][(i // 2) % len(away[i % 2])] for i in range(count)]
        yield f"{count}_below_one_root", tuple(zip(home[:count], one, strict=True))
        yield f"{count}_below_two_roots", tuple(zip(home[:count], two, strict=True))
