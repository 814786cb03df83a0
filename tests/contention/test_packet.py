"""The packet simulator agrees with hand cases and with the fluid where both describe the same thing."""

import pytest

from collbench.contention.fairshare import Usage, run
from collbench.contention.packet import Wire, finish_us
from collbench.errors import InvalidError


def test_one_flow_takes_its_latency_and_its_bytes() -> None:
    """1,000 packets of 256 bytes at 25.6 GB/s: 10 us, two latencies, and one packet more at the second wire."""
    wires = {"a": Wire(25.6, 0.5), "b": Wire(25.6, 0.25)}
    assert finish_us(wires, [["a", "b"]], [256_000], window=1000) == [pytest.approx(10.0 + 0.75 + 0.01)]


def test_a_window_limits_one_flow() -> None:
    """Four packets in flight over a round of about 1 us carry 1 KiB per us, whatever the wire could."""
    wires = {"a": Wire(100.0, 1.0)}
    (end,) = finish_us(wires, [["a"]], [256 * 1000], window=4)
    assert end == pytest.approx(1000 / 4 * 1.0, rel=0.02)


def test_flows_share_a_wire_as_the_fluid_does() -> None:
    """Two ports feed one uplink; a third flow has its own way."""
    wires = {"p0": Wire(50, 0.2), "p1": Wire(50, 0.2), "p2": Wire(50, 0.2), "up": Wire(50, 0.2), "other": Wire(40, 0.2)}
    routes = [["p0", "up"], ["p1", "up"], ["p2", "other"]]
    ends = finish_us(wires, routes, [1 << 20] * 3, window=256)
    names = list(wires)
    usage = Usage.of([[(names.index(w), 1.0) for w in route] for route in routes], len(names))
    fluid = run(usage, [w.gbps for w in wires.values()], [1 << 20] * 3).finish_us
    assert ends == pytest.approx(list(fluid), rel=0.05)


def test_bad_input_is_named() -> None:
    with pytest.raises(InvalidError, match="unknown wire"):
        finish_us({"a": Wire(1, 1)}, [["b"]], [1])
    with pytest.raises(InvalidError, match="packets"):
        finish_us({"a": Wire(1, 1)}, [["a"]], [1 << 40])
