"""Whether there is anything to compare: everything that is checked before a time is looked at."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from collbench.gate.sides import CellData, Side
from collbench.gate.verdicts import GateMode, Rules
from collbench.results.records import Status
from collbench.wording import counted

__all__ = ["Sorted", "examine", "fingerprint_notes", "matches"]

_BROKEN = frozenset({Status.WRONG, Status.HUNG, Status.CRASHED, Status.OUT_OF_MEMORY})
_MOST_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Sorted:
    """Cells by what can be said of them; `faults` are of the comparison, `cell_faults` of single cells by cell_id."""

    compared: tuple[str, ...]
    broken: dict[str, str]
    repaired: dict[str, str]
    not_compared: dict[str, str]
    faults: tuple[str, ...]
    cell_faults: dict[str, str]


def examine(base: Side, current: Side, rules: Rules, mode: GateMode) -> Sorted:
    """Sort the cells of both sides, and say everything that stands against a verdict.

    A cell that was ok and is now wrong, hung, crashed or out of memory is broken, which is a regression; the reverse is
    repaired. One that neither side supports is not compared. Everything else that is not ok on both sides is a fault.
    """
    compared: list[str] = []
    broken: dict[str, str] = {}
    repaired: dict[str, str] = {}
    without: dict[str, str] = {}
    odd: dict[str, str] = {}
    for cell_id in dict.fromkeys([*base.cells, *current.cells]):
        before, now = base.cells.get(cell_id), current.cells.get(cell_id)
        if before is None or now is None:
            odd[cell_id] = f"only {'the current' if before is None else 'the base'} side has it"
        elif before.status is Status.OK and now.status is Status.OK:
            reason = _uncomparable(before, now, base.launches, current.launches, mode)
            if reason:
                odd[cell_id] = reason
            else:
                compared.append(cell_id)
        elif before.status is Status.OK and now.status in _BROKEN:
            broken[cell_id] = f"was ok, is {now.status}: {now.reason}"
        elif before.status in _BROKEN and now.status is Status.OK:
            repaired[cell_id] = f"was {before.status}, is ok"
        elif before.status is Status.UNSUPPORTED and now.status is Status.UNSUPPORTED:
            without[cell_id] = f"unsupported on both sides: {now.reason}"
        else:
            odd[cell_id] = _statuses(before, now)
    faults = [*_problems(base, "base"), *_problems(current, "current"), *_hard(base, current, rules)]
    if mode is GateMode.PAIRED and base.launches != current.launches:
        many = counted(base.launches, "launch", "es")
        faults.append(f"{many} of the base but {current.launches} of the candidate: not in pairs")
    if not compared and not broken and not repaired and not odd:
        faults.append("not one cell was measured on both sides")
    faults += [
        f"--control {pattern} names no cell that was measured on both sides"
        for pattern in rules.controls
        if not any(matches(cell_id, pattern) for cell_id in compared)
    ]
    return Sorted(tuple(compared), broken, repaired, without, tuple(faults), odd)


def matches(cell_id: str, pattern: str) -> bool:
    """Whether a `--control` pattern, with `*` and `?`, is that of a whole `cell_id` or of its algorithm."""
    parts = cell_id.split("/")
    return fnmatch.fnmatchcase(cell_id, pattern) or (len(parts) > 1 and fnmatch.fnmatchcase(parts[1], pattern))


def _statuses(before: CellData, now: CellData) -> str:
    if before.status is now.status:
        return f"{now.status} on both sides: {now.reason}"
    return f"{before.status} in the base, {now.status} now: {now.reason or before.reason}"


def _uncomparable(before: CellData, now: CellData, base_launches: int, launches: int, mode: GateMode) -> str:
    for name, side, planned in (("base", before, base_launches), ("current", now, launches)):
        if side.implausible:
            return f"implausible ({name}): {side.implausible}"
        if len(side.medians_us) != planned:
            return f"{name}: measured in {len(side.medians_us)} of {planned} launches"
    counts = {*before.iterations, *now.iterations}
    if len(counts) > 1 and mode is GateMode.PAIRED:
        return f"unequal numbers of samples per launch, {min(counts)} to {max(counts)}: pin them with -n"
    if {*before.iterations} != {*now.iterations}:
        return (
            f"unequal numbers of samples per launch, {_range(before.iterations)} in the base, {_range(now.iterations)} "
            "now: measure both with the same -n"
        )
    return ""


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"


def _problems(side: Side, name: str) -> list[str]:
    more = len(side.problems) - _MOST_PROBLEMS
    where = side.name or name
    shown = [f"{where}: {text}" for text in side.problems[:_MOST_PROBLEMS]]
    return shown + ([f"{where}: {more} more problems"] if more > 0 else [])


def _hard(base: Side, current: Side, rules: Rules) -> list[str]:
    found = []
    for key in sorted({*base.hard, *current.hard}):
        before, now = base.hard.get(key, ""), current.hard.get(key, "")
        if before != now and key not in rules.allow_mismatch:
            advice = "never comparable" if key in {"fabric", "ranks"} else f"--allow-mismatch {key} if that is meant"
            found.append(f"{key} differs: {before or 'none'} in the base, {now or 'none'} now; {advice}")
    return found


def fingerprint_notes(base: Side, current: Side, rules: Rules) -> tuple[str, ...]:
    """Differences that do not stand against a verdict: soft keys, and hard ones that were allowed."""
    kept = {key: (base.hard.get(key, ""), current.hard.get(key, "")) for key in rules.allow_mismatch}
    kept |= {key: (base.soft.get(key, ""), current.soft.get(key, "")) for key in sorted({*base.soft, *current.soft})}
    return tuple(f"{key}: {a or 'none'} in the base, {b or 'none'} now" for key, (a, b) in kept.items() if a != b)
