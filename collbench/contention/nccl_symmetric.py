"""NCCL's kernels for all-reduces of buffers in symmetric memory: which of them it takes, and what they send.

Constants and formulae are those of NCCL 2.28 and 2.29, src/sym_kernels.cc: an estimate per kernel and number of blocks,
and the rule that weighs time against blocks. It takes them between GPUs that NVLink joins, where both buffers are
registered windows (src/scheduler/symmetric_sched.cc).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from collbench.contention.nccl_tuner import Tuner
from collbench.contention.traffic import Move, Schedule, multicast, one_stage, two_stage
from collbench.results.records import Call

__all__ = ["Kernel", "estimate_us", "pick", "schedule"]

_GB = (1 << 30) / 1e6  # bytes per us and GB/s, as NCCL counts them
_BLOCKS, _PENALTY, _ENOUGH = 64, 0.025, 1.025
_LL_LOAD = 9.0
"""Bytes that LL counts for each of the message: two, and what it costs to handle them."""


@dataclass(frozen=True, slots=True)
class _Card:
    """Of one generation: us of kernels with LL and without, GB/s of a block, at most and with multicast, its blocks."""

    ll_us: float
    us: float
    block: float
    peak: float
    multicast: float
    blocks: int


_CARDS = {4: _Card(4.5, 7.8, 65.0, 320.0, 480.0, 16), 5: _Card(11.0, 19.5, 55.0, 600.0, 1000.0, 32)}
"""By the generation of NVLink: Hopper has 4, Blackwell 5."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """LL: everybody sends everything to everybody; else two stages, which the switch does with `multicasts`."""

    ll: bool
    multicasts: bool


_KERNELS = (Kernel(ll=True, multicasts=False), Kernel(ll=False, multicasts=False), Kernel(ll=False, multicasts=True))


def estimate_us(tuner: Tuner, size: int, kernel: Kernel) -> tuple[float, int] | None:
    """NCCL's time for one call of `size` bytes, and the blocks that it would take; None on other cards."""
    card = _CARDS.get(tuner.nvlink)
    if card is None:
        return None
    most = -(-card.blocks // tuner.ranks) if kernel.multicasts else _BLOCKS
    best = _time(tuner, size, kernel, card, most)
    enough = (n for n in range(1, most) if _time(tuner, size, kernel, card, n) <= _ENOUGH * best)
    blocks = next(enough, most)
    return _time(tuner, size, kernel, card, blocks), blocks


def _time(tuner: Tuner, size: int, kernel: Kernel, card: _Card, blocks: int) -> float:
    n = tuner.ranks
    factor, peak = (n, card.multicast) if kernel.multicasts else (1, card.peak)
    load = size * (n * _LL_LOAD if kernel.ll else 1 + 1 / n if kernel.multicasts else 2 * (n - 1) / n)
    soft, top = card.block * _GB, peak * _GB
    rate = top - soft * math.log1p((math.exp(top / soft) - 1) * math.exp(-blocks * factor))
    over = load / rate - 1
    return (card.ll_us if kernel.ll else card.us) + (over if over > 100 else math.log1p(math.exp(over)))  # noqa: PLR2004 - as NCCL


def _estimates(tuner: Tuner, size: int, kernels: tuple[Kernel, ...]) -> Iterator[tuple[float, float, Kernel]]:
    """What NCCL minimises, its time, and the kernel; multicast needs more than two ranks."""
    for kernel in kernels:
        found = estimate_us(tuner, size, kernel)
        if found and not (kernel.multicasts and tuner.ranks <= 2):  # noqa: PLR2004 - two ranks need no switch
            yield found[0] * (1 + _PENALTY * found[1]), found[0], kernel


def pick(tuner: Tuner, size: int, *, multicasts: bool = True) -> tuple[Kernel, float] | None:
    """The kernel that NCCL takes, and its own estimate in us; None where it has none.

    Without `multicasts` those that need it are left out, as under NCCL_NVLS_ENABLE=0.
    """
    kernels = tuple(kernel for kernel in _KERNELS if multicasts or not kernel.multicasts)
    found = min(_estimates(tuner, size, kernels), key=lambda one: one[0], default=None)
    return (found[2], found[1]) if found else None


def schedule(call: Call, kernel: Kernel) -> Schedule:
    """Traffic of a kernel."""
    if kernel.ll:
        return one_stage(call, Move.PUSH, wire_factor=2.0, protocol="SymmetricLL")
    if kernel.multicasts:
        return multicast(call, protocol="Symmetric")
    return two_stage(call, Move.PULL, Move.PUSH, protocol="Symmetric")
