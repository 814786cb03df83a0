"""What a budget did not hold, in words: who has fewer launches than were asked for, and what would hold them."""

import math
from collections.abc import Sequence

from collbench.measure.budget import seconds_text
from collbench.measure.plan import Key
from collbench.measure.turns import Work, needed_s
from collbench.results.intervals import LEAST_LAUNCHES
from collbench.wording import ADVICE, counted, first_few

__all__ = ["Shortfall", "outlook"]

_NAMES = 4
_LAUNCH = ("launch", "es")
_PROBES_SHARE = 1.25
"""A fifth of a budget is kept for probes (probe_sweep.py)."""


class Shortfall:
    """Of `work`, everything that can run, what is open when a sweep ends of `launches` launches within `budget_s`.

    `servers_s` is what a sweep that goes on pays beside the launches, for the starts of its fork servers.
    """

    def __init__(self, work: Sequence[Work], launches: int, budget_s: float, servers_s: float = 0.0) -> None:
        self._work = {one.key: one for one in work}
        self._launches = launches
        self._budget_s = budget_s
        self._servers_s = servers_s
        self._short = [one for one in work if one.launches and one.is_known]

    def reason(self, key: Key) -> str:
        """Why an algorithm lacks launches; empty for one of which nothing is known."""
        one = self._work.get(key)
        if one is None or one not in self._short:
            return ""
        return f"{self._held()}{ADVICE}{_seconds(one.seconds)} a launch: {self._remedy(key)}"

    def summary(self) -> str:
        """One line about all of them; empty where none is short."""
        if not self._short:
            return ""
        dearest = max(self._short, key=lambda one: one.remaining_s)
        names = _names(self._short)
        return f"{self._held()}; fewer of {first_few(names, _NAMES)}: {self._remedy(dearest.key)}"

    def _held(self) -> str:
        return f"{_budget(self._budget_s)} held {counted(self._launches, *_LAUNCH)} {_of(list(self._work.values()))}"

    def _remedy(self, key: Key) -> str:
        # first launches come before any further one
        first_s = sum(one.seconds for one in self._work.values() if 0 in one.launches and one.key != key)
        seconds = _PROBES_SHARE * (needed_s(list(self._work.values()), key) + first_s + self._servers_s)
        return f"--resume RUN --budget {_round_up(seconds)}s adds what is missing"


def outlook(work: Sequence[Work], launches: int, budget_s: float) -> str:
    """One line about what a budget is expected to hold: `work` is what would be left of everything that can run."""
    short = [one for one in work if one.launches]
    fewer = f"; fewer of {first_few(_names(short), _NAMES)}" if short else ""
    if short and launches > LEAST_LAUNCHES:
        enough = sum(launches - len(one.launches) >= LEAST_LAUNCHES for one in work)
        fewer = f", {LEAST_LAUNCHES} (enough for an interval) of {enough or 'none'}{fewer}"
    return f"expected, not measured: {_budget(budget_s)} holds {counted(launches, *_LAUNCH)} {_of(work)}{fewer}"


def _budget(seconds: float) -> str:
    return f"the budget of {seconds_text(seconds)}"


def _of(work: Sequence[Work]) -> str:
    whole = sum(not one.launches for one in work)
    if whole == len(work):
        return f"of all {whole} algorithms" if whole > 1 else "of the only algorithm"
    return f"of {whole} of {len(work)} algorithms" if whole else "of no algorithm"


def _names(work: Sequence[Work]) -> list[str]:
    return [f"{' '.join(one.key).strip()} ({_seconds(one.seconds)} a launch)" for one in work]


def _seconds(seconds: float) -> str:
    if seconds < 0.1:  # noqa: PLR2004 - nothing takes 0.0 s
        return f"{max(seconds, 0.001):.1g} s"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - two digits are enough


def _round_up(seconds: float) -> int:
    """To two digits."""
    step: int = 10 ** max(0, math.floor(math.log10(max(1.0, seconds))) - 1)
    return max(1, math.ceil(seconds / step)) * step
