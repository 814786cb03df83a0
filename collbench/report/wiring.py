"""The picture of the machine, the link that holds the fastest algorithm back, and what binds the others."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from collbench.contention.explain import MOST_RATIO
from collbench.contention.predict import Prediction
from collbench.report.answer import leaders, leads
from collbench.report.canvas import Table
from collbench.report.holding import RULE, holds_back
from collbench.report.series import Panel, Point, Series
from collbench.report.svg import Styles, inline
from collbench.results.summary import clean
from collbench.topology.drawing import svg
from collbench.topology.graph import Link, LinkKind, Topology
from collbench.topology.words import LINK_WORDS, downtrained, speed_words
from collbench.units import format_bytes
from collbench.wording import counted, first_few

__all__ = ["MOST_NAMES", "wiring"]

MOST_NAMES = 16
"""Links of one kind that the table names."""

_SMALL = 540.0
"""Widest picture that is still read well where a phone shrinks it to its own width: to seven tenths."""

_PREFIX, _PICTURE = "drawing-", "wires"


@dataclass(frozen=True, slots=True)
class _Bound:
    """A cell that the model explains, and the link that holds its last flow back."""

    name: str
    bytes: int
    link: str
    flows: int
    gbps: float

    @property
    def ends(self) -> tuple[str, str]:
        src, _, dst = self.link.partition(" -> ")
        return src, dst


def wiring(
    topology: Topology | None,
    predictions: Mapping[str, Prediction],
    panels: Sequence[Panel],
    styles: Styles,
    size: int | None = None,
) -> dict[str, Any]:
    """`drawing`, `drawing_css`, what stands under it, and tables of links and of what binds, for the template.

    `predictions` are by cell_id. A link is named where it decides (`holds_back`). Coloured is that of the fastest at
    the largest size; where a `size` is given, for a machine on which nothing ran, at the first one from there on.
    """
    if topology is None:
        return {
            "drawing": "",
            "drawing_css": "",
            "drawing_small": False,
            "drawing_finding": "",
            "links": None,
            "bound": None,
            "loads": [],
            "bound_rule": "",
        }
    bound = [one for panel in panels[:1] for one in _bound(predictions, panel)]
    hot = _hot(bound, panels, size)
    text = svg(topology, [hot.ends] if hot else None, _PICTURE)
    drawing, css = inline(text, _PREFIX, styles)
    lines = _lines(bound, text)
    loads, small = _loads(lines), _width(text) <= _SMALL
    return {
        "drawing": drawing, "drawing_css": css + _chosen(loads), "drawing_small": small,
        "links": _links(topology), "bound": lines or None,
        "drawing_finding": _finding(
            topology, hot, ran=size is None, modelled=any(one.bottleneck for one in predictions.values())
        ), "loads": list(loads.values()),
        "bound_rule": f"Named {RULE}.",
    }  # fmt: skip


def _width(text: str) -> float:
    """Of a picture, in CSS pixels."""
    found = re.search(r'<svg[^>]* width="([\d.]+)"', text)
    return float(found[1]) if found else math.inf


def _loads(lines: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What each line of the picture that holds anything back carries, by its id; it stands for both directions."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        if line["target"]:
            flows = f"{counted(int(line['flows']), 'flow')}"
            text = f"{line['name']} ({line['sizes']}: {flows}, {line['gbps']} GB/s)"
            found.setdefault(line["target"], {}).setdefault(line["link"], []).append(text)
    return {
        target: " ".join(f"Chosen: {link} holds back {', '.join(texts)}." for link, texts in links.items())
        for target, links in found.items()
    }


def _chosen(loads: Mapping[str, str]) -> str:
    """Style sheet that shows the load of the link that the address names, so that this needs no script."""
    return "".join(f"#machine-figure:has(#{target}:target) .load{i}{{display:block}}" for i, target in enumerate(loads))


def _bound(predictions: Mapping[str, Prediction], panel: Panel) -> list[_Bound]:
    pairs = [(one, point) for one in panel.series for point in one.points if point.plausible]
    return [found for one, point in pairs if (found := _of(one, point, predictions.get(point.cell_id)))]


def _of(one: Series, point: Point, prediction: Prediction | None) -> _Bound | None:
    """None where no link decides by the model, or the model is so far off that none may be blamed."""
    if prediction is None or point.p50_us > MOST_RATIO * prediction.total_us or not holds_back(prediction):
        return None
    b = prediction.bottleneck
    if b is None:
        return None
    return _Bound(one.name, point.bytes, clean(b.link), b.flows, b.gbps)


def _hot(bound: Sequence[_Bound], panels: Sequence[Panel], size: int | None) -> _Bound | None:
    """Of who leads at the largest size that the model explains, as the page's first sentence has it."""
    found = [lead for panel in panels[:1] for lead in leads(panel)]
    fastest = dict(zip([lead.bytes for lead in found], leaders(found), strict=True))
    some = sorted((one for one in bound if fastest.get(one.bytes) == one.name), key=lambda one: one.bytes)
    if size is not None:
        return next((one for one in some if one.bytes >= size), None)
    return some[-1] if some else None


def _finding(topology: Topology, hot: _Bound | None, *, ran: bool, modelled: bool) -> str:
    """Whether links ran as fast as they can, if anything ran, and the coloured one with its load."""
    links = [link for link in topology.links if ran and link.kind is LinkKind.PCIE and link.generation]
    now = [link for link in links if link.current_generation]
    slow = sum(downtrained(link) for link in links)
    parts = []
    if links and not now:
        parts.append("At which speed the PCIe links ran is not known.")
    elif slow:
        parts.append(f"{slow} of {len(links)} directions of PCIe links ran below what they can do (dashed).")
    elif links:
        parts.append("All PCIe links whose speed is known ran at what they can do.")
    if hot is not None:
        share = f"{hot.flows} flow{'s share it' if hot.flows > 1 else ' has it'} at {hot.gbps:.1f} GB/s"
        together = " together" if hot.flows > 1 else ""
        where = f"{hot.link}, which holds {hot.name} back at {format_bytes(hot.bytes)}"
        parts.append(f"Coloured: {where}, by the model: {share}{together}.")
    elif modelled:
        parts.append(f"No link holds back who is the fastest: a link is blamed {RULE}.")
    return " ".join(parts)


def _links(topology: Topology) -> Table:
    """Links that are alike in everything are one line."""
    columns = [
        ("kind", False), ("links", False), ("at most", False), ("now", False), ("GB/s", True), ("latency, us", True),
        ("source", False),
    ]  # fmt: skip
    alike: dict[tuple[str, ...], list[Link]] = {}
    for link in topology.links:
        key = (
            LINK_WORDS[link.kind], speed_words(link), speed_words(link, now=True),
            "" if link.capacity_gbps is None else f"{link.capacity_gbps:g}",
            "" if link.latency_us is None else f"{link.latency_us:g}", clean(link.provenance),
        )  # fmt: skip
        alike.setdefault(key, []).append(link)
    lines = [[key[0], _names(links), *key[1:]] for key, links in alike.items()]
    return Table("Links of the machine; where both directions are alike, a dash joins the ends", columns, lines)


def _names(links: Sequence[Link]) -> str:
    """`a - b` where both directions are there, else `a -> b`; the first few and how many more."""
    there = {(link.src, link.dst) for link in links}
    pairs = dict.fromkeys(min(e, e[::-1]) if e[::-1] in there else e for link in links if (e := (link.src, link.dst)))
    names = [clean(f"{a} - {b}" if (b, a) in there else f"{a} -> {b}") for a, b in pairs]
    return first_few(names, MOST_NAMES)


def _lines(bound: Sequence[_Bound], drawn: str) -> list[Mapping[str, str]]:
    """Neighbouring sizes of one algorithm with the same link are one line; `target` is that link in the picture."""
    found: list[Mapping[str, str]] = []
    for (name, link, flows), group in groupby(bound, key=lambda one: (one.name, one.link, one.flows)):
        some = list(group)
        first, last = format_bytes(some[0].bytes), format_bytes(some[-1].bytes)
        low, high = min(one.gbps for one in some), max(one.gbps for one in some)
        rate = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
        sizes = first if len(some) == 1 else f"{first} to {last}"
        found.append({
            "name": name, "sizes": sizes, "link": link, "flows": str(flows), "gbps": rate,
            "target": _target(some[0].ends, drawn),
        })  # fmt: skip
    return found


def _target(ends: tuple[str, str], drawn: str) -> str:
    """Id of the link in the picture; empty where it is drawn as a part of something larger."""
    from collbench.topology.drawing_shapes import safe_id

    names = [safe_id(f"{_PICTURE}-link-{'-'.join(pair)}") for pair in (ends, ends[::-1])]
    return next((_PREFIX + name for name in names if f'id="{name}"' in drawn), "")
