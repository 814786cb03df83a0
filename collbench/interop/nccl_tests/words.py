"""The options of nccl-tests, as its programs read them (getopt), and what one build of it can do."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collbench.interop.nccl_tests.table import PROGRAMS, Settings

__all__ = ["Abilities", "abilities_of", "given", "program_in", "settings_from"]

_LONG: Mapping[str, str] = {
    "nthreads": "t", "ngpus": "g", "minbytes": "b", "maxbytes": "e", "stepbytes": "i", "stepfactor": "f",
    "iters": "n", "agg_iters": "m", "warmup_iters": "w", "run_cycles": "N", "parallel_init": "p", "check": "c",
    "op": "o", "datatype": "d", "root": "r", "blocking": "z", "stream_null": "y", "timeout": "T", "cudagraph": "G",
    "report_cputime": "C", "average": "a", "local_register": "R", "cta_policy": "x", "report_timestamps": "S",
    "output_file": "J", "device_implementation": "D", "device_cta_count": "V", "memory_report": "M",
    "per_iter_timing": "I", "per_iter_skip": "K", "unalign": "u",
}  # fmt: skip
_AVERAGES = ("rank0", "avg", "min", "max")
_CHANGING = {"R": "R", "D": "D", "y": "y", "u": "u", "x": "x", "V": "V"}
"""Options that change what is measured and stand in no other field."""

_PROGRAM = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(sorted(PROGRAMS, key=len, reverse=True))})_perf(?:_mpi)?\b(.*)")
_MOST_WORDS = 400


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a build offers, from its own usage text: `-J`, `-I`, `-z 3`, `-N`; `mpi` where it was linked with MPI."""

    json: bool = False
    per_iteration: bool = False
    aligned: bool = False
    cycles: bool = False
    mpi: bool = False


def abilities_of(usage: str, *, mpi: bool = False) -> Abilities:
    """Read the text that `--help` prints: `-J` came with 2.17 (2025), `-I` in 2.19.1, later `-z 3` and `-K` (2026)."""
    blocking = re.search(r"-z,\s*--blocking\s*<([^>\n]{0,200})>", usage)
    return Abilities(
        json=bool(re.search(r"-J,\s*--", usage)), per_iteration=bool(re.search(r"-I,\s*--", usage)),
        aligned=blocking is not None and "3" in blocking[1], cycles=bool(re.search(r"-N,\s*--", usage)), mpi=mpi,
    )  # fmt: skip


def program_in(line: str) -> tuple[str, list[str]] | None:
    """Program and options of a command line that stands somewhere in a line: `... ./all_reduce_perf -b 8 -g 2`."""
    match = _PROGRAM.search(line)
    return (match[1], match[2].split()[:_MOST_WORDS]) if match else None


def given(words: Sequence[str]) -> dict[str, str]:
    """Values by short name: `-n 50`, `-n50`, `--iters 50` and `--iters=50` are all `{"n": "50"}`; the last one counts.

    Words that are no options are passed over: the line may come from a log.
    """
    found: dict[str, str] = {}
    index = 0
    while index < len(words):
        name, value = _option(words[index])
        index += 1
        if name and not value and index < len(words) and not words[index].startswith("--"):
            value, index = words[index], index + 1
        if name:
            found[name] = value
    return found


def _option(word: str) -> tuple[str, str]:
    if word.startswith("--"):
        name, _, value = word[2:].partition("=")
        return _LONG.get(name, ""), value
    if len(word) > 1 and word[0] == "-" and word[1].isascii() and word[1].isalpha():
        return word[1], word[2:]
    return "", ""


def settings_from(options: Mapping[str, str], known: Settings | None = None) -> Settings:
    """`known` with what the options say beside it; a value that is no number is left alone."""
    base = known or Settings()
    numbers = {name: int(value) for name, value in options.items() if re.fullmatch(r"\d{1,9}", value, re.ASCII)}
    average = numbers.get("a")
    others = tuple(f"{_CHANGING[name]}{numbers[name]}" for name in sorted(_CHANGING) if numbers.get(name))
    return replace(
        base, threads=numbers.get("t", base.threads), gpus=numbers.get("g", base.gpus),
        iterations=numbers.get("n", base.iterations), aggregated=numbers.get("m", base.aggregated),
        warmup=numbers.get("w", base.warmup), validation=numbers.get("c", base.validation),
        graph=numbers.get("G", base.graph), blocking=numbers.get("z", base.blocking),
        average=_AVERAGES[average] if average is not None and average < len(_AVERAGES) else base.average,
        per_iteration=bool(numbers.get("I", base.per_iteration)), cputime=bool(numbers.get("C", base.cputime)),
        others=others or base.others,
    )  # fmt: skip
