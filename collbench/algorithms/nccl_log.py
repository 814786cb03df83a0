"""Reads NCCL's own log: which algorithm and protocol ran, over which transport, on which graph.

Formats seen in logs and format strings of NCCL 2.19 to 2.32. A log is what a library printed, mixed with whatever else
wrote to the same place: a line that is not understood is skipped, and no input raises.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["FALLBACK_GBPS", "Choice", "Graph", "NcclLog", "parse"]

FALLBACK_GBPS = 0.1
"""Bandwidth per channel of the graph that NCCL makes up when its search found no path; it then believes in 0.1 GB/s."""

_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")
_PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "NVLS", 6: "CollNet direct"}

_NUMBER = r"(\d{1,18})"
_FLOAT = r"(-?\d{1,12}(?:\.\d{1,12})?)"
_CHOICE = re.compile(
    rf"(?:(\w{{1,32}}): )?{_NUMBER} Bytes -> Algo (\w{{1,32}}) proto (\w{{1,32}})"
    rf"(?:.{{0,4}}channel\{{Lo\.\.Hi\}}=\{{(\d{{1,4}})\.\.(\d{{1,4}})\}})?(?: time {_FLOAT})?"
)
_BEST = re.compile(r"Best tuning, algorithm, (\w{1,32}), protocol, (\w{1,32})")
_SYMMETRIC = re.compile(rf"(\w{{1,32}}) \[Symmetric\]: {_NUMBER} Bytes -> Kernel (\w{{1,64}}) nchannels (\d{{1,4}})")
_GRAPH = re.compile(
    rf"Pattern (\d{{1,3}}), crossNic (-?\d{{1,3}}), nChannels (\d{{1,4}}), (?:bw|speed) {_FLOAT}/{_FLOAT}, "
    r"type (\w{1,8})/(\w{1,8}), sameChannels (-?\d{1,3})"
)
_TRANSPORT = re.compile(
    r"Channel (\d{1,4})(?:/\d{1,4})? ?: (\d{1,6})\[[0-9a-fx]{1,16}\] -> (\d{1,6})\[[0-9a-fx]{1,16}\] "
    r"(?:\[(?:send|receive)\] )?via (\S(?:[^\n\r]{0,60}\S)?)"
)
_CHANNELS = re.compile(r"(\d{1,4}) coll channels, ")
_VERSION = re.compile(r"NCCL version (\d{1,3}(?:\.\d{1,5}){1,3}(?:\+\w{1,12}\d{1,3}\.\d{1,3})?)")
_ENVIRONMENT = re.compile(r"\b(NCCL_[A-Z0-9_]{1,60}) set by environment to ([^\s]{1,200})")
_FALLBACK = re.compile(r"Could not find a path for pattern (\d{1,3}), falling back to simple order")
_WARNING = re.compile(r"NCCL WARN ([^\n\r]{1,300})")
_CONTROL = re.compile(r"\x1b\[[0-9;]{0,12}m|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL chose for one call; where the line does not say, `bytes` is 0, `collective` empty, `channels` None."""

    algorithm: str
    protocol: str
    collective: str = ""
    bytes: int = 0
    channels: int | None = None

    @property
    def name(self) -> str:
        """`Ring/LL`; for a symmetric kernel its name."""
        return f"{self.algorithm}/{self.protocol}" if self.protocol else self.algorithm


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph that NCCL's search ended with: `gbps` is the bandwidth per channel, within a node and between nodes."""

    pattern: str
    channels: int
    gbps: float
    inter_gbps: float
    path: str

    @property
    def is_fallback(self) -> bool:
        """Whether this is the made-up graph: identity order at 0.1 GB/s."""
        return self.gbps <= FALLBACK_GBPS + 1e-6

    @property
    def text(self) -> str:
        """One phrase: `ring 2 x 24 GB/s PHB`."""
        return f"{self.pattern} {self.channels} x {self.gbps:g} GB/s {self.path}"


@dataclass(frozen=True, slots=True)
class NcclLog:
    """What a log says; everything is empty where it says nothing.

    `transports` maps (source rank, destination rank) to NCCL's word, e.g. `P2P/CUMEM`, `SHM/direct/direct`, `NET/IB/0`.
    """

    version: str = ""
    choices: tuple[Choice, ...] = ()
    graphs: tuple[Graph, ...] = ()
    transports: Mapping[tuple[int, int], str] = field(default_factory=dict)
    channels: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    fallback_patterns: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def choice(self, collective: str, size_bytes: int) -> Choice | None:
        """The last choice for calls of this collective (`AllReduce`) and size; else the last that names no size."""
        exact = [c for c in self.choices if c.bytes == size_bytes and c.collective in {collective, ""}]
        unsized = [c for c in self.choices if not c.bytes and not c.collective]
        return exact[-1] if exact else unsized[-1] if unsized else None

    @property
    def has_fallback_graph(self) -> bool:
        """Whether NCCL found no path for a ring or tree and works with a made-up graph of 0.1 GB/s."""
        return bool(self.fallback_patterns) or any(graph.is_fallback for graph in self.graphs)

    @property
    def transport_summary(self) -> str:
        """Transports with the number of rank pairs that use each: `P2P/CUMEM x 8, SHM/direct/direct x 2`."""
        counts: dict[str, int] = {}
        for word in self.transports.values():
            counts[word] = counts.get(word, 0) + 1
        return ", ".join(f"{word} x {n}" for word, n in sorted(counts.items()))

    def evidence(self) -> dict[str, str]:
        """The facts as text for a cell's record; empty ones are left out."""
        facts = {
            "nccl_version": self.version,
            "transport": self.transport_summary,
            "pairs": "; ".join(f"{a}->{b} {word}" for (a, b), word in sorted(self.transports.items())[:64]),
            "graph": "; ".join(dict.fromkeys(graph.text for graph in self.graphs)),
            "channels": str(self.channels or ""),
            "environment": ", ".join(f"{k}={v}" for k, v in sorted(self.environment.items())),
            "warning": self._warning(),
        }
        return {name: text for name, text in facts.items() if text}

    def _warning(self) -> str:
        told = list(dict.fromkeys(self.warnings))[-3:]
        if self.has_fallback_graph:
            where = ", ".join(self.fallback_patterns) or "a ring or tree"
            told.insert(
                0,
                f"NCCL found no path for {where} and works with a made-up graph of {FALLBACK_GBPS} GB/s, "
                "which makes it leave LL at about 4 KiB: compare with nccl_ring_ll",
            )
        return "; ".join(told)


def parse(text: str) -> NcclLog:
    """Read one process's log, or several logs in one text. Never raises; lines are taken in any order and mixture."""
    lines = [_CONTROL.sub("", line[:4000]) for line in text.splitlines()]
    versions = [m[1] for m in _matches(_VERSION, lines)]
    return NcclLog(
        version=versions[0] if versions else "",
        choices=tuple(choice for line in lines if (choice := _choice(line)) is not None),
        graphs=tuple(_graph(m) for m in _matches(_GRAPH, lines)),
        transports={(int(m[2]), int(m[3])): m[4] for m in _matches(_TRANSPORT, lines)},
        channels=max((int(m[1]) for m in _matches(_CHANNELS, lines)), default=0),
        environment={m[1]: m[2].rstrip(".") for m in _matches(_ENVIRONMENT, lines)},
        fallback_patterns=tuple(dict.fromkeys(_pattern(m[1]) for m in _matches(_FALLBACK, lines))),
        warnings=tuple(m[1].strip() for m in _matches(_WARNING, lines) if not _FALLBACK.search(m[1])),
    )


def _matches(pattern: re.Pattern[str], lines: Iterable[str]) -> Iterable[re.Match[str]]:
    return (match for line in lines if (match := pattern.search(line)) is not None)


def _choice(line: str) -> Choice | None:
    if match := _SYMMETRIC.search(line):
        return Choice(f"symmetric {match[3]}", "", match[1], int(match[2]), int(match[4]))
    if match := _CHOICE.search(line):
        channels = None if match[5] is None else max(0, int(match[6]) - int(match[5]) + 1)
        names = _word(match[3], _ALGORITHMS), _word(match[4], _PROTOCOLS)
        return Choice(*names, match[1] or "", int(match[2]), channels)
    if match := _BEST.search(line):
        return Choice(_word(match[1], _ALGORITHMS), _word(match[2], _PROTOCOLS))
    return None


def _word(text: str, known: tuple[str, ...]) -> str:
    """NCCL's own spelling of a name that releases print as a number, in capitals or with underscores."""
    if text.isascii() and text.isdigit():
        return known[int(text)] if int(text) < len(known) else text
    plain = text.replace("_", "").lower()
    return next((name for name in known if name.lower() == plain), text)


def _graph(match: re.Match[str]) -> Graph:
    return Graph(_pattern(match[1]), int(match[3]), float(match[4]), float(match[5]), match[6])


def _pattern(number: str) -> str:
    return _PATTERNS.get(int(number), f"pattern {number}")
