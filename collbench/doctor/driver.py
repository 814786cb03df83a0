"""What the driver says beside the topology: BAR1, persistence, compute mode, MIG. Asked in a process of its own."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collbench.errors import CollbenchError
from collbench.topology import child

__all__ = ["Card", "ask", "query"]

_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU. Texts are empty and numbers 0 where the driver says nothing."""

    busid: str
    model: str = ""
    bar1_mib: int = 0
    persistence: str = ""
    compute_mode: str = ""
    mig: str = ""
    memory_mib: int = 0


def ask(deadline_s: float) -> tuple[Card, ...] | str:
    """The cards, or why there is no answer."""
    try:
        text = child.output((sys.executable, "-m", "collbench.doctor.driver"), deadline_s, name="NVML")
        return tuple(Card(**card) for card in json.loads(text))
    except (CollbenchError, ValueError, TypeError) as error:
        return str(error)


def query(library: Any) -> list[Card]:  # noqa: ANN401 - pynvml has no types
    """Ask pynvml or its like; what one GPU does not answer stays empty.

    Raises:
        Exception: whatever the library raises where NVML cannot be started.
    """
    library.nvmlInit()
    try:
        count = library.nvmlDeviceGetCount()
        handles = [_try(library, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        return [_card(library, handle) for handle in handles if handle is not None]
    finally:
        library.nvmlShutdown()


def _card(library: Any, handle: Any) -> Card:  # noqa: ANN401 - pynvml has no types
    place, bar1 = (_try(library, name, handle) for name in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetBAR1MemoryInfo"))
    persistence = _try(library, "nvmlDeviceGetPersistenceMode", handle)
    mig, memory = (_try(library, name, handle) for name in ("nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo"))
    return Card(
        busid=_text(place.busId).lower() if place is not None else "",
        model=_text(_try(library, "nvmlDeviceGetName", handle)),
        bar1_mib=int(bar1.bar1Total) >> 20 if bar1 is not None else 0,
        persistence="" if persistence is None else "on" if persistence else "off",
        compute_mode=_MODES.get(_try(library, "nvmlDeviceGetComputeMode", handle), ""),
        mig="" if mig is None else "on" if mig[0] else "off",
        memory_mib=int(memory.total) >> 20 if memory is not None else 0,
    )


def _try(library: Any, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - pynvml has no types
    try:
        return getattr(library, name)(*arguments)
    except Exception:  # noqa: BLE001 - every version raises classes of its own, or lacks the function
        return None


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
    return "".join(c for c in text if c.isprintable())


def _as_json(cards: list[Card]) -> list[Mapping[str, Any]]:
    return [asdict(card) for card in cards]


def _main() -> int:
    import contextlib
    import ctypes
    import signal

    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    try:
        import pynvml

        cards = query(pynvml)
    except Exception as error:  # noqa: BLE001 - NVML's own classes of every version
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(_as_json(cards)))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
