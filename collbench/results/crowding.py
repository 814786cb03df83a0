"""More ranks on processors than these have hardware threads: ranks then wait for turns, and times say little."""

from collections.abc import Mapping
from typing import Any

from collbench.results.records import Fabric, Run

__all__ = ["crowded", "hardware_threads", "turns"]


def hardware_threads(machine: Mapping[str, Any]) -> int:
    """Of a run's machine as `run.json` holds it; 0 where its record does not say."""
    facts = machine.get("facts")
    text = str(facts.get("threads", "")) if isinstance(facts, Mapping) else ""
    return int(text) if text.isdecimal() else 0


def crowded(ranks: int, fabric: Fabric, machine: Mapping[str, Any]) -> bool:
    """Whether ranks on processors outnumber the hardware threads; False where nobody knows."""
    return fabric is Fabric.HOST and 0 < hardware_threads(machine) < ranks


def turns(run: Run) -> str:
    """`8 ranks took turns on 2 hardware threads`; empty where each had one of its own, or nobody knows."""
    if not crowded(run.world_size, run.fabric, run.machine):
        return ""
    threads = hardware_threads(run.machine)
    return f"{run.world_size} ranks took turns on {threads} hardware thread{'s' if threads > 1 else ''}"
