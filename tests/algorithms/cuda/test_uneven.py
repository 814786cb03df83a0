"""Our all-to-all with splits: the device code on the CPU, its table, and what the runner hands to it."""

import ctypes
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from collbench.algorithms.cuda.arguments import MAX_RANKS, plan, splits_table, splits_table_at
from collbench.algorithms.cuda.compile import Variant, compile_kernel
from collbench.algorithms.cuda.designs import UNEVEN
from collbench.algorithms.cuda.virtual import Setting
from collbench.algorithms.own_runners import PushAllToAll
from collbench.algorithms.push_collectives import ALGORITHMS
from collbench.algorithms.routing import Skew
from collbench.results.records import Call, Collective

LONGEST = 40  # bytes of the longest part
ONE_SET = 2  # of common.cuh


def play(emulation: Any, rows: Sequence[Sequence[int]], seed: int, blocks: int = 2) -> None:
    """One call with random bytes; every part must be at its place, and nothing written behind."""
    setting, n, draw = emulation.setting, len(rows), random.Random(seed)
    for rank, base in enumerate(emulation.bases):
        table = splits_table(rows, rank, 2)
        ctypes.memmove(base + splits_table_at(setting.plan, n), table, len(table))
    inputs = [draw.randbytes(2 * sum(row)) for row in rows]
    outputs = emulation.run(inputs, 16, blocks, seed)
    for me, found in enumerate(outputs):
        want = b"".join(inputs[k][2 * sum(row[:me]) : 2 * sum(row[: me + 1])] for k, row in enumerate(rows))
        assert found[: len(want)] == want, (rows, me)
        assert set(found[len(want) :]) <= {0xFF}


def emulated(emulate: Callable[[Setting], Any], n: int, **more: Any) -> Any:
    return emulate(Setting(UNEVEN, n, "bfloat16", n * LONGEST, blocks=2, threads=8, **more))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_every_part_of_every_call_is_at_its_place(n: int, emulate: Callable[[Setting], Any]) -> None:
    """Splits change from call to call on the same memory, with empty parts, odd lengths and schedules of all kinds."""
    emulation, draw = emulated(emulate, n), random.Random(n)
    for turn in range(60):
        rows = [[draw.choice((0, 0, 1, 2, 3, 7, LONGEST // 2)) for _ in range(n)] for _ in range(n)]
        play(emulation, rows, turn, blocks=1 + turn % 2)


def test_nothing_at_all_still_ends(emulate: Callable[[Setting], Any]) -> None:
    """Ranks that send nothing meet all the same: otherwise one could run two calls ahead of another."""
    emulation = emulated(emulate, 3)
    for seed in range(6):
        play(emulation, [[0] * 3] * 3, seed)
    assert {emulation.epoch(rank) for rank in range(3)} == {7}


@pytest.mark.parametrize("broken", [0, ONE_SET])
def test_one_set_of_slots_would_not_do(broken: int, emulate: Callable[[Setting], Any]) -> None:
    """Ranks that run ahead overwrite what a peer has not read: its wait expires in some schedule. With two: never."""
    rows = [[5, 0, 3, 1], [0, 0, 9, 2], [4, 4, 4, 4], [1, 0, 0, 6]]
    expired = 0
    for seed in range(12 if broken else 4):
        emulation = emulated(emulate, 4, broken=broken, deadline_s=0.2 if broken else 2.0)
        for rank, base in enumerate(emulation.bases):
            table = splits_table(rows, rank, 2)
            ctypes.memmove(base + splits_table_at(emulation.setting.plan, 4), table, len(table))
        steps = [emulation.setting.step(16, 1 + k % 2) for k in range(100)]
        expired += len(emulation.play(steps, seed, fill=False).errors)
    assert (expired > 0) == (broken == ONE_SET)


def test_the_table() -> None:
    """Bytes for each rank and their places in the input, bytes from each rank and their places in the output."""
    rows = [[1, 2, 3], [4, 0, 6], [7, 8, 9]]
    words = struct.unpack("<12I", splits_table(rows, 1, 2))
    assert words == (8, 0, 12, 0, 8, 8, 4, 0, 16, 0, 4, 4)


def test_the_table_lies_behind_the_slots_and_within_the_region() -> None:
    for n in (2, 8, MAX_RANKS):
        made = plan(UNEVEN, n, "bfloat16", n * 100)
        assert made.cap == 13
        assert splits_table_at(made, n) == made.fills[1][0]
        assert splits_table_at(made, n) + 16 * n <= made.region_bytes


def test_the_compiler_takes_it() -> None:
    pytest.importorskip("cuda.core")
    for arch in ("sm_80", "sm_120"):
        made = compile_kernel(Variant(UNEVEN, 8, "bfloat16", arch))
        assert (made.spills, made.cubin[:4]) == (0, b"\x7fELF")


def test_the_record_takes_splits() -> None:
    (record,) = (a for a in ALGORITHMS if a.name == "push_all_to_all")
    call = Skew.parse("dispatch:1").call(4096, 2, "bfloat16")

    class Ranks:
        rank, world_size = 0, 2

    runner = PushAllToAll(Ranks(), call, 1)  # type: ignore[arg-type]  # nothing is opened
    assert runner._names == (UNEVEN,)
    assert runner._arrays.inputs["x"] == call.splits[0] + call.splits[1]
    assert runner._arrays.outputs["y"] == call.splits[0] + call.splits[2]
    longest = 2 * max(call.splits)
    assert runner._plan(UNEVEN).cap == -(-longest // 8)
    flows = record.traffic(call, None).phases[0].flows  # type: ignore[arg-type]  # it does not look at the topology
    assert {(f.src, f.dst): f.bytes for f in flows} == {(0, 1): 2 * call.splits[1], (1, 0): 2 * call.splits[2]}
    even = PushAllToAll(Ranks(), Call(64, 2, Collective.ALL_TO_ALL, ""), 1)  # type: ignore[arg-type]  # as above
    assert even._names == ("push_all_to_all",)
