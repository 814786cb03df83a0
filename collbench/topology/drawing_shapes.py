"""Pieces of the picture: texts, boxes, lines and bows as SVG, and what they say."""

import html
from collections import Counter
from collections.abc import Mapping, Sequence

from collbench.topology import words
from collbench.topology.drawing_layout import Box, Join
from collbench.topology.graph import Link, LinkKind, NodeKind

__all__ = [
    "LINE",
    "PEER",
    "bow",
    "components",
    "depths",
    "details",
    "escape",
    "fit",
    "fit_words",
    "label_of",
    "path",
    "plate_rows",
    "rectangle",
    "safe_id",
    "stroke",
    "tally",
    "text_at",
    "title_of",
]

LINE = 14.0
"""Height of a row of text in pixels."""

PEER = frozenset({LinkKind.NVLINK, LinkKind.XGMI})
"""Kinds of links that join GPUs past PCIe."""

_SHORT = ("NVIDIA ", "Tesla ", "GeForce ", "AMD ", "Intel(R) ", "Instinct ", "Broadcom ", "Microchip ", "(R)", "(TM)")


def label_of(join: Join) -> list[str]:
    """Up to three short lines: speed (now, then what it could be) and capacity."""
    first = join.first
    total = _sum(join.up), _sum(join.down)
    speed, now = words.speed_words(first), words.speed_words(first, now=True)
    slow = next((link for link in (*join.up, *join.down) if words.downtrained(link)), None)
    if slow is not None:
        rows = [f"{words.speed_words(slow, now=True)} now", f"of {words.speed_words(slow)}"]
    elif len(join.up) > 1 and first.kind in PEER:
        rows = [f"{speed.split()[0] if speed else str(first.kind)} x{sum(link.width for link in join.up)}"]
    else:
        rows = [speed or (f"{now} now" if now else "")]
    rows.append(words.capacity_words(*total, up="↑", down="↓"))
    if len(join.up) > 1 and first.kind not in PEER and (each := words.capacity_words(first, None)):
        rows[-1] = f"{len(join.up)}x{each}"  # cards of one box
    return [row for row in rows if row]


def _sum(links: Sequence[Link]) -> Link | None:
    """One link for several that run side by side, such as those to the chips of an NVSwitch."""
    if len(links) < 2:  # noqa: PLR2004 - nothing to add up
        return links[0] if links else None
    known = [link.capacity_gbps for link in links if link.capacity_gbps is not None]
    return Link(
        links[0].src, links[0].dst, links[0].kind, capacity_gbps=sum(known) if len(known) == len(links) else None
    )


def title_of(join: Join) -> str:
    """Every link of a line, with exact numbers."""
    return "\n".join(words.link_facts(link) for link in (*join.up, *join.down))


def details(kind: NodeKind, attributes: Mapping[str, str]) -> list[str]:
    """What stands below a node's name: model and bus id, or cores and NUMA node of a socket."""
    model = attributes.get("model", "")
    for word in _SHORT:
        model = model.replace(word, "")
    bus = attributes.get("busid", "").removeprefix("0000:")
    if kind in {NodeKind.GPU, NodeKind.NIC}:
        return [model, bus]
    if kind is NodeKind.SOCKET:
        cores, nodes = attributes.get("cores", ""), attributes.get("numa_nodes", "1")
        numa = f"{nodes} NUMA nodes" if nodes != "1" else f"NUMA {attributes.get('numa', '')}"
        places = f"{cores} cores" if cores.isdecimal() else f"cores {cores}".removesuffix("cores ")
        parts = [model.strip(), places, numa if numa != "NUMA " else ""]
        return [" · ".join(part for part in parts if part)]
    chip = attributes.get("chip", "")
    return [" ".join(part for part in (model.strip(), f"chip {chip}" if chip else "" if model else bus) if part)]


def depths(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Depth of each bow (narrow ones first), so that no two of one depth overlap."""
    taken: list[list[tuple[float, float]]] = []
    depths = []
    for left, right in (sorted(span) for span in spans):
        level = next((n for n, row in enumerate(taken) if all(right <= a or b <= left for a, b in row)), len(taken))
        if level == len(taken):
            taken.append([])
        taken[level].append((left, right))
        depths.append(level)
    return depths


def components(joins: Sequence[Join]) -> list[list[Join]]:
    """Lines by the sets of boxes that they connect."""
    parts: list[tuple[set[str], list[Join]]] = []
    for join in joins:
        touched = [part for part in parts if {join.low, join.high} & part[0]]
        ends = {join.low, join.high}.union(*(part[0] for part in touched))
        rows = [row for part in touched for row in part[1]] + [join]
        parts = [part for part in parts if part not in touched] + [(ends, rows)]
    return [rows for _, rows in parts]


def tally(joins: Sequence[Join]) -> list[str]:
    """What stands at lines that carry no label, in one row: `NVLink2 x1, 20 GB/s: 8 pairs; NVLink2 x2, 40 GB/s: 8`."""
    found = Counter(", ".join(label_of(join)) for join in joins)
    rows = [f"{text}: {number} pair{'s' if number > 1 else ''}" for text, number in sorted(found.items()) if text]
    return ["; ".join(rows)] if rows else []


def bow(left: Box, right: Box, drop: float) -> str:
    """A bow from box to box, below them for a positive drop, above for a negative one."""
    y = left.y + left.height if drop > 0 else left.y
    return (
        f"M{left.middle:.1f} {y:.1f}C{left.middle:.1f} {y + drop:.1f} {right.middle:.1f} {y + drop:.1f} "
        f"{right.middle:.1f} {y:.1f}"
    )


def stroke(join: Join) -> float:
    """Line width by what the link can do, 2 to 6 pixels."""
    width = join.first.width or 8
    if join.first.kind is LinkKind.NVLINK:
        return min(6.0, 1.2 + 1.1 * width)
    return {1: 2.0, 2: 2.0, 4: 2.5, 8: 3.0}.get(width, 4.0) if join.first.width else 3.0


def path(steps: str, style: str, thickness: float) -> str:
    """A line along the steps of an SVG path."""
    return f'<path class="{style}" d="{steps}" stroke-width="{thickness:g}"/>'


def rectangle(box: Box, style: str) -> str:
    """The outline of a box."""
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect class="{style}" {place} rx="6"/>'


def text_at(x: float, y: float, text: str, style: str) -> str:
    """One row of text."""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def plate_rows(x: float, middle: float, rows: Sequence[str], style: str = "") -> list[str]:
    """Rows of a label around a height, on a plate that hides the line behind it; `slow` rows in the colour of that."""
    if not rows:
        return []
    letter = 7.0 if " slow" in style else 6.3
    top, width = middle - LINE * len(rows) / 2, letter * max(map(len, rows)) + 6
    place = f'x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{LINE * len(rows):.1f}"'
    plate = f'<rect class="page" {place}/>'
    kind = "s slow" if " slow" in style else "s"
    return [plate, *(text_at(x, top + LINE * n + 10.5, row, kind) for n, row in enumerate(rows))]


def fit(text: str, width: float, letter: float) -> str:
    """Cut a text that is too long for a box; the title holds all of it."""
    room = max(3, int((width - 10) / letter))
    return text if len(text) <= room else f"{text[: room - 1].rstrip()}…"


def fit_words(text: str, width: float, letter: float) -> str:
    """As many whole words as fit into a box, none where the first is too long; of parts with dots between, the last."""
    room = int((width - 10) / letter)
    separator = " · " if " · " in text else " "
    kept = text.split(separator)
    while kept and len(separator.join(kept)) > room:
        kept.pop(0 if separator != " " else -1)
    return separator.join(kept)


def escape(text: str) -> str:
    """Text for SVG: escaped, without characters that XML cannot hold."""
    clean = "".join(c for c in text if c == "\n" or (c.isprintable() and c not in "\ufffe\uffff"))
    return html.escape(clean)


def safe_id(text: str) -> str:
    """Text as an id: letters, digits, dashes; other characters become their code."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "-") else f"_{ord(c):x}" for c in text)
