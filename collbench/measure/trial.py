"""One cell on one rank: verified, timed in batches that are verified when they end, and spot-checked between them.

A batch is judged by what stands in its outputs when it ends, so a launch within it may have done nothing. A spot check
is one more iteration alone, whose slots were renewed right before and are judged right behind it. Its time is kept
beside the samples, not among them: the first iteration behind a renewal is slower than others
(docs/decisions/0008-spot-checks.md).
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collbench.measure.clock import Clock
from collbench.measure.ranks import WorkerRanks
from collbench.measure.verify import Check, Finding, Renew

__all__ = ["BATCHES", "SPOTS", "Timed", "Trial", "cut"]

BATCHES = 3
"""Timed batches of a cell: one renews inputs, one outputs, one both, in random order."""

SPOTS = 8
"""Spot checks behind each batch, where they fit into the time for them."""

_SPOT_SHARE = 0.1
_SPOT_SECONDS = 0.02
"""Spot checks of a cell may take this share of its timed iterations, or so many seconds if that is more."""

_SPOT_SLOTS = 8
_SPOT_BYTES = 1 << 18
"""A spot check renews and judges at most so many slots, drawn anew, of so many bytes together; one at least."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Outcome of a timed run: `problem` is empty if every answer was right; else there are no samples.

    `evidence` says what was judged (`judged`) and how long the spot checks' iterations took (`alone_p50_us`).
    """

    problem: str = ""
    samples: tuple[float, ...] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)


class Trial:
    """All ranks make the same calls in the same order. `turns` never repeats a number while the check lives."""

    def __init__(self, clock: Clock, check: Check, ranks: WorkerRanks, turns: Iterator[int], seed: int) -> None:
        self._clock = clock
        self._check = check
        self._ranks = ranks
        self._turns = turns
        self._seed = seed
        self._renewal_s = float("inf")  # of one slot
        self._alone_us: list[float] = []

    def verify(self) -> str:
        """One iteration on random fractions; gives the first problem of any rank."""
        self._prepare(exact=False)
        self._clock.samples(1)
        return self._agree(self._check.judge())[0]

    def time(self, command: dict[str, Any]) -> Timed:
        """Warm up, and take as many samples as the command asks for or as fit into its seconds."""
        self._ranks.phase("warm-up")
        self._prepare(exact=True)
        begin = time.perf_counter()
        self._clock.samples(int(command["warmup"]))
        iterations = self._pin_iterations(command, (time.perf_counter() - begin) / int(command["warmup"]))
        rng = np.random.default_rng((self._seed, next(self._turns), 5))
        lengths, samples = cut(iterations, rng), []
        for number, (length, what) in enumerate(zip(lengths, _shuffled(list(Renew), rng), strict=True), start=1):
            self._ranks.phase(f"timing, batch {number} of {BATCHES}")
            self._prepare(exact=True, what=what)
            batch = self._clock.samples(length)
            samples += batch
            iteration_s = statistics.median(batch) * self._clock.calls / 1e6
            problem, costs_s = self._agree(self._judge(), (iteration_s, self._renewal_s * self._spot_slots))
            allowed = _affordable(iterations, number, *costs_s) - len(self._alone_us)
            problem = problem or self._spot_checks(min(SPOTS, allowed), rng)
            if problem:
                return Timed(problem)
        return Timed("", tuple(samples), self._evidence(lengths))

    def _evidence(self, lengths: Sequence[int]) -> dict[str, str]:
        ends, alone = ", ".join(map(str, lengths)), self._alone_us
        told = {"judged": f"behind {ends} iterations, and {len(alone)} alone; seed {self._seed}"}
        if alone and self._ranks.rank == 0:
            told["alone_p50_us"] = f"{statistics.median(alone):.4g}"
        return told

    def _pin_iterations(self, command: dict[str, Any], spent_s: float) -> int:
        """All ranks take the same number: from the slowest one's time, which all of them are told."""
        if command["iterations"]:
            return max(BATCHES, int(command["iterations"]))
        slowest = max(float(s) for s in self._ranks.exchange(spent_s))
        fitting = int(float(command["seconds"]) / max(slowest, 1e-7))
        return max(BATCHES, int(command["least"]), min(int(command["most"]), fitting))

    @property
    def _spot_slots(self) -> int:
        return max(1, min(self._clock.calls, _SPOT_SLOTS, _SPOT_BYTES // self._clock.runner.call.bytes))

    def _spot_checks(self, count: int, rng: np.random.Generator) -> str:
        """Single iterations on slots renewed for each; gives the first problem of any rank."""
        if count <= 0:
            return ""
        kinds = _shuffled([Renew.INPUTS, Renew.OUTPUTS] * -(-count // 2), rng)[:count]
        found = [self._spot_check(what, rng) for what in kinds]
        # the ranks stay in step to the end: one that has found something does not leave the others waiting
        problem = self._agree(next((f for f in found if f.reason), Finding()))[0]
        return f"in an iteration judged alone, {problem}" if problem else ""

    def _spot_check(self, what: Renew, rng: np.random.Generator) -> Finding:
        slots = [int(slot) for slot in rng.choice(self._clock.calls, self._spot_slots, replace=False)]
        self._meet()
        self._check.renew(slots, next(self._turns), what)
        self._settle()
        self._alone_us += self._clock.samples(1)
        return self._check.judge(slots)

    def _meet(self) -> None:
        """Nobody renews what a peer may still read."""
        if self._ranks.local_world_size == self._ranks.world_size:
            self._clock.align()
        else:
            self._ranks.barrier()

    def _prepare(self, *, exact: bool, what: Renew = Renew.BOTH) -> None:
        begin = time.perf_counter()
        self._check.prepare(self._clock.calls, next(self._turns), exact=exact, what=what)
        self._settle()
        self._renewed(begin)

    def _judge(self) -> Finding:
        begin = time.perf_counter()
        finding = self._check.judge()
        self._renewed(begin)
        return finding

    def _renewed(self, begin: float) -> None:
        """Keep what renewing and judging a slot take at best, each about as long as the other."""
        self._renewal_s = min(self._renewal_s, 2 * (time.perf_counter() - begin) / self._clock.calls)

    def _settle(self) -> None:
        if self._ranks.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def _agree(self, finding: Finding, costs: Sequence[float] = ()) -> tuple[str, list[float]]:
        """The first problem of any rank and the largest cost of each kind, alike on all ranks.

        Raises:
            TimeoutError: a launch gave up waiting for a peer; what it left in the outputs is then no wrong answer.
        """
        found = self._ranks.exchange([finding.reason, finding.digest, self._clock.runner.failure(), list(costs)])
        for _, _, failure, _ in found:
            if failure:
                raise TimeoutError(failure)
        slowest = [max(each) for each in zip(*(costs for *_, costs in found), strict=True)]
        for rank, (reason, *_) in enumerate(found):
            if reason:
                return f"rank {rank}: {reason}", slowest
        other = next((rank for rank, (_, digest, *_) in enumerate(found) if digest != found[0][1]), None)
        return "" if other is None else f"rank {other} holds other bits than rank 0", slowest


def cut(iterations: int, rng: np.random.Generator) -> list[int]:
    """Lengths of the batches, at least 1 each, cut at random places; they add up to `iterations`."""
    places = sorted(int(place) for place in rng.choice(iterations - 1, BATCHES - 1, replace=False))
    edges = [0, *(place + 1 for place in places), iterations]
    return [high - low for low, high in itertools.pairwise(edges)]


def _affordable(iterations: int, batches: int, iteration_s: float, renewal_s: float) -> int:
    """Spot checks until the end of the batch of this number."""
    allowed_s = max(_SPOT_SECONDS, _SPOT_SHARE * iterations * iteration_s) * batches / BATCHES
    return int(allowed_s / max(1e-9, iteration_s + renewal_s))


def _shuffled(kinds: list[Renew], rng: np.random.Generator) -> list[Renew]:
    return [kinds[int(place)] for place in rng.permutation(len(kinds))]
