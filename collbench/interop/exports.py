"""A run in the formats of other tools. Names of cells come from a file and are escaped where a format reads them.

Sources: documentation of Bencher's metric format and of github-action-benchmark's `customSmallerIsBetter`, OpenMetrics
1.0 text format, files of pytest-benchmark, the table that nccl-tests prints.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collbench.errors import UsageError
from collbench.results.records import DTYPE_BYTES, Collective, Run, Samples
from collbench.results.summary import clean, fold, rows
from collbench.units import rounded
from collbench.wording import counted

__all__ = ["FORMATS", "export"]

_NS, _S = 1e3, 1e-6
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

_LEFT = (
    "#       size         count      type   redop    root",
    "#        (B)    (elements)                            ",
)
_PLACE = ("     time   algbw   busbw #wrong", "     (us)  (GB/s)  (GB/s)       ")
_TITLES = {"out": "out-of-place", "in": "in-place"}
_DTYPES = {"float32": "float", "float16": "half"}
"""nccl-tests' words where they are not ours."""

Rows = Sequence[Mapping[str, Any]]


def export(run: Run, samples: Sequence[Samples], form: str, floors: Mapping[str, float] | None = None) -> str:
    """The run's text in a format of `FORMATS`; cells without times are left out where a format cannot say so.

    Raises:
        UsageError: an unknown format.
    """
    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected one of {', '.join(FORMATS)}")
    folds: dict[str, list[Any]] = {}
    for one in sorted(samples, key=lambda one: one.launch):
        if one.latency_us:
            folds.setdefault(one.cell_id, []).append(fold(one))
    table = [_with_launches(row, folds.get(row["cell_id"], [])) for row in rows(run, samples, floors)]
    return FORMATS[form](run, table)


def _with_launches(row: dict[str, Any], folds: Sequence[Any]) -> dict[str, Any]:
    """The row with the median of each launch, and what pytest-benchmark tells of all iterations, in microseconds."""
    if not folds or row["p50_us"] is None:
        return row | {"median_us": [], "stats": {}, "outliers": {}}
    pooled = np.concatenate(list(folds))
    stats, outliers = _spread(pooled)
    medians = [float(np.median(one)) for one in folds]
    return row | {"median_us": medians, "stats": stats | {"median": row["p50_us"]}, "outliers": outliers}


def _spread(values: Any) -> tuple[dict[str, float], dict[str, int | str]]:  # noqa: ANN401 - an array
    """Times in the unit of `values` and counts of outliers, by pytest-benchmark's names."""
    q1, q3 = (float(q) for q in np.quantile(values, (0.25, 0.75)))
    mean, sd = float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    inside = values[(values >= low) & (values <= high)]
    times = {
        "min": float(values.min()), "max": float(values.max()), "mean": mean, "stddev": sd, "q1": q1, "q3": q3,
        "iqr": q3 - q1, "ld15iqr": float(inside.min()), "hd15iqr": float(inside.max()), "total": float(values.sum()),
    }  # fmt: skip
    beyond = int(values.size - inside.size)
    far = int(np.count_nonzero(np.abs(values - mean) > sd))
    return times, {"stddev_outliers": far, "iqr_outliers": beyond, "outliers": f"{far};{beyond}"}


def _csv(run: Run, table: Rows) -> str:
    del run
    out = io.StringIO()
    names = [name for name in table[0] if name not in {"median_us", "stats", "outliers"}] if table else []
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in table:
        writer.writerow([_cell_of_csv(row[name]) for name in names])
    return out.getvalue()


def _cell_of_csv(value: object) -> object:
    """Text as a spreadsheet shows it: what would be a formula gets an apostrophe before it."""
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return rounded(value)
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = clean(text)
    return f"'{text}" if text.startswith(_FORMULA) and text != "-" else text


def _bmf(run: Run, table: Rows) -> str:
    """`latency` is Bencher's measure in nanoseconds; bounds are the least and largest of several launches."""
    del run
    found = {}
    for row in _timed(table):
        value = {"value": row["p50_us"] * _NS}
        if len(row["median_us"]) > 1:
            value |= {"lower_value": min(row["median_us"]) * _NS, "upper_value": max(row["median_us"]) * _NS}
        found[clean(row["cell_id"])] = {"latency": value}
    return _json(found)


def _gab(run: Run, table: Rows) -> str:
    """`range` is that of the launches' medians, which one launch has not."""
    del run
    return _json([_gab_row(row) for row in _timed(table)])


def _gab_row(row: Mapping[str, Any]) -> dict[str, Any]:
    medians, launches = row["median_us"], row["launches"]
    span = {"range": f"{min(medians):.4g} .. {max(medians):.4g}"} if len(medians) > 1 else {}
    told = counted(launches, "launch", "es")
    return {
        "name": clean(row["cell_id"]), "unit": "us", "value": row["p50_us"], **span,
        "extra": f"p99 {row['p99_us']:.4g} us, {row['iterations']} iterations, {told}",
    }  # fmt: skip


def _openmetrics(run: Run, table: Rows) -> str:
    del run
    name = "collbench_latency_seconds"
    lines = [
        f"# TYPE {name} gauge", f"# UNIT {name} seconds",
        f"# HELP {name} Time per call of the slowest rank, quantiles over iterations.",
    ]  # fmt: skip
    # all fields of a cell_id: two samples with the same labels are refused by who reads them
    shown = (
        "collective", "algorithm", "variant", "op", "dtype", "bytes", "world_size", "mode", "calls", "place", "buffers",
        "epilogue", "skew",
    )  # fmt: skip
    for row in _timed(table):
        labels = ",".join(f'{key}="{_label(row[key])}"' for key in shown)
        lines += [
            f'{name}{{{labels},quantile="{q}"}} {row[field] * _S:.9g}'
            for q, field in (("0", "min_us"), ("0.5", "p50_us"), ("0.99", "p99_us"))
        ]
    lines += ["# TYPE collbench_cells gauge", "# HELP collbench_cells Cells of the run by status."]
    statuses = [str(row["status"]) for row in table]
    lines += [f'collbench_cells{{status="{_label(s)}"}} {statuses.count(s)}' for s in sorted(set(statuses))]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _label(value: object) -> str:
    return clean(str(value)).replace("\\", "\\\\").replace('"', '\\"')


def _pytest_benchmark(run: Run, table: Rows) -> str:
    """A round is an iteration; times are seconds per call."""
    hard = run.machine.get("fingerprint", {}).get("soft", {})
    info = {
        "cpu": {"brand_raw": hard.get("cpu", "")}, "machine": hard.get("host_arch", ""),
        "python_implementation": "CPython", "python_version": hard.get("python", ""),
    }  # fmt: skip
    found = [
        {
            "group": row["collective"], "name": clean(row["cell_id"]), "fullname": clean(row["cell_id"]),
            "params": None, "param": None, "options": {},
            "extra_info": {"cell_id": clean(row["cell_id"]), "median_us": row["median_us"]},
            "stats": {name: us * _S for name, us in row["stats"].items()} | row["outliers"] | {
                "rounds": row["iterations"], "iterations": row["calls"], "ops": 1 / (row["stats"]["mean"] * _S),
            },
        }
        for row in _timed(table)
    ]  # fmt: skip
    return _json({
        "machine_info": info, "commit_info": {}, "benchmarks": found, "datetime": run.created, "version": run.version,
    })  # fmt: skip


def _nccl_tests(run: Run, table: Rows) -> str:
    """One table per algorithm, mode and number of calls, in nccl-tests' columns and words.

    `#wrong` is 0, since only verified cells have a time; one without is a comment, which readers of such tables pass
    over. In-place columns stand beside the others only where every row has both, for a time is never N/A there.
    """
    lines = [
        f"# collbench {run.version}: {run.world_size} ranks, fabric {run.fabric}; time = median of the slowest rank"
    ]
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    shared = ("collective", "algorithm", "variant", "mode", "calls", "buffers", "epilogue", "skew")
    for row in table:
        groups.setdefault(tuple(str(row[key]) for key in shared), []).append(row)
    for key, members in groups.items():
        collective, algorithm, variant, mode, calls, *more = (clean(word) for word in key)
        told = " ".join(filter(None, (collective, algorithm, variant, mode, "calls", calls, *more)))
        timed = [row for row in members if row["p50_us"]]
        for places in _together(timed):
            lines += ["#", f"# {told}", *_nccl_table(timed, places)]
        lines += [_untimed(row, told) for row in members if not row["p50_us"]]
    return "\n".join(lines) + "\n"


def _untimed(row: Mapping[str, Any], told: str) -> str:
    return f"# {told} {row['bytes']} bytes: {clean(str(row['status']))}: {clean(row['reason'])}"


def _together(rows: Rows) -> list[tuple[str, ...]]:
    """Places that share a table."""
    sizes = {place: {row["bytes"] for row in rows if row["place"] == place} for place in ("out", "in")}
    if sizes["out"] == sizes["in"] and sizes["out"]:
        return [("out", "in")]
    return [(place,) for place, found in sizes.items() if found]


def _nccl_table(rows: Rows, places: tuple[str, ...]) -> list[str]:
    lines = ["#" + " " * (len(_LEFT[0]) - 1) + "".join(_TITLES[place].center(len(_PLACE[0])) for place in places)]
    lines = [
        line.rstrip()
        for line in (*lines, *(left + right * len(places) for left, right in zip(_LEFT, _PLACE, strict=True)))
    ]
    found: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in rows:
        rate = row["bytes"] / row["p50_us"] / 1e3
        bus = rate * _bus_factor(row["collective"], row["world_size"])
        texts = found.setdefault((row["bytes"], row["dtype"], row["op"]), {})
        texts[row["place"]] = f" {_four(row['p50_us']):>8} {rate:>7.2f} {bus:>7.2f} {0:>6}"
    for (size, dtype, op), texts in found.items():
        count, kind = size // DTYPE_BYTES.get(dtype, 1), clean(_DTYPES.get(dtype, dtype))
        head = f"{size:>12} {count:>13} {kind:>9} {clean(op) or 'none':>7} {-1:>7}"
        lines.append(head + "".join(texts[place] for place in places))
    return lines


def _four(us: float) -> str:
    """A time as nccl-tests prints it: four digits and more."""
    return f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 10_000 else f"{us:.0f}"  # noqa: PLR2004 - digits


def _bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests' doc/PERFORMANCE.md derives it."""
    if collective == Collective.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if collective in {Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL}:
        return (ranks - 1) / ranks
    return 1.0


def _timed(table: Rows) -> list[Mapping[str, Any]]:
    return [row for row in table if row["p50_us"] is not None]


def _json(value: object) -> str:
    return json.dumps(rounded(value), indent=1, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[[Run, Rows], str]] = {
    "csv": _csv, "bmf": _bmf, "gab": _gab, "openmetrics": _openmetrics, "pytest-benchmark": _pytest_benchmark,
    "nccl-tests": _nccl_tests,
}  # fmt: skip
"""Writers by the names of `--format`."""
