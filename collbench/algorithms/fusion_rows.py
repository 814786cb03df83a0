"""How a message is cut into tokens for FlashInfer's fused all-reduce."""

from collbench.algorithms.epilogues import hidden_size
from collbench.results.records import Call

__all__ = ["rows_of_fusion"]

_LEAST_HIDDEN = 8
_MOST_ROWS = 1024


def rows_of_fusion(call: Call, *, two_shot: bool) -> int:
    """Tokens as which a message is given to the fusion; 0 if there is no way.

    With an epilogue rows are its rows. Without one every cut into rows of whole 16-byte vectors is the same sum, and
    the two-shot kernels want more tokens than ranks.
    """
    if call.epilogue:
        rows = call.count // hidden_size(call)
        return rows if rows > call.world_size or not two_shot else 0
    rows = max(1, call.count // hidden_size(call)) if call.count % hidden_size(call) == 0 else 1
    least = call.world_size + 1 if two_shot else 1
    fits = (n for n in range(max(rows, least), _MOST_ROWS + 1) if call.count % (n * _LEAST_HIDDEN) == 0)
    return next(fits, 0)
