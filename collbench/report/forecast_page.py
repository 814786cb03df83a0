"""The page of a machine that nobody has measured: what the model says of every algorithm on its topology."""

from collections.abc import Mapping, Sequence
from typing import Any

from collbench import __version__
from collbench.algorithms.choice import NEAR, Choice, choices, nearby, vouched
from collbench.algorithms.predictions import Crossover, Forecast
from collbench.contention.parameters import priors
from collbench.doctor.forecasts import Diagnosis, diagnose
from collbench.report import answer, tables
from collbench.report.canvas import COLOURS, Table
from collbench.report.forecast import STEP_BYTES, Cast, cast, headline, nearest
from collbench.report.forecast_doctor import verdict_table
from collbench.report.forecast_figures import curves, terms
from collbench.report.gain import gains, sentence, usual
from collbench.report.holding import RULE, holds_back
from collbench.report.page import render
from collbench.report.series import Point
from collbench.report.svg import Styles
from collbench.report.wiring import wiring
from collbench.report.worth import predicted_worth
from collbench.results.private import public, public_command
from collbench.results.records import Mode
from collbench.results.summary import clean
from collbench.topology import words
from collbench.units import about_bytes, format_bytes, format_us
from collbench.wording import first_few
from collbench.workload import ModelTimes

__all__ = ["forecast_page"]

_MODEL = (
    "Predicted, not measured: every time on this page comes from the model, and the machine may differ from its "
    "description."
)
_PRIORS = "priors, which are numbers of other machines and assumptions"
_INTERVAL = (
    "Bands and brackets are the model's nominal 90 % interval; collbench validate prints how far the model was off on "
    "published measurements."
)
_ALL = 0.995
_MOST_RIVALS = 3
_NEAR = f"within {100 * (NEAR - 1):.0f} %"
_RIVALS = "intervals overlap with"


def forecast_page(forecast: Forecast, sizes: Sequence[int], command: Sequence[str]) -> str:
    """The page as HTML, the same bytes from the same topology; `command` is what made it.

    Raises:
        UsageError: no algorithm takes these sizes.
    """
    sizes = sorted({*sizes, *(size for size in STEP_BYTES if sizes[0] < size < sizes[-1])})
    doctor = diagnose(forecast)
    made = cast(forecast, sizes, doctor)
    styles = Styles(COLOURS)
    context = _answer(forecast, made, doctor) | _data(made) | _machine(forecast, made, styles)
    context |= {
        "figures": curves(made, styles), "why": terms(made, styles), "crossings": _crossings(forecast, made, sizes),
        "doctor": doctor, "verdicts": verdict_table(doctor.rows), "left_out": _left_out(forecast),
        "command": public_command(command), "version": __version__,
        "worth": _worth(forecast, made, doctor, sizes), "figure_css": styles.css(),
    }  # fmt: skip
    return render("forecast.html", context)


def _answer(forecast: Forecast, made: Cast, doctor: Diagnosis) -> dict[str, Any]:
    """The header: who is fastest where, the gain over NCCL, and what the page does not know."""
    found = answer.leads(made.answer)
    return {
        "title": public(forecast.topology.name or "a topology"), "ranks": forecast.ranks,
        "fabric": str(forecast.fabric), "headline": headline(made),
        "gain": sentence(made.answer, found, forecast.fabric) if usual(made.answer) else "",
        "fastest": _fastest(made, found), "alike": _same(made), "cautions": _cautions(made, doctor),
    }  # fmt: skip


def _cautions(made: Cast, doctor: Diagnosis) -> list[str]:
    size = nearest(made.every.sizes)
    shares = [row["prior_share"] for row in made.rows if row["bytes"] == size]
    span = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(shares), max(shares))))
    rest = "." if min(shares) > _ALL else "; the rest on what was measured of these links."
    told = [_MODEL, f"At {format_bytes(size)} {span} of a time rests on {_PRIORS}{rest}", _INTERVAL]
    if open_at := [one for one in choices(made.rows) if one.overlaps]:
        told.append(_apart(open_at, len(made.every.sizes), size))
    if not doctor.rows:
        told.append(f"{doctor.asked} Nobody knows whether what is called the fastest runs there.")
    if made.unsure and made.vouched:
        told.append(f"Not taken as an answer, since nobody knows whether they run here: {', '.join(made.unsure)}.")
    notes = sorted({note for row in made.rows if vouched(row) for note in row["notes"]})
    return [*told, *notes, *map(public, doctor.warnings)]


def _apart(found: Sequence[Choice], sizes: int, step: int) -> str:
    """How little the order of the fastest says."""
    there = next((len(one.overlaps) for one in found if one.bytes == step), 0)
    some = f" (at {format_bytes(step)} those of {there})" if there and sizes > 1 else ""
    where = f"At {len(found)} of {sizes} sizes intervals" if sizes > 1 else "Intervals"
    return (
        f"{where} of other algorithms overlap with that of the fastest{some}: the "
        "model does not tell them apart, so measure them before you choose."
    )


def _fastest(made: Cast, found: Sequence[answer.Lead]) -> Table:
    gained, other = gains(made.answer, found), usual(made.answer)
    against = [(f"against {other.name}", False)] if other and gained else []
    columns = [
        ("bytes", True), ("fastest", False), ("us", True), (_RIVALS, False),
        ("link that binds", False), ("flows", True), ("floor, us", True), *against,
    ]  # fmt: skip
    lines = []
    rivals = {one.bytes: [row["algorithm"] for row in one.overlaps] for one in choices(made.rows)}
    for lead in found:
        prediction = made.predictions[lead.point.cell_id]
        bound = prediction.bottleneck if holds_back(prediction) else None
        near = rivals.get(lead.bytes, [])
        floor = lead.point.floor_us
        line = [
            format_bytes(lead.bytes), lead.best.name, _time(lead.point),
            first_few([clean(name) for name in near], _MOST_RIVALS), clean(bound.link) if bound else "",
            str(bound.flows) if bound else "", "" if floor is None else format_us(floor),
        ]  # fmt: skip
        told = gained.get(lead.bytes)
        lines.append([*line, told.words if told else "is the fastest"] if against else line)
    return Table(f"Fastest per size, predicted, {made.every.mode}; a link is named {RULE}", columns, lines)


def _same(made: Cast) -> list[tuple[str, str]]:
    return [(clean(name), clean(", ".join(others))) for name, others in made.alike.items()]


def _time(point: Point) -> str:
    return f"{format_us(point.p50_us)} [{format_us(point.spread.low_us)}, {format_us(point.spread.high_us)}]"


def _crossings(forecast: Forecast, made: Cast, sizes: Sequence[int]) -> Table:
    """Where the fastest of those that run changes, exact in the model, and where the two are about as fast."""
    names = {one.name for one in made.answer.series}
    found = forecast.crossovers(sizes[0], sizes[-1], names)
    lines = [[cross.before, cross.after, str(cross.bytes), _near(forecast, cross, sizes)] for cross in found]
    columns = [
        ("up to there", False),
        ("from there on", False),
        ("bytes", True),
        (_NEAR, False),
    ]
    return Table("Where the fastest changes, by the model", columns, lines)


def _near(forecast: Forecast, cross: Crossover, sizes: Sequence[int]) -> str:
    low, high = nearby(forecast, cross, sizes[0], sizes[-1])
    ends = about_bytes(low) if low else "all below", about_bytes(high) if high else "all above"
    return f"{ends[0]} to {ends[1]}"


def _machine(forecast: Forecast, made: Cast, styles: Styles) -> dict[str, Any]:
    topology = forecast.topology
    told = [f"{forecast.ranks} ranks, fabric {forecast.fabric}", words.counts(topology), words.group_words(topology)]
    models = sorted({public(topology.node(gpu).attributes.get("model", "")) for gpu in topology.gpus} - {""})
    facts = {"GPU model": ", ".join(models)} if models else {}
    return wiring(topology, made.predictions, [made.answer, made.every], styles, nearest(made.every.sizes)) | {
        "machine_text": f"{'; '.join(filter(None, told))}.",
        "machine": facts | {"topology hash": topology.digest},
    }


def _worth(forecast: Forecast, made: Cast, doctor: Diagnosis, sizes: Sequence[int]) -> dict[str, Any] | None:
    """As the advice has it, which knows captured calls and priors only; of what may be an answer, beside one NCCL."""
    if forecast.mode is not Mode.GRAPH or forecast.model.parameters is not priors():
        return None
    verdicts = doctor.verdicts if made.vouched else {}
    times = ModelTimes(forecast.topology, forecast.ranks, lambda _: verdicts)
    other = usual(made.answer)
    found: dict[str, Any] | None = predicted_worth(times, sizes, other.name if other else "")["worth"]
    return found


def _left_out(forecast: Forecast) -> list[tuple[str, str]]:
    """What is not predicted, by reason; other collectives go without saying."""
    found: dict[str, list[str]] = {}
    for name, reason in sorted(forecast.left_out.items()):
        if not reason.startswith("another collective"):
            found.setdefault(public(reason), []).append(clean(name))
    return [(", ".join(names), reason) for reason, names in found.items()]


def _data(made: Cast) -> dict[str, Any]:
    """Every row as a table and as CSV."""
    flat = [_flat(row) for row in made.rows]
    names = list(flat[0])
    shown = [name for name in names if any(row[name] not in ("", None) for row in flat)]
    columns = [(name, name not in {"topology", "algorithm", "link"}) for name in shown if name != "topology"]
    lines = [[_text(name, row[name]) for name, _ in columns] for row in flat]
    return {
        "rows_total": len(flat), "columns": columns, "lines": lines, "csv": tables.csv_link(flat), "constants": {},
        "few": False,
    }  # fmt: skip


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    bound = row["bottleneck"] or {"link": "", "flows": None, "gbps": None}
    terms = {f"{name}_us": us for name, us in row["terms_us"].items()}
    first = {name: row[name] for name in ("topology", "algorithm", "bytes", "total_us", "low_us", "high_us")}
    return first | terms | {name: bound[name] for name in ("link", "flows", "gbps")} | {
        "floor_us": row["floor_us"], "prior_share": row["prior_share"]
    }  # fmt: skip


def _text(name: str, value: Any) -> str:  # noqa: ANN401 - a number or text
    if value is None:
        return ""
    if name.endswith("_us"):
        return format_us(value)
    return f"{value:.2f}" if isinstance(value, float) else _kept(public(str(value)))


def _kept(text: str) -> str:
    """The text in one line: no space and no hyphen at which it could be broken."""
    return text.replace("->", "\N{RIGHTWARDS ARROW}").replace(" ", "\N{NO-BREAK SPACE}")
