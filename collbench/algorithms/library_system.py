"""Records of libraries that run through their own Python interface: the checks that all of them share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from collbench.algorithms.base import Algorithm, Foreign
from collbench.algorithms.cuda_support import ranks_share_gpu, refuse_elements
from collbench.algorithms.epilogues import why_not
from collbench.algorithms.known_system import Check, full_nvlink, is_assumed, system, verdict
from collbench.algorithms.library_build import BUILD_S
from collbench.contention.traffic import Schedule
from collbench.results.records import Call, Collective, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["Way", "library", "needs_compiler", "nvlink_gate", "past", "read_in"]

_FLOATS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class Way:
    """How a library is run: its runner as `module:Class`, element types, epilogues, variables of its workers.

    `foreign` is what the fork server imports of it: one list of `library_modules` for all records of a library.
    """

    runner: str
    dtypes: tuple[str, ...] = _FLOATS
    epilogues: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    opening_s: float = BUILD_S
    foreign: Foreign = field(default_factory=Foreign)


def library(
    name: str,
    summary: str,
    reference: str,
    checks: Sequence[Check],
    fine: Support | Callable[[Machine, Call], Support],
    traffic: Callable[[Call, Topology], Schedule],
    *,
    family: str,
    way: Way,
) -> Algorithm:
    """The record of an all-reduce of a library; `fine` is its answer where no check speaks."""
    known = system(name, summary, reference, (), Support.yes(), traffic, family=family)
    asked = (_call_fits(way), *checks, _torch_with_cuda)

    def support(machine: Machine, call: Call) -> Support:
        answer = fine(machine, call) if callable(fine) else fine
        first = known.support(machine, call)
        return verdict(asked, answer, machine, call) if first else first

    return replace(
        known, support=support, runner=way.runner, imports=("torch", "torch.distributed"), opening_s=way.opening_s,
        environment=partial(_environment, dict(way.environment)), cost_us=_cost_us, foreign=way.foreign,
    )  # fmt: skip


def _environment(own: Mapping[str, str], machine: Machine) -> Mapping[str, str]:
    shared = {"GLOO_SOCKET_IFNAME": "lo"} if machine.hosts == 1 else {}
    # ranks on one GPU reach each other's memory as if NVLink joined them
    shared["COLLBENCH_FULL_NVLINK"] = "1" if full_nvlink(machine) or ranks_share_gpu(machine) else "0"
    if ranks_share_gpu(machine):
        shared["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    return {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", **shared, **own}


def _cost_us(call: Call, machine: Machine) -> float:
    del machine
    return 8.0 + call.bytes * call.world_size / 100_000


def _call_fits(way: Way) -> Check:
    def check(machine: Machine, call: Call) -> Support | None:
        del machine
        if call.collective is not Collective.ALL_REDUCE or call.op != "sum" or call.splits:
            return Support.no("only the sum of an all_reduce is built")
        if call.epilogue not in {"", *way.epilogues}:
            return Support.no(f"it knows no epilogue {call.epilogue}")
        reason = why_not(call)
        return Support.no(reason, "use whole rows") if reason else refuse_elements(call, way.dtypes)

    return check


def _torch_with_cuda(machine: Machine, call: Call) -> Support | None:
    del call
    told = machine.software.get("torch", "")
    if "+cpu" in told:
        return Support.no(f"torch {told} is a CPU build", "install a CUDA build of torch")
    if not told and not is_assumed(machine):
        return Support.no("torch is not installed", "pip install 'collbench[sweep]'")
    return None


def needs_compiler(name: str) -> Check:
    """Libraries that compile their kernels where they run."""

    def check(machine: Machine, call: Call) -> Support | None:
        del call
        if "nvcc" in machine.software or is_assumed(machine):
            return None
        return Support.no(f"{name} compiles its kernels here, and nvcc was not found", "set CUDA_HOME")

    return check


def nvlink_gate(name: str, more: str, remedy: str, source: str) -> Check:
    """Servers whose custom all-reduce wants NVLink between all GPUs, or two ranks."""

    def check(machine: Machine, call: Call) -> Support | None:
        if call.world_size == 2 or full_nvlink(machine):  # noqa: PLR2004 - the case that such gates let through
            return None
        here = f"{call.world_size} ranks, fabric {machine.fabric}"
        return Support.no(f"{name} without full NVLink ({here}){more}", remedy, source)

    return check


def past(gates: Sequence[Check], machine: Machine, call: Call) -> Support:
    """It is called past its gates; the first that is closed is told beside."""
    closed = next((told for gate in gates if (told := gate(machine, call)) is not None), None)
    return (
        Support.yes(f"{closed.reason}: called past that gate", closed.source) if closed is not None else Support.yes()
    )


def read_in(package: str, since: tuple[int, ...], source: str) -> Check:
    """What was read in one release: whether an older one, or one that was not said, has it is not known."""
    text = ".".join(map(str, since))

    def check(machine: Machine, call: Call) -> Support | None:
        del call
        version = machine.version(package)
        if not version:
            reason = f"it was read in {package} {text}, and the version was not said"
            return Support.unknown(reason, f"--with {package}=VERSION", source)
        if version < since:
            told = machine.software[package]
            reason = f"it was read in {package} {text}; whether {told} has it is not known"
            return Support.unknown(reason, f"install {package} {text} or later", source)
        return None

    return check
