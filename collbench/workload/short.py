"""The answer in one sentence, and whom it is compared with."""

from collections.abc import Iterable

from collbench.workload.advice import Advice, Step
from collbench.workload.tables import alike, gain

__all__ = ["interpolated", "short", "usual"]


def usual(steps: Iterable[Step]) -> Step | None:
    """What runs where nobody chooses: `nccl_auto`, else NCCL's fastest setting here, else gloo; None without them.

    The same rule as that of a page's gains.
    """
    ordered = sorted(steps, key=lambda step: (step.batch, step.step_us))
    for word in ("nccl_auto", "nccl_", "gloo"):
        if found := next((step for step in ordered if step.algorithm.startswith(word)), None):
            return found
    return None


def interpolated(*steps: Step | None) -> str:
    """` (interpolated between 4096 and 16384 bytes)`, where a time of these steps is no measured one."""
    hows = dict.fromkeys(step.how for step in steps if step is not None and step.how)
    return f" (interpolated {', '.join(hows)})" if hows else ""


def short(advice: Advice) -> str:
    """For the first batch size; who cannot be told from the best is counted, the same traffic once."""
    best = advice.steps[0]
    steps = [step for step in advice.steps if step.batch == best.batch]
    default = usual(steps)
    text = f"In short: {best.algorithm} at batch {best.batch}, {best.tokens_per_s:.1f} tokens/s"
    if default is not None and default is not best:
        text += f", {gain(best.step_us, default.step_us)} against {default.algorithm}"
    text += interpolated(best, default)
    if advice.servable and advice.servable != best.algorithm:
        text += f"; of what servers run or can be told to run, {advice.servable} ({advice.choices[0].where})"
    open_ = f" {advice.open}." if advice.open else ""
    if best.interval_us is None:
        return f"{text}. Without an interval, nobody can say whether the order is chance.{open_}"
    return f"{text}.{_ties(steps)}{open_}"


def _ties(steps: list[Step]) -> str:
    """How many others' intervals reach into that of the first, counted by what they put on the wires."""
    best = steps[0].interval_us
    groups = list(alike(steps).values())
    near = {s.algorithm for s in steps if best and s.interval_us is not None and s.interval_us[0] <= best[1]}
    others = [names for names in groups[1:] if near & set(names)]
    if not others:
        return ""
    names = sum(map(len, others))
    kinds = f" ({names} names, of which some have the same figures)" if names > len(others) else ""
    many = f"intervals of {len(others)} others{kinds} reach" if len(others) > 1 else "interval of one other reaches"
    return f" The {many} into its own."
