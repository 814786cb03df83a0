"""The picture of a topology: one SVG for light and dark pages, for screens of 1200 pixels and paper."""

import hashlib
from collections.abc import Collection, Sequence

from collbench.topology import drawing_shapes as shapes
from collbench.topology import words
from collbench.topology.drawing_layout import Box, Join, arrange
from collbench.topology.drawing_style import LEGEND, STYLE
from collbench.topology.gpus import has_peer_access
from collbench.topology.graph import LinkKind, NodeKind, Topology

__all__ = ["svg"]

_TOP = 66.0
_BOW_LABELS = 6
"""Up to so many NVLink pairs carry their label in the picture; above it the labels would hide the lines."""
_ALL_PAIRS = 4

Highlight = Collection[tuple[str, str]]


def svg(topology: Topology, highlight: Highlight | None = None, prefix: str = "") -> str:
    """Draw a topology as a self-contained SVG text.

    Sockets stand on top, then host bridges, root ports and switches, GPUs and network cards at the bottom, NVSwitches
    below. Every element has a title with exact numbers. `highlight` lists links as (src, dst) to make them stand out;
    `prefix` begins every id (by default it is derived from the content), so that several can stand in one page. The
    same input gives the same text.
    """
    return _Picture(topology, frozenset(highlight or ()), prefix).text()


class _Picture:
    """Collects the elements of one picture."""

    def __init__(self, topology: Topology, highlight: frozenset[tuple[str, str]], prefix: str) -> None:
        self.topology = topology
        self.highlight = highlight
        seed = repr((topology.as_json(), sorted(highlight)))
        self.prefix = shapes.safe_id(prefix) or f"cbt-{hashlib.sha256(seed.encode()).hexdigest()[:8]}"
        self.kinds: set[str] = set()
        self.notes: list[str] = []
        lines = {
            (link.src, link.dst): shapes.label_of(Join(link.src, link.dst, (link,), ())) for link in topology.links
        }
        self.layout = arrange(topology, _TOP + (34.0 if _far_sockets(topology) else 0.0), lines)

    def text(self) -> str:
        layout = self.layout
        tree = [element for join in layout.tree for element in self._upright(join, *self._abreast(join))]
        side = [element for join in self._sides() for element in join]
        boxes = [element for key in layout.boxes for element in self._box(layout.boxes[key])]
        width = max(layout.width, 460.0)
        shift = (width - layout.width) / 2
        legend, rows = self._legend(width)
        foot = self._foot()
        height = layout.height + 30.0 + 18.0 * rows + shapes.LINE * len(foot)
        title, summary = self.topology.name or "Topology", self._summary()
        body = [*tree, *side, *boxes]
        head = [shapes.text_at(24, 28, title, "h"), shapes.text_at(24, 46, summary, "m")]
        tail = [
            *legend,
            *(shapes.text_at(24, height - 12 - shapes.LINE * n, row, "m") for n, row in enumerate(reversed(foot))),
        ]
        return "\n".join((
            f'<svg xmlns="http://www.w3.org/2000/svg" class="cbt" id="{self.prefix}" role="img" '  # noqa: ISC004 - one tag
            f'aria-label="{shapes.escape(f"{title}: {summary}")}" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>',
            *head, f'<g transform="translate({shift:.1f} 0)">', *body, "</g>", *tail, "</svg>",
        )) + "\n"  # fmt: skip

    def _summary(self) -> str:
        parts = [words.counts(self.topology), words.group_words(self.topology)]
        cuts = sorted(cut for _, _, cut, _ in words.between_groups(self.topology) if cut < float("inf"))
        if cuts:
            parts.append(
                f"{' to '.join(dict.fromkeys((words.gbps(cuts[0]), words.gbps(cuts[-1]))))} GB/s between groups"
            )
        return " · ".join(part for part in parts if part) or "no devices"

    def _group(self, kind: str, join_or_box: Join | Box, title: str, inner: Sequence[str]) -> str:
        ends = (join_or_box.low, join_or_box.high) if isinstance(join_or_box, Join) else join_or_box.nodes[:1]
        name = shapes.safe_id(f"{self.prefix}-{kind}-{'-'.join(ends)}")
        return f'<g id="{name}"><title>{shapes.escape(title)}</title>{"".join(inner)}</g>'

    def _line_class(self, join: Join) -> str:
        links = (*join.up, *join.down)
        kind = str(join.first.kind)
        slow = any(words.downtrained(link) for link in links)
        hot = any((link.src, link.dst) in self.highlight for link in links)
        self.kinds |= {kind, *(["slow"] if slow else []), *(["hot"] if hot else [])}
        return f"l {kind}{' slow' if slow else ''}{' hot' if hot else ''}"

    def _upright(self, join: Join, index: int = 0, number: int = 1) -> list[str]:
        """A straight line from a box to its parent or a bar under the GPUs, with its label; one of `number`."""
        low, high = self.layout.boxes[join.low], self.layout.boxes[join.high]
        below = low.y < high.y  # a bar under the GPUs: the same line, upside down
        x = low.middle + (index - (number - 1) / 2) * low.width / number
        bottom, top = high.y if below else low.y, low.y + low.height if below else high.y + high.height
        style = self._line_class(join)
        label = shapes.label_of(join)
        middle = bottom - 12 - shapes.LINE * len(label) / 2
        inner = [
            shapes.path(f"M{x:.1f} {bottom:.1f}V{top:.1f}", style, shapes.stroke(join)),
            *shapes.plate_rows(x, middle, label, style),
        ]
        return [self._group("link", join, shapes.title_of(join), inner)]

    def _abreast(self, join: Join) -> tuple[int, int]:
        """Which one it is of how many lines between the same boxes (such as PCIe and C2C to one processor)."""
        same = [other for other in self.layout.tree if (other.low, other.high) == (join.low, join.high)]
        return same.index(join), len(same)

    def _sides(self) -> list[list[str]]:
        nvlinks = [join for join in self.layout.side if join.first.kind in shapes.PEER and not self._is_bar(join)]
        parts = shapes.components(nvlinks)
        meshed = [part for part in parts if self._is_mesh(part)]
        bowed = [join for part in parts if part not in meshed for join in part]
        base = self.layout.height
        drawn, done = [], [(0.0, 0.0, base)]
        for draw, joins in [*((self._mesh, part) for part in meshed), (self._bows, bowed)]:
            ends = [self._x(end) for join in joins for end in (join.low, join.high)] or [0.0]
            under = (bottom for left, right, bottom in done if min(ends) <= right and left <= max(ends))
            self.layout.height = max(under, default=base)  # those below different GPUs stand side by side
            drawn.append(draw(joins))
            done.append((min(ends), max(ends), self.layout.height))
        self.layout.height = max(bottom for _, _, bottom in done)
        cables = [join for join in self.layout.side if join.first.kind is LinkKind.NETWORK and not self._is_bar(join)]
        drawn.append(self._bows(cables))
        return drawn + [self._side(join) for join in self.layout.side if join not in [*nvlinks, *cables]]

    def _is_mesh(self, joins: Sequence[Join]) -> bool:
        """Whether every one of at least four GPUs is joined to every other."""
        ends = {end for join in joins for end in (join.low, join.high)}
        return len(ends) >= _ALL_PAIRS and len(joins) == len(ends) * (len(ends) - 1) // 2

    def _is_bar(self, join: Join) -> bool:
        return join.low in self.layout.bars or join.high in self.layout.bars

    def _side(self, join: Join) -> list[str]:
        if self._is_bar(join) and not {join.low, join.high} <= set(self.layout.bars):
            return self._upright(join)
        left, right = sorted((self.layout.boxes[join.low], self.layout.boxes[join.high]), key=lambda box: box.x)
        style, label = self._line_class(join), shapes.label_of(join)
        level = left.y == right.y
        if level and not self._between(left, right):
            y, start, end = left.y + left.height / 2, left.x + left.width, right.x
            inner = [shapes.path(f"M{start:.1f} {y:.1f}H{end:.1f}", style, shapes.stroke(join))]
            if end - start > 100:  # noqa: PLR2004 - pixels that a label needs
                inner += shapes.plate_rows((start + end) / 2, y - 14 - shapes.LINE * (len(label) - 1) / 2, label, style)
        elif level:
            inner = [
                shapes.path(shapes.bow(left, right, -26 - 8 * self._between(left, right)), style, shapes.stroke(join))
            ]
        else:
            upper, lower = sorted((left, right), key=lambda box: box.y)
            one, two, half = upper.y + upper.height, lower.y, (upper.y + upper.height + lower.y) / 2
            curve = f"M{upper.middle:.1f} {one:.1f}C{upper.middle:.1f} {half:.1f} {lower.middle:.1f} {half:.1f}"
            inner = [shapes.path(f"{curve} {lower.middle:.1f} {two:.1f}", style, shapes.stroke(join))]
        return [self._group("link", join, shapes.title_of(join), inner)]

    def _between(self, left: Box, right: Box) -> int:
        return sum(left.x < box.x < right.x and box.y == left.y for box in self.layout.boxes.values())

    def _mesh(self, joins: Sequence[Join]) -> list[str]:
        """One bar for GPUs that are all joined to one another, as behind an NVSwitch."""
        ends = sorted({end for join in joins for end in (join.low, join.high)}, key=lambda e: self.layout.boxes[e].x)
        boxes = [self.layout.boxes[end] for end in ends]
        kind = joins[0].first.kind
        speeds = sorted({words.speed_words(join.first) for join in joins} - {""})
        self.kinds.add(str(kind))
        y = self.layout.height + 26
        bar = Box(tuple(ends), NodeKind.NVSWITCH, boxes[0].x, y, boxes[-1].x + boxes[-1].width - boxes[0].x, 30.0)
        lines = [shapes.path(f"M{b.middle:.1f} {b.y + b.height:.1f}V{y:.1f}", f"l {kind}", 3.0) for b in boxes]
        label = f"{LEGEND[str(kind)]} between all {len(ends)}"
        each = {words.capacity_words(link, None) for join in joins for link in (*join.up, *join.down)} - {""}
        if speeds or len(each) == 1:
            label += f": {', '.join(speeds + (sorted(each) if len(each) == 1 else []))} per pair"
        title = "\n".join(shapes.title_of(join) for join in joins)
        self.layout.height = y + bar.height
        inner = [
            *lines,
            shapes.rectangle(bar, "b nvswitch"),
            shapes.text_at(bar.middle, y + 19, shapes.fit(label, bar.width, 6.6), "n"),
        ]
        return [self._group("mesh", bar, title, inner)]

    def _bows(self, joins: Sequence[Join]) -> list[str]:
        """NVLink between pairs of GPUs, cables between NICs: bows below all else, wider ones deeper."""
        labelled = len(joins) <= _BOW_LABELS
        first, step = (56.0, 50.0) if labelled else (24.0, 16.0)
        ends = [self.layout.boxes[end] for join in joins for end in (join.low, join.high)]
        bottom = max((box.y + box.height for box in ends), default=0.0)
        first += max(0.0, self.layout.height - bottom) / 0.75  # a bow reaches three quarters of its drop
        spans = sorted(joins, key=lambda join: abs(self._x(join.low) - self._x(join.high)))
        levels = shapes.depths([(self._x(join.low), self._x(join.high)) for join in spans])
        lines, labels = [], []
        for join, level in zip(spans, levels, strict=True):
            left, right = sorted((self.layout.boxes[join.low], self.layout.boxes[join.high]), key=lambda box: box.x)
            drop, style = first + level * step, self._line_class(join)
            bow = shapes.path(shapes.bow(left, right, drop), style, shapes.stroke(join))
            lines.append(self._group("link", join, shapes.title_of(join), [bow]))
            if labelled:
                y = left.y + left.height + 0.75 * drop
                labels += shapes.plate_rows((left.middle + right.middle) / 2, y, shapes.label_of(join), style)
        if not labelled:
            self.notes += shapes.tally(joins)
        if joins:
            self.layout.height = bottom + 0.75 * (first + max(levels) * step) + (22.0 if labelled else 10.0)
        return [*lines, *labels]

    def _x(self, key: str) -> float:
        return self.layout.boxes[key].middle

    def _box(self, box: Box) -> list[str]:
        nodes = [self.topology.node(node_id) for node_id in box.nodes]
        node = nodes[0]
        many = len(nodes) > 1
        name = f"{len(nodes)} {words.KIND_WORDS[node.kind]}s" if many and node.kind is NodeKind.NIC else node.id
        if many and node.kind is not NodeKind.NIC:
            name = f"{len(nodes)} x {words.KIND_WORDS[node.kind]}"
        rows = [] if many and node.kind is NodeKind.NIC else shapes.details(node.kind, node.attributes)
        rows = [fitted for row in rows if (fitted := shapes.fit_words(row, box.width, 6.3))]
        y = box.y + box.height / 2 - shapes.LINE * len(rows) / 2
        inner = [
            shapes.rectangle(box, f"b {node.kind}"),
            shapes.text_at(box.middle, y + 4, shapes.fit(name, box.width, 7.4), "n"),
        ]
        inner += [shapes.text_at(box.middle, y + 4 + shapes.LINE * (n + 1), row, "d") for n, row in enumerate(rows)]
        return [self._group("node", box, "\n".join(words.facts(n) for n in nodes), inner)]

    def _legend(self, width: float) -> tuple[list[str], int]:
        """Line styles that occur, and how many rows they take."""
        styles = [(key, word) for key, word in LEGEND.items() if key in self.kinds]
        if len(styles) < 2 and not self.kinds & {"slow", "hot"}:  # noqa: PLR2004 - a single style needs no legend
            return [], 0
        x, row, found = 24.0, 0, []
        for key, word in styles:
            room = 58 + 6.2 * len(word)
            if x + room > width and x > 24.0:  # noqa: PLR2004 - the left margin
                x, row = 24.0, row + 1
            y = self.layout.height + 30.0 + 18.0 * row
            style = f"l {key}" if key not in {"slow", "hot"} else f"l pcie {key}"
            found += [shapes.path(f"M{x:.1f} {y - 4:.1f}h26", style, 3.0), shapes.text_at(x + 34, y, word, "m")]
            x += room
        return found, row + 1

    def _foot(self) -> list[str]:
        rows = list(self.notes)
        if not has_peer_access(self.topology):
            rows.append("No peer access: what one GPU sends to another goes through host memory")
        if self.topology.hidden:
            number = len(self.topology.hidden)
            rows.append(f"PCIe path not known for {number} pair{'s' if number > 1 else ''} of GPUs")
        if self.topology.disagreements:
            number = len(self.topology.disagreements)
            rows.append(f"Sources disagree on {number} point{'s' if number > 1 else ''}: collbench topo lists them")
        return rows


def _far_sockets(topology: Topology) -> bool:
    """Whether sockets that do not stand side by side are linked, which is drawn above them."""
    rank = {node_id: index for index, node_id in enumerate(topology.sockets)}
    ends = [(rank[link.src], rank[link.dst]) for link in topology.links if link.src in rank and link.dst in rank]
    return any(abs(one - two) > 1 for one, two in ends)
