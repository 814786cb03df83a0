"""The few array operations that checking needs, over numpy arrays and torch tensors alike."""

import hashlib
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["POISON_INT", "ArrayKind", "NumpyArrays", "TorchArrays", "kind_of", "numpy_dtype"]

POISON_INT = -0x5BAD5BAD
"""What an int32 output holds before a run; floating outputs hold NaN. No sum of the check data equals either."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a call's dtype; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        kept: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return kept
    return np.dtype(name)


class ArrayKind(Protocol):
    """Operations on one kind of array; values come from and go back to numpy."""

    def native(self, values: NDArray[Any], like: Any) -> Any:  # noqa: ANN401 - either library's array
        """`values` as an array of this kind, on the device of `like`, dtype kept."""

    def copy(self, target: Any, source: Any) -> None:  # noqa: ANN401 - either library's array
        """Copy elements."""

    def poison(self, target: Any) -> None:  # noqa: ANN401 - either library's array
        """Fill with a value that no right answer holds."""

    def same(self, left: Any, right: Any) -> bool:  # noqa: ANN401 - either library's array
        """Whether all elements are equal (0 equals -0, NaN equals nothing)."""

    def fetch(self, array: Any) -> NDArray[np.float64]:  # noqa: ANN401 - either library's array
        """The values as float64 on the host."""

    def excess(self, got: Any, want: Any, bound: Any) -> float:  # noqa: ANN401 - either library's array
        """Largest `|got - want| / bound`, in float32; inf where `got` is not finite."""

    def digest(self, array: Any) -> str:  # noqa: ANN401 - either library's array
        """Short hash of the bits."""


class NumpyArrays:
    """numpy on the host."""

    def native(self, values: NDArray[Any], like: Any) -> Any:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        del like
        return values

    def copy(self, target: Any, source: Any) -> None:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        np.copyto(target, source)

    def poison(self, target: Any) -> None:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        target.fill(POISON_INT if target.dtype == np.int32 else np.nan)

    def same(self, left: Any, right: Any) -> bool:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`; bits are compared first, since comparing ml_dtypes elements is slow."""
        return left.tobytes() == right.tobytes() or bool(np.array_equal(self.fetch(left), self.fetch(right)))

    def fetch(self, array: Any) -> NDArray[np.float64]:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        return np.asarray(array, dtype=np.float64)

    def excess(self, got: Any, want: Any, bound: Any) -> float:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        with np.errstate(over="ignore"):  # what is beyond float32 is beyond every bound
            error = np.abs(got.astype(np.float32) - want) / bound
        return float("inf") if not np.isfinite(error).all() else float(error.max(initial=0.0))

    def digest(self, array: Any) -> str:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


class TorchArrays:
    """torch, on the device of the tensors: nothing large crosses to the host."""

    def native(self, values: NDArray[Any], like: Any) -> Any:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        import torch

        bits = values.view(np.int16) if values.dtype.name == "bfloat16" else values
        tensor = torch.from_numpy(np.ascontiguousarray(bits)).to(like.device)
        return tensor.view(torch.bfloat16) if values.dtype.name == "bfloat16" else tensor

    def copy(self, target: Any, source: Any) -> None:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        target.copy_(source)

    def poison(self, target: Any) -> None:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        target.fill_(float("nan") if target.is_floating_point() else POISON_INT)

    def same(self, left: Any, right: Any) -> bool:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        return bool((left == right).all())

    def fetch(self, array: Any) -> NDArray[np.float64]:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        values: NDArray[np.float64] = array.double().cpu().numpy()
        return values

    def excess(self, got: Any, want: Any, bound: Any) -> float:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`."""
        error = (got.float() - want).abs() / bound
        return float("inf") if not bool(error.isfinite().all()) else float(error.max())

    def digest(self, array: Any) -> str:  # noqa: ANN401 - see ArrayKind
        """See `ArrayKind`; a sum of bits weighted by position, in wrapping 64-bit arithmetic."""
        import torch

        bits = array.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[array.element_size()]).long()
        weights = torch.arange(1, bits.numel() + 1, device=array.device) * 0x9E3779B1 + 1
        return f"{int((bits * weights).sum()) & (2**64 - 1):016x}"


def kind_of(array: Any) -> ArrayKind:  # noqa: ANN401 - either library's array
    """The operations for this array."""
    return NumpyArrays() if isinstance(array, np.ndarray) else TorchArrays()
