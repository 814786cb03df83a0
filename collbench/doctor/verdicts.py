"""A verdict per algorithm and known system: runs, does not run, or unknown, with reason, remedy and source.

Where something that decides is not known of a machine (P2P, a package's version), the algorithm is asked under each
possibility; unless all answers agree, the verdict is `unknown`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from collbench.algorithms.base import Algorithm, known_systems, registry
from collbench.algorithms.cuda_support import number, ranks_share_gpu
from collbench.algorithms.known_system import is_assumed
from collbench.results.records import DTYPE_BYTES, Answer, Call, Collective, Mode, Support
from collbench.topology.machine import Machine

__all__ = ["BYTES", "KNOWN_ARCHS", "Change", "call_for", "changes", "judged", "rows", "unchanged"]

BYTES = 14_336
"""Message that is asked about: one token of a model with 7,168 hidden elements of two bytes."""

_TOLD = ("verdict", "reason")
"""Fields of a row that make a change."""

_KERNELS = "own"
"""Family whose kernels collbench compiles with NVRTC of CUDA 13 (extra cuda)."""

_DRIVER, _CUDA = (580,), (13,)
_DRIVER_SOURCE = "CUDA 13 release notes: driver 580 or later"
_CAPTURED_SINCE = (2, 9, 6)
_CAPTURED = "NCCL 2.9.6 release notes; graph cells of collbench sweep"
KNOWN_ARCHS = frozenset(
    {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121}
)  # fmt: skip
"""Compute capabilities of which anything can be known (nvcc --list-gpu-arch of CUDA 12.9 and 13.0)."""
_POSSIBLE: Mapping[str, str] = {"flashinfer": "0.7.4", "torch": "2.14.1", "nccl": "2.30.7"}
"""Release of a package that is taken where a described machine does not say whether it is there."""


@dataclass(frozen=True, slots=True)
class Change:
    """An algorithm whose verdict or reason differs between two machines."""

    algorithm: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def rows(machine: Machine, size_bytes: int = BYTES) -> list[dict[str, Any]]:
    """Rows of `collbench doctor --json`, those of collbench's own registry first."""
    measurable = registry()
    others = {name: known for name, known in known_systems().items() if name not in measurable}
    return [_row(algorithm, machine, size_bytes) for algorithm in (*measurable.values(), *others.values())]


def changes(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[Change]:
    """What differs, in the order of the rows."""
    old = {row["algorithm"]: row for row in before}
    pairs = ((row, old[row["algorithm"]]) for row in after if row["algorithm"] in old)
    return [Change(new["algorithm"], was, new) for new, was in pairs if any(new[name] != was[name] for name in _TOLD)]


def unchanged(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of the algorithms of which a change changes nothing, by verdict."""
    old = {row["algorithm"]: row for row in before}
    found: dict[str, list[str]] = {str(answer): [] for answer in Answer}
    for row in after:
        was = old.get(row["algorithm"])
        if was is not None and all(row[name] == was[name] for name in _TOLD):
            found[row["verdict"]].append(row["algorithm"])
    return found


def _row(algorithm: Algorithm, machine: Machine, size_bytes: int) -> dict[str, Any]:
    answer = _answer(algorithm, machine, call_for(algorithm, machine, size_bytes))
    return {
        "algorithm": algorithm.name, "verdict": str(answer.answer), "reason": answer.reason, "remedy": answer.remedy,
        "source": answer.source,
        "collective": str(algorithm.collective), "family": algorithm.family, "summary": algorithm.summary,
        "modes": [str(mode) for mode in algorithm.modes], "measurable": bool(algorithm.runner),
        "device": algorithm.device,
    }  # fmt: skip


def call_for(algorithm: Algorithm, machine: Machine, size_bytes: int) -> Call:
    """The call that an algorithm is asked about, with the element type that is usual on GPUs or on processors."""
    dtype = "float32" if algorithm.device == "cpu" else "bfloat16"
    if algorithm.collective is Collective.BARRIER:
        size_bytes = DTYPE_BYTES[dtype] * machine.ranks
    op = "sum" if algorithm.collective in {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER} else ""
    return Call(size_bytes, machine.ranks, algorithm.collective, op, dtype)


def _answer(algorithm: Algorithm, machine: Machine, call: Call) -> Support:
    answers = [(words, judged(algorithm, case, call)) for words, case in _cases(algorithm, machine, call)]
    first = answers[0][1]
    if all(one.answer is first.answer for _, one in answers):
        return first
    refusing = [one.answer for _, one in answers if one.answer is Answer.DOES_NOT_RUN]
    worst = refusing[0] if refusing else Answer.UNKNOWN
    good = [(words, one) for words, one in answers if one.answer is not worst]
    bad = [(words, one) for words, one in answers if one.answer is worst]
    # the two cases that differ in the fewest words name what decides
    (with_, best), (without, refused) = min(product(good, bad), key=lambda pair: len(set(pair[0][0]) ^ set(pair[1][0])))
    told = ", ".join(word for word in with_ if word not in without)
    against = ", ".join(word for word in without if word not in with_)
    if best.answer is Answer.RUNS:
        reason = f"it depends on what was not said: {told}, it runs; {against}: {refused.reason}"
    else:
        reason = f"{best.reason} ({against} it does not run at all)"
    remedy = "; ".join(dict.fromkeys(filter(None, (best.remedy, _say(told)))))
    return Support.unknown(reason, remedy, best.source or refused.source)


def judged(algorithm: Algorithm, machine: Machine, call: Call) -> Support:
    """The algorithm's own answer, and what NCCL in graphs, the driver and the GPUs' age add to it."""
    answer = _with_graph(algorithm, machine, _support(algorithm, machine, call))
    return _with_arch(algorithm, machine, _with_driver(algorithm, machine, answer))


def _say(words: str) -> str:
    """How to say what was not said; `words` are those of `_cases`."""
    return "--p2p ok or --p2p off" if "P2P" in words else f"--with {words.split()[1]}=VERSION"


def _support(algorithm: Algorithm, machine: Machine, call: Call) -> Support:
    """`Algorithm.support` promises not to raise; one of somebody else's package that does is `unknown`."""
    try:
        return algorithm.support(machine, call)
    except Exception as error:  # noqa: BLE001 - whatever another package raises
        return Support.unknown(f"its support() failed: {type(error).__name__}: {error}", "tell its authors")


def _cases(algorithm: Algorithm, machine: Machine, call: Call) -> Iterable[tuple[tuple[str, ...], Machine]]:
    """Machines that the given one may be, with words for each; packages only where an absence may be what refuses."""
    p2p: list[tuple[str, str | None]] = [("", None)]
    if algorithm.device == "cuda" and "p2p" not in machine.facts and _needs_peers(machine):
        p2p = [("with P2P between all GPUs", "ok"), ("without P2P between the GPUs", "off")]
    missing = [name for name in _POSSIBLE if name not in machine.software] if is_assumed(machine) else []
    refused = not _support(algorithm, replace(machine, facts={"p2p": "ok", **machine.facts}), call)
    asked = missing if algorithm.runner and refused else []
    worlds = [[(f"with {name} {_POSSIBLE[name]}", name), (f"without {name}", "")] for name in asked]
    for (words, state), *packages in product(p2p, *worlds):
        software = {**machine.software, **{name: _POSSIBLE[name] for _, name in packages if name}}
        facts = machine.facts if state is None else {**machine.facts, "p2p": state}
        yield (words, *(text for text, _ in packages)), replace(machine, software=software, facts=facts)


def _needs_peers(machine: Machine) -> bool:
    return machine.hosts == 1 and len(machine.topology.gpus) > 1 and not ranks_share_gpu(machine)


def _with_graph(algorithm: Algorithm, machine: Machine, answer: Support) -> Support:
    """NCCL in a CUDA graph: ring and tree alike, against what is often said."""
    if algorithm.family != "nccl" or answer.answer is not Answer.RUNS or Mode.GRAPH not in algorithm.modes:
        return answer
    version = machine.version("nccl")
    if not algorithm.runner or not version or version < _CAPTURED_SINCE:
        return answer
    return replace(answer, reason=f"{answer.reason}, captured in a CUDA graph too", source=answer.source or _CAPTURED)


def _with_driver(algorithm: Algorithm, machine: Machine, answer: Support) -> Support:
    """Kernels compiled by the tools of CUDA 13 are loaded by drivers from 580 on only."""
    if not algorithm.runner or algorithm.family != _KERNELS or answer.answer is not Answer.RUNS:
        return answer
    driver = machine.version("driver")
    if driver and driver < _DRIVER:
        told = machine.software["driver"]
        return Support.no(
            f"driver {told} cannot load what the tools of CUDA 13 compile", "driver 580 or later", _DRIVER_SOURCE
        )
    cuda = machine.version("cuda")
    if not driver and cuda and cuda < _CUDA:
        reason = (
            f"its kernels are compiled by the tools of CUDA 13, which need driver 580 or later; with CUDA "
            f"{machine.software['cuda']} the driver may be older, and it was not said"
        )
        return Support.unknown(reason, "--with driver=VERSION", _DRIVER_SOURCE)
    return answer


def _with_arch(algorithm: Algorithm, machine: Machine, answer: Support) -> Support:
    """Nothing is called running on GPUs of a compute capability that nobody knows, nor ours where it was not said."""
    arch = number(machine.arch)
    if algorithm.device != "cuda" or answer.answer is not Answer.RUNS or arch in KNOWN_ARCHS:
        return answer
    if arch:
        return Support.unknown(
            f"no GPU of compute capability {arch / 10:.1f} is known here, and so no rule holds for it"
        )
    if algorithm.family == _KERNELS and is_assumed(machine):
        return Support.unknown("its kernels need compute capability 8.0 or later, and which one these GPUs have was "
                               "not said")  # fmt: skip
    return answer
