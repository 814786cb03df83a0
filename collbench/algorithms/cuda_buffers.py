"""Slots of device memory, and waiting for the device with a deadline."""

import time
from typing import Any

__all__ = ["ALIGNMENT", "make_slots", "wait_event"]

ALIGNMENT = 256
"""Every slot starts at a multiple of this, as cudaMalloc's own blocks do: 16-byte vectors always fit."""

_POLL_S = 20e-6
_SPIN = 2000


def stride_of(count: int, itemsize: int) -> int:
    """Elements from one slot to the next."""
    step = ALIGNMENT // itemsize
    return -(-count // step) * step


def make_slots(slots: int, count: int, itemsize: int, block: Any) -> list[Any]:  # noqa: ANN401 - a torch tensor
    """Cut a one-dimensional tensor of at least `slots * stride_of(...)` elements into slots of `count` elements."""
    stride = stride_of(count, itemsize)
    return [block[i * stride : i * stride + count] for i in range(slots)]


def wait_event(event: Any, deadline_s: float, what: str) -> None:  # noqa: ANN401 - a torch.cuda.Event
    """Wait until the device has reached an event, never without end.

    Raises:
        TimeoutError: it did not within the deadline; `what` says what was waited for.
    """
    limit = time.monotonic() + deadline_s
    polls = 0
    while not event.query():
        polls += 1
        if polls > _SPIN:
            time.sleep(_POLL_S)
        if time.monotonic() > limit:
            raise TimeoutError(f"{what} did not end within {deadline_s:g} s")
