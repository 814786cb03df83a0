"""A host algorithm with settings, found through the entry-point group as another package's would be: tuned in tests.

`COLLBENCH_DEMO_WAIT_US` makes each call longer by so many microseconds (default 400), `COLLBENCH_DEMO_FAULT` lets it
hang, crash or give wrong sums. With a libnccl of 2.30 or later preloaded it waits a tenth of the time.
"""

import contextlib
import ctypes
import dataclasses
import os
import signal
import time

from collbench.algorithms.base import Proof
from collbench.algorithms.host import ALGORITHMS as HOST
from collbench.algorithms.host import OneStagePush


class Tunable(OneStagePush):
    """`host_one_stage_push`, slower, and with faults that can be asked for."""

    def prepare(self) -> None:
        super().prepare()
        self.wait_us = float(os.environ.get("COLLBENCH_DEMO_WAIT_US", "400"))
        if _nccl() >= 23000:
            self.wait_us /= 10
        self.fault = os.environ.get("COLLBENCH_DEMO_FAULT", "")

    def launch(self, i: int) -> None:
        if self.fault == "crash" and self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang" and self.rank == 1:
            time.sleep(3600)
        super().launch(i)
        if self.fault == "wrong":
            self.y[i][0] += 1
        end = time.perf_counter() + self.wait_us / 1e6
        while time.perf_counter() < end:
            pass

    def proof(self) -> Proof:
        return Proof(evidence={"choice": "Ring/LL", "nccl_estimate_us": "12.5"})


def _nccl() -> int:
    """Version of the libnccl that was preloaded; 0 without one."""
    code = ctypes.c_int()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).ncclGetVersion(ctypes.byref(code))
    return code.value


_PUSH = next(algorithm for algorithm in HOST if algorithm.name == "host_one_stage_push")
ALGORITHMS = (
    dataclasses.replace(
        _PUSH, name="tunable", family="tunable", runner="tunable:Tunable", imports=(*_PUSH.imports, "tunable")
    ),
)
