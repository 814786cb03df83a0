"""Write a `Topology` as a machine file that `catalog_reader` reads back."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from collbench.results.records import SCHEMA
from collbench.topology.catalog_reader import ATTRIBUTES, BASES, NODE_TABLES, NUMBERS, has_basis
from collbench.topology.graph import Link, Node, Topology, TopologyError

__all__ = ["write"]

_PART = re.compile(rf"(?:^|; )({'|'.join(NUMBERS.values())}) (?=(?:{'|'.join(BASES)}): )")
_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d{0,3})")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

_Pair = tuple[Link, Link | None]


def write(topology: Topology) -> str:
    """The machine file of a topology.

    Nodes come back sorted by kind (GPUs in rank order), links as pairs of directions; a link without provenance gets
    `reported: no source recorded`, and numbers whose provenance does not say how they came about get `reported: `.

    Raises:
        TopologyError: a node id that holds a bracket, which the file uses for ranges.
    """
    for node in topology.nodes:
        if "[" in node.id or "]" in node.id:
            raise TopologyError(f"node {node.id!r}: a machine file cannot hold an id with brackets")
    pairs = _pairs(topology.links)
    names = _class_names(pairs)
    lines = [f"schema = {_text(SCHEMA)}", f"name = {_text(topology.name if topology.name.strip() else 'unnamed')}"]
    if topology.hidden:
        lines.append(f"hidden = [{', '.join(_list(pair) for pair in topology.hidden)}]")
    if topology.disagreements:
        lines += ["disagreements = [", *(f"  {_text(row)}," for row in topology.disagreements), "]"]
    for key, name in names.items():
        lines += ["", f"[classes.{name}]", *key]
    for table, kind in NODE_TABLES.items():
        lines += _node_tables(table, [node for node in topology.nodes if node.kind is kind])
    for (name, dst, one_way), group in groupby(pairs, key=lambda pair: _row_key(pair, names)):
        lines += ["", "[[links]]", f"class = {_text(name)}", f"from = {_ids([pair[0].src for pair in group])}"]
        lines += [f"to = {_text(dst)}", *(["one_way = true"] if one_way else [])]
    return "\n".join(lines) + "\n"


def _pairs(links: Sequence[Link]) -> list[_Pair]:
    """Each link with its opposite, where one can be written with it."""
    waiting = {(link.src, link.dst, link.kind): link for link in links}
    pairs: list[_Pair] = []
    for link in links:
        if waiting.pop((link.src, link.dst, link.kind), None) is None:
            continue
        back = waiting.get((link.dst, link.src, link.kind))
        if back is not None and _shape(back) == _shape(link):
            del waiting[back.src, back.dst, back.kind]
            pairs.append((link, back))
        else:
            pairs.append((link, None))
    return pairs


def _shape(link: Link) -> tuple[object, ...]:
    known = (link.capacity_gbps is None, link.latency_us is None)
    speeds = (link.generation, link.width, link.current_generation, link.current_width)
    return (*speeds, *known, link.provenance)


def _class_names(pairs: Iterable[_Pair]) -> dict[tuple[str, ...], str]:
    """Name of each distinct class, keyed by the lines of its table."""
    names: dict[tuple[str, ...], str] = {}
    for pair in pairs:
        key = _class_lines(pair)
        if key not in names:
            stem, taken = pair[0].link_class, set(names.values())
            variants = [stem, *(f"{stem}-{number}" for number in range(2, len(names) + 3))]
            names[key] = next(name for name in variants if name not in taken)
    return names


def _row_key(pair: _Pair, names: dict[tuple[str, ...], str]) -> tuple[str, str, bool]:
    return names[_class_lines(pair)], pair[0].dst, pair[1] is None


def _class_lines(pair: _Pair) -> tuple[str, ...]:
    link, back = pair[0], pair[1] or pair[0]
    speeds = ("generation", "width", "current_generation", "current_width")
    lines = [f"kind = {_text(link.kind)}", *(f"{key} = {getattr(link, key)}" for key in speeds if getattr(link, key))]
    for key in ("capacity_gbps", "latency_us"):
        one, two = getattr(link, key), getattr(back, key)
        if one is not None:
            lines.append(f"{key} = {_number(one) if one == two else f'[{_number(one)}, {_number(two)}]'}")
    return (*lines, f"source = {_source(link)}")


def _source(link: Link) -> str:
    text = link.provenance.strip() or "reported: no source recorded"
    numbered = link.capacity_gbps is not None or link.latency_us is not None
    if numbered and not has_basis(text):
        text = f"reported: {text}"
    parts = _parts(text)
    needed = {"speed": link.generation, "capacity": link.capacity_gbps, "latency": link.latency_us}
    if not parts or not all(word in parts for word, value in needed.items() if value):
        return _text(text)
    return f"{{ {', '.join(f'{key} = {_text(parts[word])}' for key, word in NUMBERS.items() if word in parts)} }}"


def _parts(text: str) -> dict[str, str]:
    """`capacity measured: A; latency nominal: B` by its words; empty where putting it together gives another text."""
    starts = list(_PART.finditer(text))
    ends = [*(match.start() for match in starts), len(text)][1:]
    parts = {match[1]: text[match.end() : end] for match, end in zip(starts, ends, strict=False)}
    joined = "; ".join(f"{word} {parts[word]}" for word in NUMBERS.values() if word in parts)
    return parts if joined == text else {}


def _node_tables(table: str, nodes: Sequence[Node]) -> list[str]:
    lines: list[str] = []
    for _, group in groupby(enumerate(nodes), key=lambda entry: _node_group(nodes, entry[0])):
        same = [node for _, node in group]
        known = {key: same[0].attributes[key] for key in ATTRIBUTES if key in same[0].attributes}
        extra = {key: value for key, value in same[0].attributes.items() if key not in known}
        lines += ["", f"[[{table}]]", f"id = {_text(_compress([node.id for node in same]))}"]
        lines += [f"{key} = {_fact(value)}" for key, value in known.items()]
        if extra:
            rows = ", ".join(f"{_key(key)} = {_fact(value)}" for key, value in sorted(extra.items()))
            lines.append(f"attributes = {{ {rows} }}")
    return lines


def _node_group(nodes: Sequence[Node], index: int) -> int:
    """Position of the first of the neighbours that can stand in one table with node `index`."""
    start = index
    while start and nodes[start - 1].attributes == nodes[index].attributes and _follows(nodes[start - 1], nodes[start]):
        start -= 1
    return start


def _follows(before: Node, after: Node) -> bool:
    one, two = _NUMBERED.fullmatch(before.id), _NUMBERED.fullmatch(after.id)
    return bool(one and two and one[1] == two[1] and int(two[2]) == int(one[2]) + 1)


def _compress(ids: Sequence[str]) -> str:
    """`gpu[0-3]` for ids that _follows() one another."""
    first, last = _NUMBERED.fullmatch(ids[0]), _NUMBERED.fullmatch(ids[-1])
    return f"{first[1]}[{first[2]}-{last[2]}]" if len(ids) > 1 and first and last else ids[0]


def _ids(ids: Sequence[str]) -> str:
    probe = [Node(node_id, NODE_TABLES["gpus"]) for node_id in ids]
    chained = len(ids) > 1 and all(_follows(a, b) for a, b in pairwise(probe))
    return _text(_compress(ids)) if chained or len(ids) == 1 else _list(ids)


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(_text(text) for text in texts)}]"


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _text(text)


def _fact(text: str) -> str:
    return text if re.fullmatch(r"0|[1-9][0-9]{0,9}", text) else _text(text)


def _number(value: float) -> str:
    return repr(float(value))


def _text(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _unicode(c)) for c in str(text)) + '"'


def _unicode(character: str) -> str:
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:  # noqa: PLR2004 - surrogates, which TOML cannot hold
        return "\\uFFFD"
    return f"\\U{code:08X}"
