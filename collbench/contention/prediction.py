"""A prediction: terms that add up, what of it rests on priors, and how far each parameter may move it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collbench.contention.parameters import Parameter
from collbench.contention.wires import Latency

__all__ = [
    "BETWEEN_KERNELS", "BETWEEN_MACHINES", "DISCREPANCY", "TERMS", "Bottleneck", "Part", "Prediction", "Terms",
    "own_spread",
]  # fmt: skip

TERMS = ("launch", "sync", "path", "port", "queueing", "efficiency", "window", "reduce", "protocol")

DISCREPANCY = 0.04
"""Spread of the logarithm that the model's own structure adds (assumption, as the study of public data proposes)."""

BETWEEN_MACHINES = 0.40
"""Spread of the logarithm by which machines and kernels differ that nobody has measured, beside what priors say.

It counts in proportion to the share of priors. With it, nominal 90 % intervals hold 90 % of 235 published times, each
of 16 systems weighing the same: `collbench validate` prints it, a test compares. Without one system, on which the
model is off by a factor of two to twelve, it would be 0.32.
"""

BETWEEN_KERNELS = 0.40
"""Spread of the logarithm between how long kernels take for the steps that the model counts, where probes have told
what one step takes.

It counts in proportion to launch, flags and flights that do not rest on priors. From one run of eight ranks that share
an H200, calibrated by probes: with it, 90 % of 48 captured chains of our kernels lie in nominal 90 % intervals, without
67 %. Checked on two H200 joined by NVLink: 80 % of 56, without 50 % (docs/measurements/model.md).
"""

_STEPS = ("launch", "sync", "path")
_Z90 = 1.645
_LATENCY_SD = 0.2


@dataclass(frozen=True, slots=True)
class Part:
    """What one parameter contributes: `us` of the time, and the spread `sd` of the parameter's logarithm."""

    us: float
    sd: float


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The link that holds the last flow back, how many flows share it, and what it carries meanwhile."""

    link: str
    flows: int
    gbps: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted time of one call. `terms_us` holds every name of `TERMS` in order and sums to `total_us`.

    `parts` splits the same time by parameter (`wire ...`: whatever sets the rate of the link that binds; `latency`: all
    flights). `prior_share` is the part of the time that rests on priors, `sd` the standard deviation of the time's
    logarithm.
    """

    total_us: float
    terms_us: Mapping[str, float]
    bottleneck: Bottleneck | None
    prior_share: float
    sd: float
    notes: tuple[str, ...] = ()
    parts: Mapping[str, Part] = field(default_factory=dict)

    @property
    def interval_us(self) -> tuple[float, float]:
        """Nominal 90 % interval."""
        return self.total_us * math.exp(-_Z90 * self.sd), self.total_us * math.exp(_Z90 * self.sd)

    def row(self) -> dict[str, Any]:
        """The model's fields of a row of `collbench predict --json`."""
        b = self.bottleneck
        return {
            "total_us": self.total_us, "terms_us": dict(self.terms_us),
            "bottleneck": {"link": b.link, "flows": b.flows, "gbps": b.gbps} if b else None,
            "prior_share": self.prior_share,
        }  # fmt: skip


class Terms:
    """Collects terms, what of them rests on priors, and the same time by parameter."""

    def __init__(self) -> None:
        self.us = dict.fromkeys(TERMS, 0.0)
        self.prior_us = 0.0
        self.parts: dict[str, Part] = {}

    @property
    def total_us(self) -> float:
        """So far."""
        return math.fsum(self.us.values())

    def add(self, term: str, us: float, prior_us: float) -> None:
        """Time of a term, and how much of it rests on priors."""
        self.us[term] += us
        self.prior_us += prior_us

    def use(self, term: str, us: float, name: str, parameter: Parameter) -> None:
        """Time that is proportional to a parameter, or to what it is the rate of."""
        self.add(term, us, us if parameter.is_prior else 0.0)
        self.vary(name, us, parameter.sd)

    def fly(self, term: str, flight: Latency) -> None:
        """A flight through wires."""
        self.add(term, flight.us, flight.prior_us)
        self.vary("latency", flight.us, _LATENCY_SD)

    def vary(self, name: str, us: float, sd: float) -> None:
        """Count time to a parameter; what one parameter does at several places, it does to all of them alike."""
        before = self.parts.get(name)
        self.parts[name] = Part(us + before.us, max(sd, before.sd)) if before else Part(us, sd)

    def result(self, bottleneck: Bottleneck | None, notes: tuple[str, ...]) -> Prediction:
        """Everything that was collected."""
        total = self.total_us
        share = min(1.0, self.prior_us / total) if total else 0.0
        if not total:
            return Prediction(total, self.us, bottleneck, share, 0.0, notes, self.parts)
        steps = math.fsum(self.us[term] for term in _STEPS) / total
        sd = math.hypot(
            _spread(self.parts, total), BETWEEN_MACHINES * share, BETWEEN_KERNELS * steps * (1 - share)
        )  # fmt: skip
        return Prediction(total, self.us, bottleneck, share, sd, notes, self.parts)


def own_spread(prediction: Prediction) -> float:
    """Spread of the time's logarithm by its parameters and the model's structure, on machines like the sources'."""
    return _spread(prediction.parts, prediction.total_us) if prediction.total_us else 0.0


def _spread(parts: Mapping[str, Part], total_us: float) -> float:
    return math.hypot(DISCREPANCY, *(part.us * part.sd / total_us for part in parts.values()))
