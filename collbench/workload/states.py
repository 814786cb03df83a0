"""What degraded states of a fabric mean for advice: one that was seen, and those that nobody has tested."""

from collections.abc import Sequence

from collbench.contention.findings import Finding, State
from collbench.contention.regimes import CANNOT, NO_LINKS

__all__ = ["cautions"]

_TWENTYFOLD = ("posted-write collapse", "read fan-in", "staging through system memory")
"""States that turn the order of algorithms around: they take a factor of 3 to 20 from pushes or pulls alone."""


def cautions(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Sentences without a full stop: each state that is there, and one on what was not tested where there are links."""
    seen = [
        f"{one.regime}: {one.line}" for one in findings if one.state is State.PRESENT and one.regime != "entry skew"
    ]
    untested = [one for one in findings if one.regime in _TWENTYFOLD and one.state is State.UNTESTED]
    untested = [one for one in untested if not one.evidence.startswith((CANNOT, NO_LINKS))]
    if untested:
        names = ", ".join(one.regime for one in untested)
        seen.append(
            f"Not tested here: {names}. Where such a state is, an algorithm takes 3 to 20 times as long as on a "
            "healthy fabric, and another one is best: collbench probe, or the probes of a sweep, tell"
        )
    return tuple(seen)
