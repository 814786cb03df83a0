"""Accuracy of the model against published measurements, on splits that are never mixed, beside simple baselines."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from collbench.contention.bandwidths import bandwidth_scores
from collbench.contention.curves import Fit, PredictedRow, assign, left_out_in_turn
from collbench.contention.floor import floor
from collbench.contention.nccl_symmetric import pick
from collbench.contention.nccl_tuner import Tuner
from collbench.contention.predict import Model
from collbench.contention.prediction import Prediction, own_spread
from collbench.contention.published import SYMMETRIC, Bandwidth, Latency, nccl_choice, schedule
from collbench.contention.scores import Score, spread_between, summed
from collbench.contention.splits import Split, excluded, is_single, on_symmetric_memory
from collbench.contention.traffic import Schedule
from collbench.errors import InvalidError
from collbench.results.records import Fabric, Mode
from collbench.topology.classes import class_topology
from collbench.topology.graph import LinkKind, Topology

__all__ = ["LEFT_OUT", "PRIORS", "Outcome", "predicted", "validate"]

LEFT_OUT = "fitted curves, each row left out in turn"
"""What was known: all of a system's fitted curves but the row itself. Those rows are in other splits too."""

PRIORS = "model, priors"
"""Name of the model to which nothing was fitted."""

_REGIMES: Sequence[tuple[str, Callable[[int], bool]]] = (
    ("all", lambda _: True),
    ("below 16 KiB", lambda size: size < 16 << 10),
    ("16 to 256 KiB", lambda size: 16 << 10 <= size <= 256 << 10),
    ("above 256 KiB", lambda size: size > 256 << 10),
)
_KINDS = (("one- and two-stage", False), ("NCCL", True))
_SHOWN = 3  # reasons that an error names
_ORDER = 3  # two algorithms make no order worth the name


@dataclass(frozen=True, slots=True)
class Outcome:
    """Scores, how fast algorithms were ranked, and the rows that were left out by reason.

    `between_machines` is the spread between machines that all rows together ask for, beside what priors say.
    """

    scores: Sequence[Score]
    ranking: Mapping[str, float]
    left_out: Mapping[str, int]
    between_machines: float = 0.0


def validate(latency: Sequence[Latency], bandwidth: Sequence[Bandwidth]) -> Outcome:
    """Predict every row that the model has a topology and a schedule for, and score it.

    Raises:
        InvalidError: no row of either table can be predicted.
    """
    left_out: Counter[str] = Counter()
    rows = predicted(latency, left_out)
    _tell(rows, assign(rows))
    scores = [*_latency_scores(rows), *_left_out_scores(rows), *bandwidth_scores(bandwidth, left_out)]
    if not scores:
        first = "; ".join(f"{count} rows: {reason}" for reason, count in left_out.most_common(_SHOWN))
        raise InvalidError(f"no row can be predicted: {first or 'the tables are empty'}")
    return Outcome(scores, _ranking(rows), dict(left_out.most_common()), spread_between(list(_errors(rows).values())))


def predicted(latency: Iterable[Latency], left_out: Counter[str]) -> list[PredictedRow]:
    """Rows with the prediction from priors and the baselines; counts what is left out."""
    models: dict[tuple[str, int, int], Model] = {}
    found = []
    for row in map(on_symmetric_memory, latency):
        reason = excluded(row)
        topology = None if reason else class_topology(row.wiring, row.generation, row.ranks)
        traffic = schedule(topology, row) if topology else None
        if reason or topology is None or traffic is None:
            unmapped = f"unmapped class {row.wiring}" if topology is None else f"no schedule: {row.algorithm}"
            left_out[reason or unmapped] += 1
            continue
        key = (row.wiring, row.generation, row.ranks)
        if key not in models:
            models[key] = Model(topology, ranks=row.ranks)
        prior = models[key].predict(traffic, row.mode, chained=not is_single(row))
        found.append(PredictedRow(row, topology, prior, us=_baselines(row, topology, traffic, prior)))
    return found


def _baselines(row: Latency, topology: Topology, traffic: Schedule, prior: Prediction) -> dict[str, float]:
    nvlink = any(link.kind is LinkKind.NVLINK for link in topology.links)
    least = floor(traffic, topology, Fabric.NVLINK if nvlink else Fabric.PCIE, row.mode, ranks=row.ranks).us
    found = {PRIORS: prior.total_us, "busiest link": least}
    if row.algorithm == "nccl":
        tuner = Tuner.of(topology, row.ranks)
        found["NCCL's table"] = tuner.estimate_us(row.bytes, *nccl_choice(tuner, row))
    if row.algorithm == SYMMETRIC and (picked := pick(Tuner.of(topology, row.ranks), row.bytes)):
        found["NCCL's table"] = picked[1]
    return found


def _tell(rows: Sequence[PredictedRow], fits: Mapping[str, Fit]) -> None:
    """What the model says of each row, as far as its split allows.

    A fit speaks for the algorithms that it was made from. Of another one it says nothing: from one curve alone hardly
    any parameter is known, only their sum. What rests on priors is as sure as all other systems say.
    """
    errors = _errors(rows)
    systems = {one.row.system for one in rows}
    between = {name: spread_between([e for other, e in errors.items() if other != name]) for name in systems}
    for one in rows:
        one.sd[PRIORS] = math.hypot(own_spread(one.prior), between[one.row.system] * one.prior.prior_share)
        fit = fits.get(one.row.system)
        if fit is not None and one.row.algorithm in fit.algorithms:
            one.us["model"], one.sd["model"] = fit.told(one)
        else:
            one.us["model"], one.sd["model"] = one.us[PRIORS], one.sd[PRIORS]


def _errors(rows: Sequence[PredictedRow]) -> dict[str, list[tuple[float, float, float]]]:
    """By system: error, own spread and share of priors of what priors alone say."""
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for one in rows:
        error = math.log(one.prior.total_us / one.row.time_us)
        found[one.row.system].append((error, own_spread(one.prior), one.prior.prior_share))
    return found


def _latency_scores(rows: Sequence[PredictedRow]) -> list[Score]:
    found = []
    for split in Split:
        for word, kind in _KINDS:
            for regime, inside in _REGIMES:
                some = [o for o in rows if o.split is split and o.is_nccl is kind and inside(o.row.bytes)]
                names = list(dict.fromkeys(name for one in some for name in one.us))
                names.sort(key=lambda name: (name != "model", name))
                found += [_score(f"latency, {word}", split, regime, name, some) for name in names]
    return found


def _score(table: str, split: Split, regime: str, name: str, rows: Sequence[PredictedRow]) -> Score:
    some = [one for one in rows if name in one.us]
    errors = [math.log(one.us[name] / one.row.time_us) for one in some]
    spreads = [one.sd[name] for one in some if name in one.sd]
    return summed(table, str(split), regime, name, errors, len({one.row.system for one in some}), spreads)


def _left_out_scores(rows: Sequence[PredictedRow]) -> list[Score]:
    """How fitted curves' intervals hold on all of their rows, each predicted from the others."""
    told = left_out_in_turn(rows)
    found = []
    for word, kind in _KINDS:
        some = [(one, us, sd) for one, us, sd in told if one.is_nccl is kind]
        errors = [math.log(us / one.row.time_us) for one, us, _ in some]
        systems = len({one.row.system for one, _, _ in some})
        if some:
            spreads = [sd for _, _, sd in some]
            found.append(summed(f"latency, {word}", LEFT_OUT, "all", "model", errors, systems, spreads))
    return found


def _ranking(rows: Sequence[PredictedRow]) -> dict[str, float]:
    """Where one machine has at least three algorithms at one size: fastest picked, regret, Kendall's tau."""
    from scipy.stats import kendalltau

    groups: dict[tuple[str, int, int, Mode], list[PredictedRow]] = defaultdict(list)
    for one in rows:
        groups[one.row.system, one.row.ranks, one.row.bytes, one.row.mode].append(one)
    picked, regret, tau, systems = [], [], [], set()
    for key, members in groups.items():
        if len({one.row.algorithm for one in members}) >= _ORDER:
            systems.add(key[0])
            best = min(one.row.time_us for one in members)
            mine = min(members, key=lambda one: one.us[PRIORS])
            picked.append(mine.row.time_us == best)
            regret.append(mine.row.time_us / best - 1)
            value = kendalltau([o.us[PRIORS] for o in members], [o.row.time_us for o in members]).statistic
            tau += [float(value)] if math.isfinite(value) else []
    if not picked:
        return {}
    return {
        "groups": float(len(picked)), "systems": float(len(systems)),
        "fastest_picked": sum(picked) / len(picked), "median_regret": statistics.median(regret),
        "mean_regret": statistics.mean(regret), "mean_tau": statistics.mean(tau) if tau else math.nan,
    }  # fmt: skip
