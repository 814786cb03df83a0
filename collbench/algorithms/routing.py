"""Who sends how many tokens to whom in expert-parallel decode: a seeded model of routing, as splits of an all-to-all.

One row travels for each pair of token and chosen expert. A library that joins the rows of one token for one rank sends
less (DeepEP does); rows are what vLLM's and torch's paths send.
"""

import math
import random
import re
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.results.records import DTYPE_BYTES, Call, Collective

__all__ = ["EVEN", "EXPERTS", "HIDDEN", "TOP_K", "Skew", "route"]

EVEN = "even"
"""The name of equal parts."""

EXPERTS, TOP_K, HIDDEN = 256, 8, 7168
"""Routed experts, experts per token, and elements per token of DeepSeek-V3 (its technical report)."""

_NAME = re.compile(r"(dispatch|combine)(?::(\d{1,2}(?:\.\d{1,3})?))?(?::(\d{1,9}))?")
_STORED = re.compile(r"(dispatch|combine)-z(\d{1,2}(?:\.\d{1,3})?)-s(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Skew:
    """One pattern of splits: `even`, or tokens to experts (`dispatch`) and back (`combine`).

    Popularity of experts falls as 1 / rank^exponent: 0 makes all alike, so that only chance tells ranks apart.
    """

    kind: str = EVEN
    exponent: float = 0.0
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> "Skew":
        """Read `even`, `dispatch`, `combine:1`, `dispatch:1.2:7` (exponent, seed), or a name as cells have it.

        Raises:
            UsageError: it is none of these.
        """
        if text == EVEN:
            return cls()
        match = _NAME.fullmatch(text) or _STORED.fullmatch(text)
        if match is None:
            raise UsageError(
                f"skew {text!r}: expected even, dispatch or combine, with exponent and seed, such as dispatch:1:7"
            )
        return cls(match[1], float(match[2] or 0), int(match[3] or 0))

    @property
    def name(self) -> str:
        """As the field of a cell: `even`, `dispatch-z1-s0`."""
        return self.kind if self.kind == EVEN else f"{self.kind}-z{self.exponent:g}-s{self.seed}"

    def call(self, size_bytes: int, ranks: int, dtype: str) -> Call:
        """The all-to-all whose equal side has about `size_bytes` on each rank: what it sends, or gets in a combine.

        As many tokens of 8 rows of 7,168 elements as fit, or one token of shorter rows; the size is rounded down to
        whole rows, as an even all-to-all's is to whole parts.
        """
        itemsize = DTYPE_BYTES[dtype]
        tokens = max(1, round(size_bytes / (TOP_K * HIDDEN * itemsize)))
        row = max(1, size_bytes // (tokens * TOP_K * itemsize))
        rows = route(tokens, ranks, self.exponent, self.seed)
        if self.kind == "combine":
            rows = tuple(zip(*rows, strict=True))
        splits = tuple(row * count for counts in rows for count in counts)
        return Call(tokens * TOP_K * row * itemsize, ranks, Collective.ALL_TO_ALL, "", dtype, splits)


def route(tokens: int, ranks: int, exponent: float, seed: int) -> tuple[tuple[int, ...], ...]:
    """Rows that each rank (outer) sends to each rank (inner) when its `tokens` tokens go to 8 of 256 experts each.

    Experts lie in blocks on the ranks, and which are popular is drawn once per seed. Every token draws distinct
    experts by their weights (exponential races, as in weighted sampling without replacement). The same on every
    machine: it uses `random.random()` alone, whose sequence Python keeps.

    Raises:
        UsageError: no token, no rank or more ranks than experts.
    """
    if tokens < 1 or not 1 <= ranks <= EXPERTS:
        raise UsageError(f"{tokens} tokens on {ranks} ranks: expected at least one token and 1 to {EXPERTS} ranks")
    # a string seeds all bits; the number of ranks is not in it, so that more ranks route the same tokens
    draw = random.Random(f"collbench routing {seed}")  # noqa: S311 - a model of traffic, no secret
    order = sorted((draw.random(), expert) for expert in range(EXPERTS))
    weights = [0.0] * EXPERTS
    for place, (_, expert) in enumerate(order):
        weights[expert] = 1 / (place + 1) ** exponent
    rows = [[0] * ranks for _ in range(ranks)]
    for counts in rows:
        for _ in range(tokens):
            races = sorted((-math.log(1 - draw.random()) / weight, e) for e, weight in enumerate(weights))
            for _, expert in races[:TOP_K]:
                counts[expert * ranks // EXPERTS] += 1
    return tuple(map(tuple, rows))
