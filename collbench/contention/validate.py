"""Accuracy of the model against published measurements, on splits that are never mixed, beside simple baselines."""

import math
import statistics
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collbench.contention.fairshare import Usage, run
from collbench.contention.floor import floor
from collbench.contention.predict import Model
from collbench.contention.published import Bandwidth, Latency, nccl_choice, nccl_table_us, schedule
from collbench.errors import InvalidError
from collbench.results.records import Fabric, Mode
from collbench.topology import catalog
from collbench.topology.classes import class_topology
from collbench.topology.graph import LinkKind, Topology

__all__ = ["Outcome", "Score", "Split", "validate"]


class Split(StrEnum):
    """What was known of a row when it was predicted."""

    IN_SAMPLE = "in-sample"
    SIZES = "held-out sizes"
    EXTRAPOLATED = "extrapolated sizes"
    ALGORITHMS = "held-out algorithms"
    SYSTEMS = "held-out systems"


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one model on one split: median and 90 % quantile of |log(predicted / measured)|, its median, n."""

    table: str
    split: str
    regime: str
    model: str
    median: float
    p90: float
    bias: float
    n: int
    systems: int
    coverage: float | None = None

    def row(self) -> dict[str, Any]:
        """JSON form."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Scores, how fast algorithms were ranked, and the rows that were left out by reason."""

    scores: Sequence[Score]
    ranking: Mapping[str, float]
    left_out: Mapping[str, int]


@dataclass(slots=True)
class _Row:
    """A row with its prediction: `fixed` us whatever the bytes, `moving` us that grow with them."""

    row: Latency
    topology: Topology
    fixed: float
    moving: float
    sd: float
    split: Split = Split.SYSTEMS
    us: dict[str, float] = field(default_factory=dict)

    @property
    def is_nccl(self) -> bool:
        return self.row.algorithm == "nccl"


_REGIMES: Sequence[tuple[str, Callable[[int], bool]]] = (
    ("all", lambda _: True),
    ("below 16 KiB", lambda size: size < 16 << 10),
    ("16 to 256 KiB", lambda size: 16 << 10 <= size <= 256 << 10),
    ("above 256 KiB", lambda size: size > 256 << 10),
)
_Z90 = 1.645
_ORDER = 3  # two algorithms make no order worth the name
_FACTOR_SD = 0.5  # of the logarithm of both factors of a fit: a weak prior


@cache
def split_file() -> Mapping[str, Any]:
    """The split, fixed before fitting."""
    path = Path(__file__).with_name("split.toml")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidError(f"{path}: {error}: install collbench again") from error


def validate(latency: Sequence[Latency], bandwidth: Sequence[Bandwidth]) -> Outcome:
    """Predict every row that the model has a topology and a schedule for, and score it.

    Raises:
        InvalidError: no row of either table can be predicted.
    """
    left_out: Counter[str] = Counter()
    rows = _predicted(latency, left_out)
    _calibrate(rows)
    scores = [*_latency_scores(rows), *_bandwidth_scores(bandwidth, left_out)]
    if not scores:
        raise InvalidError(f"no row can be predicted: {dict(left_out)}")
    return Outcome(scores, _ranking(rows), dict(left_out.most_common()))


# --- latencies ------------------------------------------------------------------------------------------------------


def _predicted(latency: Iterable[Latency], left_out: Counter[str]) -> list[_Row]:
    models: dict[tuple[str, int, int], Model] = {}
    found = []
    for row in latency:
        reason = _excluded(row)
        topology = None if reason else class_topology(row.wiring, row.generation, row.ranks)
        traffic = schedule(topology, row) if topology else None
        if reason or topology is None or traffic is None:
            left_out[
                reason or (f"unmapped class {row.wiring}" if topology is None else f"no schedule: {row.algorithm}")
            ] += 1
            continue
        key = (row.wiring, row.generation, row.ranks)
        if key not in models:
            models[key] = Model(topology, ranks=row.ranks)
        whole = models[key].predict(traffic, row.mode)
        nothing = models[key].predict(_empty(traffic), row.mode)
        found.append(_Row(row, topology, nothing.total_us, whole.total_us - nothing.total_us, whole.sd))
        found[-1].us = _baselines(row, topology, whole.total_us)
    return found


def _empty(traffic: Any) -> Any:  # noqa: ANN401 - a Schedule
    """The same schedule with hardly any bytes."""
    from dataclasses import replace

    phases = tuple(replace(p, flows=tuple(replace(f, bytes=f.bytes * 1e-9) for f in p.flows)) for p in traffic.phases)
    return replace(traffic, phases=phases, reduce_bytes=traffic.reduce_bytes * 1e-9)


def _excluded(row: Latency) -> str:
    if row.confidence == "low":
        return "low confidence"
    for rule in split_file()["excluded"]:
        if _matches(rule, row):
            return str(rule["reason"])
    return ""


def _matches(rule: Mapping[str, Any], row: Latency) -> bool:
    return (
        rule.get("system", "") in row.system
        and rule.get("algorithm", row.algorithm) == row.algorithm
        and rule.get("variant", "") in row.variant
        and rule.get("gpus", row.ranks) == row.ranks
    )


def _baselines(row: Latency, topology: Topology, model_us: float) -> dict[str, float]:
    traffic = schedule(topology, row)
    assert traffic is not None  # noqa: S101 - rows without a schedule were left out
    nvlink = any(link.kind is LinkKind.NVLINK for link in topology.links)
    found = {"model, priors": model_us}
    least = floor(traffic, topology, Fabric.NVLINK if nvlink else Fabric.PCIE, row.mode, ranks=row.ranks).us
    found["busiest link"] = least
    if row.algorithm == "nccl":
        found["NCCL's table"] = nccl_table_us(topology, row.ranks, row.bytes, *nccl_choice(topology, row))
    return found


def _calibrate(rows: Sequence[_Row]) -> None:
    """Assign splits, fit each calibration curve on its in-sample rows, and predict what the split allows."""
    curves: dict[tuple[str, int, str, str, Mode], list[_Row]] = defaultdict(list)
    for one in rows:
        curves[one.row.curve].append(one)
    fits: dict[tuple[str, int], tuple[float, float, bool]] = {}
    chosen = set()
    for curve, members in curves.items():
        if _is_calibration(members):
            chosen.add(curve)
            factors = _fit_curve(members)
            fits.setdefault(curve[:2], (*factors, members[0].is_nccl))
    for curve, members in curves.items():
        if curve not in chosen and (known := fits.get(curve[:2]) or _of_system(fits, curve[0])):
            fixed, moving, nccl = known
            for one in members:
                one.split = Split.ALGORITHMS
                one.us["model"] = one.fixed * (fixed if nccl == one.is_nccl else 1.0) + one.moving * moving
        elif curve not in chosen:
            for one in members:
                one.us["model"] = one.us["model, priors"]


def _of_system(fits: Mapping[tuple[str, int], tuple[float, float, bool]], system: str) -> Any:  # noqa: ANN401 - a fit or None
    return next((fit for (name, _), fit in fits.items() if name == system), None)


def _is_calibration(members: Sequence[_Row]) -> bool:
    rules = split_file()["calibration"]
    sizes = {one.row.bytes for one in members}
    return len(sizes) >= split_file()["least_sizes"] and any(_matches(rule, members[0].row) for rule in rules)


def _fit_curve(members: list[_Row]) -> tuple[float, float]:
    """Split a curve by the file's rule, fit its two factors, predict all of it; also the line a + b * bytes."""
    members.sort(key=lambda one: one.row.bytes)
    lower = -(-2 * len(members) // 3)
    for index, one in enumerate(members):
        one.split = Split.EXTRAPOLATED if index >= lower else Split.SIZES if index % 3 == 1 else Split.IN_SAMPLE
    known = [one for one in members if one.split is Split.IN_SAMPLE]
    fixed, moving = _factors(known)
    line = _line(known)
    for one in members:
        one.us["model"] = one.fixed * fixed + one.moving * moving
        if line is not None:
            one.us["a + b*bytes"] = max(line[0] + line[1] * one.row.bytes, 1e-3)
    return fixed, moving


def _factors(known: Sequence[_Row]) -> tuple[float, float]:
    """Factors of what is fixed and what moves: least squares on the logarithm of times, with weak priors at 1."""
    from scipy.optimize import least_squares

    fixed, moving = np.array([one.fixed for one in known]), np.array([one.moving for one in known])
    times = np.log([one.row.time_us for one in known])

    def residuals(x: Any) -> Any:  # noqa: ANN401 - arrays
        predicted = np.log(fixed * np.exp(x[0]) + moving * np.exp(x[1]))
        return np.concatenate(((predicted - times) / 0.05, x / _FACTOR_SD))

    found = least_squares(residuals, np.zeros(2), loss="soft_l1")
    return float(np.exp(found.x[0])), float(np.exp(found.x[1]))


def _line(known: Sequence[_Row]) -> tuple[float, float] | None:
    """A + b * bytes by least squares of relative errors; None with fewer than two sizes."""
    size, time = (np.array(v, float) for v in zip(*[(o.row.bytes, o.row.time_us) for o in known], strict=True))
    if len(set(size)) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    weights = 1 / time
    matrix = np.stack([weights, size * weights], axis=1)
    a, b = np.linalg.lstsq(matrix, np.ones(len(size)), rcond=None)[0]
    return float(a), float(b)


def _latency_scores(rows: Sequence[_Row]) -> list[Score]:
    found = []
    for split in Split:
        for word, kind in (("one- and two-stage", False), ("NCCL", True)):
            for regime, inside in _REGIMES:
                some = [o for o in rows if o.split is split and o.is_nccl is kind and inside(o.row.bytes)]
                names = list(dict.fromkeys(name for one in some for name in one.us))
                names.sort(key=lambda name: (name != "model", name))
                found += [_score(f"latency, {word}", split, regime, name, some) for name in names]
    return found


def _score(table: str, split: Split, regime: str, name: str, rows: Sequence[_Row]) -> Score:
    some = [one for one in rows if name in one.us]
    errors = [math.log(one.us[name] / one.row.time_us) for one in some]
    inside = [abs(e) <= _Z90 * one.sd for e, one in zip(errors, some, strict=True)]
    coverage = sum(inside) / len(inside) if name.startswith("model") else None
    return _summed(table, str(split), regime, name, errors, len({one.row.system for one in some}), coverage)


def _summed(
    table: str, split: str, regime: str, name: str, errors: Sequence[float], systems: int, coverage: float | None = None
) -> Score:
    size = np.abs(np.array(errors))
    median, p90 = (float(np.quantile(size, q)) for q in (0.5, 0.9))
    return Score(table, split, regime, name, median, p90, statistics.median(errors), len(errors), systems, coverage)


def _ranking(rows: Sequence[_Row]) -> dict[str, float]:
    """Where one machine has at least three algorithms at one size: fastest picked, regret, Kendall's tau."""
    from scipy.stats import kendalltau

    groups: dict[tuple[str, int, int, Mode], list[_Row]] = defaultdict(list)
    for one in rows:
        groups[one.row.system, one.row.ranks, one.row.bytes, one.row.mode].append(one)
    picked, regret, tau, systems = [], [], [], set()
    for key, members in groups.items():
        if len({one.row.algorithm for one in members}) >= _ORDER:
            systems.add(key[0])
            best = min(one.row.time_us for one in members)
            mine = min(members, key=lambda one: one.us["model, priors"])
            picked.append(mine.row.time_us == best)
            regret.append(mine.row.time_us / best - 1)
            value = kendalltau([o.us["model, priors"] for o in members], [o.row.time_us for o in members]).statistic
            tau += [float(value)] if math.isfinite(value) else []
    if not picked:
        return {}
    return {
        "groups": float(len(picked)), "systems": float(len(systems)),
        "fastest_picked": sum(picked) / len(picked), "median_regret": statistics.median(regret),
        "mean_regret": statistics.mean(regret), "mean_tau": statistics.mean(tau) if tau else math.nan,
    }  # fmt: skip


# --- bandwidths -----------------------------------------------------------------------------------------------------


def _bandwidth_scores(rows: Iterable[Bandwidth], left_out: Counter[str]) -> list[Score]:
    errors: dict[str, list[tuple[str, str, float, float]]] = defaultdict(list)
    for row in rows:
        rule, reason = _pattern(row)
        name = next((b["topology"] for b in split_file()["bandwidth"] if b["system"] in row.system), None)
        if rule is None or name is None or not math.isfinite(row.solo_gbps):
            left_out[reason or ("bandwidth: no pattern or topology" if name else "bandwidth: no topology")] += 1
            continue
        fluid, busiest = _total(catalog.load(catalog.find(name)), flows_of(rule["flows"]), row.solo_gbps)
        kind = rule.get("kind", "sparse")
        error = math.log(fluid / row.total_gbps)
        errors[kind].append((row.system, rule["flows"], error, math.log(busiest / row.total_gbps)))
    found = []
    for kind, some in errors.items():
        split, systems = "only the solo row known", len({s for s, *_ in some})
        found.append(_summed(f"bandwidth, {kind}", split, "all", "model", [e for *_, e, _ in some], systems))
        found.append(_summed(f"bandwidth, {kind}", split, "all", "busiest link", [b for *_, b in some], systems))
        if kind == "dense" and (known := _with_one_dense_row(some)):
            split = "other dense rows of the pattern known"
            found.append(_summed("bandwidth, dense", split, "all", "model", known, systems))
    return found


def _with_one_dense_row(some: Sequence[tuple[str, str, float, float]]) -> list[float]:
    """Each row corrected by the median loss of the same pattern's other rows."""
    found = []
    for index, (_, flows, error, _) in enumerate(some):
        others = [e for i, (_, f, e, _) in enumerate(some) if f == flows and i != index]
        found += [error - statistics.median(others)] if others else []
    return found


def _pattern(row: Bandwidth) -> tuple[Mapping[str, Any] | None, str]:
    if not row.mechanism.startswith(("CE copy", "p2pmark CE")) or row.direction.startswith("reverse"):
        return None, f"bandwidth: {row.mechanism}, {row.direction}"
    for rule in split_file()["degraded"]:
        if rule["words"] in row.pattern and rule.get("system", "") in row.system:
            return None, f"bandwidth, degraded: {rule['reason']}"
    return next((rule for rule in split_file()["pattern"] if rule["words"] in row.pattern), None), ""


def flows_of(text: str) -> list[tuple[int, int]]:
    """Pairs of `0>4 1>5`, `shift 3` (8 GPUs), `all 4`, `cross`."""
    word, _, number = text.partition(" ")
    if word == "shift":
        return [(i, (i + int(number)) % 8) for i in range(8)]
    if word == "all":
        n = int(number)
        return [(a, b) for a in range(n) for b in range(n) if a != b]
    if word == "cross":
        return [(a, b) for a in range(4) for b in range(4, 8)]
    return [(int(a), int(b)) for a, _, b in (pair.partition(">") for pair in text.split())]


def _total(topology: Topology, flows: Sequence[tuple[int, int]], solo: float) -> tuple[float, float]:
    """GB/s of all flows with equal bytes: every GPU's bytes over its own last flow's time; and by the busiest link."""
    numbers: dict[tuple[str, str], int] = {}
    capacity: list[float] = []
    entries = []
    for src, dst in flows:
        links = topology.route(topology.gpus[src], topology.gpus[dst])
        row = []
        for link in links:
            if (link.src, link.dst) not in numbers:
                numbers[link.src, link.dst] = len(capacity)
                port = link.kind is LinkKind.PCIE and link.generation
                capacity.append(solo if port else link.capacity_gbps or math.inf)
            row.append((numbers[link.src, link.dst], 1.0))
        entries.append(row)
    usage = Usage.of(entries, len(capacity))
    size = 1e6
    finish = run(usage, capacity, np.full(len(flows), size)).finish_us
    last: dict[int, float] = defaultdict(float)
    for (src, _), us in zip(flows, finish, strict=True):
        last[src] = max(last[src], float(us))
    sent = Counter(src for src, _ in flows)
    load = np.bincount(usage.link, usage.coefficient, len(capacity)) / np.array(capacity)
    total = sum(sent[src] * size / us for src, us in last.items())
    return total / 1e3, len(flows) / float(load.max())
