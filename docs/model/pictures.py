"""Pictures of the pages beside this file, from the model itself: `python docs/model/pictures.py` writes them anew."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collbench.algorithms.base import Algorithm, registry
from collbench.algorithms.predictions import Forecast
from collbench.contention.fairshare import Usage, max_min, run
from collbench.contention.traffic import Schedule
from collbench.results.records import Call
from collbench.topology import catalog, drawing
from collbench.topology.graph import Topology

HERE = Path(__file__).parent
MACHINE = "two-flat-gen5-switches"
BYTES, TOKEN_BYTES, CALLS = 43_008, 14_336, 122
SHOWN = ("push", "one_stage_pull", "two_stage_push", "islands", "nccl_ring_ll", "nccl_ring_simple", "nccl_tree_ll")
CUT = (("switch0", "root0"), ("root0", "socket0"), ("socket0", "root1"), ("root1", "switch1"))
COLOURS = ("#8a94a3", "#b5a642", "#56b4e9", "#0072b2", "#d55e00", "#e69f00", "#f0e442", "#cc79a7", "#009e73")
"""After Okabe and Ito; one for each term, in the order of the terms."""

STATES = {
    "healthy": MACHINE, "writes collapsed": "write-collapse", "staged, per GPU": "staging",
    "staged, one path": "staging-shared",
}  # fmt: skip


def main(folder: Path = HERE) -> None:
    """All pictures, into a folder."""
    (folder / "cut.svg").write_text(drawing.svg(machine(), CUT, "cut"), encoding="utf-8")
    for name, picture in (
        ("bytes", draw_bytes), ("rates", draw_rates), ("terms", draw_terms), ("intervals", draw_intervals),
        ("states", draw_states),
    ):  # fmt: skip
        save(folder / f"{name}.svg", picture)


def machine(name: str = MACHINE) -> Topology:
    """A machine file of the suite, or of the folder `degraded`."""
    own = HERE / "degraded" / f"{name}.toml"
    return catalog.load(own if own.is_file() else catalog.find(name))


def algorithms(names: Sequence[str] = SHOWN) -> list[Algorithm]:
    """By name."""
    return [registry()[name] for name in names]


def busiest(schedule: Schedule, topology: Topology, kinds: tuple[str, str]) -> float:
    """Most bytes on one direction of a link between two kinds of nodes, flags of the protocol included."""
    load: dict[tuple[str, str], float] = {}
    for phase in schedule.phases:
        for flow in phase.flows:
            for link in topology.route(topology.gpus[flow.src], topology.gpus[flow.dst]):
                if (topology.node(link.src).kind, topology.node(link.dst).kind) == kinds:
                    load[link.src, link.dst] = load.get((link.src, link.dst), 0.0) + flow.bytes
    return schedule.wire_factor * max(load.values(), default=0.0)


def draw_bytes(axes: Any) -> None:  # noqa: ANN401 - matplotlib has no types
    """Bytes per direction, in messages, at a GPU's port and between the switches."""
    call, topology = Call(BYTES, 8), machine()
    kinds = {"a GPU's port": ("gpu", "switch"), "uplink of a switch": ("switch", "root_port")}
    for place, (label, pair) in enumerate(kinds.items()):
        sizes = [busiest(a.traffic(call, topology), topology, pair) / BYTES for a in algorithms()]
        rows = np.arange(len(SHOWN)) + (place - 0.5) * 0.36
        bars = axes.barh(rows, sizes, 0.34, label=label, color=("#56b4e9", "#d55e00")[place])
        axes.bar_label(bars, [f"{size:.3g}" for size in sizes], padding=3, fontsize=8)
    named(axes, SHOWN)
    axes.set_xlabel("messages sent over one direction of a link (one-stage: 7 and 16)")
    axes.legend(frameon=False, loc="lower right")


def draw_rates(axes: Any) -> None:  # noqa: ANN401
    """Rates of a one-stage push under max-min sharing: those within a switch end early, those across go on."""
    topology = machine()
    number = {(link.src, link.dst): i for i, link in enumerate(topology.links)}
    pairs = [(a, b) for a in topology.gpus for b in topology.gpus if a != b]
    capacity = [link.capacity_gbps or 1e9 for link in topology.links]
    rows = [[(number[link.src, link.dst], 1.0) for link in topology.route(a, b)] for a, b in pairs]
    usage = Usage.of(rows, len(number))
    ends = run(usage, capacity, np.full(len(pairs), float(BYTES))).finish_us
    first = max_min(usage, capacity).gbps
    for pair, label, colour in (
        (("gpu0", "gpu1"), "gpu0 to gpu1, below one switch (24 such flows)", "#0072b2"),
        (("gpu0", "gpu4"), "gpu0 to gpu4, across (32 such flows, 16 each way)", "#d55e00"),
    ):
        flow = pairs.index(pair)
        axes.plot([0, ends[flow], ends[flow]], [first[flow], first[flow], 0], color=colour, label=label, lw=2)
        axes.annotate(f"{first[flow]:.3g} GB/s until {ends[flow]:.3g} us", (ends[flow], first[flow]), (6, 4),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set(xlabel="microseconds", ylabel="GB/s of one flow", ylim=(0, None), xlim=(0, 1.45 * float(ends.max())))
    axes.legend(frameon=False, loc="upper right", fontsize=8)


def draw_terms(axes: Any) -> None:  # noqa: ANN401
    """The terms of each algorithm, stacked."""
    forecast = Forecast(machine(), algorithms=algorithms())
    found = {a.name: forecast.predict(a, BYTES) for a in forecast.algorithms}
    left = np.zeros(len(SHOWN))
    for term, colour in zip(found[SHOWN[0]].terms_us, COLOURS, strict=True):
        sizes = np.array([found[name].terms_us[term] for name in SHOWN])
        if sizes.max() > 0.05:  # noqa: PLR2004 - thinner than a line
            axes.barh(range(len(SHOWN)), sizes, 0.7, left, label=term, color=colour)
        left += sizes
    for row, total in enumerate(left):
        axes.annotate(f"{total:.3g}", (total, row), (4, -3), textcoords="offset points", fontsize=8)
    named(axes, SHOWN)
    axes.set_xlabel(f"microseconds per call, {BYTES:,} bytes, 8 ranks, captured")
    axes.legend(frameon=False, loc="upper right", ncols=2)


def draw_intervals(axes: Any) -> None:  # noqa: ANN401
    """Nominal 90 % intervals before anything is measured, and the floor."""
    forecast = Forecast(machine(), algorithms=algorithms())
    rows = {row["algorithm"]: row for row in forecast.rows([BYTES])}
    for place, name in enumerate(SHOWN):
        row = rows[name]
        ends = [row["low_us"], row["high_us"]]
        axes.plot(ends, [place, place], color="#0072b2", lw=5, alpha=0.35, solid_capstyle="butt")
        axes.plot(row["total_us"], place, "o", color="#0072b2")
        axes.plot(row["floor_us"], place, "|", color="#d55e00", ms=14, mew=2)
        axes.annotate(f"{row['prior_share']:.0%} priors", (row["high_us"], place), (6, -3),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    named(axes, SHOWN)
    axes.set(xlabel="microseconds per call: prediction, nominal 90 % interval, floor (|)", xlim=(0, None))
    axes.margins(x=0.14)


def draw_states(axes: Any) -> None:  # noqa: ANN401
    """Tokens per second over the time of one all-reduce, with what a one-stage kernel takes in each state."""
    step_us = 8650.0 + 60.0  # workloads/moe-61-decode.toml, one sequence
    times = np.linspace(5, 260, 300)
    axes.plot(times, 1e6 / (step_us + CALLS * times), color="#8a94a3")
    axes.axhspan(82, 89, color="#009e73", alpha=0.2, lw=0)
    axes.axhline(38, color="#d55e00", lw=1, ls="--")
    axes.annotate("82 to 89 reported with NCCL", (258, 85), fontsize=8, ha="right", va="center")
    axes.annotate("38 reported with one stage forced", (2, 37), fontsize=8, va="top")
    for state, file in STATES.items():
        forecast = Forecast(machine(file), algorithms=algorithms(("one_stage_pull",)))
        us = forecast.predict(forecast.algorithms[0], TOKEN_BYTES).total_us
        rate = 1e6 / (step_us + CALLS * us)
        axes.plot(us, rate, "o", color="#0072b2")
        axes.annotate(f"{state}: {us:.3g} us", (us, rate), (7, 4), textcoords="offset points", fontsize=8)
    axes.set(
        xlabel=f"microseconds of one all-reduce of {TOKEN_BYTES:,} bytes", ylabel="tokens per second", ylim=(0, 115)
    )


def named(axes: Any, names: Sequence[str]) -> None:  # noqa: ANN401
    """Names down the left side, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def save(path: Path, picture: Any) -> None:  # noqa: ANN401
    """Draw into a file; the same model gives the same text."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                     "axes.spines.right": False}  # fmt: skip
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    picture(axes)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
