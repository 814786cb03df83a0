"""What every device function does: its collective, the element types that it takes, the sizes that fit it."""

from collections.abc import Mapping

from collbench.results.records import DTYPE_BYTES, Collective

__all__ = [
    "COLLECTIVES", "FLAGGED", "FLOATS", "FUSED", "KINDS", "UNEVEN", "collective_of", "dtypes_of", "granule", "kind_of",
]  # fmt: skip

FLOATS = ("bfloat16", "float16", "float32")
"""Element types of designs whose data announces itself: -0.0 means "not yet written"."""

COLLECTIVES: Mapping[str, Collective] = {
    "push_all_gather": Collective.ALL_GATHER, "push_reduce_scatter": Collective.REDUCE_SCATTER,
    "push_all_to_all": Collective.ALL_TO_ALL, "push_barrier": Collective.BARRIER,
}  # fmt: skip
"""Device functions that are no all-reduce."""

UNEVEN = "push_all_to_all_uneven"
"""Device function of an all-to-all with splits; `arguments.splits_table` makes what it reads."""

FLAGGED = ("push_flags", *COLLECTIVES)
"""Device functions with a flag in every 8 bytes: any bits, so integers too."""

FUSED = ("push_fused", "islands_fused")
"""Device functions with residual and RMSNorm behind the sum."""

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "fused")
"""What virtual.cuh checks, in the order of its numbers."""

_VECTOR_BYTES = 16


def collective_of(kernel: str) -> Collective:
    """The collective that a device function carries out."""
    return COLLECTIVES.get(kernel, Collective.ALL_REDUCE)


def kind_of(kernel: str) -> int:
    """Number in `KINDS`."""
    return KINDS.index("fused" if kernel in FUSED else str(collective_of(kernel)))


def dtypes_of(kernel: str) -> tuple[str, ...]:
    """Element types that a device function takes."""
    return (*FLOATS, "int32") if kernel in FLAGGED else FLOATS


def granule(kernel: str, world_size: int, dtype: str, hidden: int = 0) -> int:
    """Bytes of which a message must be a multiple: an element, one for every rank, or a row of `hidden` elements."""
    if kernel in FUSED:
        return max(hidden * DTYPE_BYTES[dtype], _VECTOR_BYTES)
    return DTYPE_BYTES[dtype] * (world_size if kernel in COLLECTIVES else 1)
