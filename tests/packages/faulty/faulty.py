"""Algorithms that fail on purpose, found through the entry-point group as another package's would be.

Each sums correctly through the supervisor's exchange until the fault of its name, which strikes on the last rank.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from collbench.algorithms.base import Algorithm, Proof, Runner
from collbench.contention.traffic import Schedule
from collbench.measure.arrays import numpy_dtype
from collbench.results.records import Call, Collective, Mode, Support

if os.environ.get("COLLBENCH_FAULTY_IMPORT") and "forkserver" in sys.argv[0]:
    time.sleep(3600)  # as an import does that waits for a disk which is gone


class _Right(Runner):
    """Correct, by way of the supervisor."""

    def __init__(self, ranks: Any, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        dtype = numpy_dtype(call.dtype)
        self._x = [np.zeros(call.count, dtype) for _ in range(slots)]
        self._y = [np.zeros(call.count, dtype) for _ in range(slots)]
        self._launched = 0

    def inputs(self, i: int) -> Mapping[str, Any]:
        return {"x": self._x[i]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        return {"y": self._y[i]}

    def launch(self, i: int) -> None:
        self._launched += 1
        if self.ranks.rank == self.ranks.world_size - 1 and self._launched == 2:
            self.fault(i)
        values = self.ranks.exchange(self._x[i].astype(np.float64).tolist())
        total = np.zeros(self.call.count)
        for value in values:
            total += np.asarray(value)
        self._y[i][:] = total.astype(self._y[i].dtype)
        self.after(i)

    def fault(self, i: int) -> None:
        """Strikes on the second launch of the last rank."""

    def after(self, i: int) -> None:
        """Runs behind every launch."""


class Right(_Right):
    pass


class Killed(_Right):
    def fault(self, i: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hung(_Right):
    def fault(self, i: int) -> None:
        time.sleep(3600)


class Segfault(_Right):
    def fault(self, i: int) -> None:
        ctypes.string_at(0)


class NoMemory(_Right):
    def fault(self, i: int) -> None:
        raise MemoryError("asked for 123456 bytes")


class Raises(_Right):
    def fault(self, i: int) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Wrong(_Right):
    def after(self, i: int) -> None:
        if self.ranks.rank == 0 and self._launched > 4:
            self._y[i][0] += 1


class OtherBits(_Right):
    def after(self, i: int) -> None:
        if self.ranks.rank == 1:
            self._y[i][:] = np.nextafter(self._y[i], np.float32(np.inf))


class Silent(_Right):
    """Launches nothing, as a kernel does that a library's gate keeps off."""

    def launch(self, i: int) -> None:
        del i


class Slow(_Right):
    """Takes a fifth of a second."""

    def after(self, i: int) -> None:
        time.sleep(0.2)


class Ignored(_Right):
    def proof(self) -> Proof:
        return Proof("ran Ring/Simple instead", {"ran": "Ring/Simple"})


class Remembers(_Right):
    """Works on the first launch of each data set only."""

    def launch(self, i: int) -> None:
        known, self._seen = getattr(self, "_seen", b""), self._x[i].tobytes()
        if known != self._seen:
            super().launch(i)


class Intermittent(_Right):
    """One launch in three leaves this rank's own values."""

    def after(self, i: int) -> None:
        if self._launched % 3 == 0:
            self._y[i][:] = self._x[i]


class _Babbles(_Right):
    """Writes something else into its channel to the supervisor, which is the only socket of a worker."""

    said = b""

    def fault(self, i: int) -> None:
        ranks: Any = self.ranks  # a worker's own, which know the channel
        os.write(ranks._channel.fileno(), self.said)


class Garbage(_Babbles):
    said = b"\x00\x00\x00\x05hello"


class Binary(_Babbles):
    said = b"\x00\x00\x00\x05\xff\xfe\x00\x01\x02"


class NoObject(_Babbles):
    said = b"\x00\x00\x00\x02[]"


class HugeFrame(_Babbles):
    said = b"\x7f\xff\xff\xffhello"


class HalfFrame(_Babbles):
    said = b"\x00\x10\x00\x00hello"

    def fault(self, i: int) -> None:
        super().fault(i)
        time.sleep(3600)


class Chatters(_Right):
    """Says what it does and says so without end."""

    def fault(self, i: int) -> None:
        ranks: Any = self.ranks  # a worker's own, which report phases
        while True:
            ranks.phase("talking")
            time.sleep(0.001)


class KillsServer(_Right):
    def fault(self, i: int) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


class OpensBadly(_Right):
    def __enter__(self) -> Self:
        raise OSError("no such library: libmissing.so")


class Late(_Right):
    """Takes three seconds to open for the first time, as libraries do that import much."""

    def __enter__(self) -> Self:
        if not _OPENED:
            time.sleep(3.0)
            _OPENED.append(True)
        return self


_OPENED: list[bool] = []


def _algorithm(runner: type[Runner]) -> Algorithm:
    return Algorithm(
        name=f"faulty_{runner.__name__.lower()}", collective=Collective.ALL_REDUCE, summary="fails on purpose",
        reference="tests", traffic=lambda _call, _topology: Schedule(()), support=_support,
        runner=f"faulty:{runner.__name__}", family="faulty", device="cpu", modes=(Mode.EAGER,), max_calls=2,
        cost_us=lambda _call, _machine: 1000.0,
    )  # fmt: skip


def _support(machine: Any, call: Call) -> Support:
    return Support.no("only up to 4096 bytes") if call.bytes > 4096 else Support.yes()


ALGORITHMS = tuple(
    _algorithm(runner)
    for runner in (
        Late, Right, Killed, Hung, Segfault, NoMemory, Raises, Wrong, OtherBits, Silent, Slow, Ignored, OpensBadly,
        Remembers, Intermittent, Garbage, Binary, NoObject, HugeFrame, HalfFrame, Chatters,
        KillsServer,
    )
)  # fmt: skip
