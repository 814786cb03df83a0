"""What a detector of a degraded state looks at, and what it answers."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from collbench.errors import CollbenchError
from collbench.results.probes import PROBES, Probe, read_probes
from collbench.results.records import Fabric, Samples
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from collbench.results.store import RunFolder

__all__ = ["Evidence", "Finding", "Regime", "State", "told"]


class State(StrEnum):
    """Whether a degraded state was seen."""

    PRESENT = "present"
    ABSENT = "absent"
    UNTESTED = "untested"


@dataclass(frozen=True, slots=True)
class Regime:
    """A degraded state: it is there where the `test` gives less than `threshold` (more, with `above`).

    `command` makes the evidence that the test needs.
    """

    name: str
    test: str
    threshold: float
    remedy: str
    above: bool = False
    command: str = "collbench probe"

    @property
    def flag(self) -> str:
        """The threshold in words: `ratio below 0.5`."""
        if not self.above:
            return f"ratio below {self.threshold:g}"
        return f"above {self.threshold:g}" if self.threshold else "any"


@dataclass(frozen=True, slots=True)
class Finding:
    """One detector's answer: whether the state is there, the `value` of its test, and the `evidence` in words."""

    of: Regime
    state: State
    evidence: str = ""
    value: float | None = None

    @property
    def regime(self) -> str:
        """Name of the state."""
        return self.of.name

    @property
    def threshold(self) -> float:
        """Of the state's test."""
        return self.of.threshold

    @property
    def remedy(self) -> str:
        """What to do; empty unless the state is there."""
        return self.of.remedy if self.state is State.PRESENT else ""

    def row(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "regime": self.regime, "state": str(self.state), "test": self.of.test, "value": self.value,
            "threshold": self.threshold, "evidence": self.evidence, "remedy": self.remedy,
        }  # fmt: skip

    @property
    def line(self) -> str:
        """What was tested, against which threshold, what was seen, and what to do about it."""
        if self.value is None:
            return f"{self.of.test} ({self.of.flag}): {self.evidence}"
        text = f"{self.evidence} ({self.of.test}: {self.value:.2g}; threshold: {self.of.flag})"
        return f"{text}. {self.remedy[0].upper()}{self.remedy[1:]}" if self.remedy else text


@dataclass(frozen=True, slots=True)
class Evidence:
    """What detectors look at: probes, the topology with rank i on `topology.gpus[i]`, and what a sweep kept.

    `texts` are the evidence of cells by any name, as a run folder keeps them; `samples` those of a run; `problems`
    says what of a run could not be read, `lost` what of its texts is missing.
    """

    probes: Sequence[Probe] = ()
    topology: Topology = field(default_factory=lambda: Topology((), ()))
    fabric: Fabric = Fabric.PCIE
    texts: Mapping[Any, Mapping[str, str]] = field(default_factory=dict)
    samples: Sequence[Samples] = ()
    problems: Sequence[str] = ()
    lost: str = ""

    @classmethod
    def of_run(cls, folder: "RunFolder") -> "Evidence":
        """Everything that a run folder holds; what is missing or damaged leaves its tests untested."""
        problems: list[str] = []
        run = folder.run

        def attempt(read: "Callable[[], Any]", empty: Any) -> Any:  # noqa: ANN401 - whatever the reader gives
            try:
                return read()
            except (CollbenchError, KeyError, TypeError, ValueError) as error:
                problems.append(str(error))
                return empty

        probes, damaged = attempt(lambda: read_probes(folder.path), ([], [])) if _has(folder) else ([], [])
        texts: Mapping[Any, Mapping[str, str]] = {}
        machine = attempt(lambda: Machine.from_dict(run.machine), None)
        topology = machine.topology if machine is not None else Topology((), ())
        samples, lost = attempt(folder.samples, []), folder.lost_evidence()
        with contextlib.suppress(CollbenchError):  # which `lost` tells
            texts = folder.evidence()
        told = dict.fromkeys([*damaged, *problems, *([lost] if lost else [])])
        return cls(probes, topology, run.fabric, texts, samples, list(told), lost)

    def value(self, name: str, pattern: str) -> float | None:
        """Value of an ok probe, None where there is none."""
        return next((p.value for p in self.probes if (p.name, p.pattern) == (name, pattern) and p.value), None)

    def solo(self, mechanism: str) -> dict[tuple[int, int], float]:
        """GB/s of single flows."""
        return {
            (p.src, p.dst): p.value
            for p in self.probes
            if p.name == f"bandwidth.{mechanism}" and p.pattern == "solo" and p.value
        }


def _has(folder: "RunFolder") -> bool:
    return (folder.path / PROBES).exists()


def told(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """Heads and texts for people: each state that was tested, then those that were not, by the reason."""
    found = [one for one in findings if one.state is not State.UNTESTED]
    lines = [(str(one.state), f"{one.regime}: {one.line}") for one in sorted(found, key=lambda one: one.state)[::-1]]
    untested: dict[str, list[str]] = {}
    for one in findings:
        if one.state is State.UNTESTED:
            untested.setdefault(one.evidence, []).append(one.regime)
    return lines + [("untested", f"{', '.join(names)}: {why}") for why, names in untested.items()]
