"""How a message is cut into tokens for FlashInfer's fused all-reduce. Launch rules read in FlashInfer 0.7.4."""

from collbench.algorithms.epilogues import hidden_size
from collbench.results.records import Call

__all__ = ["blocks_of_two_shot", "one_shot_overflows", "rows_of_fusion"]

_VECTOR = 8
_MOST_HIDDEN = 8192
"""A row is reduced by one cluster of at most 8 blocks of 1024 threads; up to here its grid fits at every size."""
_FIRST_OVERFLOW = 1 << 30
_CLUSTER, _LEAST_THREADS = 8, 128


def rows_of_fusion(call: Call, *, two_shot: bool) -> int:
    """Tokens as which a message is given to the fusion; 0 if there is no way.

    With an epilogue rows are its rows. Without one every cut into rows of whole 16-byte vectors is the same sum: the
    fewest that its launch takes. The two-shot kernels want more tokens than ranks, and a vector of a row for each rank.
    """
    if call.epilogue:
        rows = call.count // hidden_size(call)
        return rows if rows > call.world_size or not two_shot else 0
    least = max(-(-call.count // _MOST_HIDDEN), call.world_size + 1 if two_shot else 1)
    most = call.count // (_VECTOR * (call.world_size if two_shot else 1))
    return next((rows for rows in range(least, most + 1) if call.count % (rows * _VECTOR) == 0), 0)


def blocks_of_two_shot(call: Call) -> int:
    """Blocks that its two-shot kernels run in: a cluster of up to 8 for each of a rank's tokens; 0 if they do not run.

    A cluster has as many blocks as leave 128 threads of a vector each.
    """
    rows = rows_of_fusion(call, two_shot=True)
    if not rows:
        return 0
    threads, cluster = call.count // rows // _VECTOR, _CLUSTER
    while cluster > 1 and (threads % cluster or threads // cluster < _LEAST_THREADS):
        cluster //= 2
    return -(-rows // call.world_size) * cluster


def one_shot_overflows(call: Call) -> bool:
    """Whether its one-shot kernels would compute addresses beyond 32 bits: twice the bytes that all ranks send."""
    return call.bytes * call.world_size >= _FIRST_OVERFLOW
