"""Advice: what each algorithm makes of a model step, what speculation, batching, fusing and rewiring are worth."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from collbench.errors import InvalidError
from collbench.results.records import Collective, Fabric
from collbench.topology.gpus import has_peer_access
from collbench.topology.graph import Topology
from collbench.workload.absent import Missing, absent, grouped
from collbench.workload.catalog import Calls, Workload
from collbench.workload.coalescing import Coalescing, coalescing
from collbench.workload.servers import Choice, choose, of_steps
from collbench.workload.settings import WORKSPACE, Setting, servers
from collbench.workload.times import CallTime, Times

__all__ = ["CAUTION", "Advice", "BreakEven", "Step", "advise"]

CAUTION = (
    "Isolated microseconds do not carry over to tokens one to one: ranks arrive at different times in a server, and a "
    "gain of 44 us per all-reduce in a benchmark was seen to be 9 us there. Take tokens per second as an order of "
    "magnitude, and measure the server"
)
_NO_LINKS = {
    Fabric.HOST: "the ranks were processes on the CPU", Fabric.SHARED_GPU: "the ranks shared one GPU, without links",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One algorithm on one step. `interval` is of `step_us`, None without one; `how` says where times are not exact."""

    batch: int
    algorithm: str
    call_us: Mapping[int, float]
    comm_us: float
    step_us: float
    tokens_per_s: float
    interval_us: tuple[float, float] | None
    how: str = ""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Speculation pays while a call of `bytes` costs less than `us`; `now_us` is what it costs with `algorithm`."""

    algorithm: str
    bytes: int
    us: float
    now_us: float
    accepted_tokens: float

    @property
    def pays(self) -> bool:
        """Whether it does now."""
        return self.now_us < self.us


@dataclass(frozen=True, slots=True)
class Advice:
    """Everything for one workload. Steps stand by batch, fastest first; `choices` say what each server is best told.

    `servable` is the fastest that a server then runs. `sizes` are the bytes of all its calls where a run gives the
    times: a sweep of them leaves nothing to interpolate. `open` says who may be faster than the best and has no time
    there. With an `epilogue` its all-reduces were timed with that work fused behind them.
    """

    workload: str
    source: str
    ranks: int
    fabric: Fabric
    launches: int
    steps: tuple[Step, ...]
    fusion_us: Mapping[int, float]
    coalescing: tuple[Coalescing, ...]
    break_even: tuple[BreakEven, ...]
    servable: str
    missing: tuple[str, ...]
    cautions: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    open: str = ""
    epilogue: str = ""

    def best(self, batch: int) -> Step:
        """The fastest step of a batch size."""
        return next(step for step in self.steps if step.batch == batch)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All that is advised to set."""
        return tuple(one for choice in self.choices for one in choice.settings)

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes that there are steps of."""
        return tuple(dict.fromkeys(step.batch for step in self.steps))

    def as_dict(self) -> dict[str, Any]:
        """JSON form; the steps are the rows."""
        data = asdict(self) | {"fabric": str(self.fabric), "settings": [asdict(one) for one in self.settings]}
        data["remarks"] = [choice.text for choice in self.choices]
        del data["choices"]
        return {"rows": data.pop("steps"), **data}


def advise(
    workload: Workload,
    times: Times,
    baseline: Workload | None = None,
    *,
    topology: Topology | None = None,
    states: Sequence[str] = (),
) -> Advice:
    """Work out what each algorithm makes of the workload; `baseline` is the one without speculation.

    `topology` is that of the ranks, where one is known; `states` says what is known of degraded states of its fabric.

    Raises:
        InvalidError: there is no time of any call that the workload makes.
    """
    missing: list[Missing] = []
    steps = [step for batch in workload.batches for step in _steps(workload, times, batch, missing)]
    if not steps:
        raise InvalidError(f"nothing to advise on {workload.name}: {_why_nothing(workload, missing, times.epilogue)}")
    choices = _choices(workload, steps, times, topology)
    fastest: dict[int, str] = {}
    for step in steps:
        fastest.setdefault(step.batch, step.algorithm)
    return Advice(
        workload=workload.name, source=times.source, ranks=times.ranks, fabric=times.fabric, launches=times.launches,
        steps=tuple(steps), fusion_us={} if times.epilogue else _fusion(workload, steps),
        coalescing=tuple(coalescing(workload, times, fastest)),
        break_even=tuple(_break_even(workload, baseline, times, steps)) if baseline else (),
        servable=next((one.algorithm for one in choices), ""), choices=tuple(choices),
        missing=grouped(missing), cautions=(*_cautions(times, workload), *states),
        sources=dict(workload.sources or {}), sizes=_sizes(workload) if times.source == "run" else (),
        open=_open(workload, steps, times), epilogue=times.epilogue,
    )  # fmt: skip


def _why_nothing(workload: Workload, missing: Iterable[Missing], epilogue: str) -> str:
    why = next(iter(grouped(missing)), "no algorithm")
    fused = f" --epilogue {epilogue}" if epilogue else ""
    sizes = ",".join(map(str, _sizes(workload)))
    return f"{why}: measure them with collbench sweep{fused} --sizes {sizes}" if why.startswith("no time at") else why


def _sizes(workload: Workload) -> tuple[int, ...]:
    return tuple(sorted({workload.bytes_of(calls, batch) for calls in workload.calls for batch in workload.batches}))


def _steps(
    workload: Workload, times: Times, batch: int, missing: list[Missing], only: Sequence[str] = ()
) -> list[Step]:
    """Steps of one batch size. Of several collectives, each algorithm of the first meets the best of the others.

    Those in `only` are asked of the first collective, where it is given.
    """
    kinds = list(dict.fromkeys(calls.collective for calls in workload.calls))
    asked = {kind: only if only and kind is kinds[0] else times.algorithms(kind) for kind in kinds}
    found = {kind: _sums(workload, times, batch, kind, asked[kind], missing) for kind in kinds}
    if not all(found.values()):
        return []
    first, *others = kinds
    rest = [min(found[kind], key=lambda one: one[1].us) for kind in others]
    steps = []
    for name, total, per_call in found[first]:
        parts = [total, *(one[1] for one in rest)]
        names = " + ".join([name, *(one[0] for one in rest)])
        steps.append(_step(workload, times, batch, names, parts, per_call))
    # the same traffic has the same time, and goes under its shortest name everywhere
    return sorted(steps, key=lambda step: (step.step_us, len(step.algorithm), step.algorithm))


_Sum = tuple[str, CallTime, dict[int, float]]


def _sums(
    workload: Workload, times: Times, batch: int, kind: Collective, names: Sequence[str], missing: list[Missing]
) -> list[_Sum]:
    """Per algorithm of a collective: time of all its calls in a step, and of one call by size."""
    calls = [one for one in workload.calls if one.collective is kind]
    found: list[_Sum] = []
    if not names:
        missing.append((f"there is no {kind} in the {times.source}", ""))
    for name in names:
        known = [(one, times.at(name, kind, workload.bytes_of(one, batch))) for one in calls]
        have = [(one, time) for one, time in known if time is not None]
        if len(have) < len(calls):
            missing += [(f"{workload.bytes_of(one, batch)}", name) for one, time in known if time is None]
            continue
        found.append((name, _added(have), {workload.bytes_of(one, batch): time.us for one, time in have}))
    return found


def _added(parts: Sequence[tuple[Calls, CallTime]]) -> CallTime:
    """Times of all calls of a step; their errors are taken as common to all calls, which is the careful way."""
    us = math.fsum(one.count * time.us for one, time in parts)
    interval = None
    if all(time.interval_us for _, time in parts):
        low, high = (math.fsum(one.count * (time.interval_us or (0, 0))[i] for one, time in parts) for i in (0, 1))
        interval = (low, high)
    return CallTime(us, interval, ", ".join(dict.fromkeys(time.how for _, time in parts if time.how)))


def _step(
    workload: Workload, times: Times, batch: int, name: str, parts: Sequence[CallTime], per_call: dict[int, float]
) -> Step:
    comm = math.fsum(part.us for part in parts)
    step = comm + workload.other_at(batch)
    interval = None
    if all(part.interval_us for part in parts):
        low, high = (math.fsum((part.interval_us or (0, 0))[i] for part in parts) for i in (0, 1))
        interval = (low + workload.other_at(batch), high + workload.other_at(batch))
    how = ", ".join(dict.fromkeys(part.how for part in parts if part.how))
    return Step(batch, name, per_call, comm, step, workload.tokens_at(batch, times.ranks) / step * 1e6, interval, how)


def _fusion(workload: Workload, steps: Iterable[Step]) -> dict[int, float]:
    """Microseconds that fusing saves per step, by batch size."""
    count = sum(calls.count for calls in workload.calls)
    return {step.batch: workload.fusion_us * count for step in steps} if workload.fusion_us else {}


def _break_even(workload: Workload, baseline: Workload, times: Times, steps: Sequence[Step]) -> Iterable[BreakEven]:
    """Time of a verify call at which speculation gives as many tokens per second as plain decoding, per algorithm."""
    speculation = workload.speculation
    if speculation is None or len(workload.calls) != 1:
        return
    (calls,) = workload.calls
    batch = workload.batches[0]
    plain = {step.algorithm: step for step in _steps(baseline, times, batch, [])}
    for step in steps:
        if step.batch == batch and step.algorithm in plain:
            per_token = plain[step.algorithm].step_us * batch / baseline.tokens_at(batch, times.ranks)
            room = speculation.accepted_tokens * per_token - workload.other_at(batch)
            size = workload.bytes_of(calls, batch)
            yield BreakEven(step.algorithm, size, room / calls.count, step.call_us[size], speculation.accepted_tokens)


def _choices(workload: Workload, steps: Sequence[Step], times: Times, topology: Topology | None) -> list[Choice]:
    """What each server is best told for the first batch, the one that becomes the fastest first."""
    batch, calls = steps[0].batch, workload.calls[0]
    names = [name for name in times.algorithms(calls.collective) if calls.collective is Collective.ALL_REDUCE]
    some = [step for step in steps if step.batch == batch]
    if times.source == "model":  # which has no row of it, since it is one of its kernels at each size
        some += _steps(workload, times, batch, [], only=(WORKSPACE,))
    far = topology is not None and _far(topology, times.ranks)
    here = servers(times.fabric, times.ranks, names, arch=times.arch, far=far, epilogue=times.epilogue)
    by_name = of_steps(some)
    size = workload.bytes_of(calls, batch)
    found = [choose(one, by_name, times, calls.collective, size) for one in here]
    order = {step.algorithm: step.step_us for step in some} | {name: step.step_us for name, step in by_name.items()}
    return sorted(found, key=lambda one: order.get(one.algorithm, math.inf))


def _open(workload: Workload, steps: Sequence[Step], times: Times) -> str:
    """Who may be faster than the best of the first batch, and has no time at its sizes."""
    batch, kind = steps[0].batch, workload.calls[0].collective
    sizes = [workload.bytes_of(calls, batch) for calls in workload.calls if calls.collective is kind]
    known = [step.algorithm.partition(" + ")[0] for step in steps if step.batch == batch]
    return absent(times, kind, sizes, known, known[0])


def _far(topology: Topology, ranks: int) -> bool:
    """Whether ranks meet beyond one switch and could do so directly: without peer access no setting makes them."""
    used = set(topology.gpus[:ranks])
    return has_peer_access(topology) and not any(used <= set(group) for group in topology.groups)


def _cautions(times: Times, workload: Workload) -> tuple[str, ...]:
    found = [CAUTION]
    if times.epilogue:
        other = f"{workload.other_at(workload.batches[0]) / 1e3:.2f} ms"
        found.append(
            f"Times are of all-reduces with {times.epilogue} fused behind them: the {other} that the workload has "
            "beside its collectives hold that work once more, so that steps are somewhat shorter than told"
        )
    if times.fabric in _NO_LINKS:
        found.append(f"Fabric {times.fabric}: {_NO_LINKS[times.fabric]}; tokens per second of a server do not follow")
    if times.source == "model":
        found.append("Nothing was measured: times are the model's, whose parameters are assumptions until calibrated")
    elif str(times.mode) != "graph":
        found.append("The run has no captured cells: launch cost of the host is in every call, and servers capture")
    return tuple(found)
