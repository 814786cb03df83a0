"""Right answer, same bits on every rank, nothing left unwritten.

Two kinds of data are used. Small integers, whose sums are exact in every dtype and in every order, are compared
for equality and stand in the buffers while times are taken. Random fractions, compared within the rounding of the
dtype, show that all ranks hold the same bits; they are used once before times are taken. Every slot of every check has
its own data: a window into a pool of random values that moves from check to check, so that no earlier answer is right.
A check may also renew the inputs alone, or the outputs alone: who looks at one of the two to see whether work is due
is found by the other.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from collbench.algorithms.base import Runner
from collbench.measure.arrays import ArrayKind, kind_of
from collbench.measure.references import WINDOW, Answer, Expected, make_answer, supported
from collbench.results.records import Call

__all__ = ["Check", "Finding", "Renew", "supported"]


class Renew(Enum):
    """What a check renews before launches that it will judge. What stays holds the data, or the answers, of before."""

    BOTH = "inputs and outputs"
    INPUTS = "inputs"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found on one rank: `reason` is empty if all is right.

    `digest` hashes the outputs' bits where all ranks must hold the same ones, else it is empty.
    """

    reason: str = ""
    digest: str = ""


class Check:
    """Fills a runner's slots with data whose answer is known, and judges what it left in the outputs."""

    def __init__(self, runner: Runner, call: Call, rank: int, seed: int = 0) -> None:
        self._runner = runner
        self._call = call
        self._rank = rank
        self._seed = seed
        self._like = next(iter(runner.outputs(0).values()))
        self._kind: ArrayKind = kind_of(self._like)
        self._answers: dict[bool, Answer] = {}
        self._exact, self._hashed = True, False
        self._offsets: dict[int, int] = {}

    def prepare(self, slots: int, turn: int, *, exact: bool, what: Renew = Renew.BOTH) -> None:
        """Put fresh data into the first `slots` inputs and poison their outputs; `turn` differs from check to check.

        `what` may leave one of the two as it stands, where these slots have been prepared and launched before.
        """
        self._exact, self._hashed = exact or self._call.dtype == "int32", not exact
        self._offsets = {slot: self._offsets.get(slot, 0) for slot in range(slots)}
        self.renew(range(slots), turn, what)

    def renew(self, slots: Iterable[int], turn: int, what: Renew) -> None:
        """The same for some slots of those that `prepare` made ready."""
        rng, answer = np.random.default_rng((self._seed, turn, 1)), self._answer()
        for slot in slots:
            if what is not Renew.OUTPUTS:
                # never by nothing: the answer of before would be right again
                offset = (self._offsets[slot] + int(rng.integers(1, WINDOW))) % WINDOW
                self._offsets[slot] = offset
                for name, array in self._runner.inputs(slot).items():
                    self._kind.copy(array, answer.inputs[name][offset : offset + len(array)])
            if what is not Renew.INPUTS:
                for array in self._runner.outputs(slot).values():
                    self._kind.poison(array)

    def judge(self, slots: Iterable[int] | None = None) -> Finding:
        """Compare outputs of every prepared slot, or of some, with the known answers; stops at the first wrong one."""
        digests, answer = [], self._answer()
        for slot in self._offsets if slots is None else slots:
            for name, expect in answer.outputs.items():
                got = self._runner.outputs(slot)[name]
                reason = self._judge_slot(got, expect(self._offsets[slot]))
                if reason:
                    where = f" of {name}" if len(answer.outputs) > 1 else ""
                    return Finding(f"slot {slot} of {len(self._offsets)}: {reason}{where}")
                if self._hashed and answer.alike:
                    digests.append(self._kind.digest(got + 0 if self._runner.unsigned_zeros else got))
        return Finding(digest="".join(digests))

    def _answer(self) -> Answer:
        if self._exact not in self._answers:
            self._answers[self._exact] = make_answer(
                self._call, self._rank, self._seed, exact=self._exact, kind=self._kind, like=self._like
            )
        return self._answers[self._exact]

    def _judge_slot(self, got: Any, expected: Sequence[Expected]) -> str:  # noqa: ANN401 - numpy or torch
        length = sum(len(part.want) for part in expected)
        if len(got) != length:
            return f"{len(got)} elements, expected {length}"
        for part in expected:
            reason = self._judge_part(got[part.start : part.start + len(part.want)], part)
            if reason:
                return reason
        return ""

    def _judge_part(self, got: Any, part: Expected) -> str:  # noqa: ANN401 - numpy or torch
        if part.bound is None:
            return "" if self._kind.same(got, part.want) else self._describe(got, part)
        excess = self._kind.excess(got, part.want, part.bound)
        if excess <= 1:
            return ""
        finite = math.isfinite(excess) or bool(np.isfinite(self._kind.fetch(got)).all())
        return self._beyond(got, part) if finite else self._describe(got, part)

    def _beyond(self, got: Any, part: Expected) -> str:  # noqa: ANN401 - numpy or torch
        have, want, bound = (self._kind.fetch(one) for one in (got, part.want, part.bound))
        error = np.abs(have - want) / bound
        worst = int(error.argmax())
        many = f"{max(1, np.count_nonzero(error > 1))} of {have.size} elements off by more than rounding explains"
        detail = f"{have[worst]:.10g}, expected {want[worst]:.10g} ({error[worst]:.3g} x the rounding bound)"
        return f"{many}, most at {part.start + worst}: {detail}"

    def _describe(self, got: Any, part: Expected) -> str:  # noqa: ANN401 - numpy or torch
        have, want = self._kind.fetch(got), self._kind.fetch(part.want)
        wrong = np.flatnonzero(~(have == want) if part.bound is None else ~np.isfinite(have))
        first = int(wrong[0]) if wrong.size else 0
        # ten digits tell any two float32 or int32 apart
        detail = f"first at {part.start + first}: {have[first]:.10g}, expected {want[first]:.10g}"
        return f"{wrong.size} of {have.size} elements wrong or unwritten, {detail}"
