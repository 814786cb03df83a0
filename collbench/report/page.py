"""Builds the page: one HTML file that fetches nothing, the same bytes from the same run."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import InvalidError

if TYPE_CHECKING:
    from collbench.gate.verdicts import Outcome

__all__ = ["build", "render"]

_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
_ENOUGH = 100
_TEMPLATES = Path(__file__).parent / "templates"


def build(
    path: str | Path,
    outcome: "Outcome | None" = None,
    *,
    verdict_first: bool = False,
    parameters: Path | None = None,
) -> str:
    """The page of a run folder as HTML, with a gate's `outcome`, or with what a gate left there.

    `parameters` is a run folder with parameters from probes to predict with, instead of the run's own.
    With `verdict_first` it opens with that outcome: a gate's own page, where the run is what else there is to see.

    Raises:
        UsageError: there is no such folder, it holds several runs, or there are no parameters in `parameters`.
        InvalidError: not a run, one of a newer schema, or one without samples.
    """
    from collbench.report import tables
    from collbench.report.canvas import COLOURS
    from collbench.report.compatibility import compatibility
    from collbench.report.gate_page import gate_section
    from collbench.report.launches import refuse_folder_of_runs
    from collbench.report.launching import launching
    from collbench.report.measured import measured
    from collbench.report.predicted import predict_run
    from collbench.report.surroundings import surroundings
    from collbench.report.svg import Styles
    from collbench.report.wiring import wiring
    from collbench.report.worth import worth
    from collbench.results.crowding import turns
    from collbench.results.store import RunFolder

    refuse_folder_of_runs(Path(path))
    folder = RunFolder.open(path)
    samples, told = folder.samples(), predict_run(folder, parameters)
    if not samples and (folder.run.cells or not told.evidence.probes):
        raise InvalidError(f"{path}: the run holds no samples: go on with collbench sweep --resume {path}")
    styles = Styles(COLOURS)
    around, floors = surroundings(folder.run)
    shown = measured(folder.run, samples, floors, told, styles)
    rows, found = shown.pop("rows"), shown.pop("panels")
    shown |= wiring(around.pop("topology"), told.best, found, styles)
    kept = rows[: tables.MOST_ROWS]
    columns, lines = tables.full(kept)
    problems = [*folder.problems(), *told.problems, *around.pop("problems")]
    context = {
        "rows_total": len(rows), "columns": columns, "lines": lines, "constants": tables.constants(kept),
        "csv": tables.csv_link(kept), "problems": problems,
        "figure_css": styles.css(), "run": folder.run, "few": any(0 < row["iterations"] < _ENOUGH for row in kept),
    }  # fmt: skip
    priced = worth(folder.run, samples)
    if priced["worth"]:
        shown["cautions"] = [*shown["cautions"], *priced["worth"]["cautions"]]
    context |= priced | launching(kept, turns(folder.run)) | compatibility(folder.run, tables.failures(rows))
    context["foreign_parameters"] = parameters is not None
    context["paths"] = _hides_paths(around, lines)
    context |= gate_section(Path(path), folder.run.run_id, outcome) | {"verdict_first": verdict_first}
    return render("page.html", context | around | shown)


def _hides_paths(around: Mapping[str, Any], lines: Sequence[Sequence[str]]) -> bool:
    """Whether `PATH` stands anywhere for a path: in what was given to the run, or in the reason of a cell."""
    told = [str(around[name]) for name in ("commands", "settings", "variables", "software", "facts", "machine")]
    given = any("PATH" in text for text in told)
    return given or any("PATH/" in text or "PATH:" in text for line in lines for text in line)


def render(template: str, context: Mapping[str, Any]) -> str:
    """A page from one of our templates: style sheets and script put in, and allowed by hash."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from collbench.results.private import public

    def part(name: str) -> Markup:
        return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704 - our own file, no data in it

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    environment.filters |= {"public": public, "when": _when, "breakable": _breakable}
    html = environment.get_template(template).render(
        css=part("page.css"), sections_css=part("sections.css"), script=part("page.js"), **context
    )  # fmt: skip
    return html.replace("@CSP@", _policy(html), 1)


def _shown(value: object) -> object:
    """Last guard of every text that the template puts out: no control characters, no marks that turn the direction."""
    from collbench.results.summary import printable

    return value if hasattr(value, "__html__") or not isinstance(value, str) else printable(value)


def _breakable(name: str) -> object:
    """A name that may be broken behind its underscores, and so is not where it reads badly."""
    from markupsafe import Markup, escape

    from collbench.results.summary import printable

    return Markup("_<wbr>").join(escape(part) for part in printable(name).split("_"))


def _when(stamp: str) -> str:
    """A time as people write it; ours end in `+00:00`."""
    from collbench.results.private import public

    return public(stamp).replace("T", " ").replace("+00:00", " UTC")


def _policy(html: str) -> str:
    """Content security policy that allows the page's own style sheets and scripts by hash, and not one request."""
    allowed: dict[str, list[str]] = {"style": [], "script": []}
    for kind, content in _INLINE.findall(html):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    rules = [f"{kind}-src {' '.join(hashes)}" for kind, hashes in allowed.items()]
    return "; ".join(["default-src 'none'", *rules, "base-uri 'none'", "form-action 'none'"])
