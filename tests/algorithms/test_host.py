"""Host all-reduces: right, the same on all ranks, safe back to back, and never waiting for ever."""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.algorithms import host
from collbench.algorithms.base import Algorithm
from collbench.algorithms.host_runner import HostRunner
from collbench.results.records import Call, Collective, Fabric, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

NAMES = [algorithm.name for algorithm in host.ALGORITHMS]
BY_NAME = {algorithm.name: algorithm for algorithm in host.ALGORITHMS}
ULP = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
DTYPES = ("float32", "float16", "bfloat16", "int32")
COUNTS = (1, 4, 33, 257, 7168, 40_001)


def runner_of(algorithm: Algorithm) -> Any:
    return algorithm.load_runner()


def values(rank: int, count: int, dtype: str, seed: int) -> Any:
    """What a rank puts in: fractions of either sign, or integers whose sums wrap around."""
    rng = np.random.default_rng((seed, rank))
    if dtype == "int32":
        return rng.integers(-(2**31), 2**31 - 1, count, dtype=np.int32)
    return rng.uniform(-1, 1, count).astype(np.float32)


def check(ranks: Any, name: str, call: Call, seed: int) -> str:
    """Run one call; gives a hash of the output, or raises with what is wrong."""
    with runner_of(BY_NAME[name])(ranks, call, 1) as runner:
        x, y = runner.inputs(0)["x"], runner.outputs(0)["y"]
        x[...] = values(ranks.rank, call.count, call.dtype, seed)
        y[...] = 77
        runner.launch(0)
        sent = [values(r, call.count, call.dtype, seed) for r in range(call.world_size)]
        if call.dtype == "int32":
            assert (y == np.sum(sent, axis=0, dtype=np.int32)).all(), f"{name} {call}"
        else:
            exact = [s.astype(x.dtype).astype(np.float64) for s in sent]
            # one rounding to the dtype, and float32's in each of n sums
            bound = (
                np.abs(np.sum(exact, axis=0)) * ULP[call.dtype] / 2
                + np.sum(np.abs(exact), axis=0) * call.world_size * ULP["float32"]
                + 6e-8 * (call.dtype == "float16")
            )
            assert (np.abs(y.astype(np.float64) - np.sum(exact, axis=0)) <= bound).all(), f"{name} {call}"
        return hashlib.sha256(y.tobytes()).hexdigest()


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_sums_are_right_and_the_same_bits_on_all_ranks(forked: Any, world: int) -> None:
    """All algorithms and dtypes, also sizes that do not divide by the world size, against float64 or int32 sums."""

    def body(ranks: Any) -> list[str]:
        calls = [Call(count * (2 if "16" in dtype else 4), world, dtype=dtype) for dtype in DTYPES for count in COUNTS]
        return [check(ranks, name, call, i) for name in NAMES for i, call in enumerate(calls)]

    outcomes = forked(world, body)
    assert [o.error for o in outcomes] == [""] * world
    assert all(o.value == outcomes[0].value for o in outcomes)


def test_sixteen_ranks_and_eight_mebibytes(forked: Any) -> None:
    """The largest world size with an odd count, and the largest message with two ranks."""

    def body(ranks: Any) -> list[str]:
        call = Call(4 * 1001, 16, dtype="float32") if ranks.world_size == 16 else Call(8 << 20, 2, dtype="bfloat16")
        return [check(ranks, name, call, 3) for name in NAMES]

    for world in (16, 2):
        outcomes = forked(world, body)
        assert [o.error for o in outcomes] == [""] * world
        assert all(o.value == outcomes[0].value for o in outcomes)


@pytest.mark.parametrize("name", NAMES)
def test_chains_are_safe_without_a_barrier_when_ranks_stumble(forked: Any, name: str) -> None:
    """122 calls back to back, inputs overwritten as soon as a call returns, ranks held up at random: all sums right."""
    count, world, k = 96, 4, 122

    def body(ranks: Any) -> int:
        chance = random.Random(ranks.rank)
        with runner_of(BY_NAME[name])(ranks, Call(4 * count, world, dtype="int32"), k) as runner:
            slots = [(runner.inputs(i)["x"], runner.outputs(i)["y"]) for i in range(k)]
            wrong = 0
            for turn in range(3):
                for i, (x, y) in enumerate(slots):
                    x[...] = ranks.rank * 1000 + turn * 200 + i
                    y[...] = -1
                for i, (x, _) in enumerate(slots):
                    runner.launch(i)
                    x[...] = -123
                    if chance.random() < 0.1:
                        time.sleep(chance.random() * 1e-3)
                for i, (_, y) in enumerate(slots):
                    wrong += int((y != 6000 + 4 * (turn * 200 + i)).sum())
            return wrong

    assert [(o.value, o.error) for o in forked(world, body)] == [(0, "")] * world


def test_a_slow_reader_is_not_overtaken(forked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rank that dawdles before each sum it makes, peers run ahead as far as they may, and every sum is right."""
    total = HostRunner.total

    def dawdling(self: HostRunner, parts: Any, out: Any) -> None:
        if self.rank == 0:
            time.sleep(0.002)
        total(self, parts, out)

    monkeypatch.setattr(HostRunner, "total", dawdling)

    def body(ranks: Any) -> list[bool]:
        right = []
        for name in ("host_one_stage_pull", "host_one_stage_push", "host_two_stage"):
            with runner_of(BY_NAME[name])(ranks, Call(4 * 96, 3, dtype="int32"), 20) as runner:
                for i in range(20):
                    runner.inputs(i)["x"][...] = i * 10 + ranks.rank
                for i in range(20):
                    runner.launch(i)
                right.append(all((runner.outputs(i)["y"] == 30 * i + 3).all() for i in range(20)))
        return right

    assert [(o.value, o.error) for o in forked(3, body)] == [([True] * 3, "")] * 3


def test_sums_beyond_a_16_bit_type_are_infinite_without_a_warning(forked: Any) -> None:
    """60000 + 60000 in float16 is inf; a NaN stays a NaN; the error state of numpy is as before at the end."""

    def body(ranks: Any) -> list[bool]:
        before, found = np.geterr(), []
        for name in NAMES:
            with runner_of(BY_NAME[name])(ranks, Call(8, 2, dtype="float16"), 1) as runner:
                runner.inputs(0)["x"][...] = [60000, np.nan, 1, -60000]
                runner.launch(0)
                y = runner.outputs(0)["y"]
                found.append(bool(y[0] == np.inf and np.isnan(y[1]) and y[2] == 2 and y[3] == -np.inf))
        return [*found, np.geterr() == before]

    assert [(o.value, o.error) for o in forked(2, body)] == [([True] * 6, "")] * 2


@pytest.mark.parametrize("name", NAMES)
def test_nobody_waits_for_a_dead_rank(forked: Any, name: str) -> None:
    """When rank 1 is killed, its peers end within the deadline, and say who waited for whom and where."""

    def body(ranks: Any) -> float:
        with runner_of(BY_NAME[name])(ranks, Call(1024, 3, dtype="float32"), 1) as runner:
            runner.launch(0)
            if ranks.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            runner.launch(0)
            runner.launch(0)
        return 0.0

    start = time.monotonic()
    outcomes = forked(3, body, deadline_s=0.3)
    assert time.monotonic() - start < 5
    assert outcomes[1].error == "died"
    for rank in (0, 2):
        assert outcomes[rank].error.startswith(f"TimeoutError: rank {rank} waited for rank ")
        assert f"{BY_NAME[name].load_runner().__name__}, " in outcomes[rank].error
    assert any("waited for rank 1 " in o.error for o in outcomes)


def test_nothing_is_left_behind(forked: Any) -> None:
    """Leaving a runner, by its end, by an error or by kill -9, leaves no mapping, no descriptor and no name."""

    def files(folder: str) -> list[str]:
        return sorted(path.name for path in Path(folder).iterdir())

    def mappings() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("collbench-")

    def body(ranks: Any) -> list[int]:
        for name in NAMES:  # the first round opens what Python keeps open
            check(ranks, name, Call(1024, 2, dtype="float32"), 1)
        descriptors = files("/proc/self/fd")
        for name in NAMES:
            check(ranks, name, Call(1024, 2, dtype="float32"), 1)
            with contextlib.suppress(ZeroDivisionError), runner_of(BY_NAME[name])(ranks, Call(64, 2), 2) as runner:
                assert mappings() > 0
                runner.launch(1)
                raise ZeroDivisionError
        return [mappings(), len(files("/proc/self/fd")) - len(descriptors)]

    def killed(ranks: Any) -> None:
        with runner_of(BY_NAME["host_two_stage"])(ranks, Call(1 << 20, 2), 1) as runner:
            runner.launch(0)
            os.kill(os.getpid(), signal.SIGKILL)

    before = files("/dev/shm")
    assert [(o.value, o.error) for o in forked(2, body)] == [([0, 0], "")] * 2
    assert [o.error for o in forked(2, killed)] == ["died", "died"]
    assert files("/dev/shm") == before


def test_torch_is_not_needed() -> None:
    """Records and runners import with torch blocked."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from collbench.algorithms import gloo, host\n"
        "print([a.load_runner().__name__ for a in host.ALGORITHMS + gloo.ALGORITHMS])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert "'Tree', 'GlooRunner'" in done.stdout, done.stderr


def machine(**changes: Any) -> Machine:
    fields: dict[str, Any] = {
        "topology": Topology((), ()), "fabric": Fabric.HOST, "ranks": 8, "facts": {"host_arch": "x86_64"},
    }  # fmt: skip
    return Machine(**fields | changes)


@pytest.mark.parametrize(
    ("where", "call", "reason"),
    [
        (machine(hosts=2), Call(1024, 8), "ranks on 2 hosts"),
        (machine(facts={"host_arch": "aarch64"}), Call(1024, 8), "memory ordering argued for x86-64 only"),
        (machine(), Call(1024, 17), "17 ranks"),
        (machine(), Call(1024, 8, op="max"), "all_reduce (max)"),
        (machine(), Call(1024, 8, Collective.ALL_GATHER), "all_gather (sum)"),
        (machine(), Call(1024, 8, epilogue="rms_norm"), "with rms_norm"),
        (machine(), Call(1024, 8, dtype="float64"), "dtype float64"),
        (machine(), Call((8 << 20) + 4, 8), "8388612 bytes"),
        (machine(), Call(6, 8, dtype="float32"), "6 bytes"),
    ],
)
def test_what_it_cannot_do_it_says(where: Machine, call: Call, reason: str) -> None:
    """`support` names what is in the way, for every algorithm alike, and does not raise."""
    for algorithm in host.ALGORITHMS:
        answer = algorithm.support(where, call)
        assert not answer
        assert reason in answer.reason


def test_what_it_can_do() -> None:
    """16 B to 8 MiB in four dtypes on up to 16 ranks runs; where the processor is not known, the answer is unknown."""
    for algorithm in host.ALGORITHMS:
        for dtype in DTYPES:
            assert algorithm.support(machine(), Call(16, 1, dtype=dtype)) == Support.yes()
            assert algorithm.support(machine(), Call(8 << 20, 16, dtype=dtype)) == Support.yes()
        assert algorithm.support(machine(facts={}), Call(1024, 8)).answer == "unknown"


def test_estimates_grow_with_bytes_and_ranks() -> None:
    """The estimate of one call is positive and rises with message and world size; traffic is what the name says."""
    for algorithm in host.ALGORITHMS:
        costs = [algorithm.cost_us(Call(size, n), machine()) for size, n in ((16, 1), (1024, 8), (1 << 20, 8))]
        assert 0 < costs[0] < costs[1] < costs[2]
        schedule = algorithm.traffic(Call(1024, 8), Topology((), ()))
        assert schedule.wire_factor == 2.0
        assert sum(len(phase.flows) for phase in schedule.phases) > 0
