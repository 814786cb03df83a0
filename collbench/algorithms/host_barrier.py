"""A barrier between the processes of one host, to align the start of an iteration."""

from types import TracebackType
from typing import Self

from collbench.algorithms.base import Ranks
from collbench.algorithms.host_memory import HostMemory

__all__ = ["HostBarrier"]


class HostBarrier:
    """All ranks of one host wait for each other; a few microseconds with a core for each rank.

    Each rank raises a flag of its own to the number of the turn and waits until all flags are there. Flags only ever
    rise and each has one writer, so that a rank which is a turn ahead does not disturb the others.

    Use as a context manager, or call `close`. `open` is collective; so is `wait`.
    """

    def __init__(self, memory: HostMemory, rank: int, world_size: int) -> None:
        self._memory = memory
        self._rank = rank
        self._peers = tuple((peer, memory.index(peer)) for peer in range(world_size) if peer != rank)
        self._turn = 0

    @classmethod
    def open(cls, ranks: Ranks) -> "HostBarrier":
        """Make the barrier; see `HostMemory.open` for what it raises."""
        return cls(HostMemory.open(ranks, ranks.world_size, 0), ranks.rank, ranks.world_size)

    def wait(self) -> None:
        """Return when all ranks have called it.

        Raises:
            TimeoutError: a rank did not come within the deadline; the message names it. The barrier is unusable then.
        """
        self._turn = turn = self._turn + 1
        self._memory.publish(self._rank, turn)
        flags = self._memory.flags
        for peer, index in self._peers:
            if flags[index] < turn:
                self._memory.wait(peer, turn, f"rank {self._rank} waited for rank {peer} (barrier)")

    def close(self) -> None:
        """Free the memory."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
