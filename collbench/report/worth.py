"""What the choice of an algorithm is worth per decode step, and the numbers that the page's calculator works with."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collbench.errors import CollbenchError
from collbench.results.intervals import LEAST_LAUNCHES, NO_INTERVAL
from collbench.results.private import public
from collbench.results.records import Collective, Fabric, Run, Samples
from collbench.results.summary import clean
from collbench.units import format_us
from collbench.workload import ModelTimes, RunTimes, Workload, advise, find, load
from collbench.workload.advice import CAUTION, Advice, Step
from collbench.workload.servers import Choice
from collbench.workload.short import interpolated
from collbench.workload.short import usual as usual_step
from collbench.workload.times import CallTime, Times

__all__ = ["WORKLOAD", "predicted_worth", "worth"]

WORKLOAD = "moe-61-decode"
_NO_LINKS = frozenset({Fabric.HOST, Fabric.SHARED_GPU})
_MOST_LINES = 20


def worth(run: Run, samples: Sequence[Samples]) -> dict[str, Any]:
    """`worth` for the template: a sentence, lines of a table, settings and the calculator's data; None without times.

    A step has the calls of the workload at batch 1; sizes that were not measured are taken between their neighbours.
    """
    try:
        times = RunTimes(run, samples)
    except CollbenchError:
        return {"worth": None}
    return _worth(times, lambda name: times.curve(name, Collective.ALL_REDUCE))


def predicted_worth(times: ModelTimes, sizes: Sequence[int], usual: str = "") -> dict[str, Any]:
    """The same by the model on a topology; the calculator gets times at these sizes. Gains are over `usual`."""

    def curve(name: str) -> Mapping[int, CallTime]:
        told = {size: times.at(name, Collective.ALL_REDUCE, size) for size in sizes}
        return {size: time for size, time in told.items() if time is not None}

    return _worth(times, curve, usual)


def _worth(times: Times, curve: Callable[[str], Mapping[int, CallTime]], other: str = "") -> dict[str, Any]:
    try:
        workload = load(find(WORKLOAD))
        only_one = Workload(
            workload.name, workload.summary, (1,), workload.calls, workload.other_us, workload.other_us_per_sequence
        )
        advice = advise(only_one, times)
    except CollbenchError:
        return {"worth": None}
    steps = list(advice.steps)
    default = next((step for step in steps if step.algorithm == other), None) or usual_step(steps)
    return {"worth": {
        "sentence": _sentence(workload, advice, default), "lines": [_line(step) for step in steps[:_MOST_LINES]],
        "note": _note(workload, advice, steps), "caution": f"{CAUTION}.", "data": _data(steps[:_MOST_LINES], curve),
        "cautions": _cautions(advice, default), "choices": [_choice(one) for one in advice.choices],
        "size": ", ".join(map(str, advice.steps[0].call_us)), "fields": _fields(workload),
    }}  # fmt: skip


def _choice(one: Choice) -> dict[str, Any]:
    """What one server is best told, and the settings to paste."""
    settings = [(s.text, f"{s.where} {s.release}", "" if s.algorithm else s.note) for s in one.settings]
    return {"text": f"{clean(one.text)}.", "settings": settings}


def _cautions(advice: Advice, other: Step | None) -> list[str]:
    """Times of the sentence that nobody measured, and what measures them."""
    told = interpolated(advice.steps[0], other)
    if not told:
        return []
    sizes = ",".join(str(size) for size in advice.steps[0].call_us)
    text = f"{sizes} bytes, the size of a decode step, were not measured{told}: a protocol may change in between"
    return [f"{text}. To measure them: collbench sweep --sizes {sizes} --launches {LEAST_LAUNCHES}"]


def _sentence(workload: Workload, advice: Advice, other: Step | None) -> str:
    """What a manager reads: milliseconds per step, and percent of tokens where there were links."""
    (calls,) = workload.calls
    best = advice.steps[0]
    size = workload.bytes_of(calls, 1)
    by = "By the model, the" if advice.source == "model" else "The"
    fused = f" with {clean(advice.epilogue)} fused behind" if advice.epilogue else ""
    start = (
        f"{by} {calls.count} all-reduces{fused} of {size} bytes of a decode step take {_ms(best.comm_us)} ms with "
        f"{clean(best.algorithm)}"
    )
    if other is None or other is best:
        return f"{start}{interpolated(best)}."
    start += f" and {_ms(other.comm_us)} ms with {clean(other.algorithm)}{interpolated(best, other)}"
    if advice.fabric in _NO_LINKS:
        return f"{start}."
    gain = 100 * (other.step_us / best.step_us - 1)
    return f"{start}: {gain:+.0f} % tokens per second where the rest of a step takes {_ms(workload.other_at(1))} ms."


def _note(workload: Workload, advice: Advice, steps: Sequence[Step]) -> str:
    parts = [f"Workload {workload.name}: {workload.summary}. Its time beside collectives is"]
    parts[0] += f" {_ms(workload.other_at(1))} ms ({(workload.sources or {}).get('step', '')})."
    if advice.epilogue:
        parts.append(f"That time holds {clean(advice.epilogue)} too, which the calls here hold already.")
    hows = dict.fromkeys(step.how for step in steps if step.how)
    parts += [f"Times {how} are taken as linear in the bytes." for how in hows]
    parts.append(
        "Brackets: the model's nominal 90 %." if advice.source == "model" else
        f"{NO_INTERVAL[0].upper()}{NO_INTERVAL[1:]}." if advice.launches == 1 else "Brackets: 95 %, from launches."
        if all(step.interval_us for step in steps) else f"No interval: {advice.launches} launches."
    )  # fmt: skip
    if advice.open:
        parts.append(f"{clean(advice.open)}.")
    if advice.fabric in _NO_LINKS:
        parts.append(f"Fabric {advice.fabric} has no links: tokens per second of a server do not follow from it.")
    return " ".join(parts)


def _line(step: Step) -> dict[str, str]:
    call = ", ".join(format_us(us) for us in step.call_us.values())
    span = "" if step.interval_us is None else " [" + ", ".join(_ms(us) for us in step.interval_us) + "]"
    return {
        "algorithm": clean(step.algorithm), "call": call, "comm": _ms(step.comm_us), "step": _ms(step.step_us) + span,
        "tokens": f"{step.tokens_per_s:.1f}",
    }  # fmt: skip


def _fields(workload: Workload) -> list[dict[str, Any]]:
    """Inputs of the calculator with the workload's own numbers."""
    (calls,) = workload.calls
    other = round(workload.other_at(1) / 1e3, 2)
    told = (
        ("w-count", "calls per step", calls.count, 1), ("w-bytes", "bytes per token", calls.bytes_per_token, 1),
        ("w-tokens", "tokens at once per sequence", workload.tokens_per_sequence, 1), ("w-batch", "sequences", 1, 1),
        ("w-other", "rest of a step, ms", other, 0), ("w-accepted", "accepted tokens per step", 1, 0),
    )  # fmt: skip
    return [
        {"id": name, "label": label, "value": value, "min": least, "step": "1" if least else "any"}
        for name, label, value, least in told
    ]


def _data(steps: Sequence[Step], curve: Callable[[str], Mapping[int, CallTime]]) -> str:
    """Curves as JSON that may stand inside a script element: no character of it can end the element."""
    curves: Mapping[str, Any] = {
        public(step.algorithm): [[size, round(time.us, 3)] for size, time in curve(step.algorithm).items()]
        for step in steps
    }
    text = json.dumps(curves, separators=(",", ":"), sort_keys=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f}"
