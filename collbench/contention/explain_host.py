"""What bounds a cell whose ranks run on processors: flags, bytes, and turns of ranks that share hardware threads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collbench.contention.explain import Explanation, Verdict
from collbench.contention.traffic import Move, Schedule
from collbench.results.probes import Probe
from collbench.units import format_us

__all__ = ["HostRates", "explain_host"]

_FAR_TAIL = 5.0
"""p99 over p50 from which on whole time slices are the likely reason: a slice is milliseconds, a call microseconds."""


@dataclass(frozen=True, slots=True)
class HostRates:
    """What ranks on these processors do at best: one flag flight in us, and all ranks' copies together in GB/s.

    `flag_us` and the rates are None where no probe tells them; `threads` is 0 where nobody knows.
    """

    ranks: int
    threads: int = 0
    flag_us: float | None = None
    push_gbps: float | None = None
    pull_gbps: float | None = None

    @classmethod
    def of(cls, probes: Sequence[Probe], ranks: int, threads: int) -> "HostRates":
        """The best of each kind of probe, so that what follows from them is a least time."""
        flags = [p.value for p in probes if p.name == "flag" and p.value]

        def fastest(mechanism: str) -> float | None:
            return max((p.value for p in probes if p.name == f"bandwidth.{mechanism}" and p.value), default=None)

        return cls(ranks, threads, min(flags, default=None), fastest("store"), fastest("load"))

    def parts(self, schedule: Schedule) -> dict[str, float]:
        """Least microseconds of flags that fly one after the other, and of moving all bytes."""
        found = {}
        if self.flag_us is not None:
            found["flags"] = sum(phase.syncs for phase in schedule.phases) * self.flag_us
        flows = [flow for phase in schedule.phases for flow in phase.flows]
        rate = self.pull_gbps if any(flow.move is Move.PULL for flow in flows) else self.push_gbps
        if rate is not None:
            found["moving"] = sum(flow.bytes for flow in flows) / rate / 1e3
        return found


def explain_host(
    algorithm: str, size_bytes: int, schedule: Schedule, rates: HostRates, measured_us: float, p99_us: float
) -> Explanation:
    """Say what a cell on processors is made of. The model predicts no turns of a scheduler, so nothing is explained."""
    parts = rates.parts(schedule)
    least = sum(parts.values())
    sentence = f"{algorithm}, {size_bytes:,} B: {format_us(measured_us)} us measured, not predicted: {_turns(rates)}. "
    sentence += _least(schedule, rates, parts, measured_us) if parts else _NO_PROBES
    if p99_us > _FAR_TAIL * measured_us:
        sentence += (
            f" One iteration in a hundred takes {format_us(p99_us)} us: a turn of another process fits in there."
        )
    record: dict[str, Any] = {
        "verdict": str(Verdict.NOT_MODELLED), "algorithm": algorithm, "bytes": size_bytes, "measured_us": measured_us,
        "predicted_us": None, "ranks": rates.ranks, "threads": rates.threads or None, "parts_us": parts,
        "rest_us": max(0.0, measured_us - least) if parts else None, "p99_us": p99_us, "sentence": sentence,
    }  # fmt: skip
    return Explanation(Verdict.NOT_MODELLED, sentence, record, common=_common(rates, parts))


_NO_PROBES = (
    "This run has no probes (collbench sweep takes some unless --no-probe), so flags and bytes are not told apart."
)


def _common(rates: HostRates, parts: dict[str, float]) -> str:
    """What holds of all cells of a run, above a table of their numbers."""
    words = {"flags": "flags that fly one after the other", "moving": "moving all bytes through memory"}
    told = " and ".join(f"{name} ({words[name]})" for name in parts)
    least = (
        f"By the best of this run's probes {told} take at least this; rest is {_rest(rates)}." if parts else _NO_PROBES
    )
    far = f"Where p99 is over {_FAR_TAIL:.0f} times measured, a turn of another process fits in there."
    return f"Not predicted: {_turns(rates)}. {least} {far}"


def _rest(rates: HostRates) -> str:
    crowded = rates.ranks > (rates.threads or 0)
    return "turns, waiting, sums and calls" if crowded else "waiting, sums and calls"


def _turns(rates: HostRates) -> str:
    if not rates.threads:
        return f"{rates.ranks} ranks on processors wait for time slices and for each other"
    if rates.ranks > rates.threads:
        return f"{rates.ranks} ranks take turns on {rates.threads} hardware threads, and a wait can last a time slice"
    return f"{rates.ranks} ranks have {rates.threads} hardware threads, and wait for each other"


def _least(schedule: Schedule, rates: HostRates, parts: dict[str, float], measured_us: float) -> str:
    told = []
    if "flags" in parts:
        count = sum(phase.syncs for phase in schedule.phases)
        told.append(f"{count} flag{'s' if count > 1 else ''} in a row {format_us(parts['flags'])} us")
    if "moving" in parts:
        kib = sum(flow.bytes for phase in schedule.phases for flow in phase.flows) / 1024
        told.append(f"moving {kib:,.0f} KiB through memory {format_us(parts['moving'])} us")
    text = f"By the best of this run's probes {' and '.join(told)} at least"
    rest = measured_us - sum(parts.values())
    if rest <= 0:
        return f"{text}, which is all of it."
    return f"{text}; the other {format_us(rest)} us are {_rest(rates)}."
