"""An all-to-all as the tokens that a mixture-of-experts dispatch sends: each goes to one expert, and so to one rank.

A library that dispatches tokens says to which row of its receive buffer a token came only by what travels with it. So
every token of a pair of ranks has an expert of its own, whose number is enough to find the token's place in `y`.
"""

import math
from dataclasses import dataclass

from collbench.algorithms.routing import HIDDEN
from collbench.algorithms.shapes import rows_of
from collbench.results.records import Call

__all__ = ["VECTOR", "Tokens", "tokens_of", "tokens_problem", "width_of"]

VECTOR = 16
"""Bytes that a thread stores at once; rows of every model are multiples of it."""


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
    width = width_of(call)
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
    """Why a call cannot be cut into tokens; empty if it can. Rows of half a vector would be copied piece by piece."""
    row = width_of(call) * call.itemsize
    if row % VECTOR == 0 or not any(any(parts) for parts in rows_of(call)):
        return ""
    return f"its parts have no common divisor of whole vectors of {VECTOR} bytes: rows would have {row} bytes"


def width_of(call: Call) -> int:
    """Elements of a token: the largest common divisor of all parts up to 7,168, whole pairs of vectors if possible."""
    common = math.gcd(*(part for row in rows_of(call) for part in row)) or HIDDEN
    divisors = [d for k in range(1, math.isqrt(common) + 1) if common % k == 0 for d in (k, common // k)]
    fitting = [d for d in divisors if d <= HIDDEN]
    whole = ([d for d in fitting if d * call.itemsize % unit == 0] for unit in (2 * VECTOR, VECTOR, 1))
    return max(next(filter(None, whole)))
