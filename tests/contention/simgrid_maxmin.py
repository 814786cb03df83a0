"""Finish times of flows by SimGrid, for test_crosschecks: cases as JSON on stdin, times as JSON on stdout.

Run by the system's Python, which has Debian's python3-simgrid. One engine fits into one process, so each batch of cases
is forked; cases of a batch share no link, so they do not see each other.
A case is {"capacity": [...], "routes": [[link, ...], ...], "sizes": [...]}, in bytes and bytes per unit of time.
"""

import json
import os
import sys
from typing import Any

import simgrid  # type: ignore[import-not-found]  # Debian's package, not in the test environment

CONFIG = (
    "network/model:CM02", "network/TCP-gamma:0", "network/latency-factor:1", "network/bandwidth-factor:1",
    "network/weight-S:0", "network/crosstraffic:0", "maxmin/precision:1e-9", "surf/precision:1e-12",
)  # fmt: skip
BATCH = 10


def add(zone: Any, name: str, case: dict[str, Any]) -> list[float]:
    """Hosts, links and actors of a case; gives the list that its finish times will be in."""
    links = [zone.create_link(f"{name}-l{i}", c).set_latency(0).seal() for i, c in enumerate(case["capacity"])]
    finish = [0.0] * len(case["sizes"])

    def send(box: str, size: float) -> None:
        simgrid.Mailbox.by_name(box).put("x", int(size))

    def receive(box: str, flow: int) -> None:
        simgrid.Mailbox.by_name(box).get()
        finish[flow] = simgrid.Engine.clock

    for flow, (route, size) in enumerate(zip(case["routes"], case["sizes"], strict=True)):
        a, b = (zone.create_host(f"{name}-{side}{flow}", 1e9).seal() for side in "ab")
        zone.add_route(a.netpoint, b.netpoint, None, None, [simgrid.LinkInRoute(links[i]) for i in route], False)
        box = f"{name}-f{flow}"
        simgrid.Actor.create(f"{box}-s", a, send, box, size)
        simgrid.Actor.create(f"{box}-r", b, receive, box, flow)
    return finish


def solve(cases: list[dict[str, Any]]) -> list[list[float]]:
    """Finish time of every flow of every case."""
    engine = simgrid.Engine(["maxmin", "--log=root.thresh:error", *(f"--cfg={word}" for word in CONFIG)])
    zone = simgrid.NetZone.create_full_zone("all")
    found = [add(zone, f"c{number}", case) for number, case in enumerate(cases)]
    zone.seal()
    engine.run()
    return found


def forked(cases: list[dict[str, Any]]) -> list[list[float]]:
    """`solve` in a child, which hands its answer back through a pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            json.dump(solve(cases), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found: list[list[float]] = json.loads(text)
    return found


if __name__ == "__main__":
    everything = json.load(sys.stdin)
    parts = [everything[i : i + BATCH] for i in range(0, len(everything), BATCH)]
    json.dump([times for part in parts for times in forked(part)], sys.stdout)
