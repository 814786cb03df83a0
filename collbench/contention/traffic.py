"""Traffic: what an algorithm puts on the wires, as a schedule of phases."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Flow", "Move", "Phase", "Schedule"]


class Move(StrEnum):
    """Who moves the bytes: the source by posted writes, or the destination by reads (a round trip)."""

    PUSH = "push"
    PULL = "pull"


@dataclass(frozen=True, slots=True)
class Flow:
    """`bytes` payload from rank `src` to rank `dst`; the data flows in this direction for a pull too."""

    src: int
    dst: int
    bytes: float
    move: Move = Move.PUSH


@dataclass(frozen=True, slots=True)
class Phase:
    """Flows that run together, behind `syncs` synchronisations (each one flag flight between the ranks involved).

    `steps` > 1 says that the flows are pipelined over that many dependent hops: bytes are charged once, latency per step.
    """

    flows: tuple[Flow, ...]
    syncs: int = 0
    steps: int = 1
    label: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Phases in order. `reduce_bytes` is what the slowest rank reads while it sums; `wire_factor` the bytes on the wire
    per payload byte (LL 2, LL128 128/120, else 1: docs/design.md section 6); `launches` the kernel launches per call.
    """

    phases: tuple[Phase, ...]
    reduce_bytes: float = 0.0
    wire_factor: float = 1.0
    launches: int = 1
    protocol: str = ""
