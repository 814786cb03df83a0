"""Right answers to a call with the ranks' own bytes, for checks of kernels: float64 sums, or the parts themselves."""

from collections.abc import Sequence
from typing import Any

from collbench.algorithms.cuda.designs import collective_of
from collbench.results.records import Collective

__all__ = ["problem_of", "random_input", "reference_error"]

_MANTISSA = {"bfloat16": 8, "float16": 11, "float32": 24, "int32": 64}


def problem_of(kernel: str, inputs: Sequence[bytes], outputs: Sequence[bytes], dtype: str) -> str:
    """What is wrong with the outputs of a kernel without epilogue; empty if all is right."""
    n, collective = len(inputs), collective_of(kernel)
    if collective is Collective.ALL_REDUCE:
        return reference_error(inputs, outputs, dtype)
    part = len(inputs[0]) // n
    rows = [[data[rank * part : (rank + 1) * part] for data in inputs] for rank in range(n)]
    if collective is Collective.REDUCE_SCATTER:
        found = (reference_error(row, [data], dtype) for row, data in zip(rows, outputs, strict=True))
        return next((f"rank {rank}: {text}" for rank, text in enumerate(found) if text), "")
    scattered = collective is Collective.ALL_TO_ALL
    wanted = [b"".join(rows[rank] if scattered else inputs) for rank in range(n)]
    off = [rank for rank in range(n) if outputs[rank] != wanted[rank]]
    return f"rank {off[0]} holds other bytes than it was sent" if off else ""


def reference_error(inputs: Sequence[bytes], outputs: Sequence[bytes], dtype: str) -> str:
    """What is wrong with outputs beside a float64 sum: empty if all ranks hold the same bits within rounding."""
    import numpy as np

    kind = _numpy_type(dtype)
    values = np.stack([np.frombuffer(data, kind).astype(np.float64) for data in inputs])
    found = np.frombuffer(outputs[0], kind).astype(np.float64)
    for rank, data in enumerate(outputs):
        if data != outputs[0]:
            return f"rank {rank} holds other bits than rank 0"
    bound = np.abs(values.sum(0)) * 2.0 ** -_MANTISSA[dtype] + np.abs(values).sum(0) * len(inputs) * 2.0**-24
    tiny = 2.0**-24 if dtype == "float16" else 0.0  # subnormal halves
    if dtype == "int32":
        bound = np.zeros_like(bound)
    off = ~(np.abs(found - values.sum(0)) <= bound + tiny)
    if off.any():
        at = int(off.argmax())
        return f"element {at} is {found[at]!r}, the sum is {values.sum(0)[at]!r}"
    return ""


def _numpy_type(dtype: str) -> Any:  # noqa: ANN401 - a numpy type
    import ml_dtypes
    import numpy as np

    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def random_input(rng: Any, count: int, dtype: str) -> bytes:  # noqa: ANN401 - a numpy generator
    """Elements of mixed sizes and signs, with zeros of both signs among them."""
    import numpy as np

    if dtype == "int32":
        return bytes(rng.integers(-(1 << 26), 1 << 26, count, dtype=np.int32).tobytes())
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-6, 7, count)
    values[rng.random(count) < 0.1] = -0.0  # noqa: PLR2004 - a tenth
    values[rng.random(count) < 0.02] = 0.0  # noqa: PLR2004 - a fiftieth
    if rng.random() < 0.2:  # noqa: PLR2004 - a fifth of the messages: nothing but the pattern that stands for "empty"
        values[:] = -0.0
    return bytes(values.astype(_numpy_type(dtype)).tobytes())
