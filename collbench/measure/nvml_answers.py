"""What libraries ask torch about GPUs while they are imported, answered by NVML: torch would initialise CUDA for it.

Read in torch 2.11: `is_available` asks NVML by itself where PYTORCH_NVML_BASED_CUDA_CHECK=1, `device_count` always;
name and compute capability it reads from CUDA. Servers import their libraries before they choose a device, so that the
current device is 0 there.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self
from unittest import mock

__all__ = ["Gpu", "answers", "the_gpu"]

_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


@dataclass(frozen=True, slots=True)
class Gpu:
    """What NVML says of each GPU alike."""

    name: str
    capability: tuple[int, int]
    memory: int


def the_gpu() -> Gpu | None:
    """The GPU of this machine; None where there is none, or several that differ, or no NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - a driver that is not there, or not well
        return None
    try:
        found = {_described(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())}
    except Exception:  # noqa: BLE001 - the same
        return None
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()
    return found.pop() if len(found) == 1 else None


def _described(nvml: Any, i: int) -> Gpu:  # noqa: ANN401 - the module
    handle = nvml.nvmlDeviceGetHandleByIndex(i)
    name, (major, minor) = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetCudaComputeCapability(handle)
    name = name.decode() if isinstance(name, bytes) else str(name)
    return Gpu(name, (int(major), int(minor)), int(nvml.nvmlDeviceGetMemoryInfo(handle).total))


class _Properties:
    """Name and compute capability; whatever else is asked for is read from CUDA after all."""

    def __init__(self, gpu: Gpu, real: Callable[[], Any]) -> None:
        self.name, (self.major, self.minor), self._real = gpu.name, gpu.capability, real

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever CUDA says
        return getattr(self._real(), name)


@contextlib.contextmanager
def answers(gpu: Gpu | None) -> Iterator[None]:
    """Let torch answer from `gpu` in this context. Functions that somebody keeps from it are torch's own afterwards."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with contextlib.ExitStack() as stack:
        if _CHECK not in os.environ:
            os.environ[_CHECK] = "1"
            stack.callback(os.environ.pop, _CHECK, None)
        if gpu is not None and cuda is not None:
            inside = stack.enter_context(_Inside())
            for name, told in _told(gpu, cuda).items():
                stack.enter_context(mock.patch.object(cuda, name, _either(inside, cuda, getattr(cuda, name), told)))
        yield
    _forget(cuda)


class _Inside:
    """Whether the context still lasts."""

    def __init__(self) -> None:
        self.now = False

    def __enter__(self) -> Self:
        self.now = True
        return self

    def __exit__(self, *_: object) -> None:
        self.now = False


def _told(gpu: Gpu, cuda: Any) -> dict[str, Callable[..., Any]]:  # noqa: ANN401 - the module
    properties = cuda.get_device_properties
    return {
        "current_device": lambda: 0,
        "get_device_capability": lambda _device=None: gpu.capability,
        "get_device_name": lambda _device=None: gpu.name,
        "get_device_properties": lambda *asked, **more: _Properties(gpu, functools.partial(properties, *asked, **more)),
    }


def _either(
    inside: _Inside,
    cuda: Any,  # noqa: ANN401 - the module
    real: Callable[..., Any],
    told: Callable[..., Any],
) -> Callable[..., Any]:
    """What NVML told, until the context ends or CUDA is up."""

    @functools.wraps(real)
    def answer(*asked: Any, **more: Any) -> Any:  # noqa: ANN401 - torch's own
        return told(*asked, **more) if inside.now and not cuda.is_initialized() else real(*asked, **more)

    return answer


def _forget(cuda: Any) -> None:  # noqa: ANN401 - the module
    """Releases that count devices once would keep what holds before workers choose theirs."""
    clear = getattr(getattr(cuda, "device_count", None), "cache_clear", None)
    if clear is not None:
        clear()
