"""Checks of our kernels on one GPU, by virtual ranks: `python -m collbench.algorithms.cuda.harness`.

Needs one GPU, cuda-core and numpy; no torch, no MPS. Every wait has a deadline. Prints one line per check and, with
`--json FILE`, writes all of them. Exit status 1 if a check failed.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from collbench.algorithms.cuda.arguments import Islands
from collbench.algorithms.cuda.compile import KERNELS, compile_kernel
from collbench.algorithms.cuda.designs import COLLECTIVES, FLAGGED, FUSED, dtypes_of
from collbench.algorithms.cuda.driver import call
from collbench.algorithms.cuda.references import problem_of, random_input
from collbench.algorithms.cuda.virtual import Outcome, Setting, Step, VirtualRanks, device_arch, use_device
from collbench.results.records import DTYPE_BYTES

__all__ = ["APPLIES", "RULES", "Finding", "check_all", "main", "steps_of"]

NEAR_WRAP = (1 << 32) - 200
"""First epoch of the replays: they cross 2^32."""

RULES = {
    1: "consumed buffers are emptied again", 2: "two or more sets of buffers alternate",
    3: "every word is checked before a vector counts as arrived", 4: "no rank leaves while a peer may read its input",
    5: "no rank reads before its peers have entered", 6: "the epoch belongs to the call, not to the block",
    7: "a fence stands between data and its flag",
}  # fmt: skip
"""Rules of safety that a test build leaves out, by their number in common.cuh."""

APPLIES = {
    1: ("one_stage_pull_data", "one_stage_pull_kept", "two_stage_pull_data", "push", "two_stage_push", "islands",
        "staged_ring", *FUSED),
    2: ("one_stage_pull_data", "one_stage_pull_kept", "one_stage_pull_flag", "two_stage_pull_data", "push",
        "push_flags", "two_stage_push", "islands", *FUSED, *COLLECTIVES),
    3: ("one_stage_pull_data", "one_stage_pull_kept", "two_stage_pull_data", "push", "push_flags", "two_stage_push",
        "islands", "staged_ring", *FUSED, "push_all_gather", "push_reduce_scatter", "push_all_to_all"),
    4: ("one_stage_pull",), 5: ("one_stage_pull", "two_stage_pull_flag"),
    6: ("one_stage_pull_data", "one_stage_pull_kept", "one_stage_pull_flag", "push", "push_flags",
        "two_stage_pull_data", "push_all_gather", "push_reduce_scatter", "push_all_to_all"),
    7: ("one_stage_pull_flag", "two_stage_pull_flag"),
}  # fmt: skip
_CHUNK = 500  # calls per kernel
_SHORT_S = 0.2


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one kernel."""

    check: str
    kernel: str
    world_size: int
    dtype: str
    ok: bool
    note: str
    calls: int
    seconds: float


def steps_of(setting: Setting, calls: int, seed: int, delay_ns: int = 3000) -> list[Step]:
    """Calls of changing sizes (16 bytes, any, the most) and grids, each block late by a random time."""
    rng = random.Random(seed)  # noqa: S311 - test data
    sizes: list[Callable[[], int]] = [
        lambda: 16, lambda: rng.randrange(16, setting.most_bytes + 1), lambda: rng.randrange(16, 256),
        lambda: setting.most_bytes,
    ]  # fmt: skip
    return [
        setting.step(
            rng.choice(sizes)(), rng.randint(1, setting.blocks), rng.getrandbits(31), rng.choice((0, delay_ns))
        )
        for _ in range(calls)
    ]


def replay(setting: Setting, calls: int, seed: int = 1, delay_ns: int = 3000) -> tuple[Outcome, int]:
    """Play calls in chunks until one shows a fault; gives the last outcome and the calls played."""
    with VirtualRanks(setting) as ranks:
        for done in range(0, calls, _CHUNK):
            count = min(_CHUNK, calls - done)
            steps = steps_of(setting, count, seed + done, delay_ns)
            outcome = ranks.play(steps)
            if outcome.checked != setting.elements(steps):
                raise RuntimeError(f"{outcome.checked} elements were checked, not {setting.elements(steps)}")
            if outcome.wrong or outcome.errors:
                break
    return outcome, done + count


def check_reference(setting: Setting, calls: int) -> tuple[bool, str]:
    """Random data of random sizes against float64, or the bytes sent; the same call twice gives the same bits."""
    import numpy as np

    rng = np.random.default_rng(setting.world_size)
    with VirtualRanks(setting) as ranks:
        for turn in range(calls):
            size = int(setting.step(int(rng.integers(16, setting.most_bytes + 1)), 1).bytes)
            count = setting.input_bytes(size) // DTYPE_BYTES[setting.dtype]
            inputs = [random_input(rng, count, setting.dtype) for _ in range(setting.world_size)]
            outputs, again = (ranks.run(inputs, size, 1 + (turn + k) % setting.blocks) for k in range(2))
            problem = problem_of(setting.kernel, inputs, outputs, setting.dtype)
            if problem or again != outputs:
                return False, f"{count} elements: {problem or 'a second call gave other bits'}"
    return True, "as the reference says, and the same bits twice"


def check_deadline(setting: Setting) -> tuple[bool, str]:
    """One rank stays away: the others leave in time and say for whom they waited."""
    absent = setting.world_size - 1
    with VirtualRanks(setting) as ranks:
        outcome = ranks.play(steps_of(setting, 3, 7, 0), absent=absent)
    named = {rank for record in outcome.errors for rank in record.missing}
    text = str(outcome.errors[0]) if outcome.errors else "no rank has said anything"
    # one-stage designs wait for the absent one itself, the others also for whom it keeps waiting
    direct = setting.kernel.startswith(("one_stage", "push"))
    ok = bool(outcome.errors) and (absent in named or not direct) and outcome.seconds < 10 * setting.deadline_s + 1
    return ok, text


def _settings(options: argparse.Namespace) -> Iterator[Setting]:
    """Every build that the checks need, to be compiled in parallel before the first of them."""
    for kernel in options.kernels:
        for dtype in options.dtypes or _dtypes(kernel):
            for world_size in options.world_sizes:
                if dtype in dtypes_of(kernel):
                    yield Setting(kernel, world_size, dtype, 16)
        if not options.no_controls:
            dtype = _control_dtype(kernel)
            yield from (Setting(kernel, 4, dtype, 16, broken=rule) for rule in APPLIES if kernel in APPLIES[rule])


def _compile_all(options: argparse.Namespace, arch: str) -> int:
    """Fill the disk cache from several processes: they never touch the device."""
    variants = [s.variant(arch) for s in _settings(options)]
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), multiprocessing.get_context("spawn")) as pool:
        return len([None for _ in pool.map(compile_kernel, variants)])


def check_all(options: argparse.Namespace) -> Iterator[Finding]:
    """Every check of every kernel that the options ask for, as each ends."""
    for kernel in options.kernels:
        for dtype in options.dtypes or _dtypes(kernel):
            for world_size in options.world_sizes:
                if dtype in dtypes_of(kernel):
                    yield from _checks(kernel, world_size, dtype, options)
        if not options.no_controls:
            yield from _controls(kernel, options)


def _dtypes(kernel: str) -> tuple[str, ...]:
    return ("bfloat16", "int32") if kernel in FLAGGED else dtypes_of(kernel)


def _control_dtype(kernel: str) -> str:
    return "int32" if kernel in FLAGGED else "bfloat16"


def _checks(kernel: str, world_size: int, dtype: str, options: argparse.Namespace) -> Iterator[Finding]:
    # 16 ranks of 4 x 128 threads are 64 blocks: they fit on every GPU with that many multiprocessors
    base = Setting(kernel, world_size, dtype, options.bytes, epoch=NEAR_WRAP, deadline_s=options.deadline)
    yield _timed("replays", base, lambda: _exact(base, options.replays))
    if kernel not in FUSED:  # whose replays check the rows too
        yield _timed("reference", base, lambda: (*check_reference(base, options.references), 2 * options.references))
    late = Setting(kernel, world_size, dtype, 4096, deadline_s=_SHORT_S)
    yield _timed("deadline", late, lambda: (*check_deadline(late), 3))
    if kernel.startswith("islands") and world_size > 2:  # noqa: PLR2004 - two groups of unequal size
        odd = Islands((tuple(range(1, world_size)), (0,)))
        uneven = Setting(kernel, world_size, dtype, options.bytes, epoch=NEAR_WRAP, islands=odd)
        yield _timed("uneven islands", uneven, lambda: _exact(uneven, options.replays // 5))
    if options.large and world_size in {2, 8} and dtype != "float16":
        big = Setting(kernel, world_size, dtype, 8 << 20, blocks=8, threads=256, deadline_s=options.deadline)
        yield _timed("8 MiB", big, lambda: _exact(big, 6))


def _exact(setting: Setting, calls: int) -> tuple[bool, str, int]:
    outcome, played = replay(setting, calls)
    text = str(outcome.errors[0]) if outcome.errors else outcome.first or "every element exact"
    return not outcome.wrong and not outcome.errors, text, played


def _controls(kernel: str, options: argparse.Namespace) -> Iterator[Finding]:
    """Builds without a rule. Seen or not, both are findings: a missing fence may not show on one GPU."""
    dtype = _control_dtype(kernel)
    for rule, kernels in APPLIES.items():
        if kernel not in kernels:
            continue
        setting = Setting(kernel, 4, dtype, 4096, deadline_s=_SHORT_S, broken=rule)

        def play(setting: Setting = setting) -> tuple[bool, str, int]:
            ok, text, played = _exact(setting, options.replays)
            return True, ("not seen" if ok else f"seen: {text}"), played

        yield _timed(f"without rule {rule} ({RULES[rule]})", setting, play)


def _timed(check: str, setting: Setting, work: Callable[[], tuple[bool, str, int]]) -> Finding:
    begin = time.monotonic()
    try:
        ok, note, calls = work()
    except (RuntimeError, MemoryError, TimeoutError) as error:
        ok, note, calls = False, f"{type(error).__name__}: {error}", 0
    spent = time.monotonic() - begin
    return Finding(check, setting.kernel, setting.world_size, setting.dtype, ok, note, calls, round(spent, 2))


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser = argparse.ArgumentParser("harness", description="Check our kernels on one GPU by virtual ranks.")
    parser.add_argument("--kernels", type=names, default=list(KERNELS))
    parser.add_argument("--world-sizes", type=lambda text: [int(n) for n in names(text)], default=[2, 3, 5, 8])
    parser.add_argument("--dtypes", type=names, default=None)
    parser.add_argument("--replays", type=int, default=2000)
    parser.add_argument("--references", type=int, default=20)
    parser.add_argument("--bytes", type=int, default=20000)
    parser.add_argument("--deadline", type=float, default=2.0)
    parser.add_argument("--budget", type=float, default=540.0, help="seconds after which no further check begins")
    parser.add_argument("--large", action="store_true", help="8 MiB messages too")
    parser.add_argument("--no-controls", action="store_true")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the checks; see the module's text."""
    options = _options(words)
    begin = time.monotonic()
    findings: list[Finding] = []
    try:
        call("cuInit", 0)
    except Exception as error:  # noqa: BLE001 - no driver, no device, no bindings: each has its own exception
        print(f"no CUDA device: {str(error).splitlines()[0]}", file=sys.stderr)  # noqa: T201 - a program's output
        return 3
    with use_device():
        built = _compile_all(options, device_arch())
        spent = time.monotonic() - begin
        print(f"arch {device_arch()}: {built} kernels built in {spent:.0f} s", flush=True)  # noqa: T201 - same
        for finding in check_all(options):
            findings.append(finding)
            f = finding
            words_ = ("ok" if f.ok else "FAILED", f.kernel, f"n={f.world_size}", f.dtype, f.check)
            print(*words_, f"{f.calls} calls", f"{f.seconds} s:", f.note, flush=True)  # noqa: T201 - same
            if time.monotonic() - begin > options.budget:
                print(f"stopped after {options.budget:g} s: not all was checked", flush=True)  # noqa: T201 - same
                break
    failed = sum(not f.ok for f in findings)
    print(f"{len(findings)} checks, {failed} failed, {time.monotonic() - begin:.0f} s")  # noqa: T201 - same
    if options.json:
        options.json.write_text(json.dumps([asdict(f) for f in findings], indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
