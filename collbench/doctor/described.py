"""A machine that one does not have, from a few words: `sm_120`, 8 GPUs, `pcie`, CUDA 12.8, torch 2.10."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collbench.algorithms.known_system import ASSUMED
from collbench.doctor.verdicts import KNOWN_ARCHS
from collbench.errors import UsageError
from collbench.results.records import Fabric
from collbench.topology.discover import fabric_of
from collbench.topology.gpus import has_peer_access
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.machine import Machine
from collbench.topology.models import arch_of, arch_of_gpu

__all__ = [
    "BUNDLED_NCCL", "FABRICS", "MODELS", "MOST_GPUS", "WORDS", "Described", "completed", "is_version", "parse_arch",
    "parse_pairs", "wired",
]  # fmt: skip

FABRICS = {"pcie": Fabric.PCIE, "nvlink": Fabric.NVLINK}
MOST_GPUS = 256
MODELS = (
    "GB300", "B300", "GB200", "B200", "RTX PRO 6000", "RTX 5090", "GH200", "H200", "H100", "H800", "H20", "L40S", "L40",
    "L4", "RTX 4090", "RTX 6000 Ada", "A100", "A800", "A40", "A30", "A16", "A10G", "A10", "RTX A6000", "RTX 3090", "T4",
    "V100",
)  # fmt: skip
"""Models that a typo may have meant; `topology.models` knows more."""

BUNDLED_NCCL: Mapping[tuple[int, int], str] = {
    (2, 8): "2.27.3", (2, 9): "2.27.5", (2, 10): "2.27.5", (2, 11): "2.28.9", (2, 12): "2.29.7", (2, 13): "2.29.7",
    (2, 14): "2.30.7",
}  # fmt: skip
"""NCCL that the wheels of each torch ask for (their metadata)."""

_ARCH = re.compile(r"sm_(\d{2,3})[af]?")
_VERSION = re.compile(r"[0-9][\w.+!-]{0,40}")
_NAME = re.compile(r"[A-Za-z][\w.-]{0,40}")
_OURS = ("cuda-core", "cuda-bindings", "nvcc")
"""What anybody can install beside collbench; a described machine is taken to have it."""

WORDS = ("for", "gpus", "fabric", "p2p")
"""What a change may name beside packages."""


@dataclass(frozen=True, slots=True)
class Described:
    """A machine in words; `arch` may also be its GPUs' model.

    `p2p` is `ok`, `off` or empty where nobody said; `software` holds versions by package, `drawn` its topology where
    there is one.
    """

    arch: str
    gpus: int
    fabric: str = "pcie"
    p2p: str = ""
    software: Mapping[str, str] = field(default_factory=dict)
    drawn: Topology | None = None

    def __post_init__(self) -> None:
        parse_arch(self.arch)
        if not 1 <= self.gpus <= MOST_GPUS:
            raise UsageError(f"--gpus {self.gpus}: expected 1 to {MOST_GPUS}")
        if self.fabric not in FABRICS:
            raise UsageError(f"--fabric {self.fabric}: expected {' or '.join(FABRICS)}")
        if self.p2p not in {"", "ok", "off"}:
            raise UsageError(f"--p2p {self.p2p}: expected ok or off")

    @classmethod
    def of(cls, topology: Topology, p2p: str = "", software: Mapping[str, str] | None = None) -> "Described":
        """A machine of which there is a topology.

        Raises:
            UsageError: it has no GPU, or none that is known here.
        """
        gpus = [topology.node(name).attributes for name in topology.gpus]
        archs = [arch_of_gpu(one) for one in gpus]
        known = [arch for arch in archs if _ARCH.fullmatch(arch)]
        if not known:
            name = topology.name or "that machine"
            raise UsageError(f"--for {name}: none of its GPUs is a model of NVIDIA's that is known here")
        if len(kinds := sorted(set(known))) > 1:
            raise UsageError(f"--for {topology.name}: its GPUs differ ({', '.join(kinds)}): ask for one of them")
        fast = fabric_of(topology, ranks=len(gpus)) is Fabric.NVLINK
        reach = p2p or ("ok" if has_peer_access(topology) else "off")
        return cls(known[0], len(gpus), "nvlink" if fast else "pcie", reach, software or {}, topology)

    def changed(self, changes: Mapping[str, str]) -> "Described":
        """The same machine with some words replaced: `for`, `gpus`, `fabric`, `p2p`, or the version of a package.

        Raises:
            UsageError: a word that cannot be.
        """
        gpus = changes.get("gpus", str(self.gpus))
        if not gpus.isdecimal() or len(gpus) > 4:  # noqa: PLR2004 - digits of the largest number that is looked at
            raise UsageError(f"gpus={gpus}: expected a number")
        versions = {name: text for name, text in changes.items() if name not in WORDS}
        return replace(
            self, arch=changes.get("for", self.arch), gpus=int(gpus), fabric=changes.get("fabric", self.fabric),
            p2p=changes.get("p2p", self.p2p), software={**self.software, **versions},
            drawn=None if {"for", "gpus", "fabric"} & set(changes) else self.drawn,
        )  # fmt: skip

    def machine(self) -> Machine:
        """The machine as algorithms are asked about it: one rank per GPU, and no link of known speed."""
        facts = {ASSUMED: "yes", "arch": self._arch, "host_arch": "x86_64", **wired(FABRICS[self.fabric])}
        if self.p2p:
            facts["p2p"] = self.p2p
        wiring = self.drawn or self._topology()
        return Machine(wiring, FABRICS[self.fabric], self.gpus, software=completed(self.software), facts=facts)

    @property
    def _arch(self) -> str:
        return self.arch if _ARCH.fullmatch(self.arch) else arch_of(self.arch)

    def _topology(self) -> Topology:
        gpus = tuple(Node(f"gpu{i}", NodeKind.GPU, {"arch": self._arch}) for i in range(self.gpus))
        middle = Node("socket0", NodeKind.SOCKET) if self.fabric == "pcie" else Node("nvswitch0", NodeKind.NVSWITCH)
        kind = LinkKind.PCIE if self.fabric == "pcie" else LinkKind.NVLINK
        ends = [(gpu.id, middle.id) for gpu in gpus]
        links = tuple(Link(a, b, kind, provenance="described") for pair in ends for a, b in (pair, pair[::-1]))
        return Topology((middle, *gpus), links, f"{self.gpus} x {self._arch}")


def wired(fabric: Fabric) -> dict[str, str]:
    """What a fabric alone says of its GPUs; NVML says NS for atomics between GPUs on PCIe, whichever cards they are."""
    if fabric is Fabric.PCIE:
        return {"nvlink": "no", "multicast": "no", "p2p_atomics": "ns", "nvswitch": "no"}
    if fabric is Fabric.NVLINK:
        return {"nvlink": "yes", "multicast": "unknown", "p2p": "ok", "p2p_atomics": "ok"}
    return {}


def completed(software: Mapping[str, str]) -> dict[str, str]:
    """Software in words with what comes along: NCCL with its torch, and what anybody can install beside collbench."""
    nccl = BUNDLED_NCCL.get(_minor(software.get("torch", "")), "")
    return dict.fromkeys(_OURS, "assumed") | ({"nccl": nccl} if nccl else {}) | dict(software)


def parse_arch(text: str) -> int:
    """Compute capability of `sm_120`, or of a model such as `RTX PRO 6000`, as a number.

    Raises:
        UsageError: neither a compute capability nor a model that is known.
    """
    match = _ARCH.fullmatch(text) or _ARCH.fullmatch(arch_of(text))
    if match is None:
        known = {name.lower(): name for name in (*(f"sm_{arch}" for arch in sorted(KNOWN_ARCHS)), *MODELS)}
        near = difflib.get_close_matches(text.lower(), known, 1)
        hint = f"did you mean {known[near[0]]}?" if near else "expected sm_90 or sm_120, or a GPU's model such as H100"
        raise UsageError(f"--for {text!r}: no compute capability or model that is known here; {hint}")
    return int(match[1])


def is_version(text: str) -> bool:
    """Whether it can be a version: it begins with a digit."""
    return _VERSION.fullmatch(text) is not None


def parse_pairs(text: str, option: str) -> dict[str, str]:
    """`sglang=0.5.9,flashinfer=0.6.2` as a mapping.

    Raises:
        UsageError: a part that is no NAME=VALUE, or a name that stands twice.
    """
    found: dict[str, str] = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = part.partition("=")
        known = name in WORDS or _VERSION.fullmatch(value)
        if not (_NAME.fullmatch(name) and value and known):
            raise UsageError(f"{option} {part!r}: expected NAME=VERSION, such as flashinfer=0.7.4")
        if name in found:
            raise UsageError(f"{option}: {name} stands twice")
        found[name] = value
    return found


def _minor(torch: str) -> tuple[int, int]:
    digits = re.findall(r"\d+", torch.partition("+")[0])
    return (int(digits[0]), int(digits[1])) if len(digits) > 1 else (0, 0)
