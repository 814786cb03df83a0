"""What the labels of `nvidia-smi topo -m` say of pairs: how far apart, how many NVLinks, where they quarrel."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from collbench.topology.label_rows import is_gpu
from collbench.topology.smi_affinity import Affinity

__all__ = ["LEVELS", "LabelledDevices", "Pairs"]

LEVELS: Mapping[str, int] = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
"""How far apart a label says two devices are; SOC is what drivers before 390 print for SYS."""

_MOST_NOTES = 12


@dataclass(frozen=True, slots=True)
class LabelledDevices:
    """A matrix as read: `labels[a, b]` is the cell in row `a`, column `b`; `cards` the legend of the network cards."""

    names: tuple[str, ...]
    labels: Mapping[tuple[str, str], str]
    affinities: Mapping[str, Affinity]
    cards: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs in the order of the columns."""
        return tuple(name for name in self.names if is_gpu(name))


class Pairs:
    """Levels and NVLinks of pairs, both directions looked at."""

    def __init__(self, devices: LabelledDevices) -> None:
        self._devices = devices
        self.notes: list[str] = []
        self.level: dict[frozenset[str], int] = {}
        self.hidden: list[tuple[str, str]] = []
        self.nvlinks: dict[tuple[str, str], int] = {}
        quarrels: list[str] = []
        for a, b in itertools.combinations(devices.names, 2):
            self._pair(a, b, quarrels)
        self.notes += quarrels[:_MOST_NOTES]
        if len(quarrels) > _MOST_NOTES:
            self.notes.append(f"{len(quarrels) - _MOST_NOTES} more pairs have labels that differ by direction")

    def _pair(self, a: str, b: str, quarrels: list[str]) -> None:
        labels = [self._devices.labels.get(pair, "") for pair in ((a, b), (b, a))]
        for src, dst, label in ((a, b, labels[0]), (b, a, labels[1])):
            if label.startswith("NV") and (count := int(label[2:])):
                self.nvlinks[src, dst] = count
        if any(label.startswith("NV") for label in labels) and is_gpu(a) and is_gpu(b):
            self.hidden.append((a, b))
        if all(labels) and labels[0] != labels[1]:
            quarrels.append(f"{a.lower()} to {b.lower()} is {labels[0]}, {b.lower()} to {a.lower()} is {labels[1]}")
        known = [LEVELS[label] for label in labels if label in LEVELS]
        if known:
            self.level[frozenset((a, b))] = max(known)

    def joined(self, most: int) -> list[list[str]]:
        """Sets of devices joined by levels of at most `most`, in the order of the columns.

        GPUs are joined by their own labels first; a network card joins two sets of GPUs only where no label between
        these says otherwise, as below NVLinks, which hide it.
        """
        sets = {name: [name] for name in self._devices.names}
        near = [tuple(sorted(pair)) for pair, level in self.level.items() if level <= most]
        for a, b in sorted(near, key=lambda pair: not (is_gpu(pair[0]) and is_gpu(pair[1]))):
            one, other = sets[a], sets[b]
            if one is other or (not (is_gpu(a) and is_gpu(b)) and self._apart(one, other, most)):
                continue
            one += other
            sets |= dict.fromkeys(other, one)
        place = {name: index for index, name in enumerate(self._devices.names)}
        unique = {id(members): sorted(members, key=place.__getitem__) for members in sets.values()}
        return sorted(unique.values(), key=lambda members: place[members[0]])

    def _apart(self, one: Iterable[str], other: Iterable[str], most: int) -> bool:
        gpus = [name for name in other if is_gpu(name)]
        return any(self.level.get(frozenset((a, b)), 0) > most for a in one if is_gpu(a) for b in gpus)

    def contradictions(self, sets: list[list[str]], most: int, what: str) -> list[str]:
        """Pairs of GPUs in one set whose own label puts them further apart."""
        found = []
        words = {level: label for label, level in LEVELS.items() if label != "SOC"}
        for members in sets:
            for a, b in itertools.combinations([m for m in members if is_gpu(m)], 2):
                level = self.level.get(frozenset((a, b)), 0)
                if level > most:
                    found.append(f"{a.lower()} and {b.lower()}: {words[level]}, but other labels put both below {what}")
        return found[:_MOST_NOTES]

    @cached_property
    def without_place(self) -> frozenset[str]:
        """GPUs that NVLink joins to every other GPU: no label says where they hang on PCIe."""
        near: dict[str, set[str]] = defaultdict(set)
        for a, b in self.hidden:
            near[a].add(b)
            near[b].add(a)
        return frozenset(gpu for gpu in self._devices.gpus if near[gpu])
