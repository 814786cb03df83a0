"""Verdicts, the rules that lead to them, and the record of one comparison with every number used."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from collbench.errors import UsageError
from collbench.results.records import SCHEMA

__all__ = ["NEVER_ALLOWED", "CellVerdict", "GateMode", "Outcome", "Rules", "Verdict"]

MIN_LOOK = 5
"""Fewest blocks of a first look: with five, half of a slow-down of 12 % is missed, with fewer nothing is found."""

NEVER_ALLOWED = frozenset({"fabric", "ranks"})
"""Hard keys whose difference no option excuses: times on two fabrics are different quantities."""


class Verdict(StrEnum):
    """Of one cell, and of a comparison as a whole."""

    REGRESSED = "REGRESSED"
    IMPROVED = "IMPROVED"
    OK = "OK"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


class GateMode(StrEnum):
    """Both sides measured now in pairs, or compared with what was measured on another occasion."""

    PAIRED = "paired"
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a verdict asks for.

    `alpha` is the chance that an unchanged pair of sides gets any false verdict, slower or faster, over all cells and
    looks. A cell counts as slower only if its familywise p (Holm) is below the level of its look, and the median change
    exceeds both `min_effect` (a fraction) and `min_abs_us` (microseconds per call). Where a side's own neighbouring
    launches have a standard deviation (of the log) above `max_noise`, no cell is OK, and it is slower or faster only
    if the near end of its interval lies beyond the largest difference between any two launches of one side. `looks`
    are numbers of blocks. `controls` are patterns of cells that the change cannot touch; `allow_mismatch` names hard
    keys that may differ. `quantile` of a launch's iterations is its value where both sides are launched now: below the
    median it sees less of other load, and less of a tail that became slower.

    Raises:
        UsageError: a value that makes no sense.
    """

    alpha: float = 0.05
    min_effect: float = 0.03
    min_abs_us: float = 0.3
    max_noise: float = 0.10
    looks: tuple[int, ...] = (8, 12, 16)
    controls: tuple[str, ...] = ()
    allow_mismatch: tuple[str, ...] = ()
    quantile: float = 0.5

    def __post_init__(self) -> None:
        bounds = {
            "--alpha": (self.alpha, 0.0, 0.5), "--min-effect": (self.min_effect, 0.0, 1.0),
            "--max-noise": (self.max_noise, 0.0, 1.0), "--quantile": (self.quantile, 0.0, 1.0),
        }  # fmt: skip
        for name, (value, low, high) in bounds.items():
            if not low < value < high:
                raise UsageError(f"{name} {value}: expected a number above {low:g} and below {high:g}")
        if not 0 <= self.min_abs_us < float("inf"):
            raise UsageError(f"--min-abs {self.min_abs_us}: expected microseconds, 0 or more")
        if not self.looks or self.looks[0] < MIN_LOOK or list(self.looks) != sorted(set(self.looks)):
            raise UsageError(f"--blocks {','.join(map(str, self.looks))}: expected rising numbers from {MIN_LOOK}")
        forbidden = NEVER_ALLOWED & set(self.allow_mismatch)
        if forbidden:
            raise UsageError(f"--allow-mismatch {min(forbidden)}: such times are never comparable")

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """One cell's verdict and what it rests on; numbers are None where there was nothing to compute.

    Times are medians over launches in microseconds per call. `ratio` is current / base (geometric mean over blocks)
    with a 95 % interval `low`, `high`; `median_ratio` their median. `p_slower` and `p_faster` are one-sided and of this
    cell alone, `p_holm` the smaller one after Holm over all cells, `level` what it had to stay below. `margin` is the
    smallest relative change that counts, `noise` the A/A standard deviation of the log. `look` is the number of blocks
    at which it was decided, 0 if it was not. `base_us` and `current_us` hold the launches' medians.
    """

    cell_id: str
    verdict: Verdict
    reason: str = ""
    base_median_us: float | None = None
    current_median_us: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    median_ratio: float | None = None
    p_slower: float | None = None
    p_faster: float | None = None
    p_holm: float | None = None
    level: float | None = None
    margin: float | None = None
    noise: float | None = None
    look: int = 0
    control: bool = False
    base_us: tuple[float, ...] = ()
    current_us: tuple[float, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {
            "verdict": str(self.verdict), "base_us": list(self.base_us), "current_us": list(self.current_us),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """A comparison: verdicts in the order of the base's plan, and what was found before any time was looked at.

    `faults` make it invalid, one sentence each. `notes` are to be read beside the verdicts. `shift` is the common ratio
    if more than half of the cells moved in one direction together. `not_compared` holds (cell_id, reason) of cells that
    neither side runs. `record` keeps how the launches were made: sides, seed, order.
    """

    mode: GateMode
    rules: Rules
    cells: tuple[CellVerdict, ...]
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_compared: tuple[tuple[str, str], ...] = ()
    shift: float | None = None
    blocks: int = 0
    record: Mapping[str, Any] = field(default_factory=dict)

    def count(self, verdict: Verdict) -> int:
        """Cells with this verdict, controls left out."""
        return sum(cell.verdict is verdict for cell in self.cells if not cell.control)

    @property
    def verdict(self) -> Verdict:
        """Of the whole: INVALID before REGRESSED before INCONCLUSIVE before IMPROVED before OK."""
        if self.faults or not self.cells:
            return Verdict.INVALID
        order = (Verdict.INVALID, Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED)
        return next((verdict for verdict in order if self.count(verdict)), Verdict.OK)

    @property
    def undecided(self) -> bool:
        """More blocks could still change something."""
        return not self.faults and any(cell.verdict is Verdict.INCONCLUSIVE for cell in self.cells)

    def exit_code(self, *, strict: bool = False) -> int:
        """0 no regression, 1 regression, 3 invalid, 4 inconclusive under `strict` (docs/design.md section 4)."""
        worst = self.verdict
        if worst is Verdict.INVALID:
            return 3
        if worst is Verdict.REGRESSED:
            return 1
        return 4 if strict and worst is Verdict.INCONCLUSIVE else 0

    def as_dict(self) -> dict[str, Any]:
        """The object of `--json`: `kind` = `gate`."""
        counts = {str(verdict): self.count(verdict) for verdict in Verdict}
        return {
            "schema": SCHEMA, "kind": "gate", "mode": str(self.mode), "verdict": str(self.verdict), "counts": counts,
            "blocks": self.blocks, "rules": self.rules.as_dict(), "faults": list(self.faults),
            "notes": list(self.notes), "shift": self.shift,
            "not_compared": [{"cell_id": cell_id, "reason": reason} for cell_id, reason in self.not_compared],
            "record": dict(self.record), "rows": [cell.as_dict() for cell in self.cells],
        }  # fmt: skip
