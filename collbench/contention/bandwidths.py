"""Published bandwidths of several flows against the model, with nothing known of the machine but one flow alone.

Two predictions: links as wide as that flow, without losses; and with the losses that other machines show. A loss is a
factor on what a link carries: with both directions busy, of a link between processors both ways, of a port that writes
to or reads from several peers at once. It is learnt from rows of other mainboards only, those on which it alone binds.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collbench.contention.fairshare import run
from collbench.contention.losses import dense, half_duplex, lossy
from collbench.contention.parameters import Parameter, Parameters, priors
from collbench.contention.published import Bandwidth
from collbench.contention.scores import Score, summed
from collbench.contention.splits import pattern, split_file
from collbench.contention.stages import UNIT, usage_of
from collbench.contention.traffic import Flow, Move
from collbench.contention.wires import Wires
from collbench.topology import catalog
from collbench.topology.graph import LinkKind, Topology

__all__ = ["LOSSES", "Copies", "bandwidth_scores", "flows_of", "losses_of_others"]

LOSSES = ("duplex", "socket", "dense write", "dense read")
"""Kinds of losses."""

_TRIAL = 0.8  # a loss that binds alone shows in full: a factor of 0.8 gives 0.8 of the rate
_IN_FULL = 0.85
_NAMES = {"duplex": "efficiency.duplex", "socket": "efficiency.socket_duplex"}


@dataclass(frozen=True)
class Copies:
    """Flows of a row on its topology. `board` is the mainboard, whose other rows are not used for this one."""

    row: Bandwidth
    topology: Topology
    flows: tuple[tuple[int, int], ...]
    kind: str
    board: str

    @property
    def losses(self) -> tuple[str, ...]:
        """Kinds that may count."""
        return ("duplex", "socket", "dense read" if self.row.direction == "read" else "dense write")

    def gbps(self, losses: Mapping[str, float]) -> float:
        """All flows of equal bytes: every GPU's bytes over its own last flow's time. Losses not given are none."""
        factors = {_NAMES.get(kind, "efficiency.dense_store"): losses.get(kind, 1.0) for kind in self.losses}
        solo = {f"capacity.{x.src}->{x.dst}": self.row.solo_gbps for x in self.topology.links
                if x.kind is LinkKind.PCIE and x.generation}  # fmt: skip
        known = priors().replaced({name: Parameter(v, 0.0, "a row") for name, v in (factors | solo).items()})
        return _gbps(self.topology, self.flows, known.replaced({"efficiency.store": Parameter(1.0, 0.0, "copies")}))

    @cached_property
    def plain_gbps(self) -> float:
        """Without losses."""
        return self.gbps({})

    @cached_property
    def busiest_gbps(self) -> float:
        """What the busiest link alone allows."""
        loads: Counter[tuple[str, str]] = Counter()
        capacity: dict[tuple[str, str], float] = {}
        for src, dst in self.flows:
            for link in self.topology.route(self.topology.gpus[src], self.topology.gpus[dst]):
                port = link.kind is LinkKind.PCIE and link.generation
                capacity[link.src, link.dst] = self.row.solo_gbps if port else link.capacity_gbps or math.inf
                loads[link.src, link.dst] += 1
        return len(self.flows) / max(load / capacity[ends] for ends, load in loads.items())

    @cached_property
    def witness(self) -> tuple[str, float] | None:
        """The loss that holds this row back and nothing beside it, and how large it is; None if there is no such one.

        In dense traffic both directions are busy too, and a link between processors has no other loss: the more special
        one counts. What dense traffic loses elsewhere than at its ports is no witness of anything.
        """
        order = [self.losses[2], "socket"] if self.kind == "dense" else ["socket", "duplex"]
        shown = (kind for kind in order if self.gbps({kind: _TRIAL}) < _IN_FULL * self.plain_gbps)
        kind = next(shown, None)
        return (kind, self.row.total_gbps / self.plain_gbps) if kind else None


def _gbps(topology: Topology, pairs: Sequence[tuple[int, int]], known: Parameters) -> float:
    gpus = topology.gpus
    flows = [Flow(src, dst, UNIT, Move.PUSH) for src, dst in pairs]
    wires = Wires(topology, known, len(gpus))
    real = wires.rows(flows)
    routes = {(f.src, f.dst, f.move): wires.route(f.src, f.dst) for f in flows}
    rows = [*lossy(real, known, gpus, flows), *dense(real, known, gpus, flows, routes, anywhere=True)]
    rows += half_duplex(real, known)
    finish = run(usage_of(rows, len(flows)), [row.gbps for row in rows], np.full(len(flows), UNIT)).finish_us
    last: dict[int, float] = defaultdict(float)
    for (src, _), us in zip(pairs, finish, strict=True):
        last[src] = max(last[src], float(us))
    sent = Counter(src for src, _ in pairs)
    return sum(sent[src] * UNIT / us for src, us in last.items()) / 1e3


def flows_of(text: str) -> list[tuple[int, int]]:
    """Pairs of `0>4 1>5`, `shift 3` (8 GPUs), `all 4`, `cross`."""
    word, _, number = text.partition(" ")
    if word == "shift":
        return [(i, (i + int(number)) % 8) for i in range(8)]
    if word == "all":
        n = int(number)
        return [(a, b) for a in range(n) for b in range(n) if a != b]
    if word == "cross":
        return [(a, b) for a in range(4) for b in range(4, 8)]
    return [(int(a), int(b)) for a, _, b in (pair.partition(">") for pair in text.split())]


def losses_of_others(board: str, rows: Sequence[Copies]) -> dict[str, float]:
    """Factors that rows of other mainboards show: the median over boards of each board's median."""
    shown: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in LOSSES}
    for one in rows:
        if one.board != board and one.witness is not None:
            kind, factor = one.witness
            shown[kind][one.board].append(factor)
    return {
        kind: min(1.0, statistics.median(statistics.median(found) for found in boards.values()))
        for kind, boards in shown.items()
        if boards
    }


def bandwidth_scores(rows: Iterable[Bandwidth], left_out: Counter[str]) -> list[Score]:
    """Scores of sparse and of dense patterns; counts what is left out."""
    known = _copies(rows, left_out)
    found = []
    for kind in dict.fromkeys(one.kind for one in known):
        some = [one for one in known if one.kind == kind]
        table, systems = f"bandwidth, {kind}", len({one.row.system for one in some})
        plain, busiest, told = (
            [math.log(gbps / one.row.total_gbps) for one, gbps in zip(some, values, strict=True)]
            for values in (
                [one.plain_gbps for one in some],
                [one.busiest_gbps for one in some],
                [one.gbps(losses_of_others(one.board, known)) for one in some],
            )
        )
        found += [
            summed(table, "only the solo row known", "all", "model", plain, systems),
            summed(table, "only the solo row known", "all", "busiest link", busiest, systems),
            summed(table, "the solo row, and losses of other boards", "all", "model", told, systems),
        ]
    return found


def _copies(rows: Iterable[Bandwidth], left_out: Counter[str]) -> list[Copies]:
    found = []
    for row in rows:
        rule, reason = pattern(row)
        place = next((b for b in split_file()["bandwidth"] if b["system"] in row.system), None)
        if rule is None or place is None or not math.isfinite(row.solo_gbps):
            left_out[reason or ("bandwidth: no pattern or topology" if place else "bandwidth: no topology")] += 1
            continue
        topology = catalog.load(catalog.find(place["topology"]))
        kind, flows = rule.get("kind", "sparse"), tuple(flows_of(rule["flows"]))
        found.append(Copies(row, topology, flows, kind, place.get("board") or place["system"]))
    return found
