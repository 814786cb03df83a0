"""Our device memory as torch's tensors, and torch's current stream."""

from typing import Any

from collbench.results.records import Call

__all__ = ["stream_getter", "tensor_at"]


class _Pointer:
    """Device memory as torch takes it from others, without a copy."""

    def __init__(self, address: int, count: int, code: str) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": code, "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip


def tensor_at(torch: Any, address: int, call: Call, count: int, device: str) -> Any:  # noqa: ANN401 - torch objects
    """A one-dimensional tensor of `count` elements of the call's dtype on memory of ours, which must outlive it."""
    if not count:
        return torch.empty(0, dtype=getattr(torch, call.dtype), device=device)
    code = {2: "<i2", 4: "<i4"}[call.itemsize]
    words = torch.as_tensor(_Pointer(address, count, code), device=device)
    return words.view(getattr(torch, call.dtype))


def stream_getter(torch: Any, index: int) -> Any:  # noqa: ANN401 - torch objects
    """The cheapest way to ask for the current stream's handle."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001 - ten times cheaper than the public call
    if raw is None:
        return lambda: torch.cuda.current_stream().cuda_stream
    return lambda: raw(index)
