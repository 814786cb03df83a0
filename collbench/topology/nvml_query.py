"""The questions to NVML (nvidia-ml-py) and their answers, each of which may be missing."""

import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from collbench.topology import pcie
from collbench.topology.graph import TopologyError
from collbench.topology.nvml import LEVELS, NvLink, NvmlCapture, NvmlGpu, Pair

__all__ = ["query"]

_P2P = {0: "read", 1: "write", 3: "atomics"}
"""Indices of nvmlDeviceGetP2PStatus. Numbers, because the module's NVML_P2P_CAPS_INDEX_READ is the tuple (0,)."""

_STATUS = {0: "ok", 1: "chipset not supported", 2: "GPU not supported", 3: "not supported by the IOH topology",
           4: "disabled by registry key", 5: "not supported", 6: "unknown"}  # fmt: skip
_PCIE = {
    "generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
}
_REMOTE = {0: "gpu", 1: "cpu", 2: "switch"}
_LINKS = 18
_NO_DOMAIN = "fffffff"


def query(library: Any) -> NvmlCapture:  # noqa: ANN401 - pynvml has no types
    """Ask `library` (pynvml or its like) everything; what fails alone is listed in `problems`.

    Raises:
        TopologyError: NVML cannot be started at all.
    """
    try:
        library.nvmlInit()
    except Exception as error:  # every version raises classes of its own
        raise TopologyError(f"NVML cannot be started: {_reason(error)}") from error
    try:
        return _Query(library).capture()
    finally:
        _Query(library).ask("nvmlShutdown")


class _Query:
    def __init__(self, library: Any) -> None:  # noqa: ANN401 - pynvml has no types
        self._library = library
        self.problems: Counter[str] = Counter()

    def ask(self, name: str, *arguments: Any, default: Any = None) -> Any:  # noqa: ANN401 - NVML answers many kinds
        """Call one function; what is not supported, missing or failing gives `default` and a note."""
        function = getattr(self._library, name, None)
        if function is None:
            self.problems[f"{name}: not in this version of nvidia-ml-py"] += 1
            return default
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - every version raises classes of its own
            self.problems[f"{name}: {_reason(error)}"] += 1
            return default

    def capture(self) -> NvmlCapture:
        count = self.ask("nvmlDeviceGetCount", default=0)
        handles: dict[str, Any] = {}
        gpus = []
        for index in range(int(count)):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            gpu = self._gpu(index, handle) if handle is not None else None
            if gpu is not None:
                handles[gpu.busid] = handle
                gpus.append(gpu)
        gpus.sort(key=lambda gpu: gpu.busid)
        pairs = [self._pair(a.busid, b.busid, handles) for a, b in itertools.combinations(gpus, 2)]
        visible = self._visible([gpu.busid for gpu in gpus], handles)
        driver = _text(self.ask("nvmlSystemGetDriverVersion", default=""))
        cuda = int(self.ask("nvmlSystemGetCudaDriverVersion", default=0) or 0)
        version = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
        problems = tuple(f"{what} ({n} times)" if n > 1 else what for what, n in self.problems.items())
        return NvmlCapture(tuple(gpus), tuple(pairs), driver, version, problems, visible)

    def _gpu(self, index: int, handle: Any) -> NvmlGpu | None:  # noqa: ANN401 - an opaque pointer
        place = self.ask("nvmlDeviceGetPciInfo", handle)
        if place is None:
            return None
        capability = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        numa = self.ask("nvmlDeviceGetNumaNodeId", handle)
        busy = self.ask("nvmlDeviceGetComputeRunningProcesses", handle)
        link = {field: int(self.ask(name, handle, default=0) or 0) for field, name in _PCIE.items()}
        return NvmlGpu(
            index=index,
            busid=pcie.normal_busid(_text(place.busId)),
            model=_text(self.ask("nvmlDeviceGetName", handle, default="")),
            compute_capability=".".join(map(str, capability)) if capability else "",
            memory_mib=int(memory.total) >> 20 if memory is not None else 0,
            numa=int(numa) if numa is not None and int(numa) >= 0 else None,
            processes=len(busy) if busy is not None else None,
            nvlinks=self._nvlinks(handle),
            **link,
        )

    def _nvlinks(self, handle: Any) -> tuple[NvLink, ...]:  # noqa: ANN401 - an opaque pointer
        found: Counter[tuple[str, str, int]] = Counter()
        quiet = _Query(self._library)  # a card without NVLinks answers "not supported" 18 times: no problem
        for link in range(int(getattr(self._library, "NVML_NVLINK_MAX_LINKS", _LINKS))):
            if quiet.ask("nvmlDeviceGetNvLinkState", handle, link) != 1:
                continue
            place = quiet.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            remote = pcie.normal_busid(_text(place.busId)) if place is not None else ""
            kind = _REMOTE.get(quiet.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, default=255), "")
            version = int(quiet.ask("nvmlDeviceGetNvLinkVersion", handle, link, default=0) or 0)
            found["" if remote.startswith(_NO_DOMAIN) else remote, kind, version] += 1
        return tuple(NvLink(*key, count) for key, count in found.items())

    def _visible(self, order: Sequence[str], handles: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Read CUDA_VISIBLE_DEVICES as CUDA does, up to the first part that names no GPU.

        Parts are numbers (in CUDA's order, which is the bus order among equal GPUs) or beginnings of UUIDs.
        """
        text = os.environ.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            return None
        chosen: list[str] = []
        for token in (part.strip() for part in text.split(",")):
            if token.isdecimal():
                found = list(order[int(token) : int(token) + 1]) if len(token) < 4 else []  # noqa: PLR2004 - GPUs
            else:
                uuids = {busid: _text(self.ask("nvmlDeviceGetUUID", handles[busid], default="")) for busid in order}
                found = [busid for busid, uuid in uuids.items() if token and uuid.startswith(token)]
            if len(found) != 1:
                break
            chosen += [found[0]] if found[0] not in chosen else []
        return tuple(chosen)

    def _pair(self, a: str, b: str, handles: Mapping[str, Any]) -> Pair:
        level = self.ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
        p2p = {
            name: _STATUS.get(status, f"status {status}")
            for index, name in _P2P.items()
            if (status := self.ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], index)) is not None
        }
        return Pair(a, b, LEVELS.get(level, ""), p2p)


def _text(value: Any) -> str:  # noqa: ANN401 - bytes in old versions of nvidia-ml-py, text in new ones
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return "".join(c for c in text if c.isprintable())


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _main() -> int:
    """What the child process does: ask, print JSON. Dies with its parent."""
    import contextlib
    import ctypes
    import signal

    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    try:
        import pynvml

        sys.stdout.write(json.dumps(query(pynvml).as_dict()))
    except (ImportError, TopologyError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
