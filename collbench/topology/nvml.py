"""What the NVIDIA driver says through NVML (nvidia-ml-py): GPUs, their links, and who reaches whom."""

import dataclasses
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collbench.topology import child
from collbench.topology.graph import Topology, TopologyError

__all__ = ["LEVELS", "NvLink", "NvmlCapture", "NvmlGpu", "Pair", "is_present", "read", "to_topology"]

LEVELS: Mapping[int, str] = {0: "SELF", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Lowest common ancestor of two GPUs, by `nvidia-smi topo -m`'s names."""


@dataclass(frozen=True, slots=True)
class NvLink:
    """NVLinks of one GPU that end at one neighbour. `remote` is a bus id, empty where the driver hides it."""

    remote: str
    remote_type: str
    version: int
    count: int


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """One GPU as the driver sees it; numbers are 0 where it says nothing. Serial numbers and UUIDs are not kept."""

    index: int
    busid: str
    model: str = ""
    compute_capability: str = ""
    generation_max: int = 0
    generation: int = 0
    width_max: int = 0
    width: int = 0
    memory_mib: int = 0
    numa: int | None = None
    processes: int | None = None
    nvlinks: tuple[NvLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two GPUs by bus id, `a` before `b`; `p2p` holds the status from a to b of `read`, `write` and `atomics`."""

    a: str
    b: str
    level: str = ""
    p2p: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NvmlCapture:
    """Everything that was asked, GPUs by bus id; `problems` says what the driver did not answer.

    `visible` holds the bus ids that CUDA_VISIBLE_DEVICES names, in its order; None where it is not set.
    """

    gpus: tuple[NvmlGpu, ...]
    pairs: tuple[Pair, ...] = ()
    driver: str = ""
    cuda_driver: str = ""
    problems: tuple[str, ...] = ()
    visible: tuple[str, ...] | None = None

    @property
    def usable(self) -> tuple[NvmlGpu, ...]:
        """GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in its order."""
        by_busid = {gpu.busid: gpu for gpu in self.gpus}
        return self.gpus if self.visible is None else tuple(by_busid[busid] for busid in self.visible)

    def as_dict(self) -> dict[str, Any]:
        """JSON form, which `from_dict` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "NvmlCapture":
        """Inverse of `as_dict`.

        Raises:
            TopologyError: a field is missing or of the wrong kind.
        """
        try:
            gpus = tuple(
                NvmlGpu(**{**gpu, "nvlinks": tuple(NvLink(**link) for link in gpu["nvlinks"])}) for gpu in data["gpus"]
            )
            pairs = tuple(Pair(**pair) for pair in data["pairs"])
            visible = None if data["visible"] is None else tuple(data["visible"])
            return cls(gpus, pairs, data["driver"], data["cuda_driver"], tuple(data["problems"]), visible)
        except (KeyError, TypeError, AttributeError) as error:
            raise TopologyError(f"NVML capture: {type(error).__name__}: {error}") from error


def read(library: Any = None, deadline_s: float = 10.0, command: Sequence[str] | None = None) -> NvmlCapture:  # noqa: ANN401 - pynvml has no types
    """Ask the driver, in a process of its own so that a driver that hangs costs `deadline_s` seconds and no more.

    `library` is something that looks like pynvml, asked in this process (tests); `command` replaces the process.

    Raises:
        TopologyError: no driver, no answer in time, or an answer that is none; the message says which.
    """
    if library is not None:
        from collbench.topology.nvml_query import query

        return _in_thread(lambda: query(library), deadline_s)
    text = child.output(command or (sys.executable, "-m", "collbench.topology.nvml_query"), deadline_s, name="NVML")
    try:
        return NvmlCapture.from_dict(json.loads(text))
    except ValueError as error:
        raise TopologyError(f"NVML: the answer is no JSON: {error}") from error


def _in_thread(ask: Callable[[], NvmlCapture], deadline_s: float) -> NvmlCapture:
    answers: list[NvmlCapture | Exception] = []

    def work() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001 - every failure of a driver binding is an answer
            answers.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not answers:
        raise TopologyError(f"NVML: no answer within {deadline_s:g} s: look for messages of the driver with dmesg")
    if isinstance(answers[0], TopologyError):
        raise answers[0]
    if isinstance(answers[0], Exception):
        raise TopologyError(f"NVML: {answers[0]}"[:300]) from answers[0]
    return answers[0]


def to_topology(capture: NvmlCapture) -> Topology:
    """Graph of a capture; see `nvml_graph.build`."""
    from collbench.topology.nvml_graph import build

    return build(capture)


def is_present(root: Path = Path("/")) -> bool:
    """Whether an NVIDIA driver is loaded: without one there is nobody to ask, and no process need be started."""
    return any((root / place).exists() for place in ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg"))
