"""An all-to-all as the tokens that a mixture-of-experts dispatch sends: each goes to one expert, and so to one rank.

A library that dispatches tokens says to which row of its receive buffer a token came only by what travels with it. So
every token of a pair of ranks has an expert of its own, whose number is enough to find the token's place in `y`.
"""

import math
from dataclasses import dataclass

from collbench.algorithms.routing import HIDDEN
from collbench.algorithms.shapes import rows_of
from collbench.results.records import Call

__all__ = ["LEAST_BYTES", "Tokens", "tokens_of", "tokens_problem"]

LEAST_BYTES = 16
"""A token of more than one for a pair is at least so long: what is shorter no kernel stores in one vector."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one rank: `width` elements each, `most` the number that the busiest sender has.

    `chosen` is the expert of each token that this rank sends, in the order of `x`. `places` has for every expert the
    row of `y` at which its token belongs, `came` for experts without a token for this rank: one row behind the end.
    """

    width: int
    most: int
    experts: int
    chosen: tuple[int, ...]
    places: tuple[int, ...]
    came: int


def tokens_of(call: Call, rank: int) -> Tokens:
    """Cut the parts of an all-to-all into tokens of equal width, at most 7,168 elements, for one rank."""
    width = _width(call)
    counts = [[part // width for part in row] for row in rows_of(call)]
    n, parts = len(counts), max(1, *(count for row in counts for count in row))

    def expert(source: int, target: int, j: int) -> int:
        return (target * n + source) * parts + j

    chosen = tuple(expert(rank, target, j) for target, count in enumerate(counts[rank]) for j in range(count))
    came = sum(row[rank] for row in counts)
    places, at = [came] * (n * n * parts + 1), 0
    for source, row in enumerate(counts):
        for j in range(row[rank]):
            places[expert(source, rank, j)] = at
            at += 1
    return Tokens(width, max(1, *(sum(row) for row in counts)), n * n * parts, chosen, tuple(places), came)


def tokens_problem(call: Call) -> str:
    """Why a call cannot be cut into tokens; empty if it can."""
    width = _width(call)
    if width * call.itemsize >= LEAST_BYTES or max(max(row) for row in rows_of(call)) <= width:
        return ""
    return f"its parts have no common divisor that makes tokens of {LEAST_BYTES} to {HIDDEN * call.itemsize} bytes"


def _width(call: Call) -> int:
    """The largest divisor of all parts that is no longer than a token of DeepSeek-V3; 1 where nothing is sent."""
    common = math.gcd(*(part for row in rows_of(call) for part in row)) or 1
    divisors = [d for k in range(1, math.isqrt(common) + 1) if common % k == 0 for d in (k, common // k)]
    return max(d for d in divisors if d <= HIDDEN)
