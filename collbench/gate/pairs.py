"""A paired gate: launches both sides in ABBA order and looks at the verdicts on the way."""

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError, UsageError
from collbench.gate.judge import judge_paired
from collbench.gate.launcher import Launcher
from collbench.gate.sides import Side, joined, side_of_run
from collbench.gate.verdicts import CellVerdict, Outcome, Rules, Verdict
from collbench.results.summary import clean

__all__ = ["PairPlan", "make_plan", "run_pairs"]

_OURS = ("--out", "--json", "--resume", "--launches", "--budget", "--dry-run", "--shuffle", "--cell")
"""Options of a sweep that the gate gives itself, or that would make launches differ."""

_ITERATIONS = "100"
"""Timed iterations per cell and launch where the options name none: pinned, so that all launches have the same."""

_LONG = re.compile(r"(?<!\S)--[a-z][a-z-]*")
_NO_PROBE = "--no-probe"
_USAGE = 2
_NAMES = ("baseline", "candidate")


@dataclass(frozen=True, slots=True)
class PairPlan:
    """What is launched: both sides, the options of every sweep, and the cells in the order of the plan.

    `shuffles` and `narrows` say whether both sides can draw the order of their cells, and leave cells out; `more` holds
    options that only the side of that name knows.
    """

    baseline: Launcher
    candidate: Launcher
    options: tuple[str, ...]
    cells: tuple[str, ...]
    seconds: float
    seed: int
    shuffles: bool
    narrows: bool
    timeout_s: float
    more: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def record(self, orders: Sequence[str], counts: Sequence[int]) -> dict[str, Any]:
        """JSON form, kept in the outcome: with each block's order of the sides and its number of cells."""
        return {
            "baseline": self.baseline.label, "candidate": self.candidate.label, "options": list(self.options),
            "seed": self.seed, "cases_shuffled": self.shuffles, "orders": list(orders),
            "cells_per_block": list(counts),
        }  # fmt: skip


def make_plan(
    baseline: Launcher, candidate: Launcher, options: Sequence[str], out: Path, seed: int, timeout_s: float
) -> PairPlan:
    """Ask both sides what they would measure.

    Raises:
        UsageError: an option that the gate gives itself, or that a side does not take.
        InvalidError: a side cannot be started, or the sides would measure different cells.
    """
    for word in options:
        if word.partition("=")[0] in _OURS:
            raise UsageError(f"{word.partition('=')[0]} behind --: the gate decides that itself; leave it out")
    pinned = tuple(options) if any(word.startswith("-n") for word in options) else (*options, "-n", _ITERATIONS)
    sides = [(side, out / f"plan-{name}.log") for side, name in zip((baseline, candidate), _NAMES, strict=True)]
    takes = [_options_of(side, log, timeout_s) for side, log in sides]
    plans = [_dry_run(side, pinned, log, timeout_s) for side, log in sides]
    cells = [tuple(str(row["cell_id"]) for row in plan["rows"]) for plan in plans]
    only = [sorted(set(cells[i]) - set(cells[1 - i])) for i in (0, 1)]
    for name, ids in zip(_NAMES, only, strict=True):
        if ids:
            raise InvalidError(f"the sides plan different cells: only the {name} has {clean(ids[0])} ({len(ids)} such)")
    if not cells[0]:
        raise InvalidError("the sides plan no cell: give other options behind --")
    seconds = sum(float(plan.get("seconds", 0.0)) for plan in plans)
    shuffles, narrows = (all(name in words for words in takes) for name in ("--shuffle", "--cell"))
    # probes explain a run; a gate compares runs, and would wait for them at each launch
    more = {
        name: (_NO_PROBE,) if _NO_PROBE in words and _NO_PROBE not in pinned else ()
        for name, words in zip(_NAMES, takes, strict=True)
    }
    return PairPlan(baseline, candidate, pinned, cells[0], seconds, seed, shuffles, narrows, timeout_s, more)


def _options_of(side: Launcher, log: Path, timeout_s: float) -> set[str]:
    """Long options that the side's sweep knows: another release may have fewer."""
    code, out = side.launch(["--help"], log, timeout_s)
    if code != 0:
        raise InvalidError(f"{side.label} cannot be started (code {code}): {_last_line(log)}")
    return set(_LONG.findall(out))


def _dry_run(side: Launcher, options: Sequence[str], log: Path, timeout_s: float) -> Mapping[str, Any]:
    code, out = side.launch([*options, "--dry-run", "--json"], log, timeout_s)
    if code == _USAGE:
        raise UsageError(f"{side.label}: {_last_line(log)}")
    if code != 0:
        raise InvalidError(f"{side.label}: the plan failed (code {code}): {_last_line(log)}")
    try:
        plan: Mapping[str, Any] = json.loads(out.strip().splitlines()[-1])
        [str(row["cell_id"]) for row in plan["rows"]]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise InvalidError(f"{side.label}: --dry-run --json printed no plan: is it collbench.sweep?") from None
    return plan


def run_pairs(plan: PairPlan, rules: Rules, out: Path, say: Callable[[str], None] = lambda _text: None) -> Outcome:
    """Launch until every cell is decided or the last look is taken; every launch is kept below `out`.

    Block k starts with the baseline if k is even. Both launches of a block measure the cells in one order, drawn anew
    for each block from the seed. Validity is checked after every block. Cells that a look decided are not measured
    again, unless they are controls or a side is too old to leave cells out. The outcome's record names the runs of all
    launches in their order.

    Raises:
        InvalidError: a launch failed as a whole, or did not end.
    """
    series = _Series(plan, rules, out)
    for block in range(rules.looks[-1]):
        outcome = series.block(block)
        looked = block + 1 in rules.looks
        say(f"block {block + 1} of {rules.looks[0]} to {rules.looks[-1]}" + (f": {_state(outcome)}" if looked else ""))
        if outcome.faults or (looked and not outcome.undecided):
            break
        if looked and plan.narrows and block + 1 < rules.looks[-1]:
            series.settle(outcome)
            say(f"{len(series.cells)} of {len(plan.cells)} cells go on")
    return outcome


class _Series:
    """Launches of both sides so far, and the cells that are still measured."""

    def __init__(self, plan: PairPlan, rules: Rules, out: Path) -> None:
        self.cells = plan.cells
        self._plan, self._rules, self._out = plan, rules, out
        self._draw = random.Random(plan.seed)  # noqa: S311 - an order of measuring, no secret
        self._launches: dict[str, list[Side]] = {name: [] for name in _NAMES}
        self._settled: dict[str, CellVerdict] = {}
        self._orders: list[str] = []
        self._counts: list[int] = []
        self._runs: list[str] = []

    def block(self, number: int) -> Outcome:
        """Launch both sides once, and judge all launches so far."""
        order = _NAMES if number % 2 == 0 else _NAMES[::-1]
        case_seed = self._draw.randrange(1 << 31)
        for name in order:
            self._launches[name].append(self._launch(name, self._out / f"{number:02d}-{name}", case_seed))
        self._orders.append("AB" if order is _NAMES else "BA")
        self._counts.append(len(self.cells))
        base, current = (_ordered(joined(self._launches[name], name), self.cells) for name in _NAMES)
        record = self._plan.record(self._orders, self._counts) | {"runs": list(self._runs)}
        outcome = judge_paired(base, current, self._rules, record, early=True, settled=self._settled)
        place = {cell_id: i for i, cell_id in enumerate(self._plan.cells)}
        cells = sorted(outcome.cells, key=lambda cell: place.get(cell.cell_id, len(place)))
        return replace(outcome, cells=tuple(cells))

    def settle(self, outcome: Outcome) -> None:
        """Measure no further what this look decided; controls stay, they watch the machine until the end."""
        decided = [c for c in outcome.cells if c.verdict is not Verdict.INCONCLUSIVE and not c.control]
        self._settled = {cell.cell_id: cell for cell in decided}
        self.cells = tuple(cell_id for cell_id in self._plan.cells if cell_id not in self._settled)
        for name, sides in self._launches.items():
            self._launches[name] = [_part(side, self.cells) for side in sides]

    def _launch(self, name: str, folder: Path, case_seed: int) -> Side:
        plan, log = self._plan, folder.with_suffix(".log")
        side = plan.baseline if name == "baseline" else plan.candidate
        words = [*plan.options, *plan.more.get(name, ()), *(["--shuffle", str(case_seed)] if plan.shuffles else [])]
        if len(self.cells) < len(plan.cells):
            words += [word for cell_id in self.cells for word in ("--cell", cell_id)]
        code, _ = side.launch([*words, "--json", "--out", str(folder)], log, plan.timeout_s)
        try:
            found = side_of_run(folder, name, self._rules.quantile)
        except (InvalidError, UsageError) as error:
            raise InvalidError(f"{side.label}: launch {folder.name} failed (code {code}): {_last_line(log)}") from error
        if missing := sorted(set(self.cells) - set(found.cells)):
            raise InvalidError(f"{side.label}: launch {folder.name} left out {clean(missing[0])} ({len(missing)} such)")
        self._runs.append(str(found.origin.get("run_id", "")))
        return replace(found, problems=tuple(f"{folder.name}/{text}" for text in found.problems))


def _ordered(side: Side, cells: Sequence[str]) -> Side:
    return _part(side, dict.fromkeys([*cells, *side.cells]))


def _part(side: Side, cells: Iterable[str]) -> Side:
    """The side with these of its cells, in this order."""
    return replace(side, cells={cell_id: side.cells[cell_id] for cell_id in cells if cell_id in side.cells})


def _state(outcome: Outcome) -> str:
    counts = outcome.as_dict()["counts"]
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return clean(lines[-1]).removeprefix("collbench: ")[:200] if lines else "it said nothing"
