"""The device code itself, run on the CPU: ranks as fibers, seeded schedules, torn vectors, ranks that run ahead."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.algorithms.cuda.arguments import Islands
from collbench.algorithms.cuda.compile import KERNELS, SPEEDUPS
from collbench.algorithms.cuda.designs import COLLECTIVES, FLAGGED, FUSED, dtypes_of
from collbench.algorithms.cuda.harness import APPLIES, NEAR_WRAP, steps_of
from collbench.algorithms.cuda.references import problem_of, random_input
from collbench.algorithms.cuda.virtual import Setting
from collbench.results.records import DTYPE_BYTES

Emulate = Callable[[Setting], Any]
"""The fixture `emulate`: the emulated ranks of a setting."""


def dtype_of(kernel: str) -> str:
    return "int32" if kernel in FLAGGED else "bfloat16"


def small(kernel: str, world_size: int, dtype: str = "", **more: object) -> Setting:
    return Setting(kernel, world_size, dtype or dtype_of(kernel), 700, blocks=2, threads=8, **more)  # type: ignore[arg-type]


def mostly_slow(cases: Iterable[tuple[Any, ...]], quick: Callable[..., bool]) -> list[Any]:
    """Cases of which some always run and the others are marked slow."""
    return [pytest.param(*case, marks=() if quick(*case) else pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(
    ("kernel", "world_size"), mostly_slow(product(KERNELS, (2, 3, 8)), lambda _, world_size: world_size == 3)
)
def test_every_element_of_every_call_is_exact(kernel: str, world_size: int, emulate: Emulate) -> None:
    """Sizes and grids alternate, inputs are overwritten at once, the epoch crosses 2^32."""
    setting = small(kernel, world_size, epoch=NEAR_WRAP)
    emulation = emulate(setting)
    outcome = emulation.play(steps_of(setting, 300, world_size, 0), seed=world_size)
    assert (outcome.wrong, outcome.first, outcome.errors) == (0, "", ())
    assert {emulation.epoch(rank) for rank in range(world_size)} == {NEAR_WRAP + 300}


@pytest.mark.parametrize(
    ("kernel", "name"), list(product(("push", "one_stage_pull_data", "one_stage_pull_kept"), SPEEDUPS))
)
def test_what_makes_kernels_fast_can_be_left_out(kernel: str, name: str, emulate: Emulate) -> None:
    """The slower builds compute the same."""
    setting = small(kernel, 3, without=SPEEDUPS[name])
    outcome = emulate(setting).play(steps_of(setting, 150, 7, 0), seed=7)
    assert (outcome.wrong, outcome.errors) == (0, ())


QUICK_DTYPES = {("islands_fused", "float16"), ("push_reduce_scatter", "bfloat16"), ("staged_ring", "float32")}


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    mostly_slow(
        ((k, d) for k in KERNELS for d in dtypes_of(k) if d != dtype_of(k)), lambda *case: case in QUICK_DTYPES
    ),
)
def test_other_element_types(kernel: str, dtype: str, emulate: Emulate) -> None:
    """The same holds for every type that a kernel takes."""
    setting = small(kernel, 4, dtype)
    outcome = emulate(setting).play(steps_of(setting, 150, 5, 0), seed=5)
    assert (outcome.wrong, outcome.errors) == (0, ())


@pytest.mark.parametrize("kernel", ["islands", "islands_fused"])
@pytest.mark.parametrize(
    "groups", [((0, 1, 2), (3,)), ((0,), (1,), (2, 3)), ((3, 1), (0, 2)), ((0, 1, 2, 3),), ((0,), (1,), (2,), (3,))]
)
def test_islands_of_any_shape(groups: tuple[tuple[int, ...], ...], kernel: str, emulate: Emulate) -> None:
    """Groups may differ in size and in number, and need not be neighbours."""
    setting = small(kernel, 4, islands=Islands(groups))
    outcome = emulate(setting).play(steps_of(setting, 150, 9, 0), seed=9)
    assert (outcome.wrong, outcome.first, outcome.errors) == (0, "", ())


QUICK_RULES = {
    (1, "push"), (2, "push_all_to_all"), (2, "push_barrier"), (2, "islands_fused"), (3, "push_fused"),
    (3, "push_all_gather"), (4, "one_stage_pull"), (5, "two_stage_pull_flag"), (6, "push_flags"),
    (7, "one_stage_pull_flag"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "kernel"),
    mostly_slow(((r, k) for r, names in APPLIES.items() for k in names), lambda *case: case in QUICK_RULES),
)
def test_a_broken_rule_is_seen(rule: int, kernel: str, emulate: Emulate) -> None:
    """A build without one rule gives wrong data or a wait that expires; a missing fence alone does not show."""
    setting = small(kernel, 4, broken=rule, deadline_s=0.2)
    # a schedule of ranks shows a missing rule three times out of four: the fault is one of order
    played = (emulate(setting).play(steps_of(setting, 300, seed, 0), seed=seed) for seed in (3, 1, 2, 4, 5, 11))
    seen = any(outcome.wrong or outcome.errors for outcome in played)
    assert seen == (rule != 7), "emulated memory is sequentially consistent, so a fence cannot be missed here"


def test_a_wait_names_its_peer_and_stops_all_ranks(emulate: Emulate) -> None:
    """With barriers that can never match, the record says who waited for whom, and every rank comes home."""
    setting = small("push", 2, broken=2, deadline_s=0.1)
    outcome = emulate(setting).play(steps_of(setting, 100, 3, 0), seed=4)
    record = outcome.errors[0]
    assert record.missing == (1 - record.rank,)
    assert f"from rank {1 - record.rank}" in str(record)
    assert record.waited_s >= 0.1


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.sampled_from([k for k in KERNELS if k not in FUSED]), size=st.integers(16, 700),
    seed=st.integers(0, 1 << 30), blocks=st.integers(1, 2),
)  # fmt: skip
def test_outputs_agree_with_a_reference(emulate: Emulate, kernel: str, size: int, seed: int, blocks: int) -> None:
    """Any size, signed zeros, mixed magnitudes: close to float64 or the bytes sent, and nothing written behind."""
    setting = small(kernel, 3)
    size = int(setting.step(size, blocks).bytes)
    rng = np.random.default_rng(seed)
    count = setting.input_bytes(size) // DTYPE_BYTES[setting.dtype]
    inputs = [random_input(rng, count, setting.dtype) for _ in range(3)]
    outputs = emulate(setting).run(inputs, size, blocks, seed)
    length = setting.output_bytes(size)
    assert problem_of(kernel, inputs, [data[:length] for data in outputs], setting.dtype) == ""
    assert all(set(data[length:]) <= {0xFF} for data in outputs)


@pytest.mark.parametrize("kernel", COLLECTIVES)
def test_parts_of_odd_length_start_between_words(kernel: str, emulate: Emulate) -> None:
    """Parts of 7 elements of 2 bytes, of which every other starts in the middle of a word."""
    setting = small(kernel, 3, "bfloat16")
    size = int(setting.step(3 * 7 * 2, 1).bytes)
    rng = np.random.default_rng(1)
    inputs = [random_input(rng, setting.input_bytes(size) // 2, "bfloat16") for _ in range(3)]
    outputs = emulate(setting).run(inputs, size, 1, 2)
    length = setting.output_bytes(size)
    assert problem_of(kernel, inputs, [data[:length] for data in outputs], "bfloat16") == ""
    assert all(set(data[length:]) <= {0xFF} for data in outputs)
