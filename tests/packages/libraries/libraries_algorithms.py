"""Libraries as algorithms on processors: the real runners above the stand-ins, one fault each."""

import mmap
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from collbench.algorithms.b12x_runner import AllReduce
from collbench.algorithms.base import Algorithm, Foreign
from collbench.algorithms.flashinfer_library_runner import Fusion, VllmKernels
from collbench.algorithms.library_build import Request
from collbench.algorithms.library_modules import B12X_API
from collbench.algorithms.library_runner import LibraryRunner
from collbench.contention.traffic import Schedule
from collbench.results.records import Collective, Mode, Support

MAPPED: list[mmap.mmap] = []


class Endless(Fusion):
    """Gives its compiler three seconds."""

    def request(self) -> Request:
        return replace(super().request(), limit_s=3.0)


class Leaves(Fusion):
    """Leaves shared memory behind, as NCCL and Python name theirs."""

    def _open(self, torch: Any) -> None:
        super()._open(torch)
        for name in ("psm_", "nccl-"):
            with Path(f"/dev/shm/{name}{os.environ['COLLBENCH_MARK']}{os.getpid()}").open("w+b") as file:
                file.truncate(4096)
                MAPPED.append(mmap.mmap(file.fileno(), 4096))


class LeavesAndHangs(Leaves):
    """The same, and never comes back."""

    def _run(self, i: int) -> None:
        time.sleep(600)


class Hasty(AllReduce):
    """Gives its preparation a second."""

    prepare_s = 1.0


def _algorithm(name: str, runner: type[LibraryRunner], fault: str = "", foreign: str = "") -> Algorithm:
    return Algorithm(
        name=f"library_{name}", collective=Collective.ALL_REDUCE, summary="a stand-in", reference="tests",
        traffic=lambda _call, _topology: Schedule(()), support=lambda _machine, _call: Support.yes(),
        runner=f"{runner.__module__}:{runner.__name__}", family="library", device="cpu", modes=(Mode.EAGER,),
        imports=("torch", "torch.distributed"), max_calls=2, opening_s=60.0, cost_us=lambda _call, _machine: 1000.0,
        environment=lambda _machine: {"COLLBENCH_FAKE": fault, "GLOO_SOCKET_IFNAME": "lo"},
        foreign=Foreign((foreign,), ("COLLBENCH_FAKE",)) if foreign else Foreign(),
    )  # fmt: skip


ALGORITHMS = (
    *(_algorithm(fault or "right", Fusion, fault) for fault in
      ("", "broken", "cuda", "dies", "old", "rubbish", "silent")),
    _algorithm("endless", Endless, "endless"), _algorithm("without_nvlink", VllmKernels),
    *(_algorithm(f"preloaded_{fault or 'right'}", Fusion, fault, "flashinfer.comm")
      for fault in ("", "dies", "thread")),
    _algorithm("preloaded_endless", Endless, "endless", "flashinfer.comm"),
    _algorithm("leaves", Leaves), _algorithm("leaves_and_hangs", LeavesAndHangs),
    *(replace(_algorithm(name, runner, fault, foreign), name=f"prepared_{name}", family="prepared", opening_s=6.0)
      for name, runner, fault, foreign in (
          ("right", AllReduce, "", B12X_API), ("fails", AllReduce, "fails", ""), ("stuck", Hasty, "stuck", ""))),
)  # fmt: skip
