"""Reads pytest-benchmark's JSON as a side: each benchmark is a cell, each file one launch."""

import math
from collections.abc import Mapping
from typing import Any

from collbench.errors import InvalidError
from collbench.gate.sides import CellData, Side
from collbench.results.records import Status
from collbench.results.summary import clean

__all__ = ["is_pytest_benchmark", "side_of_benchmarks"]

_US = 1e6


def is_pytest_benchmark(data: Mapping[str, Any]) -> bool:
    """Whether an object is pytest-benchmark's, by the keys that its files have had since version 3."""
    return isinstance(data.get("benchmarks"), list) and isinstance(data.get("machine_info"), dict)


def side_of_benchmarks(data: Mapping[str, Any], where: str) -> Side:
    """A side from the object of a file; `where` names it in errors.

    Benchmarks that `collbench export` wrote carry the medians of their launches in `extra_info`; others have one, the
    median over their rounds. That counts as one sample: pytest-benchmark chooses the number of rounds anew each time.
    Hard keys are processor, architecture and Python's implementation.

    Raises:
        InvalidError: a benchmark without a name or a time, or two of one name.
    """
    cells: dict[str, CellData] = {}
    for number, one in enumerate(data["benchmarks"]):
        try:
            name, cell = _cell(one)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidError(
                f"{where}: benchmarks[{number}]: {type(error).__name__}: {clean(str(error))[:80]}: damaged"
            ) from None
        if name in cells:
            raise InvalidError(f"{where}: benchmark {name[:120]!r} stands there twice")
        cells[name] = cell
    if not cells:
        raise InvalidError(f"{where}: holds no benchmark")
    info = data["machine_info"]
    cpu = info.get("cpu")
    hard = {"cpu": cpu.get("brand_raw", "") if isinstance(cpu, dict) else "", "arch": info.get("machine", "")}
    hard["python"] = info.get("python_implementation", "")
    launches = max(len(cell.medians_us) for cell in cells.values())
    return Side(
        where, cells, launches, {k: clean(str(v)) for k, v in hard.items()},
        {"python_version": clean(str(info.get("python_version", "")))},
        origin={"run_id": "", "created": clean(str(data.get("datetime", ""))), "version": ""},
    )  # fmt: skip


def _cell(one: Mapping[str, Any]) -> tuple[str, CellData]:
    name, stats = clean(str(one["fullname"])), one["stats"]
    extra = one.get("extra_info") or {}
    name = clean(str(extra.get("cell_id", name)))
    launches = extra.get("median_us")
    medians = [float(stats["median"]) * _US] if launches is None else launches
    if not medians or not all(type(us) in {int, float} and math.isfinite(us) and us > 0 for us in medians):
        raise ValueError("the median is no time above 0")
    rounds = int(stats["rounds"])
    if rounds < 1:
        raise ValueError(f"{rounds} rounds")
    samples = 1 if launches is None else max(1, rounds // len(medians))
    return name, CellData(Status.OK, "", tuple(map(float, medians)), (samples,) * len(medians))
