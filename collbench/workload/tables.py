"""Advice as tables for people: a step by algorithm, and what joining calls saves; lines without a newline."""

from collections.abc import Iterable, Mapping, Sequence

from collbench.algorithms.base import registry
from collbench.results.records import Fabric
from collbench.results.table import grid
from collbench.results.terminal import wrapped
from collbench.units import format_us
from collbench.workload.advice import Advice, Step
from collbench.workload.coalescing import Coalescing

__all__ = ["alike", "fused", "gain", "joined", "no_servers", "steps"]

_WORDS = {"algorithm"}
_FIRST_TO_GO = ("comm ms", "interval")


def steps(advice: Advice, batch: int, width: int | None) -> list[str]:
    """The table of one batch size, fastest first.

    With `width` (characters) algorithms with the same figures are one row, which counts them, and columns are left out
    until it fits.
    """
    some = [step for step in advice.steps if step.batch == batch]
    rows = alike(some) if width is not None else {(step.algorithm,): [step.algorithm] for step in some}
    columns: dict[str, list[str]] = {"algorithm": [_named(names) for names in rows.values()]}
    by_name = {step.algorithm: step for step in some}
    found = [by_name[names[0]] for names in rows.values()]
    columns |= {f"us at {size}": [format_us(step.call_us[size]) for step in found] for size in found[0].call_us}
    columns["comm ms"] = [f"{step.comm_us / 1e3:.2f}" for step in found]
    columns["step ms"] = [f"{step.step_us / 1e3:.2f}" for step in found]
    columns["interval"] = [_span(step) for step in found]
    columns["tokens/s"] = [f"{step.tokens_per_s:.1f}" for step in found]
    for name in _FIRST_TO_GO:
        if width is not None and sum(max(map(len, (head, *texts))) + 2 for head, texts in columns.items()) - 2 > width:
            columns.pop(name)
    return grid(columns, lambda name: name not in _WORDS)


def alike(some: Iterable[Step]) -> dict[tuple[object, ...], list[str]]:
    """Names of the algorithms by what is told of them, in order: the model gives the same to the same traffic."""
    found: dict[tuple[object, ...], list[str]] = {}
    for step in some:
        key = (tuple(step.call_us.items()), step.step_us, step.interval_us, step.how)
        found.setdefault(key, []).append(step.algorithm)
    return found


def _named(names: Sequence[str]) -> str:
    return f"{names[0]} +{len(names) - 1}" if len(names) > 1 else names[0]


def _span(step: Step) -> str:
    return "-" if step.interval_us is None else "-".join(f"{us / 1e3:.2f}" for us in step.interval_us)


def gain(fast_us: float, slow_us: float) -> str:
    """More tokens per second, in percent."""
    return f"{100 * (slow_us / fast_us - 1):+.1f} %" if fast_us > 0 else "-"


def no_servers(advice: Advice) -> str:
    """Why nothing is said on settings of servers."""
    if advice.fabric in {Fabric.HOST, Fabric.SHARED_GPU}:
        return "servers start one rank per GPU" + (", and these share one" if advice.fabric != Fabric.HOST else "")
    return f"on such GPUs none of those that were read fuses {advice.epilogue}" if advice.epilogue else "none was read"


def fused(advice: Advice, width: int | None) -> list[str]:
    """One sentence on fusing what stands behind a collective; nothing where the workload says nothing of it."""
    saved = advice.fusion_us
    if not saved:
        return []
    first, *more = [f"{gain(advice.best(b).step_us - us, advice.best(b).step_us)}" for b, us in saved.items()]
    at, *others = saved
    gains = [f"{first} tokens/s at batch {at}", *(f"{one} at {b}" for one, b in zip(more, others, strict=True))]
    us = next(iter(saved.values()))  # of a workload it is one for all batches
    text = f"Fusing RMSNorm into the collective saves about {us / 1e3:.2f} ms per step: {', '.join(gains)}."
    return [wrapped(text, width, 2)]


def joined(advice: Advice, launches: int, width: int | None) -> list[str]:
    """What joining k calls of the fastest saves per step; what was not measured with an interval is not guessed.

    Where the interval holds both gain and loss it stands alone.
    """
    rows: dict[tuple[int, str], dict[int, Coalescing]] = {}
    for one in advice.coalescing:
        rows.setdefault((one.batch, one.algorithm), {})[one.k] = one
    told = {key: row for key, row in rows.items() if any(one.saved_us is not None for one in row.values())}
    lines = []
    if told:
        head = "Joining calls of the fastest into one saves, ms per step, where none waits for another's result"
        table = _joined(told, brief=False)
        if width is not None and max(map(len, table)) > width:
            table = _joined(told, brief=True)
        lines += [wrapped(f"{head}:", width, 2), *table]
    open_ = [one for one in advice.coalescing if one.saved_us is None]
    if open_:
        lines.append(wrapped(_not_measured(open_, launches, advice.epilogue, table=bool(told)), width, 2))
    return lines


def _joined(rows: Mapping[tuple[int, str], Mapping[int, Coalescing]], *, brief: bool) -> list[str]:
    found = {"batch": [str(batch) for batch, _ in rows], "algorithm": [name for _, name in rows]}
    for k in sorted({k for row in rows.values() for k in row}):
        found[f"{k} calls"] = [_saved(row.get(k), brief=brief) for row in rows.values()]
    return grid(found, lambda name: name not in _WORDS)


def _saved(one: Coalescing | None, *, brief: bool) -> str:
    if one is None or one.saved_us is None:
        return "-"
    if one.interval_us is None:
        return _ms(one.saved_us)
    low, high = one.interval_us
    span = f"[{_ms(low)}, {_ms(high)}]"
    return span if brief or low < 0 < high else f"{_ms(one.saved_us)} {span}"


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f}" if abs(us) < 1e4 else f"{us / 1e3:.0f}"  # noqa: PLR2004 - three digits are enough


def _not_measured(some: Sequence[Coalescing], launches: int, epilogue: str, *, table: bool) -> str:
    sizes = ",".join(map(str, sorted({size for one in some for size in (one.bytes, one.k * one.bytes)})))
    names = dict.fromkeys(one.algorithm.partition(" ")[0] for one in some)
    ours = f" --algorithms {','.join(names)}" if set(names) <= set(registry()) else ""
    ours += f" --epilogue {epilogue}" if epilogue else ""
    what = "-: not measured" if table else "What joining calls saves is not measured"
    return f"{what} with an interval: collbench sweep{ours} --sizes {sizes} --launches {launches}"
