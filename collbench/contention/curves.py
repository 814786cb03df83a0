"""Published curves against the model: predicted rows, and one fit per system to the rows that are known of it.

A prediction is a sum of parts, each proportional to one parameter (prediction.py), and each parameter has a log-normal
prior. So a system's known rows, those of all its curves together, move its parameters as far as they say and the priors
allow: small sizes alone cannot throw the rate of the wires, and a protocol that was not fitted shares what it has in
common with one that was. Each curve has a factor of its own beside.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from collbench.contention.prediction import DISCREPANCY, Part, Prediction
from collbench.contention.published import SYMMETRIC, Latency
from collbench.contention.splits import Split, is_calibration, size_split
from collbench.results.records import Mode
from collbench.topology.graph import Topology

__all__ = ["CURVE_SD", "SCATTER", "Fit", "PredictedRow", "assign", "fit", "left_out_in_turn", "straight_line"]

CURVE_SD = 0.10
"""Spread of the logarithm of a curve's own factor: an assumption."""

SCATTER = 0.05
"""Spread of the logarithm of published times about a curve, before anything of any system is known.

How far its rows really scatter is estimated with the fit, and what was thought before counts as much as one row. It is
this only until other systems have been fitted: then it is what their curves show, NCCL's and other kernels' apart. A
few rows of one system follow the model closely by chance, and say too little of what lies between them. Chosen by
leaving out in-sample rows in turn, among rules that change the mean error of NCCL's rows between 10.7 and 11.5 %: with
5 % for all of them 78 % of those rows lie in 90 % intervals, with the others' scatter 96 %.
"""

_PASSES = 4
_SCATTERS = (0.02, 0.30)
_LEAST_SD = 0.02  # a parameter that is sure to the last digit cannot be moved, and a fit needs some room
_Floats = npt.NDArray[Any]
Curve = tuple[str, int, str, str, Mode]


@dataclass(slots=True)
class PredictedRow:
    """A row of a table with what models say of it: `us` by model's name, and the spread of the logarithm of ours."""

    row: Latency
    topology: Topology
    prior: Prediction
    split: Split = Split.SYSTEMS
    us: dict[str, float] = field(default_factory=dict)
    sd: dict[str, float] = field(default_factory=dict)

    @property
    def is_nccl(self) -> bool:
        """Whether it is NCCL's."""
        return self.row.algorithm in {"nccl", SYMMETRIC}


@dataclass(frozen=True, slots=True)
class Fit:
    """Logarithms of factors on parameters and on curves of one system, with their covariance."""

    names: Sequence[str]
    curves: Sequence[Curve]
    x: _Floats
    covariance: _Floats
    scatter: float
    algorithms: frozenset[str]

    def told(self, row: PredictedRow) -> tuple[float, float]:
        """Microseconds, and the spread of their logarithm; parameters that nothing was fitted to keep their priors."""
        factor = dict(zip(self.names, self.x, strict=False))
        moved = {name: part.us * math.exp(factor.get(name, 0.0)) for name, part in row.prior.parts.items()}
        total = math.fsum(moved.values())
        slope = np.zeros(self.x.size)
        for index, name in enumerate(self.names):
            slope[index] = moved.get(name, 0.0) / total
        others = [moved[name] / total * part.sd for name, part in row.prior.parts.items() if name not in factor]
        if row.row.curve in self.curves:
            index = len(self.names) + self.curves.index(row.row.curve)
            total *= math.exp(self.x[index])
            slope[index] = 1.0
        else:
            others.append(CURVE_SD)
        own = float(slope @ self.covariance @ slope)
        return total, math.hypot(math.sqrt(max(own, 0.0)), self.scatter, DISCREPANCY, *others)


def assign(rows: Sequence[PredictedRow]) -> Mapping[str, Fit]:
    """Give each row its split, and fit each system that has curves to be fitted to."""
    curves: dict[Curve, list[PredictedRow]] = defaultdict(list)
    for one in rows:
        curves[one.row.curve].append(one)
    known: dict[str, list[PredictedRow]] = defaultdict(list)
    for members in curves.values():
        members.sort(key=lambda one: one.row.bytes)
        if is_calibration([one.row for one in members]):
            for index, one in enumerate(members):
                one.split = size_split(index, len(members))
                if one.split is Split.IN_SAMPLE:
                    known[one.row.system].append(one)
            _line_of(members)
    for one in rows:
        if one.split is Split.SYSTEMS and one.row.system in known:
            one.split = Split.ALGORITHMS
    expected = _scatter_of_others(known)
    return {system: fit(some, expected[system]) for system, some in known.items()}


def left_out_in_turn(rows: Sequence[PredictedRow]) -> list[tuple[PredictedRow, float, float]]:
    """Every row of every fitted curve, as a fit to all others of its system tells it: microseconds and spread.

    It checks intervals on more rows than those that were held out; `assign` must have been called.
    """
    known: dict[str, list[PredictedRow]] = defaultdict(list)
    for one in rows:
        if one.split in {Split.IN_SAMPLE, Split.SIZES, Split.EXTRAPOLATED}:
            known[one.row.system].append(one)
    expected = _scatter_of_others(known)
    found = []
    for system, some in known.items():
        for one in some if len(some) > 1 else ():
            us, sd = fit([other for other in some if other is not one], expected[system]).told(one)
            found.append((one, us, sd))
    return found


def _scatter_of_others(known: Mapping[str, Sequence[PredictedRow]]) -> dict[str, float]:
    """For each system the root mean square of what others' curves of its kind scatter, NCCL's or other kernels'."""
    alone = {system: fit(some).scatter for system, some in known.items()}
    found = {}
    for system, some in known.items():
        kind = some[0].is_nccl
        others = [alone[name] ** 2 for name, rows in known.items() if name != system and rows[0].is_nccl is kind]
        found[system] = math.sqrt(math.fsum(others) / len(others)) if others else SCATTER
    return found


def fit(known: Sequence[PredictedRow], expected: float = SCATTER) -> Fit:
    """Least squares on the logarithm of times, robust against outliers, with the priors of all parameters.

    `expected` is how far rows are thought to scatter before any is seen; it counts as one row.
    """
    names = list(dict.fromkeys(name for one in known for name in one.prior.parts))
    curves = list(dict.fromkeys(one.row.curve for one in known))
    parts = np.array([[one.prior.parts.get(name, Part(0.0, 0.0)).us for name in names] for one in known])
    mine = np.array([[float(one.row.curve == curve) for curve in curves] for one in known])
    sd = np.array([max(one.prior.parts[name].sd for one in known if name in one.prior.parts) for name in names])
    width = np.concatenate((np.maximum(sd, _LEAST_SD), np.full(len(curves), CURVE_SD)))
    problem = _Problem(parts, mine, np.log([one.row.time_us for one in known]), width, expected)
    scatter, x, covariance = expected, np.zeros(width.size), np.diag(width**2)
    for _ in range(_PASSES):
        x, covariance = problem.solve(x, scatter)
        scatter = problem.scatter(x, covariance, scatter)
    return Fit(names, curves, x, covariance, scatter, frozenset(one.row.algorithm for one in known))


@dataclass(frozen=True, slots=True)
class _Problem:
    """Rows x parameters in us, rows x curves, logarithms of times, widths of the priors, and the scatter expected."""

    parts: _Floats
    mine: _Floats
    times: _Floats
    width: _Floats
    expected: float

    def misses(self, x: _Floats) -> _Floats:
        """Logarithm of model over measured."""
        count = self.parts.shape[1]
        found: _Floats = np.log(self.parts @ np.exp(x[:count])) + self.mine @ x[count:] - self.times
        return found

    def _slope(self, x: _Floats) -> _Floats:
        moved = self.parts * np.exp(x[: self.parts.shape[1]])
        return np.concatenate((moved / moved.sum(axis=1, keepdims=True), self.mine), axis=1)

    def solve(self, start: _Floats, scatter: float) -> tuple[_Floats, _Floats]:
        """Where the fit ends, and its covariance."""
        from scipy.optimize import least_squares

        def residuals(x: _Floats) -> _Floats:
            found = self.misses(x) / scatter
            soft = np.sign(found) * np.sqrt(2 * (np.sqrt(1 + found * found) - 1))  # soft_l1 of scipy, as a residual
            return np.concatenate((soft, x / self.width))

        x = np.asarray(least_squares(residuals, start).x)
        slope = self._slope(x) / scatter
        return x, np.linalg.inv(slope.T @ slope + np.diag(1 / self.width**2))

    def scatter(self, x: _Floats, covariance: _Floats, before: float) -> float:
        """How far rows lie from the fit, for as many of them as it did not use up."""
        slope = self._slope(x) / before
        free = max(len(self.times) - float(np.trace(covariance @ slope.T @ slope)), 0.0)
        found = math.sqrt((self.expected**2 + float(np.square(self.misses(x)).sum())) / (1 + free))
        return min(max(found, _SCATTERS[0]), _SCATTERS[1])


def _line_of(members: Sequence[PredictedRow]) -> None:
    line = straight_line([one.row for one in members if one.split is Split.IN_SAMPLE])
    for one in members if line else ():
        assert line is not None  # noqa: S101 - the loop is empty then
        one.us["a + b*bytes"] = max(line[0] + line[1] * one.row.bytes, 1e-3)


def straight_line(known: Sequence[Latency]) -> tuple[float, float] | None:
    """A + b * bytes by least squares of relative errors; None with fewer than two sizes."""
    size, time = (np.array(v, float) for v in zip(*[(row.bytes, row.time_us) for row in known], strict=True))
    if len(set(size)) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    matrix = np.stack([1 / time, size / time], axis=1)
    a, b = np.linalg.lstsq(matrix, np.ones(len(size)), rcond=None)[0]
    return float(a), float(b)
