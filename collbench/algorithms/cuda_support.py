"""What every algorithm on CUDA asks of a machine before it asks anything of its own."""

from collbench.results.records import Call, Collective, Support
from collbench.topology.machine import Machine
from collbench.topology.models import EARLY_SINCE

__all__ = [
    "EARLY_SINCE", "may_start_early", "number", "ranks_share_gpu", "refuse", "refuse_elements", "refuse_machine",
    "version_text",
]  # fmt: skip

SWEEP_EXTRA = "pip install 'collbench[sweep]'"


def may_start_early(machine: Machine) -> bool:
    """Whether its GPUs know programmatic dependent launch; no where nobody knows what they are."""
    return number(machine.arch) >= EARLY_SINCE


def refuse(machine: Machine, call: Call, dtypes: tuple[str, ...]) -> Support | None:
    """The reason why no all-reduce of torch on CUDA can run this call here; None if nothing stands in the way."""
    refused = _refuse_call(call, dtypes)
    # a refusal is false, as every `Support` that does not run
    return refused if refused is not None else refuse_machine(machine)


def _refuse_call(call: Call, dtypes: tuple[str, ...]) -> Support | None:
    # a refusal is false, so `or` would lose it
    refused = _refuse_collective(call)
    return refused if refused is not None else refuse_elements(call, dtypes)


def _refuse_collective(call: Call) -> Support | None:
    if call.collective is not Collective.ALL_REDUCE or call.op != "sum":
        return Support.no(f"{call.collective} with {call.op or 'no operation'}: only the sum of an all_reduce is built")
    if call.epilogue or call.splits:
        return Support.no("it knows no splits and no epilogue")
    return None


def refuse_elements(call: Call, dtypes: tuple[str, ...]) -> Support | None:
    """Refuses one rank, and element types that are not among `dtypes`."""
    if call.world_size <= 1:
        return Support.no("one rank has no peer", "start at least 2 ranks")
    if call.dtype not in dtypes:
        return Support.no(f"{call.dtype} is not one of its element types", f"use one of {', '.join(dtypes)}")
    return None


def refuse_machine(machine: Machine) -> Support | None:
    """Refuses a machine without torch or GPUs, or with too few GPUs."""
    torch, gpus = machine.software.get("torch", ""), len(machine.topology.gpus)
    if not torch:
        return Support.no("torch is not installed", SWEEP_EXTRA)
    if not gpus:
        return Support.no("no CUDA device", "run on a machine with an NVIDIA GPU")
    if "+cpu" in torch:
        return Support.no(f"torch {torch} is a CPU build", "install a CUDA build of torch")
    per_host = -(-machine.ranks // max(1, machine.hosts))
    if per_host > gpus and not machine.share_gpu:
        return Support.no(f"{per_host} ranks on {gpus} GPU(s)", "start as many ranks as GPUs, or give --share-gpu")
    return None


def ranks_share_gpu(machine: Machine) -> bool:
    """Whether several ranks use one GPU: asked for with --share-gpu, and more ranks on a host than it has GPUs."""
    return machine.share_gpu and machine.ranks > len(machine.topology.gpus) * max(1, machine.hosts)


def number(arch: str) -> int:
    """Compute capability as a number: `sm_90` and `sm_90a` are 90; 0 where unknown."""
    digits = "".join(c for c in arch.removeprefix("sm_") if c.isdigit())
    return int(digits) if digits else 0


def version_text(version: tuple[int, ...]) -> str:
    """A version as text: `2.30.7`."""
    return ".".join(map(str, version))
