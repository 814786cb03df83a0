"""vLLM's custom all-reduce: one stage and two stages, both by reads of the peers' memory.

The kernels are those of vLLM 0.8.2, which FlashInfer ships as a header; collbench compiles it where it is installed.
"""

from functools import partial

from collbench.algorithms.cuda_support import ranks_share_gpu
from collbench.algorithms.peers import peer_algorithm, refuse_peer
from collbench.algorithms.schedules import pulled, pulled_twice_in_turn
from collbench.results.records import Call, Fabric, Support
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "DTYPES", "RANKS", "gate"]

DTYPES = ("bfloat16", "float16", "float32")
RANKS = (2, 4, 6, 8)
"""World sizes that its dispatch knows."""

_SINCE = (0, 6, 18)
_ONE_STAGE_BELOW = {4: 512 << 10, 8: 256 << 10}
"""Message size below which its dispatch takes one stage, by the largest world size for which that holds."""

_SOURCE = "vllm_custom_all_reduce.cuh of flashinfer-python 0.7.4, CustomAllreduce::allreduce"
_REFERENCE = "https://github.com/vllm-project/vllm/blob/v0.8.2/csrc/custom_all_reduce.cuh"


def gate(machine: Machine, call: Call, kernel: str) -> str:
    """What vLLM's own dispatch would have done instead; empty if it would have launched this kernel."""
    if call.world_size == 2:  # noqa: PLR2004 - its dispatch has a case for two ranks
        return "" if kernel == "one_stage" else "vLLM launches its one-stage kernel for 2 ranks at every size"
    if machine.fabric is not Fabric.NVLINK or ranks_share_gpu(machine):
        return f"vLLM launches nothing for {call.world_size} ranks unless all GPUs are joined by NVLink"
    limit = next(limit for ranks, limit in _ONE_STAGE_BELOW.items() if call.world_size <= ranks)
    chosen = "one_stage" if call.bytes < limit else "two_stage"
    return "" if kernel == chosen else f"vLLM launches its {chosen.replace('_', '-')} kernel at this size"


def _support(kernel: str, machine: Machine, call: Call) -> Support:
    refused = refuse_peer(machine, call, DTYPES, RANKS, _SINCE)
    if refused is not None:
        return refused
    told = gate(machine, call, kernel)
    return Support.yes(f"{told}: called past that gate", _SOURCE) if told else Support.yes()


ALGORITHMS = (
    peer_algorithm(
        "vllm_one_stage", "every rank pulls and sums all messages, between two barriers", _REFERENCE, pulled,
        partial(_support, "one_stage"), "OneStage", "vllm",
    ),
    peer_algorithm(
        "vllm_two_stage", "pulls and sums its share, then pulls the others' sums", _REFERENCE, pulled_twice_in_turn,
        partial(_support, "two_stage"), "TwoStage", "vllm",
    ),
)  # fmt: skip
