"""Parameters from probes: least squares on logarithms with log-normal priors, intervals, and what stays unidentified.

Degraded states are tested first: what they touch is left out, never fitted away (regimes.py).
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from collbench.contention import launches
from collbench.contention.calibration import Calibration, Fitted, write_parameters
from collbench.contention.launches import EARLY, EPILOGUE, KERNEL_ENDS, OWN_READ, READ_ENDS, STORE
from collbench.contention.observations import (
    Bench,
    Observation,
    observations,
    shared_names,
    starting_point,
)
from collbench.contention.parameter_file import MOVED, PARAMETERS, read_parameters
from collbench.contention.parameters import Parameter, Parameters, priors
from collbench.contention.regimes import Evidence, Finding, State, detect
from collbench.errors import InvalidError
from collbench.results.probes import Probe
from collbench.results.records import Fabric
from collbench.topology.graph import Topology
from collbench.topology.models import starts_early

__all__ = ["DISCREPANCY", "PARAMETERS", "Calibration", "Fitted", "calibrate", "read_parameters", "write_parameters"]

DISCREPANCY = 0.04
"""Spread of the logarithm that the model's own structure adds to what repeats show; from a study of public data."""

COMMON = 0.02
"""Spread of what the model misses alike in all times, and alike in all bandwidths: an assumption that tests check."""

_DRAWS, _SEED = 400, 7
_STEP = 0.02
_MOVES = 1e-6  # a parameter that changes no observation by this much is not seen by any
_IDENTIFIED = 0.20
_NARROWED = 0.7
_CORRELATED, _HIDDEN = 0.9, 0.7
_ONE_SIDED = 0.1
_TELLS = 0.1  # part of a change of a parameter that an observation shows, from which it tells something of it
_VALUES = (1e-3, 1e6)
_TAKEN = (
    "launch.", KERNEL_ENDS, EPILOGUE, "sync.", "efficiency.", "window.", READ_ENDS, OWN_READ, "reduce.", "nccl.",
)  # fmt: skip
"""Beginnings of names of the parameters that predictions on links take."""

_Floats = npt.NDArray[Any]

_TOUCHES: Mapping[str, Callable[[Probe], bool]] = {
    "staging through system memory": lambda p: p.name in {"bandwidth.load", "read_chain"},
    "read fan-in": lambda p: p.name == "bandwidth.load" and len(p.flows) > 1,
    "posted-write collapse": lambda p: p.name in {"bandwidth.store", "bandwidth.copy"} and len(p.flows) > 1,
    "ACS redirect": lambda p: p.name.startswith("bandwidth."),
    "downtrained link": lambda p: p.name.startswith("bandwidth."),
    "memory order": lambda _: False,
}
"""Probes that a degraded state spoils."""


def calibrate(
    probes: Sequence[Probe], topology: Topology, ranks: int, fabric: Fabric, known: Parameters | None = None
) -> Calibration:
    """Fit the model's parameters to probes of this machine.

    Raises:
        InvalidError: ranks on processors, whose time the model does not know; or no probe that says anything.
    """
    if fabric is Fabric.HOST:
        raise InvalidError("ranks on processors: the model has no parameters for them; probe GPUs")
    sensible, senseless = _sensible(probes, ranks if fabric is Fabric.SHARED_GPU else min(ranks, len(topology.gpus)))
    found = detect(Evidence(sensible, topology, fabric))
    kept, left_out = _without_degraded(sensible, found)
    left_out |= senseless
    seen = observations(kept, topology, ranks, fabric)
    start = starting_point(topology, fabric, known or priors())
    problem = _Problem(seen, topology, ranks, fabric, start)
    if not problem.names:
        reasons = ", ".join(left_out) or "no probe is ok"
        raise InvalidError(f"nothing to calibrate from: {reasons}: run collbench probe again")
    return problem.solve(found, left_out)


def _sensible(probes: Sequence[Probe], ranks: int) -> tuple[list[Probe], dict[str, int]]:
    """Without what no machine shows: ranks that are not there, and values that are mistakes of unit."""
    kept, left_out = list[Probe](), Counter[str]()
    for probe in probes:
        if any(a == b or max(a, b) >= ranks for a, b in probe.flows):
            left_out["ranks that the run does not have"] += 1
        elif probe.value and not _VALUES[0] <= probe.value <= _VALUES[1]:
            left_out[f"values outside of {_VALUES[0]:g} to {_VALUES[1]:g} us or GB/s"] += 1
        else:
            kept.append(probe)
    return kept, dict(left_out)


def _without_degraded(probes: Sequence[Probe], found: Sequence[Finding]) -> tuple[list[Probe], dict[str, int]]:
    kept, left_out = list(probes), dict[str, int]()
    for finding in found:
        if finding.state is State.PRESENT and finding.regime in _TOUCHES:
            bad = [probe for probe in kept if _TOUCHES[finding.regime](probe)]
            kept = [probe for probe in kept if probe not in bad]
            left_out[finding.regime] = len(bad)
    return kept, left_out


class _Problem:
    """Observations over the logarithms of the parameters that move any of them."""

    def __init__(
        self, seen: Sequence[Observation], topology: Topology, ranks: int, fabric: Fabric, start: Parameters
    ) -> None:
        self.seen, self.topology, self.ranks, self.fabric, self.start = seen, topology, ranks, fabric, start
        self.groups = dict(shared_names(topology, fabric))
        self.early = any(starts_early(topology.node(gpu).attributes) for gpu in topology.gpus)
        self.measured = np.log([one.value for one in seen]) if seen else np.zeros(0)
        self.spread = np.array([math.hypot(one.sd, DISCREPANCY) for one in seen])
        self.is_rate = np.array([one.label.startswith("bandwidth") for one in seen], int)
        self.known: dict[tuple[object, ...], float] = {}
        self.names: list[str] = []
        self.names = self._that_move()

    def _single(self, *words: str) -> list[str]:
        """Parameters that stand for themselves, in no group of links, by the beginnings of their names."""
        inside = {name for names in self.groups.values() for name in names}
        return [name for name in self.start.known if name.startswith(words) and name not in inside]

    def _candidates(self) -> list[str]:
        shared = self.fabric is Fabric.SHARED_GPU
        on_links = ("launch.", KERNEL_ENDS, "sync.", "efficiency.", "window.", READ_ENDS)
        words = ("shared_gpu.", OWN_READ) if shared else on_links
        single = [name for name in self._single(*words) if not name.startswith("shared_gpu.nccl")]
        return [*single, *(name for name, members in self.groups.items() if members[0] in self.start.known)]

    def unseen(self) -> list[Fitted]:
        """What predictions take on such a machine and no observation moves."""
        shared = self.fabric is Fabric.SHARED_GPU
        words = ("shared_gpu.", OWN_READ, STORE) if shared else _TAKEN
        kinds = {word for x in self.topology.links for word in (str(x.kind), f"{x.kind}{x.generation}")}
        names = [name for name in self._single(*words) if name not in self.names and (self.early or EARLY not in name)]
        return [self._unfitted(name) for name in names if _of_these(name, kinds, self.ranks)]

    def _unfitted(self, name: str) -> Fitted:
        prior, reach = self.start[name], 1.645 * self.start[name].sd
        low, high = prior.value * math.exp(-reach), prior.value * math.exp(reach)
        return Fitted(name, prior.value, low, high, prior.sd, prior.value, prior.sd, identified=False)

    def _that_move(self) -> list[str]:
        names = self._candidates()
        base = self._model(names, np.zeros(len(names)))
        moving = []
        for index, name in enumerate(names):
            both = [self._model(names, np.eye(len(names))[index] * step) for step in (0.05, -0.05)]
            if any(np.abs(one - base).max(initial=0.0) > _MOVES for one in both):
                moving.append(name)
        return moving

    def prior(self, name: str) -> Parameter:
        """Of a parameter, or of a group's first member."""
        return self.start[self.groups.get(name, (name,))[0]]

    def parameters(self, names: Sequence[str], x: _Floats, sd: _Floats | None = None, source: str = "") -> Parameters:
        """The parameters at `x`, logarithms of factors on their priors."""
        changes: dict[str, Parameter] = {}
        for index, name in enumerate(names):
            prior = self.prior(name)
            spread = prior.sd if sd is None else float(sd[index])
            changed = Parameter(prior.value * math.exp(x[index]), spread, source or prior.provenance)
            changes |= dict.fromkeys(self.groups.get(name, (name,)), changed)
        return self.start.replaced(changes)

    def _model(self, names: Sequence[str], x: _Floats) -> _Floats:
        """Logarithms of what the model says; a fluid run is made once for the parameters that it depends on."""
        bench = Bench(self.topology, self.ranks, self.parameters(names, x), self.fabric)
        moved = [(name, float(value)) for name, value in zip(names, x, strict=True) if value]
        values = []
        for number, one in enumerate(self.seen):
            key = (number, *(pair for pair in moved if pair[0].startswith(one.moved_by or "")))
            if key not in self.known:
                self.known[key] = one.model(bench)
            values.append(self.known[key])
        found: _Floats = np.log(np.array(values))
        return found

    def residuals(self, x: _Floats) -> _Floats:
        """Of the data."""
        found: _Floats = (self._model(self.names, x) - self.measured) / self.spread
        return found

    def solve(self, found: Sequence[Finding], left_out: Mapping[str, int]) -> Calibration:
        """Fit, draw, and sum up."""
        width = np.array([self.prior(name).sd for name in self.names])
        x, jacobian = self._fit(width)
        draws = self._draws(jacobian, width)
        sd = draws.std(axis=0)
        met = np.abs(self._model(self.names, x) - self.measured) <= _IDENTIFIED
        shown = np.abs(jacobian) * self.spread[:, None] > _TELLS
        fitted = [
            self._fitted(i, float(x[i]), float(sd[i]), seen=bool((met & shown[:, i]).any()) and self._two_sided(i, x))
            for i in range(len(x))
        ]
        known = [one.identified for one in fitted]
        source = f"probes of this machine: {len(self.seen)} observations"
        parameters = self.start
        for index, name in enumerate(self.names):
            told = source if known[index] else f"{self.prior(name).provenance}; {MOVED}"
            fresh = Parameter(fitted[index].value, float(sd[index]), told)
            parameters = parameters.replaced(dict.fromkeys(self.groups.get(name, (name,)), fresh))
        return Calibration(
            parameters, fitted, self._inseparable(draws, known), self._misfit(x), found, left_out, len(self.seen),
            self.unseen(),
        )  # fmt: skip

    def _fit(self, width: _Floats) -> tuple[_Floats, _Floats]:
        """Least squares, robust against outliers among the data; the priors are no data, and stay squares.

        Slopes are taken from both sides, a good step away: where two limits bind alike, to move either of them alone
        changes nothing in one direction, and a small step to one side would see no way on.
        """
        from scipy.optimize import least_squares

        def robust(x: _Floats) -> _Floats:
            r = self.residuals(x)
            soft = np.sign(r) * np.sqrt(2 * (np.sqrt(1 + r * r) - 1))  # soft_l1 of scipy, as a residual
            return np.concatenate((soft, x / width))

        def slopes(x: _Floats) -> _Floats:
            return _central(robust, x)

        start = np.zeros(len(self.names))
        x = np.asarray(least_squares(robust, start, jac=slopes, xtol=1e-4, ftol=1e-4, max_nfev=20).x)
        return x, _central(self.residuals, x)

    def _draws(self, jacobian: _Floats, width: _Floats) -> _Floats:
        """Parametric bootstrap: new data and new priors, drawn and fitted again along the tangent."""
        draw = np.random.default_rng(_SEED)
        normal = jacobian.T @ jacobian + np.diag(1 / width**2)
        alike = draw.standard_normal((_DRAWS, 2))[:, self.is_rate] * COMMON / self.spread
        noise = (draw.standard_normal((_DRAWS, jacobian.shape[0])) + alike) @ jacobian
        prior = draw.standard_normal((_DRAWS, len(width))) / width
        return np.linalg.solve(normal, (noise + prior).T).T

    def _two_sided(self, index: int, x: _Floats) -> bool:
        """Whether more of a parameter shows as well as less: what only just does not bind is a bound, not a value."""
        step = np.eye(len(x))[index] * _IDENTIFIED
        base = self._model(self.names, x)
        up, down = (float(np.abs(self._model(self.names, x + s) - base).max()) for s in (step, -step))
        return min(up, down) > _ONE_SIDED * max(up, down)

    def _fitted(self, index: int, x: float, sd: float, *, seen: bool) -> Fitted:
        """`seen`: some observation shows more of it as well as less, and is met by the fit."""
        name = self.names[index]
        prior = self.prior(name)
        value, reach = prior.value * math.exp(x), 1.645 * sd
        identified = seen and sd < _IDENTIFIED and sd < _NARROWED * prior.sd
        low, high = value * math.exp(-reach), value * math.exp(reach)
        return Fitted(name, value, low, high, sd, prior.value, prior.sd, identified)

    def _inseparable(self, draws: _Floats, known: Sequence[bool]) -> list[tuple[str, str, float]]:
        matrix = np.atleast_2d(np.asarray(np.corrcoef(draws.T)))
        return [
            (self.names[a], self.names[b], float(matrix[a, b]))
            for a, b in combinations(range(len(self.names)), 2)
            if abs(matrix[a, b]) > _CORRELATED or (abs(matrix[a, b]) > _HIDDEN and not known[a] and not known[b])
        ]

    def _misfit(self, x: _Floats) -> list[tuple[str, float, float]]:
        model = np.exp(self._model(self.names, x))
        pairs = zip(self.seen, model, strict=True)
        return [(o.label, o.value, float(m)) for o, m in pairs if abs(math.log(m / o.value)) > _IDENTIFIED]


def _central(function: Callable[[_Floats], _Floats], x: _Floats) -> _Floats:
    """Slopes of a function's values over each component of x, which are logarithms."""
    steps = np.eye(len(x)) * _STEP
    return np.stack([(function(x + step) - function(x - step)) / (2 * _STEP) for step in steps], axis=1)


def _of_these(name: str, kinds: Collection[str], ranks: int) -> bool:
    """Whether a prior counts on a machine with these kinds of links, some with their generation behind them."""
    last = name.rpartition(".")[2]
    if name.startswith(("shared_gpu.launch.", f"shared_gpu.{KERNEL_ENDS}.", launches.FENCE_BEHIND_DATA)):
        launch, fence = launches.launch_name(ranks), launches.fence_name(ranks, behind_data=True)
        return name in {launch, launches.early_name(launch), launches.ends_name(launch), fence}
    if name.startswith("efficiency.") and last[-1:].isdigit():
        return False  # of one class of links: the one without says as much
    if "nvlink" in last:
        return (last if last[-1].isdigit() else "nvlink") in kinds
    if last == "pcie" or name.startswith("efficiency."):
        return "pcie" in kinds
    return True
