"""From two sides to verdicts, in order: validity, fingerprint, controls, noise, each cell, all cells together."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.gate import statistics
from collbench.gate.sides import Side
from collbench.gate.validity import Sorted, examine, fingerprint_notes, matches
from collbench.gate.verdicts import CellVerdict, GateMode, Outcome, Rules, Verdict
from collbench.wording import counted

__all__ = ["judge_paired", "judge_stored"]

Array = NDArray[np.float64]

LEAST_SESSIONS = 5
"""Unchanged runs on different occasions that a between-session spread must rest on."""

_LEAST_SHIFTED = 4
"""Below so many cells a common movement is not told from a few single ones."""

_LEAST_STORED_LAUNCHES = 5


@dataclass(frozen=True, slots=True)
class _Measured:
    """The comparable cells of one family: names, launch medians of both sides, noise, margins.

    `apart` is the largest log ratio of any two launches of one side: what noise was seen to do.
    """

    cell_ids: tuple[str, ...]
    base_us: tuple[Array, ...]
    current_us: tuple[Array, ...]
    medians_us: tuple[Array, Array]
    noise: Array
    apart: Array
    margin: Array


def judge_paired(
    base: Side,
    current: Side,
    rules: Rules,
    record: Mapping[str, Any] | None = None,
    *,
    early: bool = False,
    settled: Mapping[str, CellVerdict] | None = None,
) -> Outcome:
    """Judge launches made in pairs: launch k of one side belongs to launch k of the other.

    Looks that the launches reach are taken in turn; a verdict that was reached at one stands, and the cell is not
    tested again. `settled` holds such cells of earlier looks that the sides no longer have, because they were not
    measured further. With fewer launches than the first look there is no verdict, unless `early`, which then checks
    validity alone.
    """
    found = examine(base, current, rules, GateMode.PAIRED)
    blocks = min(base.launches, current.launches)
    looks = [look for look in rules.looks if look <= blocks]
    faults = list(found.faults)
    if not looks and not early:
        faults.append(f"{blocks} of at least {rules.looks[0]} pairs of launches were measured")
    outcome = _Frame(GateMode.PAIRED, rules, found, base, current, record or {}, settled or {})
    if faults or found.cell_faults or not looks:
        return outcome.invalid(tuple(faults), blocks) if faults or found.cell_faults else outcome.close({}, (), blocks)
    controls, family = _split(found.compared, rules)
    moved = outcome.paired(controls, looks[-1:], control=True)
    verdicts = outcome.paired(family, looks)
    return outcome.close(verdicts | moved, _control_faults(moved), looks[-1])


def judge_stored(base: Side, current: Side, rules: Rules, record: Mapping[str, Any] | None = None) -> Outcome:
    """Judge two runs of different occasions. Without the spread between occasions every cell is inconclusive."""
    found = examine(base, current, rules, GateMode.STORED)
    sides = {
        "runs": [str(side.origin.get("run_id", "")) for side in (base, current)],
        "launches": [base.launches, current.launches],
    }
    outcome = _Frame(GateMode.STORED, rules, found, base, current, {**sides, **(record or {})})
    launches = min(base.launches, current.launches)
    if found.faults or found.cell_faults:
        return outcome.invalid(found.faults, launches)
    why = ""
    if base.spread is None:
        why = "no between_session_sd in the base: collbench calibrate-gate learns it from 5 unchanged runs"
    elif base.spread.sessions < LEAST_SESSIONS:
        runs = counted(base.spread.sessions, "run")
        why = f"between_session_sd rests on {runs}: at least {LEAST_SESSIONS} are needed"
    elif launches < _LEAST_STORED_LAUNCHES:
        many = counted(launches, "launch", "es")
        why = f"{many}: at least {_LEAST_STORED_LAUNCHES} on both sides are needed (--launches)"
    controls, family = _split(found.compared, rules)
    moved = outcome.stored(controls, why, control=True)
    verdicts = outcome.stored(family, why)
    return outcome.close(verdicts | moved, () if why else _control_faults(moved), launches)


def _split(cell_ids: Sequence[str], rules: Rules) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Control cells, and the rest."""
    control = tuple(c for c in cell_ids if any(matches(c, pattern) for pattern in rules.controls))
    return control, tuple(c for c in cell_ids if c not in set(control))


def _control_faults(moved: Mapping[str, CellVerdict]) -> tuple[str, ...]:
    return tuple(
        f"control cell {cell.cell_id} moved by {_percent(cell.median_ratio or 1.0)}: the machine changed, not the code"
        for cell in moved.values()
        if cell.verdict in {Verdict.REGRESSED, Verdict.IMPROVED}
    )


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"


@dataclass(frozen=True, slots=True)
class _Frame:
    """What all parts of one comparison share."""

    mode: GateMode
    rules: Rules
    found: Sorted
    base: Side
    current: Side
    record: Mapping[str, Any]
    settled: Mapping[str, CellVerdict] = field(default_factory=dict)

    def invalid(self, faults: tuple[str, ...], blocks: int) -> Outcome:
        """No verdict on any cell; those at fault say why."""
        cells = {
            c: CellVerdict(c, Verdict.INVALID, self.found.cell_faults.get(c, "no verdict: the comparison is invalid"))
            for c in self.order()
        }
        told = [f"{c}: {why}" for c, why in self.found.cell_faults.items()]
        return self.outcome(cells, (*faults, *told), blocks, None)

    def close(self, verdicts: Mapping[str, CellVerdict], faults: tuple[str, ...], blocks: int) -> Outcome:
        """Put all cells together; a control that moved leaves the numbers and takes the verdicts away."""
        cells = {**self.settled, **verdicts}
        for cell_id, reason in self.found.broken.items():
            cells[cell_id] = CellVerdict(cell_id, Verdict.REGRESSED, reason)
        for cell_id, reason in self.found.repaired.items():
            cells[cell_id] = CellVerdict(cell_id, Verdict.IMPROVED, reason)
        shift = _shift([*self.settled.values(), *verdicts.values()])
        if faults:
            cells = {c: replace(v, verdict=Verdict.INVALID, reason=faults[0]) for c, v in cells.items()}
        return self.outcome(cells, faults, blocks, shift)

    def order(self) -> list[str]:
        """All cells but those that are not compared, in the order of the plans; settled ones come first."""
        ids = dict.fromkeys([*self.settled, *self.base.cells, *self.current.cells])
        return [c for c in ids if c not in self.found.not_compared]

    def outcome(
        self, cells: Mapping[str, CellVerdict], faults: tuple[str, ...], blocks: int, shift: float | None
    ) -> Outcome:
        """The record."""
        notes = list(fingerprint_notes(self.base, self.current, self.rules))
        if self.mode is GateMode.STORED and self.base.spread is not None and self.base.spread.caution:
            notes.append(self.base.spread.caution)
        notes += [
            f"control cell {cell.cell_id} is inconclusive: whether the machine stayed as it was is not known"
            for cell in cells.values()
            if cell.control and cell.verdict is Verdict.INCONCLUSIVE
        ]
        if shift is not None:
            notes.insert(
                0,
                f"machine-wide shift: more than half of the cells moved together, by about {_percent(shift)}; look at "
                "clocks, power, drivers and other load before the code",
            )
        return Outcome(
            self.mode, self.rules, tuple(cells[c] for c in self.order() if c in cells), faults, tuple(notes),
            tuple(self.found.not_compared.items()), shift, blocks, self.record,
        )  # fmt: skip

    def measured(self, cell_ids: tuple[str, ...], most: int | None = None) -> _Measured:
        """Launch medians of some cells, the first `most` of them, with noise and margin."""
        base = tuple(np.asarray(self.base.cells[c].medians_us[:most]) for c in cell_ids)
        current = tuple(np.asarray(self.current.cells[c].medians_us[:most]) for c in cell_ids)
        noise = np.maximum(_aa(base), _aa(current))
        middle = _medians(base), _medians(current)
        margin = statistics.margins(*middle, self.rules.min_effect, self.rules.min_abs_us)
        return _Measured(cell_ids, base, current, middle, noise, np.maximum(_apart(base), _apart(current)), margin)

    def paired(
        self, cell_ids: tuple[str, ...], looks: Sequence[int], *, control: bool = False
    ) -> dict[str, CellVerdict]:
        """Verdicts of one family of cells after the looks taken so far.

        The family keeps its size when some of its cells are settled: Holm counts them with p = 1.
        """
        levels = dict(zip(self.rules.looks, statistics.spend(self.rules.looks, self.rules.alpha / 2), strict=True))
        family = len(cell_ids) + (0 if control else len(self.settled))
        found: dict[str, CellVerdict] = {}
        still = cell_ids
        for look in looks:
            if not still:
                break
            data = self.measured(still, look)
            ratios = np.log(np.stack(data.current_us)) - np.log(np.stack(data.base_us))
            tests = statistics.within_pairs(ratios)
            found |= self._verdicts(data, tests, levels[look], look, family - len(still), control=control)
            still = tuple(c for c in still if found[c].verdict is Verdict.INCONCLUSIVE)
        return found

    def stored(self, cell_ids: tuple[str, ...], why: str, *, control: bool = False) -> dict[str, CellVerdict]:
        """Verdicts of one family against another occasion; `why` says what forbids any."""
        if not cell_ids:
            return {}
        data, spread, level = self.measured(cell_ids), self.base.spread, self.rules.alpha / 2
        sd, sessions = (spread.sd, spread.sessions) if spread is not None and not why else (1.0, 2)
        before, now = ([np.log(one) for one in side] for side in (data.base_us, data.current_us))
        tests = statistics.two_sessions(before, now, sd, sessions)
        found = self._verdicts(data, tests, level, 0, 0, control=control)
        if not why:
            return found
        return {
            c: CellVerdict(
                c, Verdict.INCONCLUSIVE, why, v.base_median_us, v.current_median_us, median_ratio=v.median_ratio,
                control=control, base_us=v.base_us, current_us=v.current_us,
            )
            for c, v in found.items()
        }  # fmt: skip

    def _verdicts(
        self, data: _Measured, tests: statistics.Tests, level: float, look: int, settled: int, *, control: bool
    ) -> dict[str, CellVerdict]:
        slower, faster = statistics.holm(tests.p_slower, settled), statistics.holm(tests.p_faster, settled)
        found = {}
        for i, cell_id in enumerate(data.cell_ids):
            verdict, reason = self._decide(data, tests, i, level, float(slower[i]), float(faster[i]))
            ratio, low, high, middle = (math.exp(v[i]) for v in (tests.mean, tests.low, tests.high, tests.median))
            found[cell_id] = CellVerdict(
                cell_id, verdict, reason, float(data.medians_us[0][i]), float(data.medians_us[1][i]), ratio, low, high,
                middle, float(tests.p_slower[i]), float(tests.p_faster[i]), float(min(slower[i], faster[i])), level,
                math.expm1(data.margin[i]), float(data.noise[i]), 0 if verdict is Verdict.INCONCLUSIVE else look,
                control, tuple(data.base_us[i].tolist()), tuple(data.current_us[i].tolist()),
            )  # fmt: skip
        return found

    def _decide(
        self, data: _Measured, tests: statistics.Tests, i: int, level: float, slower: float, faster: float
    ) -> tuple[Verdict, str]:
        margin, median, noise = data.margin[i], tests.median[i], data.noise[i]
        noisy = noise > self.rules.max_noise
        # what noise was never seen to do to one side, it did not do to all pairs either
        least = data.apart[i] if noisy else -math.inf
        told = f"a side differs from itself by {noise * 100:.1f} % (sd), two of its launches by up to "
        told += f"{math.expm1(data.apart[i]) * 100:.1f} %"
        proven = f"in spite of noise: {told}; the change is beyond that" if noisy else ""
        if slower < level and median > margin and tests.low[i] > least:
            return Verdict.REGRESSED, proven
        if faster < level and median < -margin and -tests.high[i] > least:
            return Verdict.IMPROVED, proven
        if noisy:
            return Verdict.INCONCLUSIVE, f"noise: {told}; no change beyond that is proven"
        if -margin < tests.inner_low[i] and tests.inner_high[i] < margin:
            return Verdict.OK, ""
        return Verdict.INCONCLUSIVE, "neither a change nor its absence is proven"


def _together(launches_us: Sequence[Array], function: Callable[[Array], Array]) -> Array:
    """Apply a function of (cells, launches) -> (cells,); at once where all cells have the same number of launches."""
    if len({one.size for one in launches_us}) == 1:
        return function(np.stack(launches_us))
    return np.concatenate([function(one[None, :]) for one in launches_us])


def _medians(launches_us: Sequence[Array]) -> Array:
    return _together(launches_us, lambda us: np.asarray(np.median(us, axis=1)))


def _aa(launches_us: Sequence[Array]) -> Array:
    def noise(us: Array) -> Array:
        return statistics.aa_noise(np.log(us)) if us.shape[1] > 1 else np.zeros(us.shape[0])

    return _together(launches_us, noise)


def _apart(launches_us: Sequence[Array]) -> Array:
    return _together(launches_us, lambda us: np.asarray(np.ptp(np.log(us), axis=1)))


def _shift(cells: Sequence[CellVerdict]) -> float | None:
    """Common ratio of all cells if more than half of them, controls left out, moved in one direction."""
    family = [cell for cell in cells if not cell.control and cell.median_ratio is not None]
    for direction in (Verdict.REGRESSED, Verdict.IMPROVED):
        if len(family) >= _LEAST_SHIFTED and 2 * sum(cell.verdict is direction for cell in family) > len(family):
            return float(np.exp(np.median([math.log(cell.median_ratio or 1.0) for cell in family])))
    return None
