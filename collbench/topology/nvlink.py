"""What `nvidia-smi nvlink -s` prints: the state and rate of each NVLink of each GPU, not where it leads."""

import re
from dataclasses import dataclass

from collbench.topology.captured_text import lines_of, refuse
from collbench.topology.graph import Node, NodeKind, Topology

__all__ = ["NvlinkGpu", "NvlinkStatus", "is_status", "parse"]

_GPU = re.compile(r"(?<!\w)GPU (\d{1,4}):\s*(?P<model>[^(]{0,200}?)\s*(?:\(UUID: [^)]{0,80}\)?)?$")
_RATE = re.compile(r"\bLink (\d{1,3}):\s*(?P<rate>\d{1,5}(?:\.\d{1,6})?) GB/s")
_DOWN = re.compile(r"\bLink (\d{1,3}):\s*<?(?:inactive|down|disabled|off|N/A)>?\s*$", re.IGNORECASE)
_NONE = re.compile(
    r"Unable to retrieve NVLink information|all links are inactive|NVLink (?:is )?not supported", re.IGNORECASE
)
_CAPABILITY = re.compile(r"\bLink \d{1,3}, [A-Z]")


@dataclass(frozen=True, slots=True)
class NvlinkGpu:
    """One GPU; `rates[n]` is the rate of link n in GB/s as the driver states it, None for a link that is down."""

    number: int
    model: str
    rates: tuple[float | None, ...] = ()

    @property
    def active(self) -> int:
        """How many links are up."""
        return sum(rate is not None for rate in self.rates)


@dataclass(frozen=True, slots=True)
class NvlinkStatus:
    """GPUs in their order. `disagreements` lists GPUs with links down, or fewer than their like."""

    gpus: tuple[NvlinkGpu, ...]
    disagreements: tuple[str, ...] = ()

    def topology(self) -> Topology:
        """GPUs with their counts as attributes, and no links: where they lead is not said."""
        nodes = tuple(Node(f"gpu{gpu.number}", NodeKind.GPU, _facts(gpu)) for gpu in self.gpus)
        note = ("nvidia-smi nvlink -s does not say where links lead: give nvidia-smi topo -m for the paths",)
        return Topology(nodes, (), "", (), (*self.disagreements, *note))


def is_status(lines: list[str]) -> bool:
    """Whether some line below a GPU's states a link, or that there are none."""
    return any(line and _links(line.strip()[:200]) for line in lines) and any(
        _GPU.search(line.strip()[:300]) for line in lines if line
    )


def _links(line: str) -> bool:
    return any(pattern.search(line) for pattern in (_RATE, _DOWN, _CAPABILITY)) or _NONE.search(line) is not None


def parse(text: str) -> NvlinkStatus:
    """Read an `nvidia-smi nvlink -s` capture; lines of `nvlink -c` between them are passed over.

    Raises:
        TopologyError: no GPU with a word on its links; quotes the line and says what was expected.
    """
    lines = lines_of(text)
    models: dict[int, str] = {}
    rates: dict[int, dict[int, float | None]] = {}
    known = False
    number = -1
    for index, raw in enumerate(lines):
        if not raw:
            continue
        line = raw.strip()[:300]
        if (match := _GPU.search(line)) is not None:
            number = int(match[1])
            models.setdefault(number, match["model"])
            rates.setdefault(number, {})
        elif not _links(line):
            continue
        elif number < 0:
            refuse(lines, index, "a link before any GPU: expected `GPU 0: ...` above it")
        elif (match := _RATE.search(line)) is not None:
            rates[number][int(match[1])] = float(match["rate"])
        elif (match := _DOWN.search(line)) is not None:
            rates[number].setdefault(int(match[1]), None)
        known = known or (number >= 0 and _links(line))
    if not known:
        place = next((i for i, line in enumerate(lines) if line.strip()), 0)
        refuse(lines, place, "no NVLink in it: expected what nvidia-smi nvlink -s prints, `Link 0: 26.562 GB/s`")
    gpus = tuple(NvlinkGpu(n, models[n], _by_number(rates[n])) for n in sorted(models))
    return NvlinkStatus(gpus, tuple(_odd(gpus)))


def _by_number(rates: dict[int, float | None]) -> tuple[float | None, ...]:
    return tuple(rates.get(link) for link in range(max(rates) + 1)) if rates else ()


def _odd(gpus: tuple[NvlinkGpu, ...]) -> list[str]:
    most: dict[str, int] = {}
    for gpu in gpus:
        most[gpu.model] = max(most.get(gpu.model, 0), gpu.active)
    notes = []
    for gpu in gpus:
        down = [str(link) for link, rate in enumerate(gpu.rates) if rate is None]
        if down and gpu.active:
            notes.append(f"gpu{gpu.number}: links {', '.join(down)} of {len(gpu.rates)} are down")
        elif gpu.active < most[gpu.model]:
            notes.append(f"gpu{gpu.number}: {gpu.active} NVLinks are up, {most[gpu.model]} on another {gpu.model}")
    return notes


def _facts(gpu: NvlinkGpu) -> dict[str, str]:
    rates = sorted({rate for rate in gpu.rates if rate is not None})
    facts = {"model": gpu.model, "nvlinks": str(gpu.active)}
    if rates:
        facts["nvlink_gbps"] = ", ".join(f"{rate:g}" for rate in rates)
    return {key: text for key, text in facts.items() if text}
