"""Work fused behind an all-reduce: residual added, then RMSNorm; how a call is cut into rows."""

from collbench.results.records import Call, Collective

__all__ = ["EPSILON", "HIDDEN", "RESIDUAL_RMSNORM", "hidden_size", "whole_rows", "why_not"]

RESIDUAL_RMSNORM = "residual_rmsnorm"
"""`Call.epilogue`: residual_out = x summed over ranks + residual; y = its rows, normalised, times weight."""

HIDDEN = 7168
"""Elements of a row of a message that has at least that many: DeepSeek-V3's hidden size (its config.json)."""

EPSILON = 1e-6
"""Added to the mean square: `rms_norm_eps` of the same file."""

_VECTOR_BYTES = 16


def hidden_size(call: Call) -> int:
    """Elements of a row: 7168, or the whole message if it is smaller."""
    return min(call.count, HIDDEN)


def whole_rows(count: int, itemsize: int) -> int:
    """The most elements, up to `count`, that are whole rows: of 7168, or one row of whole 16-byte vectors."""
    if count >= HIDDEN:
        return count // HIDDEN * HIDDEN
    lanes = _VECTOR_BYTES // itemsize
    return max(lanes, count // lanes * lanes)


def why_not(call: Call) -> str:
    """Why a call's epilogue cannot be run or checked; empty if it can, or there is none."""
    if not call.epilogue:
        return ""
    if call.epilogue != RESIDUAL_RMSNORM:
        return f"unknown epilogue {call.epilogue}: {RESIDUAL_RMSNORM} is known"
    if call.collective is not Collective.ALL_REDUCE or call.op != "sum" or call.dtype == "int32":
        return f"{call.epilogue} stands behind the sum of an all_reduce of floats only"
    if call.count != whole_rows(call.count, call.itemsize):
        return f"{call.count} elements are no whole rows of {HIDDEN}, nor one shorter row of whole 16 bytes"
    return ""
