"""NCCL's own estimate of its all-reduce on one node, by which it chooses algorithm and protocol.

Constants and formulae are those of NCCL 2.28 and 2.29: src/graph/tuning.cc (latencies, shares of the bandwidth, what
LL moves at most, corrections of trees), src/graph/topo.h and topo.cc (the bandwidth that NCCL counts on). Left out:
what it limits per channel, which does not bind on one node; what it counts on between processors, which depends on
their maker; and NVLS, which collbench switches off and published times do not look like (docs/measurements/model.md).
"""

from dataclasses import dataclass

from collbench.contention.patterns import half_ring
from collbench.contention.traffic import Schedule, chain, ring
from collbench.results.records import Call
from collbench.topology.graph import LinkKind, Topology

__all__ = ["Tuner", "half_ring_schedule", "schedule"]

_BASE = {"ring": {"LL": 6.6, "LL128": 14.0, "Simple": 8.4}, "tree": {"LL": 6.8, "LL128": 14.0, "Simple": 8.4}}
_HOP = {
    "pcie": {"ring": {"LL": 1.0, "LL128": 2.5, "Simple": 5.7}, "tree": {"LL": 1.0, "LL128": 1.9, "Simple": 4.0}},
    "nvlink": {"ring": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4}, "tree": {"LL": 0.6, "LL128": 1.25, "Simple": 4.0}},
}
_LL_GBPS = {2: 39.0, 3: 87.7, 4: 141.0, 5: 282.0}
"""Payload that LL moves over the busiest link at most, by the generation of NVLink; PCIe is slower than any of them."""
_RING_SHARE = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
_TREE_SHARE = {"LL": 0.92 / 3.8, "LL128": 0.92 * 7 / 9, "Simple": 0.92}
_TREE_CORRECTION = {
    "LL": (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10),
    "LL128": (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 6, 6, 6, 8, 9, 9, 9, 9, 10, 10),
    "Simple": (9, 9, 9, 9, 9, 9, 9, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9),
}
"""Tenths of a tree's bandwidth by the binary logarithm of size / 64 B."""
_PCIE_GBPS = {3: 12.0, 4: 24.0, 5: 48.0, 6: 96.0}
"""What NCCL counts on for 16 lanes."""
_LANES = 16
_WIRE = {"LL": 2.0, "LL128": 128 / 120, "Simple": 1.0}


@dataclass(frozen=True, slots=True)
class Tuner:
    """What NCCL counts on: the kind of the GPUs' links, their GB/s, and the generation of NVLink (0: none)."""

    ranks: int
    kind: str
    gbps: float
    nvlink: int = 0

    @classmethod
    def of(cls, topology: Topology, ranks: int) -> "Tuner":
        """As it is on a topology."""
        gpu = next(iter(topology.gpus), "")
        mine = [link for link in topology.links if link.src == gpu]
        nvlinks = [link for link in mine if link.kind is LinkKind.NVLINK]
        if nvlinks:
            generation = max(link.generation for link in nvlinks)
            return cls(ranks, "nvlink", sum(link.capacity_gbps or 0.0 for link in nvlinks) or 1.0, generation)
        rates = [_PCIE_GBPS.get(x.generation, 0.0) * (x.width or _LANES) / _LANES or x.capacity_gbps or 0 for x in mine]
        return cls(ranks, "pcie", max(rates, default=0.0) or 1.0)

    @property
    def protocols(self) -> tuple[str, ...]:
        """That NCCL chooses among by itself: LL128 where the GPUs are joined by NVLink."""
        return ("LL", "LL128", "Simple") if self.kind == "nvlink" else ("LL", "Simple")

    def estimate_us(self, size: int, algorithm: str, protocol: str, *, rounds: int = 2) -> float:
        """Time of one call of `size` bytes; a ring of one round is an all-gather or a reduce-scatter."""
        steps = rounds * (self.ranks - 1)
        us = _BASE[algorithm][protocol] + steps * _HOP[self.kind][algorithm][protocol]
        gbps = self.gbps * (_RING_SHARE if algorithm == "ring" else _TREE_SHARE)[protocol]
        if protocol == "LL":
            gbps = min(gbps, _LL_GBPS.get(self.nvlink, gbps))
        if algorithm == "ring":
            return us + size * steps / self.ranks / gbps / 1e3
        exponent = max((size >> 6).bit_length() - 1, 0)
        known = _TREE_CORRECTION[protocol]
        return us + size * 2 / (gbps * (known[exponent] / 10 if exponent < len(known) else 1.0)) / 1e3

    def fastest(self, size: int, algorithms: tuple[str, ...] = (), protocols: tuple[str, ...] = ()) -> tuple[str, str]:
        """Algorithm and protocol that NCCL takes for `size` bytes, among those given or all that it has here."""
        pairs = [(a, p) for a in algorithms or ("ring", "tree") for p in protocols or self.protocols]
        return min(pairs, key=lambda pair: self.estimate_us(size, *pair))

    def of_half_ring(self, size: int) -> str:
        """Protocol that NCCL takes for an all-gather or a reduce-scatter of `size` bytes of all ranks together."""
        return min(self.protocols, key=lambda protocol: self.estimate_us(size, "ring", protocol, rounds=1))


def half_ring_schedule(call: Call, topology: Topology, *, sums: bool = False) -> Schedule:
    """Traffic of NCCL's all-gather, or with `sums` its reduce-scatter, of `call.bytes` of all ranks, on one node."""
    protocol = Tuner.of(topology, call.world_size).of_half_ring(call.bytes)
    return half_ring(call, _WIRE[protocol], sums=sums, protocol=protocol)


def schedule(call: Call, algorithm: str, protocol: str) -> Schedule:
    """Traffic of NCCL's all-reduce on one node."""
    build = ring if algorithm == "ring" else chain
    return build(call, wire_factor=_WIRE[protocol], protocol=protocol)
