"""The runner of `slowed_push`, which only workers on a GPU import."""

import os
from typing import Any

from collbench.algorithms.own_runners import PushFlags

_CYCLES = 200
"""Of torch's sleep. The kernel itself takes most of the time: an empty one 0.8 to 1.2 us in a graph on one H200."""


class SlowedPush(PushFlags):
    """`push_flags`, then a kernel that does nothing."""

    def launch(self, i: int) -> None:
        super().launch(i)
        if float(os.environ.get("COLLBENCH_DEMO_SLOWDOWN", "0")):
            import torch

            cuda: Any = torch.cuda
            cuda._sleep(_CYCLES)
