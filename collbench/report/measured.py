"""What the page shows of the samples: the answer, the fastest per size, and the figures."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from collbench.report import answer, crossings
from collbench.report.accuracy import accuracy
from collbench.report.canvas import Table
from collbench.report.cautions import cautions, not_run, undrawn
from collbench.report.distributions import distributions
from collbench.report.featured import numbered
from collbench.report.gain import gains, no_gain, sentence, usual
from collbench.report.latency import latency_figure
from collbench.report.launch_figure import launch_figure
from collbench.report.predicted import Predicted
from collbench.report.reasons import reasons
from collbench.report.series import CROWDED_TIE, EAGER_TIE, LEAST_LAUNCHES, TIE, Panel, panels, spreads
from collbench.report.sharing import sharing
from collbench.report.svg import Styles
from collbench.results.crowding import turns
from collbench.results.records import Fabric, Run, Samples
from collbench.results.summary import clean
from collbench.results.summary import rows as make_rows
from collbench.units import format_bytes, format_us
from collbench.wording import first_few

__all__ = ["measured"]

_MOST_NAMES = 3


def measured(
    run: Run, samples: Sequence[Samples], floors: Mapping[str, float], told: Predicted, styles: Styles
) -> dict[str, Any]:
    """Rows, and the parts of the page that come from them, ready for the template."""
    rows = make_rows(run, samples, floors, told.times_us)
    crowding = turns(run)
    tie = CROWDED_TIE if crowding else TIE
    eager = 0.0 if run.fabric is Fabric.HOST else EAGER_TIE
    found = numbered(sorted(panels(rows, spreads(samples), tie, eager), key=answer.rank))
    best = answer.headline(found)
    ok = [row for row in rows if row["status"] == "ok"]
    noisy = sum("noisy" in row["flags"] for row in ok)
    made = [row["launches"] for row in ok]
    launches, most = min(made, default=0), max(made, default=0)
    found_leads = answer.leads(best) if best else []
    shown: dict[str, Any] = {
        "rows": rows, "panels": found,
        "headline": answer.finding(best, times=False) if best else _nothing(run, ok),
        "headline_of": best.title if best else "",
        "headline_whose": _whose(run),
        "headline_times": answer.finding(best) if best else "",
        "others": [(panel.title, answer.finding(panel)) for panel in found if panel is not best],
        "cautions": _foreign(run) + (answer.open_sizes(best) if best else [])
        + not_run(rows)
        + undrawn(rows)
        + cautions(
            run.fabric, launches, noisy, len(ok), finished=bool(run.finished), crowding=crowding,
            short=sum(count < LEAST_LAUNCHES for count in made),
        ),
        "gain": sentence(best, found_leads, run.fabric, crowding) if best else "",
        "fastest": _fastest(best, found_leads) if best else None,
        "counts": _counts(rows), "leads": _leads(found), "tie": answer.tie_rule(launches, tie, eager, most),
        "figures": [latency_figure(panel, f"f{index}-", styles, _tool(run)) for index, panel in enumerate(found)],
    }  # fmt: skip
    shown |= crossings.told(found) | reasons(told, rows, found, styles) | sharing(told, styles)
    shown |= distributions(best, samples, styles) | launch_figure(rows, told.evidence.probes, styles)
    return shown | accuracy(told, rows, styles)


def _whose(run: Run) -> str:
    """What the times of the headline are."""
    tool = _tool(run)
    return f"times per call as {tool} gives them" if tool else "medians of the slowest rank's time per call"


def _tool(run: Run) -> str:
    """The other tool that measured; empty for our own runs."""
    other = run.settings.get("group_times") is True
    return clean(str(run.settings.get("tool", "another tool"))) if other else ""


def _foreign(run: Run) -> list[str]:
    """What another tool's times are, where it measured."""
    tool = _tool(run)
    if not tool:
        return []
    whose = (
        f"Measured by {tool}, not by collbench: whose time it is stands behind the algorithm's name. avg is a mean "
        "over ranks and calls, which is less than the slowest rank's; events is the slowest process of each iteration; "
        "unverified results were compared with nothing."
    )
    return [whose]


def _counts(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {"ok": 0}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return list(counts.items())


def _nothing(run: Run, ok: Collection[object]) -> str:
    if ok:
        return "No measured cell can be drawn: there is nothing to compare."
    return "No cell ended ok: there is nothing to compare." if run.cells else "Probes only: no collective was measured."


def _fastest(panel: Panel, leads: Sequence[answer.Lead]) -> Table:
    """The answer per size, in the mode of the page's first sentence."""
    gained, other = gains(panel, leads), usual(panel)
    against = [(f"against {other.name}", False)] if other and gained else []
    columns = [("bytes", True), ("fastest", False), ("us", True), ("tied with it", False), ("next", False), *against]
    lines = []
    for lead in leads:
        cell = _lead(lead) or {}
        told = gained.get(lead.bytes)
        name = cell["name"] + (f" ({cell['flags']})" if cell["flags"] else "")
        ties, behind = cell["ties"].removeprefix("tied with "), cell["next"].removeprefix("next: ")
        line = [format_bytes(lead.bytes), name, cell["time"].replace(" us", ""), ties, behind]
        lines.append([*line, told.words if told else no_gain(lead, other)] if other and gained else line)
    kept = [i for i, _ in enumerate(columns) if any(line[i] for line in lines)]
    told_lines = [[line[i] for i in kept] for line in lines]
    return Table(f"Fastest per size: {panel.title}", [columns[i] for i in kept], told_lines)


def _leads(found: Sequence[Panel]) -> dict[str, Any]:
    by_panel = [{lead.bytes: lead for lead in answer.leads(panel)} for panel in found]
    sizes = sorted({size for leads in by_panel for size in leads})
    lines = [(format_bytes(size), [_lead(leads.get(size)) for leads in by_panel]) for size in sizes]
    return {"titles": [panel.title for panel in found], "lines": lines}


def _lead(lead: answer.Lead | None) -> dict[str, str] | None:
    if lead is None:
        return None
    interval = lead.point.spread.interval_us
    span = f" [{format_us(interval[0])}, {format_us(interval[1])}]" if interval else ""
    return {
        "name": lead.best.name, "time": f"{format_us(lead.point.p50_us)} us{span}",
        "ties": f"tied with {first_few(lead.ties, _MOST_NAMES)}" if lead.ties else "",
        "next": f"next: {lead.runner_up}, {format_us(lead.ratio)}x" if lead.runner_up else "",
        "flags": ", ".join(lead.point.flags),
    }  # fmt: skip
