"""What a call's outputs should hold, one maker per collective: pools of values longer than a slot by a window.

A slot's data is a window into every pool, moved by the slot's offset; what its outputs should hold is a window too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.algorithms.epilogues import EPSILON, RESIDUAL_RMSNORM, hidden_size, why_not
from collbench.algorithms.shapes import IN_PARTS, part_of, rows_of, splits_problem
from collbench.measure.arrays import ArrayKind, numpy_dtype
from collbench.results.records import Call, Collective

__all__ = ["WINDOW", "Answer", "Expected", "make_answer", "supported"]

WINDOW = 4096
"""Elements by which a slot's window may move in the pools."""

_LARGEST_SUMMED = 8
"""Integers to sum are drawn from -8..8: sums over 16 ranks stay within 128, exact in bfloat16 (8 bits of precision)."""

_LARGEST_MOVED = 127
"""Integers that are only moved: wide enough that an element of another place seldom looks right."""

_EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "int32": 0.0}
_LEAST_BOUND = np.float32(1e-30)
_RESIDUAL, _WEIGHT = 3, 4  # streams of random numbers beside those of the ranks, which all have 2
_NORM_ROUNDINGS = 3.0  # of the residual, of the row's mean and of the result, in epsilons


@dataclass(frozen=True, slots=True)
class Expected:
    """Elements of an output from `start` on: `bound` is the error that rounding allows, None where bits are exact."""

    start: int
    want: Any
    bound: Any = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Pools of the inputs by name, and what each output should hold for an offset of the window.

    `alike` says that all ranks end with the same bits.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Callable[[int], Sequence[Expected]]]
    alike: bool = True


@dataclass(frozen=True, slots=True)
class _Maker:
    """Draws the values of every rank, and brings them to where the arrays are."""

    call: Call
    rank: int
    seed: int
    exact: bool
    kind: ArrayKind
    like: Any
    dtype: np.dtype[Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", numpy_dtype(self.call.dtype))

    def draw(self, length: int, largest: int, *stream: int) -> NDArray[Any]:
        """`length` values and a window more, in the call's dtype: integers up to `largest`, or fractions."""
        rng = np.random.default_rng((self.seed, *stream))
        if self.exact:
            values: NDArray[Any] = rng.integers(-largest, largest, length + WINDOW, dtype=np.int8, endpoint=True)
            return values.astype(self.dtype)
        return (rng.random(length + WINDOW, dtype=np.float32) - np.float32(0.5)).astype(self.dtype)

    def of_rank(self, rank: int, length: int, largest: int = _LARGEST_SUMMED) -> NDArray[Any]:
        """What rank `rank` puts in."""
        return self.draw(length, largest, rank, 2)

    def native(self, values: NDArray[Any]) -> Any:  # noqa: ANN401 - either library's array
        return self.kind.native(values, self.like)


@dataclass(frozen=True, slots=True)
class _Sum:
    own: NDArray[Any]
    total: NDArray[Any]
    bound: NDArray[Any]


def _summed(make: _Maker) -> _Sum:
    """This rank's values, the sum over ranks in float32, and how far rounding may take it."""
    call = make.call
    total, magnitude = (np.zeros(call.count + WINDOW, np.float32) for _ in range(2))
    own: NDArray[Any] = np.zeros(0)
    for rank in range(call.world_size):
        values = make.of_rank(rank, call.count)
        own = values if rank == make.rank else own
        as_float = values.astype(np.float32)
        total += as_float
        magnitude += np.abs(as_float)
    # each of up to n roundings errs by at most half an epsilon of a partial sum, which the magnitudes bound
    return _Sum(own, total, magnitude * np.float32(call.world_size * _EPSILON[call.dtype]) + _LEAST_BOUND)


def _windows(make: _Maker, total: NDArray[Any], bound: NDArray[Any], length: int) -> Callable[[int], list[Expected]]:
    """One stretch of sums."""
    if make.exact:
        exact = make.native(total.astype(make.dtype))
        return lambda offset: [Expected(0, exact[offset : offset + length])]
    want, limit = make.native(total), make.native(bound)
    return lambda offset: [Expected(0, want[offset : offset + length], limit[offset : offset + length])]


def _all_reduce(make: _Maker) -> Answer:
    found = _summed(make)
    outputs = {"y": _windows(make, found.total, found.bound, make.call.count)}
    return Answer({"x": make.native(found.own)}, outputs)


def _reduce_scatter(make: _Maker) -> Answer:
    found, part = _summed(make), part_of(make.call)
    mine = slice(make.rank * part, (make.rank + 1) * part + WINDOW)
    outputs = {"y": _windows(make, found.total[mine], found.bound[mine], part)}
    return Answer({"x": make.native(found.own)}, outputs, alike=False)


def _parts(pools: Sequence[Any], part: int) -> Callable[[int], list[Expected]]:
    """One stretch of every rank."""
    return lambda offset: [Expected(k * part, pool[offset : offset + part]) for k, pool in enumerate(pools)]


def _all_gather(make: _Maker) -> Answer:
    part = part_of(make.call)
    pools = [make.native(make.of_rank(k, part, _LARGEST_MOVED)) for k in range(make.call.world_size)]
    return Answer({"x": pools[make.rank]}, {"y": _parts(pools, part)})


def _all_to_all(make: _Maker) -> Answer:
    part, count = part_of(make.call), make.call.count
    mine = slice(make.rank * part, (make.rank + 1) * part + WINDOW)
    pools = [make.native(make.of_rank(k, count, _LARGEST_MOVED)[mine]) for k in range(make.call.world_size)]
    return Answer(
        {"x": make.native(make.of_rank(make.rank, count, _LARGEST_MOVED))}, {"y": _parts(pools, part)}, alike=False
    )


def _uneven(make: _Maker) -> Answer:
    """An all-to-all with splits: what rank k sends to this one lies in k's values behind what goes to lower ranks."""
    rows, me = rows_of(make.call), make.rank
    values = [make.of_rank(k, sum(row), _LARGEST_MOVED) for k, row in enumerate(rows)]
    pools = [make.native(values[k][sum(row[:me]) :]) for k, row in enumerate(rows)]
    starts = [sum(row[me] for row in rows[:k]) for k in range(len(rows))]

    def parts(offset: int) -> list[Expected]:
        return [Expected(starts[k], pools[k][offset : offset + row[me]]) for k, row in enumerate(rows) if row[me]]

    return Answer({"x": make.native(values[me])}, {"y": parts}, alike=False)


def _normalised(make: _Maker) -> Answer:
    """Residual added to the sum, rows normalised: the sums exact or within bounds, the rows always within bounds."""
    call, found, hidden = make.call, _summed(make), hidden_size(make.call)
    residual = make.draw(call.count, _LARGEST_SUMMED, make.call.world_size, _RESIDUAL)
    weight = make.draw(hidden, _LARGEST_SUMMED, make.call.world_size, _WEIGHT)
    total = found.total + residual.astype(np.float32)
    epsilon = np.float32(_EPSILON[call.dtype])
    bound = found.bound + epsilon * np.abs(total)
    sums, weights = make.native(total), make.native(weight.astype(np.float32))
    limits = make.native(np.full_like(bound, _LEAST_BOUND) if make.exact else bound)

    def rows(offset: int) -> list[Expected]:
        window = slice(offset, offset + call.count)
        values, scales = sums[window].reshape(-1, hidden), weights[offset : offset + hidden]
        inverse = ((values * values).mean(1) + EPSILON) ** -0.5
        factors = inverse.reshape(-1, 1) * scales
        want = values * factors
        limit = limits[window].reshape(-1, hidden) * abs(factors) + _NORM_ROUNDINGS * float(epsilon) * abs(want) + 1e-6
        return [Expected(0, want.reshape(-1), limit.reshape(-1))]

    inputs = {"x": make.native(found.own), "residual": make.native(residual), "weight": make.native(weight)}
    return Answer(inputs, {"residual_out": _windows(make, total, bound, call.count), "y": rows})


_MAKERS: Mapping[tuple[Collective, str], Callable[[_Maker], Answer]] = {
    (Collective.ALL_REDUCE, ""): _all_reduce,
    (Collective.ALL_REDUCE, RESIDUAL_RMSNORM): _normalised,
    (Collective.ALL_GATHER, ""): _all_gather,
    (Collective.REDUCE_SCATTER, ""): _reduce_scatter,
    (Collective.ALL_TO_ALL, ""): _all_to_all,
    (Collective.BARRIER, ""): _all_gather,
}
"""A barrier carries one element of every rank: who holds them all, fresh in every check, cannot have left early."""

_SUMS = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)


def supported(call: Call) -> bool:
    """Whether the right answer of this call is known here; what cannot be checked is not timed."""
    known = (call.collective, call.epilogue) in _MAKERS and not why_not(call) and not splits_problem(call)
    equal = call.collective not in IN_PARTS or call.splits or call.count % call.world_size == 0
    return known and bool(equal) and call.op == ("sum" if call.collective in _SUMS else "")


def make_answer(call: Call, rank: int, seed: int, *, exact: bool, kind: ArrayKind, like: Any) -> Answer:  # noqa: ANN401 - either library's array
    """Pools and answers of one rank, as arrays of `kind` where `like` is; `exact`: integers, whose sums are exact."""
    make = _Maker(call, rank, seed, exact or call.dtype == "int32", kind, like)
    return (_uneven if call.splits else _MAKERS[call.collective, call.epilogue])(make)
