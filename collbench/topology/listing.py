"""A topology as text: the tree of devices, other links, groups, what is hidden and what sources disagree on."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from collbench.topology import host_tree, words
from collbench.topology.gpus import has_peer_access
from collbench.topology.graph import Link, Node, Topology
from collbench.wording import first_few

__all__ = ["listing"]

_MANY = 24
"""Rows of one kind that are printed; beyond them the number of the others."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_FACTS = ("model", "cores", "numa", "chip", "busid")


def listing(topology: Topology, sources: Iterable[tuple[str, str]] = ()) -> str:
    """Text of a topology. `sources` are names with what became of each.

    Link labels are those of the link from a device towards the processor; exact numbers are in the JSON form.
    """
    parent = host_tree.parents(topology)
    blocks = [
        [f"{topology.name or 'this machine'}: {words.counts(topology) or 'no devices'}"],
        _tree(topology, parent),
        _titled("Other links", _others(topology, parent)),
        _titled("Groups (GPUs below one PCIe switch)", _groups(topology)),
        _titled("Peer access", _peer_access(topology)),
        _titled("Peer access as nvidia-smi topo -p2p says it", list(_p2p(topology))),
        _titled("PCIe path not known", [f"{one} - {two}" for one, two in topology.hidden]),
        _titled("Disagreements", topology.disagreements),
        _titled("Sources", _table(list(sources))),
    ]
    text = "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block)
    return "".join(c for c in text if c == "\n" or c.isprintable()) + "\n"


def _titled(title: str, rows: Sequence[str]) -> list[str]:
    if not rows:
        return []
    kept = [f"  {' '.join(row.split(chr(10)))}" for row in rows[:_MANY]]
    return [title, *kept, *([f"  and {len(rows) - _MANY} more"] if len(rows) > _MANY else [])]


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Two columns, the second aligned behind the longest entry of the first."""
    width = max((len(first) for first, second in rows if second), default=0)
    return [f"{first:<{width}}  {second}" for first, second in rows]


def _tree(topology: Topology, parent: Mapping[str, str]) -> list[str]:
    """The host tree with box-drawing characters, a link's label behind each device."""
    children = host_tree.children(topology, parent)
    links = {(link.src, link.dst): link for link in reversed(topology.links) if link.kind not in host_tree.FABRIC}
    rows: list[tuple[str, str]] = []
    stack = [(root, "", "") for root in reversed(children.get("", []))]
    while stack:
        node_id, lead, mark = stack.pop()
        title = f"{lead}{mark}{node_id}  {_facts(topology.node(node_id))}".rstrip()
        above = parent[node_id]
        label = _label(links.get((node_id, above)), links.get((above, node_id))) if above else ""
        rows.append((title, label))
        deeper = lead + {"": "", "├─ ": "│  ", "└─ ": "   "}[mark]
        last = len(children.get(node_id, [])) - 1
        below = [(child, deeper, "└─ " if i == last else "├─ ") for i, child in enumerate(children.get(node_id, []))]
        stack += reversed(below)
    return _table(rows)


def _facts(node: Node) -> str:
    found = [(key, node.attributes[key]) for key in _FACTS if node.attributes.get(key)]
    short = {"numa": "NUMA {}", "cores": "{} cores", "chip": "chip {}"}
    if not node.attributes.get("cores", "").isdecimal():
        short["cores"] = "cores {}"
    return ", ".join(short.get(key, "{}").format(value) for key, value in found)


def _label(up: Link | None, down: Link | None) -> str:
    """`Gen5 x16 (now Gen1 x16), 53.8 GB/s, 0.19 us`."""
    link = up or down
    if link is None:
        return ""
    speed, now = words.speed_words(link), words.speed_words(link, now=True)
    if now and not speed:
        speed = f"{now} now"
    elif words.downtrained(link):
        speed = f"{speed} (now {now})"
    latency = f"{link.latency_us:g} us" if link.latency_us is not None else ""
    return ", ".join(part for part in (speed, words.capacity_words(up, down), latency) if part)


def _others(topology: Topology, parent: Mapping[str, str]) -> list[str]:
    """Links beside the tree, both directions in one row; those with equal labels at one device in one row."""
    seen: dict[tuple[str, str, str], tuple[Link, Link | None]] = {}
    for link in topology.links:
        inside = parent.get(link.src) == link.dst or parent.get(link.dst) == link.src
        if inside and link.kind not in host_tree.FABRIC:
            continue
        if (back := (link.dst, link.src, str(link.kind))) in seen:
            seen[back] = (seen[back][0], link)
        else:
            seen[link.src, link.dst, str(link.kind)] = (link, None)
    rows: dict[tuple[str, str], list[str]] = {}
    for link, opposite in seen.values():
        kind = words.LINK_WORDS[link.kind]
        label = _label(link, opposite)
        text = f"{'' if label.startswith(kind) else f'{kind}, '}{label}".removesuffix(", ")
        rows.setdefault((link.dst, text), []).append(link.src)
    return [f"{' '.join(ends)} - {dst}: {text}" for (dst, text), ends in rows.items()]


def _peer_access(topology: Topology) -> list[str]:
    """Said only where it is missing, with who says so."""
    if has_peer_access(topology):
        return []
    sources = dict.fromkeys(topology.node(gpu).attributes.get("peer_access_source", "") for gpu in topology.gpus)
    return ["none: what one GPU sends to another goes through host memory", *filter(None, sources)]


def _p2p(topology: Topology) -> Iterator[str]:
    """`read: OK between all`, or the pairs by state; a row is `gpu1 OK, gpu2 CNS` (`smi.P2pMatrix`)."""
    facts = [(gpu, topology.node(gpu).attributes) for gpu in topology.gpus]
    for key in dict.fromkeys(key for _, facts_of in facts for key in facts_of if re.fullmatch(r"p2p(_[a-z]+)?", key)):
        pairs: dict[str, list[str]] = {}
        for gpu, facts_of in facts:
            for cell in filter(None, facts_of.get(key, "").split(", ")):
                other, _, state = cell.partition(" ")
                pairs.setdefault(state, []).append(f"{gpu}-{other}")
        name = key.removeprefix("p2p").removeprefix("_") or "state"
        if [len(some) for some in pairs.values()] == [len(facts) * (len(facts) - 1)]:
            yield f"{name}: {next(iter(pairs))} between all"
        else:
            yield from (f"{name}: {state} {first_few(some, _MANY)}" for state, some in pairs.items())


def _groups(topology: Topology) -> list[str]:
    names = [_LETTERS[n] if n < len(_LETTERS) else f"G{n}" for n in range(len(topology.groups))]
    rows = [f"{name}: {' '.join(group)}" for name, group in zip(names, topology.groups, strict=True)]
    name_of = dict(zip(topology.groups, names, strict=True))
    return rows + list(_cuts(topology, name_of))


def _cuts(topology: Topology, name_of: Mapping[tuple[str, ...], str]) -> Iterator[str]:
    """`A to B: 53.8 GB/s over switch0 -> root0`; both directions in one row where they are equal."""
    found = {(tuple(one), tuple(two)): (cut, over) for one, two, cut, over in words.between_groups(topology)}
    for (one, two), (cut, over) in found.items():
        same = found[two, one][0] == cut
        if same and topology.groups.index(one) > topology.groups.index(two):
            continue
        where = f" over {', '.join(f'{link.src} -> {link.dst}' for link in over)}" if len(over) <= 4 else ""  # noqa: PLR2004 - what fits a line
        amount = "not known" if cut == float("inf") else f"{words.gbps(cut)} GB/s"
        yield f"{name_of[one]} {'-' if same else 'to'} {name_of[two]}: {amount}{where if cut < float('inf') else ''}"
