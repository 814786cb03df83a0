"""What a launch of each algorithm costs, learnt from those that were made."""

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import median

from collbench.measure.plan import Key

__all__ = ["TOOK", "Costs", "took_s"]

_ENOUGH = 0.5
"""Of a launch's cells; of fewer the start is most of the time, and what the whole launch takes is a guess."""


@dataclass(slots=True)
class _Launch:
    """Seconds that a launch took so far, and how many of its cells were measured in them."""

    seconds: float = 0.0
    cells: int = 0


TOOK = "took"
"""Name of the evidence that has a cell's seconds, with the start of the workers where it was the first of a launch."""


def took_s(evidence: Mapping[str, str]) -> float:
    """Seconds that a cell took, by the evidence of a run that goes on; 0 where it says none, or what no cell takes."""
    found = re.fullmatch(r"([0-9]{1,4}\.[0-9]{1,9}) s", evidence.get(TOOK, ""))
    return float(found[1]) if found else 0.0


class Costs:
    """Seconds of a launch by algorithm.

    `cells` has the cells of a launch, `expected` its seconds before any was made (0 where nobody knows), and `kin` what
    algorithms share that is paid once, such as a library that compiles in the first launch of any of them.
    """

    def __init__(self, cells: Mapping[Key, int], expected: Mapping[Key, float], kin: Mapping[Key, Hashable]) -> None:
        self._cells = dict(cells)
        self._expected = dict(expected)
        self._kin = dict(kin)
        self._made: dict[Key, dict[int, _Launch]] = {}
        self._first: dict[Hashable, Key] = {}
        self._falls: float | None = None

    def learn(self, key: Key, launch: int, seconds: float, cells: int) -> None:
        """A launch, or a part of one, measured `cells` cells in `seconds`."""
        made = self._made.setdefault(key, {}).setdefault(launch, _Launch())
        made.seconds += seconds
        made.cells += cells
        self._first.setdefault(self._kin.get(key, key), key)
        self._falls = None

    def is_known(self, key: Key) -> bool:
        """Whether there is a launch, of it or of its kin, that says what its launches take."""
        return any(self._launches(one) for one in (key, *self._kin_of(key)))

    def of(self, key: Key) -> float:
        """Seconds of its next launch.

        The first launch is the dearest: of several the others count, and of kin's first launches the very first does
        not. Of one alone as much is taken off as others' first launches were dearer than theirs behind them. What was
        not launched takes what its kin take, or what was expected.
        """
        own = self._launches(key)
        if len(own) > 1:
            return median(own[1:])
        others = [launches[0] for other in self._kin_of(key) if (launches := self._launches(other))]
        if own and self._came_first(key):
            return min([own[0] * self._fall(), *([median(others)] if others else [])])
        if own:
            return own[0]
        return median(others) if others else self._expected.get(key, 0.0)

    def _came_first(self, key: Key) -> bool:
        """Whether it was launched before all of its kin, and so paid what they share."""
        return self._first[self._kin.get(key, key)] == key

    def _fall(self) -> float:
        """How much of a first launch the later ones take, by those that came first as it did; all of it at first.

        With 8 ranks sharing a GPU 0.4 to 0.7 was seen: without this whoever opens a sweep would seem too dear for a
        second launch, and that is often what everything else is held against.
        """
        if self._falls is None:  # asked for every algorithm at every turn
            all_of_them = [self._launches(key) for key in self._made if self._came_first(key)]
            seen = [median(launches[1:]) / launches[0] for launches in all_of_them if len(launches) > 1 and launches[0]]
            self._falls = min(1.0, median(seen)) if seen else 1.0
        return self._falls

    def _launches(self, key: Key) -> list[float]:
        """Seconds of its launches in the order in which they were made; of those cut short, what they would take."""
        all_cells = self._cells.get(key, 0)
        return [
            one.seconds * all_cells / one.cells
            for one in self._made.get(key, {}).values()
            if one.cells and one.cells >= _ENOUGH * all_cells
        ]

    def _kin_of(self, key: Key) -> list[Key]:
        """Those of its kin that were launched, in that order, without itself."""
        mine = self._kin.get(key, key)
        return [other for other in self._made if other != key and self._kin.get(other, other) == mine]
