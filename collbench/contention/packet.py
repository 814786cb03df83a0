"""A packet-level reference simulator: synthetic hardware for tests of calibration. The model itself never uses it.

Every link sends one packet at a time and keeps those that wait in order of arrival; sources have a window of packets in
flight per flow. Arbitration, start-up and the ends of flows are those of packets, not of a fluid.
"""

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.errors import InvalidError

__all__ = ["Wire", "finish_us"]

PACKET_BYTES = 256
_MOST_PACKETS = 2_000_000


@dataclass(frozen=True, slots=True)
class Wire:
    """One direction of a link: payload in GB/s, and latency in us."""

    gbps: float
    latency_us: float


@dataclass(slots=True)
class _Flow:
    route: tuple[str, ...]
    left: int
    in_flight: int = 0
    done: int = 0


def finish_us(
    wires: Mapping[str, Wire],
    routes: Sequence[Sequence[str]],
    size_bytes: Sequence[int],
    *,
    window: int = 64,
    packet_bytes: int = PACKET_BYTES,
) -> list[float]:
    """When the last packet of each flow has arrived; all start at 0 with `window` packets each at most in flight.

    A packet's place in the window is free again when it has arrived.

    Raises:
        InvalidError: a route without wires, an unknown wire, or more packets than are simulated in reasonable time.
    """
    flows = [_Flow(tuple(r), -(-size // packet_bytes)) for r, size in zip(routes, size_bytes, strict=True)]
    if sum(flow.left for flow in flows) > _MOST_PACKETS:
        raise InvalidError(f"more than {_MOST_PACKETS} packets: give fewer bytes")
    if not all(flow.route and all(name in wires for name in flow.route) for flow in flows):
        raise InvalidError("a flow's route is empty or names an unknown wire")
    return _Simulation(wires, flows, window, packet_bytes).run()


class _Simulation:
    """Events are (time, number, flow, hop): a packet of `flow` arrives at the link of its route's `hop`."""

    def __init__(self, wires: Mapping[str, Wire], flows: list[_Flow], window: int, packet_bytes: int) -> None:
        self.wires, self.flows, self.window = wires, flows, window
        self.packet_us = {name: packet_bytes / wire.gbps / 1e3 for name, wire in wires.items()}
        self.free_at = dict.fromkeys(wires, 0.0)
        self.events: list[tuple[float, int, int, int]] = []
        self.number = 0
        self.finish = [0.0] * len(flows)

    def run(self) -> list[float]:
        self._start()
        while self.events:
            now, _, flow, hop = heapq.heappop(self.events)
            if hop == len(self.flows[flow].route):
                self._arrived(now, flow)
            else:
                self._send(now, flow, hop)
        return self.finish

    def _start(self) -> None:
        """Sources take turns, packet by packet, until every window is full."""
        turns = deque(range(len(self.flows)))
        while turns:
            flow = turns.popleft()
            if self._inject(0.0, flow):
                turns.append(flow)

    def _inject(self, now: float, number: int) -> bool:
        flow = self.flows[number]
        if flow.left == 0 or flow.in_flight >= self.window:
            return False
        flow.left -= 1
        flow.in_flight += 1
        self._event(now, number, 0)
        return True

    def _event(self, now: float, flow: int, hop: int) -> None:
        self.number += 1
        heapq.heappush(self.events, (now, self.number, flow, hop))

    def _send(self, now: float, flow: int, hop: int) -> None:
        name = self.flows[flow].route[hop]
        begin = max(now, self.free_at[name])
        self.free_at[name] = end = begin + self.packet_us[name]
        self._event(end + self.wires[name].latency_us, flow, hop + 1)

    def _arrived(self, now: float, number: int) -> None:
        self.flows[number].in_flight -= 1
        self.finish[number] = max(self.finish[number], now)
        if not math.isfinite(now):
            raise InvalidError("a wire without capacity")
        self._inject(now, number)
