"""Read a machine file (topologies/README.md is its schema) into a `Topology`, strictly."""

import dataclasses
import re
from collections.abc import Iterator, Mapping

from collbench.results.records import SCHEMA
from collbench.topology.gpus import PEER_ACCESS
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collbench.topology.toml_table import Document, Table

__all__ = ["ATTRIBUTES", "BASES", "NODE_TABLES", "NUMBERS", "has_basis", "read"]

NODE_TABLES: Mapping[str, NodeKind] = {
    "sockets": NodeKind.SOCKET, "host_bridges": NodeKind.HOST_BRIDGE, "root_ports": NodeKind.ROOT_PORT,
    "switches": NodeKind.SWITCH, "nvswitches": NodeKind.NVSWITCH, "nics": NodeKind.NIC, "gpus": NodeKind.GPU,
}  # fmt: skip
"""Table of each kind of node, in the order in which the nodes of a topology stand."""

_PEERS = ("peer_access", "peer_access_source")
ATTRIBUTES = ("model", "busid", "numa", "cores", "vendor", "device", "acs", "chip", "host", *_PEERS)
"""Facts that a node may carry as keys; others go into its table `attributes`."""

NUMBERS: Mapping[str, str] = {"speed": "speed", "capacity_gbps": "capacity", "latency_us": "latency"}
"""Keys of a `source` table and the words for them in `Link.provenance`; `speed` covers generation and width."""

BASES = ("measured", "nominal", "estimated", "reported")
"""What a source begins with: seen by an instrument, from a data sheet or formula, inferred, or said by software."""

_BASIS = re.compile(rf"(?:^|; )(?:(?:{'|'.join(NUMBERS.values())}) )?(?:{'|'.join(BASES)}): \S")
_TOP = ("schema", "name", "summary", "sources", "hidden", "disagreements", "classes", *NODE_TABLES, "links")
_SPEED = ("current_generation", "current_width")
_CLASS = ("kind", "generation", "width", *_SPEED, "capacity_gbps", "latency_us", "source")
_LINK = ("class", "from", "to", "one_way", *_SPEED, "capacity_gbps", "latency_us", "source")
_RANGE = re.compile(r"([^\[\]]*)\[(\d{1,5})-(\d{1,5})\]([^\[\]]*)")
_CITATION = re.compile(r"\{([^{}]*)\}")
_MAX_NODES = 4096
_MAX_GENERATION = 15
_MAX_WIDTH = 256


def has_basis(source: str) -> bool:
    """Whether a source says of its numbers how they came about."""
    return _BASIS.search(source) is not None


def read(text: str, file: str) -> Topology:
    """The topology of a machine file; `file` is what complaints call it.

    Raises:
        TopologyError: not TOML, an unknown key, a wrong type, a number without a source, or a link to nowhere; with
            file and line.
    """
    top = Document.parse(text, file).top()
    _check_schema(top)
    top.only(_TOP)
    top.text("summary", "")
    nodes = tuple(node for name in NODE_TABLES for row in top.tables(name) for node in _nodes(name, row, top))
    known = {node.id for node in nodes}
    classes = _classes(top)
    links = tuple(link for row in top.tables("links") for link in _links(row, classes, known))
    name, hidden, disagreements = top.text("name"), _hidden(top, known), top.texts("disagreements")
    try:
        return Topology(nodes, links, name, hidden, disagreements)
    except TopologyError as error:
        raise TopologyError(f"{file}: {error}") from error


def _check_schema(top: Table) -> None:
    schema = top.text("schema")
    if schema != SCHEMA:
        raise top.error("schema", f"schema {schema!r}: expected {SCHEMA!r}; a newer file needs a newer collbench")


def _nodes(name: str, row: Table, top: Table) -> Iterator[Node]:
    row.only(("id", "count", *ATTRIBUTES, "attributes"))
    attributes = _attributes(row)
    if set(_PEERS) & set(attributes):
        attributes |= _peer_access(name, row)
    for node_id in _node_ids(name, row, top):
        yield Node(node_id, NODE_TABLES[name], attributes)


def _node_ids(name: str, row: Table, top: Table) -> list[str]:
    if ("id" in row.values) == ("count" in row.values):
        raise row.error(None, f'[[{name}]]: expected either id = "..." (or "gpu[0-3]") or count = N')
    if "id" in row.values:
        return _expand(row, "id", row.text("id"))
    count = row.whole("count", 0, 1, _MAX_NODES)
    before = [sibling.values for sibling in top.tables(name)[: int(row.place[-1])]]
    if any("count" not in values for values in before):
        raise row.error("count", f"[[{name}]]: count after id: give all of them ids, so that their order is plain")
    start = sum(values["count"] for values in before if isinstance(values["count"], int))
    stem = str(NODE_TABLES[name])
    return [f"{stem}{start + index}" for index in range(count)]


def _attributes(row: Table) -> dict[str, str]:
    found = {key: row.values[key] for key in ATTRIBUTES if key in row.values}
    extra = row.table("attributes")
    found |= extra.values if extra else {}
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise row.error(key, f"{key}: expected a text in quotes or a whole number")
        if key in {"id", "kind"}:
            raise row.error("attributes", f"attribute {key!r}: the name is taken by the node itself")
    return {key: str(value) for key, value in found.items()}


def _peer_access(name: str, row: Table) -> dict[str, str]:
    """Whether GPUs map each other's memory, and who says so: a fact that decides which algorithms run at all."""
    if name != "gpus":
        raise row.error("peer_access", f"[[{name}]]: peer_access is a fact of GPUs")
    state, source = row.text("peer_access"), _cited(row, "peer_access_source")
    if state not in PEER_ACCESS:
        raise row.error("peer_access", f"peer_access {state!r}: expected one of {', '.join(PEER_ACCESS)}")
    if not has_basis(source):
        raise row.error("peer_access_source", f"peer_access_source {source[:60]!r}: begin it with one of {_either()}")
    return dict(zip(_PEERS, (state, source), strict=True))


def _expand(row: Table, key: str, pattern: str) -> list[str]:
    """`gpu[0-3]` -> gpu0, gpu1, gpu2, gpu3; any other text stands for itself."""
    match = _RANGE.fullmatch(pattern)
    if match is None:
        if "[" in pattern or "]" in pattern:
            raise row.error(key, f"{key} {pattern!r}: expected an id, or one range such as gpu[0-3]")
        return [pattern]
    head, first, last, tail = match[1], int(match[2]), int(match[3]), match[4]
    if last < first or last - first >= _MAX_NODES:
        raise row.error(key, f"{key} {pattern!r}: expected a range upwards of at most {_MAX_NODES}")
    return [f"{head}{number}{tail}" for number in range(first, last + 1)]


def _classes(top: Table) -> dict[str, Table]:
    table = top.table("classes")
    names = list(table.values) if table else []
    found = {}
    for name in names:
        row = table.table(name) if table else None
        if row is None:  # pragma: no cover - names come from the table
            continue
        row.only(_CLASS)
        kind = row.text("kind")
        if kind not in set(LinkKind):
            raise row.error("kind", f"kind {kind!r}: expected one of {', '.join(LinkKind)}")
        _directions(row, row)  # complains about a class that no link uses too
        found[name] = row
    return found


def _links(row: Table, classes: Mapping[str, Table], known: set[str]) -> Iterator[Link]:
    row.only(_LINK)
    name = row.text("class")
    if name not in classes:
        raise row.error("class", f"class {name!r}: expected one of {', '.join(classes) or 'the [classes.*] tables'}")
    forward, back = _directions(row, classes[name])
    for src, dst in _ends(row, known):
        yield dataclasses.replace(forward, src=src, dst=dst)
        if not row.flag("one_way"):
            yield dataclasses.replace(back, src=dst, dst=src)


def _directions(row: Table, base: Table) -> tuple[Link, Link]:
    """Forward and back link, ends left open; what the row does not say comes from `base`, its class."""
    numbers = {key: (row if key in row.values else base).positive_pair(key) for key in ("capacity_gbps", "latency_us")}
    if row is not base and "source" not in row.values:
        for key in numbers:
            if key in row.values:
                raise row.error(key, f"{key} differs from the class's, so this link needs a source of its own")
    forward, back = (
        Link(
            src="", dst="", kind=LinkKind(base.text("kind")),
            generation=base.whole("generation", 0, 1, _MAX_GENERATION), width=base.whole("width", 0, 1, _MAX_WIDTH),
            current_generation=_current(row, base, "current_generation", _MAX_GENERATION),
            current_width=_current(row, base, "current_width", _MAX_WIDTH),
            capacity_gbps=numbers["capacity_gbps"][side], latency_us=numbers["latency_us"][side],
            provenance=_source(row if "source" in row.values else base, base),
        )
        for side in (0, 1)
    )  # fmt: skip
    return forward, back


def _current(row: Table, base: Table, key: str, high: int) -> int:
    return row.whole(key, base.whole(key, 0, 1, high), 1, high)


def _source(row: Table, base: Table) -> str:
    """Provenance text of a class or link."""
    numbered = [key for key in ("capacity_gbps", "latency_us") if key in row.values or key in base.values]
    if not isinstance(row.values.get("source"), dict):
        text = _cited(row, "source")
        if numbered and not has_basis(text):
            raise row.error("source", f"source {text[:60]!r}: begin it with one of {_either()}")
        return text
    table = row.table("source")
    assert table is not None  # noqa: S101 - narrows the type: the key holds a table
    table.only(NUMBERS)
    speed = ["speed"] if "generation" in base.values or any(key in row.values for key in _SPEED) else []
    for key in [*speed, *numbered]:
        if key not in table.values:
            raise row.error("source", f"source has no {key!r}: every number needs one")
    for key in table.values:
        if not re.match(rf"(?:{'|'.join(BASES)}): \S", table.text(key)):
            raise table.error(key, f"source.{key} {table.text(key)[:60]!r}: begin it with one of {_either()}")
    return "; ".join(f"{word} {_cited(table, key)}" for key, word in NUMBERS.items() if key in table.values)


def _cited(table: Table, key: str) -> str:
    """Text of a source with each `{name}` replaced by what `[sources]` says; as it stands in a file without them."""
    sources = table.document.top().table("sources")
    text = table.text(key)
    if sources is None:
        return text

    def cited(match: re.Match[str]) -> str:
        if match[1] not in sources.values:
            raise table.error(key, f"{key}: no {match[1]!r} in [sources], which has {', '.join(sources.values)}")
        return sources.text(match[1])

    return _CITATION.sub(cited, text)


def _either() -> str:
    return ", ".join(f"'{basis}: '" for basis in BASES)


def _ends(row: Table, known: set[str]) -> Iterator[tuple[str, str]]:
    """Pairs of ends: lists of equal length pair up one to one, a single id joins all of the other side."""
    sides = []
    for key in ("from", "to"):
        ids = [node_id for pattern in row.texts(key) for node_id in _expand(row, key, pattern)]
        if not ids:
            raise row.error(key if key in row.values else None, f"[[links]] has no {key!r}")
        for node_id in ids:
            if node_id not in known:
                raise row.error(key, f"{key}: there is no node {node_id!r}")
        sides.append(ids)
    sources, targets = sides
    if len(sources) != len(targets) and 1 not in {len(sources), len(targets)}:
        raise row.error(
            "to", f"{len(sources)} ids in from, {len(targets)} in to: expected equal numbers, or a single one"
        )
    length = max(len(sources), len(targets))
    for index in range(length):
        yield sources[index % len(sources)], targets[index % len(targets)]


def _hidden(top: Table, known: set[str]) -> tuple[tuple[str, str], ...]:
    pairs = top.values.get("hidden", [])
    good = isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, str) and end in known for end in pair)  # noqa: PLR2004 - a pair
        for pair in pairs
    )
    if not good:
        raise top.error("hidden", 'hidden: expected a list of pairs of node ids, such as [["gpu0", "gpu1"]]')
    return tuple((pair[0], pair[1]) for pair in pairs)
