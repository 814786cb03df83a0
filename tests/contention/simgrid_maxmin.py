"""Finish times of flows by SimGrid, for test_crosschecks: cases as JSON on stdin, times as JSON on stdout.

Run by the system's Python, which has Debian's python3-simgrid. One engine fits into one process, so each case is forked.
A case is {"capacity": [...], "routes": [[link, ...], ...], "sizes": [...]}, in bytes and bytes per unit of time.
"""

import json
import os
import sys

import simgrid  # type: ignore[import-not-found]  # Debian's package, not in the test environment

CONFIG = (
    "network/model:CM02", "network/TCP-gamma:0", "network/latency-factor:1", "network/bandwidth-factor:1",
    "network/weight-S:0", "network/crosstraffic:0", "maxmin/precision:1e-9", "surf/precision:1e-12",
)  # fmt: skip


def solve(case: dict[str, list[float]]) -> list[float]:
    """Finish time of every flow."""
    words = ["maxmin", "--log=root.thresh:error", *(f"--cfg={word}" for word in CONFIG)]
    engine = simgrid.Engine(words)
    zone = simgrid.NetZone.create_full_zone("all")
    links = [zone.create_link(f"l{i}", c).set_latency(0).seal() for i, c in enumerate(case["capacity"])]
    finish = [0.0] * len(case["sizes"])

    def send(box: str, size: float) -> None:
        simgrid.Mailbox.by_name(box).put("x", int(size))

    def receive(box: str, flow: int) -> None:
        simgrid.Mailbox.by_name(box).get()
        finish[flow] = simgrid.Engine.clock

    for flow, (route, size) in enumerate(zip(case["routes"], case["sizes"])):
        a, b = (zone.create_host(f"{side}{flow}", 1e9).seal() for side in "ab")
        hops = [simgrid.LinkInRoute(links[i]) for i in route]
        zone.add_route(a.netpoint, b.netpoint, None, None, hops, False)
        simgrid.Actor.create(f"s{flow}", a, send, f"f{flow}", size)
        simgrid.Actor.create(f"r{flow}", b, receive, f"f{flow}", flow)
    zone.seal()
    engine.run()
    return finish


def forked(case: dict[str, list[float]]) -> list[float]:
    """`solve` in a child, which hands its answer back through a pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            json.dump(solve(case), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


if __name__ == "__main__":
    json.dump([forked(case) for case in json.load(sys.stdin)], sys.stdout)
