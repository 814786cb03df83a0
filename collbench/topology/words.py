"""Links, nodes and groups in words, the same in the text print and in the picture."""

from collections import Counter
from collections.abc import Sequence

from collbench.topology.graph import Link, LinkKind, Node, Topology

__all__ = [
    "KIND_WORDS",
    "LINK_WORDS",
    "between_groups",
    "capacity_words",
    "counts",
    "downtrained",
    "facts",
    "gbps",
    "group_words",
    "link_facts",
    "speed_words",
]

KIND_WORDS = {
    "gpu": "GPU", "nic": "NIC", "switch": "switch", "root_port": "root port", "host_bridge": "host bridge",
    "socket": "socket", "nvswitch": "NVSwitch",
}  # fmt: skip

LINK_WORDS = {
    LinkKind.PCIE: "PCIe", LinkKind.NVLINK: "NVLink", LinkKind.XGMI: "xGMI", LinkKind.C2C: "in one chip",
    LinkKind.SOCKET: "between sockets", LinkKind.MEMORY: "memory", LinkKind.NETWORK: "network",
}  # fmt: skip
_PLURALS = {"switch": "switches", "NVSwitch": "NVSwitches"}


def speed_words(link: Link, *, now: bool = False) -> str:
    """Generation and width of what a link can do (or does `now`): `Gen5 x16`, `NVLink4 x18`; empty where unknown."""
    generation, width = (link.current_generation, link.current_width) if now else (link.generation, link.width)
    stem = {LinkKind.NVLINK: "NVLink", LinkKind.XGMI: "xGMI"}.get(link.kind, "Gen")
    if not generation and not width:
        return ""
    name = f"{stem}{generation or ''}" if generation or stem != "Gen" else ""
    return " ".join(part for part in (name, f"x{width}" if width else "") if part)


def downtrained(link: Link) -> bool:
    """Whether the link runs below what it can do now."""
    slow = 0 < link.current_generation < link.generation
    return slow or 0 < link.current_width < link.width


def gbps(value: float) -> str:
    """GB/s with at most three digits: `0.94`, `53.8`, `371`."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"  # noqa: PLR2004 - above, %g would print an exponent


def capacity_words(forward: Link | None, back: Link | None, up: str = "up ", down: str = "down ") -> str:
    """Capacity of both directions: `54 GB/s`, or `up 38, down 51 GB/s` where they differ; empty where unknown."""
    values = [link.capacity_gbps if link else None for link in (forward, back)]
    if values == [None, None]:
        return ""
    one, two = (gbps(value) if value is not None else "?" for value in values)
    if forward is None or back is None or one == two:
        return f"{one if forward else two} GB/s"
    return f"{up}{one}, {down}{two} GB/s"


def link_facts(link: Link) -> str:
    """Everything about one direction in one line, with exact numbers."""
    speed, current = speed_words(link), speed_words(link, now=True)
    parts = [LINK_WORDS[link.kind] if link.kind not in {LinkKind.NVLINK, LinkKind.XGMI} or not speed else "", speed]
    if current and current != speed:
        parts.append(f"now {current}")
    parts.append("capacity unknown" if link.capacity_gbps is None else f"{link.capacity_gbps:g} GB/s")
    parts.append("latency unknown" if link.latency_us is None else f"{link.latency_us:g} us")
    text = ", ".join(part for part in parts if part)
    source = f" ({link.provenance})" if link.provenance else ""
    return f"{link.src} -> {link.dst}: {text}{source}"


def facts(node: Node) -> str:
    """A node with all its attributes in one line."""
    rows = ", ".join(f"{key} {value}" for key, value in sorted(node.attributes.items()))
    return f"{node.id}: {KIND_WORDS[node.kind]}{', ' if rows else ''}{rows}"


def counts(topology: Topology) -> str:
    """How many of each kind: `8 GPUs, 2 switches, 1 socket`."""
    number = Counter(KIND_WORDS[node.kind] for node in topology.nodes)
    order = ("GPU", "NIC", "NVSwitch", "switch", "socket")
    return ", ".join(f"{number[word]} {_plural(word, number[word])}" for word in order if number[word])


def group_words(topology: Topology) -> str:
    """`2 groups of 4`, `groups of 2, 2 and 4`; empty where there are none."""
    sizes = [len(group) for group in topology.groups]
    if not sizes:
        return ""
    if len(set(sizes)) == 1:
        return f"{len(sizes)} group{'s' if len(sizes) > 1 else ''} of {sizes[0]}"
    return f"groups of {', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"


def between_groups(topology: Topology) -> list[tuple[Sequence[str], Sequence[str], float, tuple[Link, ...]]]:
    """For each ordered pair of groups the least capacity in GB/s between them and the links that make it up.

    Infinite where a link of unknown capacity joins them. At most 12 groups are compared.
    """
    groups = topology.groups[:12]
    return [(one, two, *topology.cut(one, two)) for one in groups for two in groups if one != two]


def _plural(word: str, number: int) -> str:
    return word if number == 1 else _PLURALS.get(word, f"{word}s")
