"""Choosing a kernel's grid for a call: candidates from its size, and a short measurement on all ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from collbench.algorithms.cuda.designs import COLLECTIVES
from collbench.errors import UsageError

__all__ = ["Choice", "Launch", "best", "best_early", "best_of_kernels", "candidates", "parse_launch", "work_items"]

THREADS = (512, 256, 128, 64, 32)
"""Block sizes that are tried."""

_MOST = 7
_FINALISTS = 2
_AGAIN = 2  # so many grids that start early are tried without it too
_SMALL = 4096  # work items up to which one block is worth trying


@dataclass(frozen=True, slots=True)
class Launch:
    """One way to run a call: kernel, grid, and programmatic dependent launch or not."""

    kernel: str
    blocks: int
    threads: int
    pdl: bool = False

    @property
    def text(self) -> str:
        """`push 2x512`, with `+pdl` behind it; read back by `parse_launch`."""
        return f"{self.kernel} {self.blocks}x{self.threads}{'+pdl' if self.pdl else ''}"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen and from what: microseconds per call of every candidate, the slowest rank's."""

    launch: Launch
    tried: tuple[tuple[Launch, float], ...] = ()

    @property
    def evidence(self) -> str:
        """All that was tried, fastest first; empty if nothing was."""
        ranked = sorted(self.tried, key=lambda entry: entry[1])
        return "; ".join(f"{launch.text} {us:.2f} us" for launch, us in ranked)


def work_items(kernel: str, world_size: int, size_bytes: int, owners: int = 1) -> int:
    """Places that one rank's threads share: 16-byte vectors, of a chunk for designs in chunks (`owners`: islands)."""
    if kernel in COLLECTIVES:
        part = size_bytes // world_size
        return 1 if kernel == "push_barrier" else -(-part // 8)
    if kernel == "push_flags":
        return -(-size_bytes // 8)
    vectors = -(-size_bytes // 16)
    if kernel.startswith("islands"):
        return -(-vectors // owners)
    if kernel.startswith("two_stage") or kernel == "staged_ring":
        return -(-vectors // world_size)
    return vectors


def candidates(items: int, most_blocks: Callable[[int], int], most_threads: int, world_size: int) -> list[Launch]:
    """Grids worth trying, the likeliest first, kernel left empty: one place per thread, then two and four.

    `most_blocks(threads)` is how many blocks of one rank can wait together. At least one grid is given if one block
    fits at all.
    """
    found: dict[tuple[int, int], None] = {}
    for per_thread in (1, 2, 4):
        for threads in THREADS:
            if not world_size <= threads <= most_threads:
                continue
            blocks = -(-items // (threads * per_thread))
            if blocks <= most_blocks(threads) and not _wasteful(items, threads):
                found[blocks, threads] = None
    if not found:
        found = {(most_blocks(t), t): None for t in THREADS if t <= most_threads and most_blocks(t) > 0}
    return [Launch("", blocks, threads) for blocks, threads in list(found)[:_MOST]]


def _wasteful(items: int, threads: int) -> bool:
    """A block more than twice as large as the work."""
    return threads > max(32, 2 * items)


def best(
    launches: Sequence[Launch], measure: Callable[[Launch], float], agree: Callable[[float], Sequence[float]]
) -> Choice:
    """Time every launch and take the one whose slowest rank is fastest.

    `measure` gives this rank's time in microseconds; `agree` gives every rank's, so that all ranks choose alike.
    """
    tried = tuple((launch, max(agree(measure(launch)))) for launch in launches)
    return Choice(min(tried, key=lambda entry: entry[1])[0], tried)


def best_of_kernels(
    launches: Sequence[Launch], measure: Callable[[Launch], float], agree: Callable[[float], Sequence[float]]
) -> Choice:
    """As `best`; of more than two kernels, one grid of each first, and all grids of the two fastest only."""
    kernels = list(dict.fromkeys(launch.kernel for launch in launches))
    if len(kernels) <= _FINALISTS:
        return best(launches, measure, agree)
    heats = best([next(la for la in launches if la.kernel == kernel) for kernel in kernels], measure, agree)
    ranked = [launch.kernel for launch, _ in sorted(heats.tried, key=lambda entry: entry[1])][:_FINALISTS]
    tried = {launch for launch, _ in heats.tried}
    rest = [launch for launch in launches if launch.kernel in ranked and launch not in tried]
    final = best(rest, measure, agree) if rest else heats
    every = tuple(dict.fromkeys((*heats.tried, *final.tried)))
    return Choice(min(every, key=lambda entry: entry[1])[0], every)


def best_early(
    early: Sequence[Launch],
    plain: Sequence[Launch],
    measure: Callable[[Launch], float],
    agree: Callable[[float], Sequence[float]],
) -> Choice:
    """As `best_of_kernels` over launches that start early; then, of their kernels, plain ones that may be faster.

    Those are grids that do not fit when the next call's blocks wait beside this one's, and the fastest early grids.
    """
    if not early:
        return best_of_kernels(plain, measure, agree)
    first = best_of_kernels(early, measure, agree)
    ranked = [launch for launch, _ in sorted(first.tried, key=lambda entry: entry[1])]
    kernels = list(dict.fromkeys(launch.kernel for launch in ranked))[:_FINALISTS]
    again = {replace(launch, pdl=False) for launch in ranked[:_AGAIN]}
    known = {replace(launch, pdl=False) for launch in early}
    rest = [launch for launch in plain if launch in again or (launch.kernel in kernels and launch not in known)]
    second = best(rest, measure, agree) if rest else first
    every = tuple(dict.fromkeys((*first.tried, *second.tried)))
    return Choice(min(every, key=lambda entry: entry[1])[0], every)


def parse_launch(text: str, kernels: Sequence[str]) -> Launch:
    """Read `push 2x512`, `2x512` (the first kernel) or `push 2x512+pdl`.

    Raises:
        UsageError: another form, an unknown kernel, or a block that is no multiple of 32 threads.
    """
    words = text.replace("+pdl", "").split()
    kernel, grid = (words[0], words[1]) if len(words) == 2 else (kernels[0], words[0] if words else "")  # noqa: PLR2004 - two words
    blocks, cross, threads = grid.partition("x")
    if kernel not in kernels or not cross or not blocks.isdecimal() or not threads.isdecimal():
        raise UsageError(
            f"COLLBENCH_OWN_LAUNCH={text!r}: expected a grid such as 2x512, of one of {', '.join(kernels)}"
        )
    if int(threads) % 32 or not int(blocks):
        raise UsageError(f"COLLBENCH_OWN_LAUNCH={text!r}: threads must be a multiple of 32, blocks at least 1")
    return Launch(kernel, int(blocks), int(threads), "+pdl" in text)
