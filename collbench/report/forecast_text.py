"""A forecast as text: every row and column for scripts, and what fits a terminal for people."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from collbench.algorithms.choice import Choice, alike, choices, model_notes, nearby, vouched
from collbench.algorithms.predictions import Crossover, Forecast
from collbench.doctor.forecasts import Diagnosis
from collbench.report.columns import Column, aligned, fitting
from collbench.results.terminal import wrapped
from collbench.units import about_bytes, format_us

__all__ = [
    "brackets", "command", "crossings", "doubts", "forecast_text", "link", "mark", "not_shown", "spaced", "sweep_of",
]  # fmt: skip

_SHOWN_US = 0.005
_FACTOR, _MOST_LETTERS = 4, 60

Row = Mapping[str, Any]


def forecast_text(
    forecast: Forecast, rows: Sequence[Row], sizes: Sequence[int], doctor: Diagnosis, width: int | None
) -> list[str]:
    """Lines to print; `rows` are judged, `width` is None where each row is one line with all columns."""
    names = alike(rows) if width else {}
    shown = [row for row in rows if row["algorithm"] in names] if width else list(rows)
    found = choices(rows)
    name = f"{forecast.topology.name}: " if forecast.topology.name else ""
    lines = [f"{name}{forecast.ranks} ranks, {forecast.fabric}, {forecast.mode}, {forecast.dtype}"]
    lines += _fitted(shown, found, width) if width else aligned(_every(shown, found))
    lines += _key(rows, found, doctor, width)
    told = [*_one_name(names), *_said_of(forecast, rows)]
    told += [f"left out, {reason}: {', '.join(some)}" for reason, some in forecast.not_here.items()]
    told += crossings(forecast, rows, sizes)
    lines += [wrapped(text, width, 2) for text in (*told, *([_overlap(found)] if found else []))]
    return [*lines, command(sweep_of(forecast, found, sizes), width)] if any(one.overlaps for one in found) else lines


def _every(rows: Sequence[Row], found: Sequence[Choice]) -> list[Column]:
    terms = [name for name in rows[0]["terms_us"] if any(row["terms_us"][name] >= _SHOWN_US for row in rows)]
    return [
        *_named(rows), _us("total_us", rows), _us("low_us", rows), _us("high_us", rows),
        *(Column(name, [format_us(row["terms_us"][name]) for row in rows]) for name in terms),
        _us("floor_us", rows), _prior(rows), Column("mark", [mark(row, found) or "-" for row in rows], right=False),
        _link(rows),
    ]  # fmt: skip


def _fitted(rows: Sequence[Row], found: Sequence[Choice], width: int) -> list[str]:
    """Total with its interval before all; the terms only where all of them fit, else the largest."""
    every = _every(rows, found)
    start = next(i for i, one in enumerate(every) if one.name == "high_us") + 1
    terms = every[start : next(i for i, one in enumerate(every) if one.name == "floor_us")]
    first = [
        Column("", [mark(row, found) for row in rows], right=False), *_named(rows), _us("total_us", rows),
        Column("[low, high]", [brackets(row) for row in rows], right=False),
    ]  # fmt: skip
    rest = [[_link(rows)], [_us("floor_us", rows)], [_prior(rows)]]
    shown, gone = fitting(first, [terms, *rest], width)
    if gone[: len(terms)] == [one.name for one in terms]:
        shown, gone = fitting(first, [[Column("largest term", [_largest(row) for row in rows])], *rest], width)
        gone = ["terms", *(name for name in gone if name != "largest term")]
    return [*spaced(aligned(shown), rows), *not_shown(gone, width)]


def spaced(lines: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """An empty line where the size changes."""
    found = list(lines[:1])
    for number, line in enumerate(lines[1:]):
        if number and rows[number]["bytes"] != rows[number - 1]["bytes"]:
            found.append("")
        found.append(line)
    return found


def not_shown(names: Sequence[str], width: int) -> list[str]:
    """What a terminal is too narrow for, and who has it."""
    if not names:
        return []
    return [wrapped(f"not shown at {width} characters, but in a pipe: {', '.join(dict.fromkeys(names))}", width, 2)]


def _named(rows: Sequence[Row]) -> list[Column]:
    names = Column("algorithm", [row["algorithm"] for row in rows], right=False)
    return [names, Column("bytes", [str(row["bytes"]) for row in rows])]


def _us(name: str, rows: Sequence[Row]) -> Column:
    return Column(name, [format_us(row[name]) for row in rows])


def _prior(rows: Sequence[Row]) -> Column:
    return Column("prior", [f"{row['prior_share']:.0%}" for row in rows])


def _link(rows: Sequence[Row]) -> Column:
    return Column("bottleneck", [link(row["bottleneck"]) for row in rows], right=False)


def _largest(row: Row) -> str:
    name = max(row["terms_us"], key=lambda one: row["terms_us"][one])
    return f"{name} {format_us(row['terms_us'][name]):>5}"


def link(bottleneck: Mapping[str, Any] | None) -> str:
    """`switch0 -> root0 (16 flows)`, `-` where no link binds."""
    if bottleneck is None:
        return "-"
    flows = bottleneck["flows"]
    return f"{bottleneck['link']} ({flows} flow{'s' if flows > 1 else ''})"


def brackets(row: Row) -> str:
    """The interval: `[2.63, 16.7]`."""
    return f"[{format_us(row['low_us'])}, {format_us(row['high_us'])}]"


def mark(row: Row, found: Sequence[Choice]) -> str:
    """`*` the fastest at its size, `?` unknown whether it runs, `x` does not run; else empty."""
    if not vouched(row):
        return "?" if row["verdict"] == "unknown" else "x"
    return "*" if any(row is one.best for one in found) else ""


def _key(rows: Sequence[Row], found: Sequence[Choice], doctor: Diagnosis, width: int | None) -> list[str]:
    """What the marks mean, of those that are there, and whom to ask."""
    if not doctor.rows:
        first = f"* fastest at its size, if it runs. {doctor.asked}"
    elif found:
        first = "* fastest at its size, of what the doctor says runs there"
    else:
        first = "no row is an answer: of none of them it is known that it runs there"
    return [wrapped(first, width, 2), *doubts(rows, doctor, width)]


def doubts(rows: Sequence[Row], doctor: Diagnosis, width: int | None, start: str = "") -> list[str]:
    """Of which rows it is not known whether they run, or known that they do not, and how to ask why."""
    unknown, refused = (
        list(dict.fromkeys(row["algorithm"] for row in rows if row["verdict"] == word))
        for word in ("unknown", "does_not_run")
    )
    told = []
    if unknown:
        told.append(f"{start}? no answer, since nobody knows whether it runs there: {', '.join(unknown)}")
    if refused:
        told.append(f"{start}x does not run there, traffic only: {', '.join(refused)}")
    asked = [f"{start}why:", command(doctor.command, width)] if told and doctor.command else []
    return [*(wrapped(text, width, 2) for text in told), *asked]


def _one_name(names: Mapping[str, Sequence[str]]) -> list[str]:
    """Who goes under another one's name, as they put the same on the wires."""
    return [f"{name} stands for the same traffic of {', '.join(others)}" for name, others in names.items() if others]


def _said_of(forecast: Forecast, rows: Sequence[Row]) -> list[str]:
    """Notes on the machine, then the model's on algorithms; the doctor's are in the marks."""
    return [*forecast.notes, *sorted({f"{row['algorithm']}: {note}" for row in rows for note in model_notes(row)})]


def crossings(forecast: Forecast, rows: Sequence[Row], sizes: Sequence[int]) -> list[str]:
    """Where the fastest of those that may be an answer changes."""
    answers = {name for name in alike(rows) if any(row["algorithm"] == name and vouched(row) for row in rows)}
    return [_crossing(forecast, cross, sizes) for cross in forecast.crossovers(sizes[0], sizes[-1], answers)]


def _crossing(forecast: Forecast, cross: Crossover, sizes: Sequence[int]) -> str:
    """Where the fastest changes, to two digits, and where the two are as good as equal."""
    low, high = nearby(forecast, cross, sizes[0], sizes[-1])
    start, end = f"from {about_bytes(low)}" if low else "", about_bytes(high) if high else ""
    where = (
        f"{start} to {end}" if start and end else f"{start} on" if start else f"up to {end}" if end else "everywhere"
    )
    text = f"from about {about_bytes(cross.bytes)} on, {cross.after} is faster than {cross.before}"
    return f"{text} (within 5% of each other {where})"


def _overlap(found: Sequence[Choice]) -> str:
    """Whether the model tells the fastest from others."""
    near = [len(one.overlaps) for one in found if one.overlaps]
    if not near:
        return "low to high is the model's nominal 90 % interval"
    others = f"{min(near)} to {max(near)} others overlap" if min(near) < max(near) else f"{near[0]} others overlap"
    others = "1 other overlaps" if max(near) == 1 else others
    where = f"at {len(near)} of {len(found)} sizes" if len(found) > 1 else "here"
    return (
        f"low to high is the model's nominal 90 %: {where} {others} with the fastest, and the"
        " model does not tell them apart. Measure before you choose:"
    )


def sweep_of(forecast: Forecast, found: Sequence[Choice], sizes: Sequence[int]) -> str:
    """The command that measures who is the fastest somewhere, and who comes next."""
    firsts = [one.best["algorithm"] for one in found]
    nexts = [one.overlaps[0]["algorithm"] for one in found if one.overlaps]
    names = ",".join(dict.fromkeys([*firsts, *nexts]))
    while len(names) > _MOST_LETTERS:
        names = names.rpartition(",")[0]
    span = f"-b {sizes[0]}"
    if len(sizes) > 1:
        factor = sizes[1] // sizes[0]
        span += f" -e {sizes[-1]}" + (f" -f {factor}" if factor != _FACTOR else "")
    return f"collbench sweep --nproc {forecast.ranks} {span} --modes {forecast.mode} --algorithms {names}"


def command(text: str, width: int | None) -> str:
    """A command below a sentence, on lines that a shell joins again."""
    if width is None:
        return f"  {text}"
    paired = re.sub(r" (-{1,2}[\w-]+) (?!-)", " \\1\0", text)  # an option stays beside its value
    lines = textwrap.wrap(paired, width - 6, break_long_words=False, break_on_hyphens=False)
    return ("  " + " \\\n    ".join(lines)).replace("\0", " ")
