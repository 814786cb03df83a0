"""Right answer, same bits on every rank, nothing left unwritten.

Two kinds of data are used. Small integers, whose sums are exact in every dtype and in every order, are compared
for equality and stand in the buffers while times are taken. Random fractions, compared within the rounding of the
dtype, show that all ranks hold the same bits; they are used once before times are taken. Every slot of every check has
its own data: a window into a pool of random values that moves from check to check, so that no earlier answer is right.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.algorithms.base import Runner
from collbench.measure.arrays import ArrayKind, kind_of, numpy_dtype
from collbench.results.records import Call, Collective

__all__ = ["Check", "Finding", "supported"]

_WINDOW = 4096
"""Elements by which a slot's window may move in the pool."""

_LARGEST = 8
"""Integers are drawn from -8..8: sums over 16 ranks stay within 128, exact in bfloat16 (8 bits of precision)."""

_EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "int32": 0.0}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found on one rank: `reason` is empty if all is right; `digest` hashes the outputs' bits."""

    reason: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Values of this rank, and the sum and the sum of magnitudes over all ranks, longer than a slot by the window."""

    own: Any
    total: Any
    bound: Any


class Check:
    """Fills a runner's slots with data whose answer is known, and judges what it left in the outputs."""

    def __init__(self, runner: Runner, call: Call, rank: int, seed: int = 0) -> None:
        self._runner = runner
        self._call = call
        self._rank = rank
        self._seed = seed
        self._kind: ArrayKind = kind_of(next(iter(runner.outputs(0).values())))
        self._pools: dict[bool, _Pool] = {}
        self._exact, self._hashed = True, False
        self._offsets: Sequence[int] = ()

    def prepare(self, slots: int, turn: int, *, exact: bool) -> None:
        """Put fresh data into the first `slots` inputs and poison their outputs; `turn` differs from check to check."""
        rng = np.random.default_rng((self._seed, turn, 1))
        self._exact, self._hashed = exact or self._call.dtype == "int32", not exact
        self._offsets = [int(o) for o in rng.integers(0, _WINDOW, slots)]
        pool = self._pool(self._exact)
        for slot, offset in enumerate(self._offsets):
            for array in self._runner.inputs(slot).values():
                self._kind.copy(array, pool.own[offset : offset + self._call.count])
            for array in self._runner.outputs(slot).values():
                self._kind.poison(array)

    def judge(self) -> Finding:
        """Compare every prepared slot's output with the known answer; stops at the first wrong one."""
        digests = []
        for slot, offset in enumerate(self._offsets):
            got = self._runner.outputs(slot)["y"]
            reason = self._judge_slot(got, offset)
            if reason:
                return Finding(f"slot {slot} of {len(self._offsets)}: {reason}")
            if self._hashed:
                # -0 + 0 is +0, and nothing else changes
                digests.append(self._kind.digest(got + 0 if self._runner.unsigned_zeros else got))
        return Finding(digest="".join(digests))

    def _judge_slot(self, got: Any, offset: int) -> str:  # noqa: ANN401 - numpy or torch
        pool, window = self._pool(self._exact), slice(offset, offset + self._call.count)
        if self._exact:
            return "" if self._kind.same(got, pool.total[window]) else self._describe(got, pool.total[window])
        excess = self._kind.excess(got, pool.total[window], pool.bound[window])
        if excess <= 1:
            return ""
        return (
            self._describe(got, pool.total[window])
            if math.isinf(excess)
            else f"error {excess:.1f} x the rounding bound"
        )

    def _describe(self, got: Any, want: Any) -> str:  # noqa: ANN401 - numpy or torch
        have, expected = self._kind.fetch(got), self._kind.fetch(want)
        if have.shape != expected.shape:
            return f"{have.size} elements, expected {expected.size}"
        wrong = np.flatnonzero(~(have == expected) if self._exact else ~np.isfinite(have))
        first = int(wrong[0]) if wrong.size else 0
        detail = f"first at {first}: {have[first]:g}, expected {expected[first]:g}"
        return f"{wrong.size} of {have.size} elements wrong or unwritten, {detail}"

    def _pool(self, exact: bool) -> _Pool:  # noqa: FBT001 - the key of a two-entry table
        if exact not in self._pools:
            self._pools[exact] = self._make_pool(exact=exact)
        return self._pools[exact]

    def _make_pool(self, *, exact: bool) -> _Pool:
        length, dtype = self._call.count + _WINDOW, numpy_dtype(self._call.dtype)
        total, magnitude = np.zeros(length, np.float32), np.zeros(length, np.float32)
        own: NDArray[Any] = np.zeros(0)
        draw = _integers if exact or self._call.dtype == "int32" else _fractions
        for rank in range(self._call.world_size):
            values = draw(np.random.default_rng((self._seed, rank, 2)), length).astype(dtype)
            own = values if rank == self._rank else own
            as_float = values.astype(np.float32)
            total += as_float
            magnitude += np.abs(as_float)
        # each of up to n roundings errs by at most half an epsilon of a partial sum, which the magnitudes bound
        bound = magnitude * np.float32(self._call.world_size * _EPSILON[self._call.dtype]) + np.float32(1e-30)
        like = next(iter(self._runner.outputs(0).values()))
        want = total.astype(dtype) if exact else total
        return _Pool(*(self._kind.native(values, like) for values in (own, want, bound)))


def _integers(rng: np.random.Generator, length: int) -> NDArray[Any]:
    return rng.integers(-_LARGEST, _LARGEST, length, dtype=np.int8, endpoint=True)


def _fractions(rng: np.random.Generator, length: int) -> NDArray[Any]:
    return rng.random(length, dtype=np.float32) - np.float32(0.5)


_CHECKED: dict[Collective, Callable[[Call], bool]] = {
    Collective.ALL_REDUCE: lambda call: call.op == "sum" and not call.epilogue,
}


def supported(call: Call) -> bool:
    """Whether the right answer of this call is known here; what cannot be checked is not timed."""
    return call.collective in _CHECKED and _CHECKED[call.collective](call)
