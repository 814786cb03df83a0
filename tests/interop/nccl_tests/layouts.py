"""Outputs in the layouts of the releases, small and invented; formats by nccl-tests' own `util.cu` and `common.cu`."""

import json
from typing import Any

RANKS = 8
TIMES_US = {1024: (12.5, 12.0), 32768: (20.25, 19.5), 1048576: (210.0, 205.5)}
"""Bytes: times out of place and in place."""

DEVICES = "".join(
    f"#  Rank {rank:2d} Group  0 Pid {4000 + (0 if RANKS else rank):6d} on     secret device {rank:2d} "
    f"[0000:{rank + 1:02x}:00] NVIDIA Invented GPU\n"
    for rank in range(RANKS)
)
CONFIG = (
    "# nThread 1 nGpus 8 minBytes 1024 maxBytes 1048576 step: 32(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    "validation: 1 graph: 0\n#\n# Using devices\n" + DEVICES + "#\n"
)
FOOTER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 4.2 \n#\n"


def rates(size: int, us: float, ranks: int = RANKS) -> tuple[float, float]:
    """Algorithm and bus bandwidth of an all_reduce in GB/s."""
    return size / us / 1e3, size / us / 1e3 * 2 * (ranks - 1) / ranks


def body(size: int, us: float, wrong: str, more: str = "") -> str:
    algbw, busbw = rates(size, us)
    return f"  {us:7.2f}  {algbw:6.2f}  {busbw:6.2f}  {wrong:>6}{more}"


def table(
    *, last: str = "#wrong", wrong: str = "0", per_iteration: bool = False, root: bool = True, behind: str = "",
    behind_value: str = "", places: int = 2, clock: str = "time", redop: str = "sum",
) -> str:  # fmt: skip
    """Header and rows; `last` is the last column of a place, `behind` one behind both places."""
    more = "    i_min    i_max    i_p99    i_cv%" if per_iteration else ""
    columns = f"{clock:>7}   algbw   busbw  {last}{more}"
    left = "size         count      type   redop" + ("    root" if root else "")
    unit = "(us)  (GB/s)  (GB/s)" + ("   (us) (us) (us) (%)" if per_iteration else "")
    lines = [
        "#", "#                  out-of-place                       in-place",
        f"#       {left}  " + "  ".join([columns] * places) + f"  {behind}",
        "#        (B)    (elements)     " + "  ".join([unit] * places),
    ]  # fmt: skip
    for size, times in TIMES_US.items():
        values = f"  {times[0]:7.2f}  {times[0] * 2:7.2f}  {times[0] * 1.5:7.2f}     3.10" if per_iteration else ""
        row = f"{size:12d}  {size // 4:12d}     float  {redop:>6}" + ("      -1" if root else "")
        row += "".join(body(size, us, wrong, values) for us in times[:places])
        lines.append(row + f"  {behind_value}".rstrip())
    return "\n".join(lines) + "\n"


PLAIN = "# Collective test starting: all_reduce_perf\n" + CONFIG + table() + FOOTER
VERSIONED = "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007\n" + PLAIN


def json_object(*, processes: int = 1, iterations: int = 6, per_iteration: bool = True, **more: Any) -> dict[str, Any]:
    """What -J writes, with an environment that holds a secret."""
    results = []
    for size, times in TIMES_US.items():
        result: dict[str, Any] = {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1"}
        for place, us in zip(("out_of_place", "in_place"), times, strict=True):
            algbw, busbw = rates(size, us)
            result[place] = {"time": us, "alg_bw": round(algbw, 6), "bus_bw": round(busbw, 6), "nwrong": 0.0}
            if per_iteration:
                rows = [[us + 0.1 * i + 0.01 * p for i in range(iterations)] for p in range(processes)]
                result[f"{place}_per_iter"] = {"skipped_iterations": 1, "p50_us": us, "times_us": rows[-1]}
                if processes > 1:
                    result[f"{place}_per_iter"]["per_process_max_times_us"] = rows
        result |= {"actual_iterations": iterations, "experiment_name": "AllReduce"}
        result["tuning"] = {"implementation": "Coll", "algo": "RING", "proto": "LL", "#channels": 2}
        results.append(result)
    per = RANKS // processes
    devices = [
        {
            "rank": p * per, "group": 0, "pid": 40 + p, "hostname": "secret", "device": p,
            "device_hex": f"0000:0{p + 1}:00", "device_info": "NVIDIA Invented GPU",
        }
        for p in range(processes)
    ]  # fmt: skip
    return {
        "version": 4, "start_time": "2026-11-29 10:00:00", "args": ["/srv/me/all_reduce_perf", "-I", "1", "-z", "3"],
        "env": ["HOME=/srv/me", "AWS_SECRET_ACCESS_KEY=hunter2"], "nccl_version": 23007,
        "config": {
            "nthreads": 1, "ngpus": per, "minimum_bytes": 1024, "maximum_bytes": 1048576, "step_factor": 32,
            "warmup_iters": 5, "iterations": iterations, "aggregated_iterations": 1, "validation": 1, "graph": 0,
            "blocking_collectives": "true", "per_iter_timing": "true" if per_iteration else "false",
            "devices": devices,
        },
        "results": results, "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 4.2, "okay": "unchecked"}, "errors": [],
        "end_time": "2026-11-29 10:00:09", **more,
    }  # fmt: skip


def json_cut(rows: int, **options: Any) -> str:
    """The file of a program that died: it ends within the row behind `rows` of them."""
    text = json_text(**options)
    sizes = [text.index(f'"size": {size},') for size in TIMES_US]
    return text[: sizes[rows] + 40]


def json_text(**options: Any) -> str:
    return json.dumps(json_object(**options))
